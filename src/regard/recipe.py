"""Recipes: frozen dataclasses to and from TOML, with `a.b=c` overrides; unknown keys are refused."""

import dataclasses
import json
import math
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import takewhile
from pathlib import Path
from typing import Any, TypeVar, get_args, get_type_hints

from regard.errors import RecipeError, did_you_mean

EMBEDDED = Path(__file__).parent / "recipes"
SMALL = 0.02  # standard deviation of the weights with model.init = small
FORMAT = 2  # of a recipe's TOML: in format 1, model.decoder.order = gnmt meant what is gnmt_v2 today


def _number(default: float | None, least: float, most: float | None = None) -> Any:
    """A dataclass field for a number that has a range."""
    return field(default=default, metadata={"least": least, "most": most})


@dataclass(frozen=True)
class Data:
    """Where the pairs come from: files, or an embedded corpus where no file is given."""

    corpus: str = ""  # `regard list corpora`
    size: int = _number(25_000, least=1)  # training pairs to generate for an embedded corpus
    train: tuple[str, ...] = ()  # one TSV file, or two line-parallel texts; plain or gz
    dev: tuple[str, ...] = ()  # where none is given, a part of `train` is split off
    test: tuple[str, ...] = ()  # what `regard score RUN` scores on
    format: str = "pairs"  # of a tagger's files; `regard list formats`
    header: bool = False  # the first line of each TSV of labelled sentences names its columns, and is skipped
    max_length: int = _number(250, least=1)  # pairs with more tokens on a side are dropped from training
    window: int = _number(0, least=0)  # of a language model: tokens a text is cut into; 0 for each line by itself
    stride: int = _number(0, least=0)  # tokens from where one training window begins to the next; 0 for data.window


@dataclass(frozen=True)
class Tokens:
    """How text becomes tokens on either side."""

    source: str = "character"  # `regard list tokenizers`
    target: str = "character"  # likewise
    size: int = _number(8000, least=1)  # the most frequent tokens that are kept
    shared: bool = False  # one vocabulary for both sides
    least: int = _number(1, least=1)  # times that a tagger sees a word in training to know it
    lower: bool = False  # taggers, classifiers, masked language models know lower case alone; a tagger's letters stay


@dataclass(frozen=True)
class Attention:
    """Attention at every site without a section of its own; `dim` is the inner width of scores that have one."""

    score: str = "additive"  # `regard list scores`
    dim: int = _number(128, least=1)  # inner width; the heads of a Transformer share its own dim instead
    normalizer: str = "softmax"  # `regard list normalizers`; with hard, a Transformer encoder's own looks are softmax
    scope: str = "global"  # `regard list scopes`; beside one with a past, a Transformer encoder's own looks are global
    window: int = _number(10, least=1)  # how far local scopes see to either side
    heads: int = _number(1, least=1)  # looks at once, which share dim
    groups: int = _number(0, least=0)  # heads of keys and values, which the heads share; 0 for as many as heads
    dropout: float = _number(0.0, least=0.0, most=0.95)  # share of the weights dropped in training


@dataclass(frozen=True)
class Site:
    """Attention at one site: what is not given here is as in model.attention."""

    score: str | None = None  # of this site
    dim: int | None = _number(None, least=1)  # likewise, and so on
    normalizer: str | None = None  # see model.attention
    scope: str | None = None  # see model.attention
    window: int | None = _number(None, least=1)  # see model.attention
    heads: int | None = _number(None, least=1)  # see model.attention
    groups: int | None = _number(None, least=0)  # see model.attention
    dropout: float | None = _number(None, least=0.0, most=0.95)  # see model.attention

    def of(self, default: Attention) -> Attention:
        """The attention of the site, with the default where nothing else is given."""
        own = {name: value for name, value in vars(self).items() if value is not None}
        return replace(default, **own)


@dataclass(frozen=True)
class Encoder:
    """The reader of the source; `dim` is the width of a state, both directions together."""

    kind: str = "recurrent"  # `regard list encoders`
    cell: str = "gru"  # of a recurrent one; `regard list cells`
    dim: int = _number(128, least=1)  # width of a state
    layers: int = _number(1, least=1)  # on top of each other
    bidirectional: bool = True  # read in both directions; a Transformer always does
    bias: bool = True  # of the recurrent layers
    inner_dim: int = _number(0, least=0)  # of an LSTM projected down to dim, 0 for none; of feed-forward, 0 for 4 x dim
    dropout: float = _number(0.0, least=0.0, most=0.95)  # share of numbers dropped in training
    inner_dropout: float = _number(0.0, least=0.0, most=0.95)  # likewise, inside a Transformer's feed-forward layers
    self_attention: Site = Site()  # of a Transformer


@dataclass(frozen=True)
class Decoder:
    """The writer of the target; `order` says when a recurrent one looks."""

    kind: str = "recurrent"  # `regard list decoders`
    order: str = "bahdanau"  # of a recurrent one; `regard list orders`
    start: str = "bridge"  # of a recurrent one; `regard list starts`
    cell: str = "gru"  # of a recurrent one; `regard list cells`
    dim: int = _number(128, least=1)  # width of a state
    layers: int = _number(1, least=1)  # on top of each other
    inner_dim: int = _number(0, least=0)  # of a Transformer's feed-forward layers; 0 for 4 x dim
    copies: bool = False  # of a recurrent one: it may point at a source's token instead of choosing a word
    dropout: float = _number(0.0, least=0.0, most=0.95)  # share of numbers dropped in training
    inner_dropout: float = _number(0.0, least=0.0, most=0.95)  # likewise, inside a Transformer's feed-forward layers
    self_attention: Site = Site()  # of a Transformer
    cross_attention: Site = Site()  # to the source


@dataclass(frozen=True)
class Letters:
    """How a tagger reads the letters of a word, besides the word itself."""

    kind: str = "convolutional"  # `regard list letters`
    embedding: int = _number(32, least=1)  # width of a letter
    dim: int = _number(64, least=0)  # width of what they make of a word; 0 for words alone


@dataclass(frozen=True)
class Model:
    """The parts of a model."""

    embedding: int = _number(64, least=1)  # width of a token; a Transformer's dim is taken instead
    tied: bool = False  # words are predicted with the matrix that embeds them; on both sides where tokens.shared
    norm: str = "pre"  # pre or post: where a Transformer normalises
    activation: str = "relu"  # `regard list activations`
    positions: str = "sinusoidal"  # `regard list positions`
    init: str = "glorot"  # the weights a Transformer begins with; `regard list inits`
    longest: int = _number(1024, least=1)  # positions that are learned: by positions = learned, by the score location
    pooling: str = "attention"  # of a classifier: how states become one vector; `regard list poolings`
    segments: bool = False  # question and context are told apart by a vector for each
    overlap: bool = False  # tokens of the context that the question has too are told apart by a vector
    encoder: Encoder = Encoder()
    attention: Attention = Attention()
    decoder: Decoder = Decoder()
    letters: Letters = Letters()


@dataclass(frozen=True)
class Train:
    """How the model learns."""

    updates: int = _number(1000, least=1)  # at most; see patience
    batch_tokens: int = _number(4000, least=1)  # rows times the longest side, at most
    learning_rate: float = _number(0.001, least=0.0, most=1e37)  # the highest
    schedule: str = "constant"  # `regard list schedules`
    warmup: int = _number(0, least=0)  # updates until the learning rate is reached
    clip: float = _number(1.0, least=0.0)  # largest norm of the gradient; 0 for none
    weight_decay: float = _number(0.0, least=0.0, most=10.0)  # share of the weights taken off at each update, x rate
    smoothing: float = _number(0.0, least=0.0, most=0.95)  # of the labels
    word_dropout: float = _number(0.0, least=0.0, most=0.95)  # share of words hidden from classifiers and taggers
    masked: float = _number(0.15, least=0.01, most=0.95)  # share of tokens a masked language model is asked for
    whole_words: bool = False  # it is asked for all pieces of a word at once
    validate: int = _number(250, least=1)  # updates between two looks at dev
    accumulate: int = _number(1, least=1)  # batches that make one update
    ema: float = _number(0.0, least=0.0, most=0.99999)  # decay of a moving mean of the weights; 0 for none
    average: int = _number(1, least=1)  # validations whose weights are averaged
    keep: str = "best"  # which weights end in the run: the best by dev loss, or the last
    sampling: float = _number(0.0, least=0.0, most=1.0)  # share of own predictions fed at the end; it grows from 0
    coverage: float = _number(0.0, least=0.0)  # weight of See's loss: looks that return to where others were
    doubly_stochastic: float = _number(0.0, least=0.0)  # weight of Xu's: keys that are looked at more or less than once
    guided: float = _number(0.0, least=0.0)  # weight of looks that miss known links; characters alone have them
    entropy: float = _number(0.01, least=0.0)  # of looks that are drawn (hard): what keeps them from settling early
    patience: int = _number(0, least=0)  # validations without a better dev loss before stopping; 0 for never
    start_from: str = ""  # a run: what fits of its weights, and its tokenizers, are taken to begin with
    seed: int = _number(1, least=0)  # of weights, batches, dropout and embedded corpora
    device: str = "auto"  # cpu, cuda, or auto: the GPU where there is one
    threads: int = _number(0, least=0)  # of the CPU; 0 leaves it to torch
    precision: str = "float32"  # of matrix products: float32, bfloat16, or auto: bfloat16 on a GPU fast in it
    capture: bool = True  # on a GPU: an update is one CUDA graph, where it can be
    compile: bool = False  # in captured updates: through torch.compile, which takes a minute and pays on large models
    deterministic: bool = False  # only such algorithms as give the same bits again; slower on a GPU


@dataclass(frozen=True)
class Search:
    """How an output is found."""

    beam: int = _number(1, least=1)  # 1 is greedy
    length_penalty: float = _number(0.0, least=0.0)  # exponent of GNMT's penalty; 0 for none
    coverage_penalty: float = _number(0.0, least=0.0)  # weight of GNMT's; 0 for none
    no_repeat: int = _number(0, least=0)  # no n-gram of this length is written twice; 0 forbids none
    temperature: float = _number(0.0, least=0.0)  # above 0, outputs are drawn at random and not searched
    top_k: int = _number(0, least=0)  # draw from so many of the likeliest words; 0 for all
    top_p: float = _number(1.0, least=0.01, most=1.0)  # draw from the fewest words that hold so much chance
    max_ratio: float = _number(2.0, least=0.0)  # an output is at most max_ratio x source + max_extra tokens
    max_extra: int = _number(20, least=1)  # see max_ratio
    max_answer: int = _number(30, least=1)  # tokens of an answer that is looked for in a context


@dataclass(frozen=True)
class Recipe:
    """Everything that makes a run."""

    name: str = "run"  # of the run directory
    task: str = "translate"  # `regard list tasks`
    metric: str = "exact_match"  # `regard list metrics`
    source: str = "text"  # what the input of task = translate is; `regard list sources`
    data: Data = Data()
    tokens: Tokens = Tokens()
    model: Model = Model()
    train: Train = Train()
    search: Search = Search()


def names() -> list[str]:
    """The recipes that come with regard."""
    return sorted(path.stem for path in EMBEDDED.glob("*.toml"))


def load(name: str | Path, overrides: Iterable[str] = ()) -> Recipe:
    """The recipe of that name or file, with `a.b=c` overrides."""
    path, content = _content(name)
    return parse(content, str(path), overrides)


def comment(name: str | Path) -> list[str]:
    """The lines that a recipe begins with: what it is, whose paper, what it needs or leaves out."""
    lines = _content(name)[1].split("\n")
    return [line.removeprefix("#").strip() for line in takewhile(lambda line: line.startswith("#"), lines)]


def _content(name: str | Path) -> tuple[Path, str]:
    path = Path(name)
    if path.suffix != ".toml":
        path = EMBEDDED / f"{name}.toml"
        if str(name) not in names():
            near = did_you_mean(str(name), names())
            raise RecipeError(f"no recipe {str(name)!r}; choose from {', '.join(names())} or give a .toml file{near}")
    try:
        return path, path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise RecipeError(f"the recipe {path} cannot be read: {error}") from error


def parse(content: str, origin: str, overrides: Iterable[str] = (), format: int = FORMAT) -> Recipe:
    """A recipe from TOML, in the terms of today's format; `origin` names it in messages.

    `format` is that of a recipe that names none.
    """
    try:
        values = tomllib.loads(content)
    except tomllib.TOMLDecodeError as error:
        raise RecipeError(f"{origin} is not valid TOML: {error}") from error
    format = values.pop("format", format)
    if type(format) is not int or not 1 <= format <= FORMAT:
        raise RecipeError(f"{origin} is of format {format!r}, and this regard reads 1 to {FORMAT}; take one that fits")
    recipe = fill(Recipe(), values, origin, "")
    recipe = _renewed(recipe) if format == 1 else recipe
    for text in overrides:
        recipe = override(recipe, text)
    return recipe


def _renewed(recipe: Recipe) -> Recipe:
    """A recipe that was written in format 1, in today's terms."""
    decoder = recipe.model.decoder
    if decoder.order == "gnmt":
        decoder = replace(decoder, order="gnmt_v2")
    return replace(recipe, model=replace(recipe.model, decoder=decoder))


def override(recipe: Recipe, text: str) -> Recipe:
    """The recipe with one key changed, as `model.attention.score=dot` says."""
    return fill(recipe, assigned(text), "the command line", "")


def assigned(text: str) -> dict[str, Any]:
    """The key and the value of `KEY=VALUE`, for `fill`."""
    key, equals, value = text.partition("=")
    if not equals:
        raise RecipeError(f"an override is KEY=VALUE, such as train.seed=7, not {text!r}")
    if not text.isprintable() and any("\ud800" <= character <= "\udfff" for character in text):
        raise RecipeError(f"an override is UTF-8 text, which {text!r} is not; rename the file")
    first, *parts = key.strip().split(".")
    values: Any = _Word(value)
    for part in reversed(parts):
        values = {part: values}
    return {first: values}


def to_toml(recipe: Recipe) -> str:
    """The whole recipe as TOML, its format and every key written out."""
    return "\n".join([f"format = {FORMAT}", *_lines(recipe, "")]) + "\n"


class _Word(str):
    """A value as written on the command line: its key decides how it is read."""


Section = TypeVar("Section")


def fill(section: Section, values: Mapping[str, Any], origin: str, prefix: str) -> Section:
    """The section with the given values; nothing unknown, nothing of the wrong kind."""
    known = {item.name: item for item in dataclasses.fields(section)}  # type: ignore[arg-type]
    kinds = get_type_hints(type(section))
    changed = {}
    for key, value in values.items():
        name = prefix + key
        if key not in known:
            near = did_you_mean(name, [prefix + other for other in known]) or f"; there are {', '.join(known)}"
            raise RecipeError(f"unknown key {name!r} in {origin}{near}")
        if dataclasses.is_dataclass(kinds[key]):
            if not isinstance(value, Mapping):
                raise RecipeError(f"{name} in {origin} is a section of keys, not a value; write {name}.KEY=VALUE")
            changed[key] = fill(getattr(section, key), value, origin, name + ".")
        else:
            changed[key] = _value(value, kinds[key], known[key].metadata, f"{name} in {origin}")
    return dataclasses.replace(section, **changed)  # type: ignore[type-var]


def _value(value: Any, kind: Any, limits: Mapping[str, Any], name: str) -> Any:
    """One value, as its key wants it."""
    if type(None) in get_args(kind):  # a key that may be left out
        (kind,) = set(get_args(kind)) - {type(None)}
    if isinstance(value, _Word):
        value = _read(value, kind)
    if kind == tuple[str, ...]:
        value = (value,) if isinstance(value, str) else value
        if not isinstance(value, list | tuple) or not all(isinstance(item, str) for item in value):
            raise RecipeError(f"{name} is a file name or a list of them, not {value!r}")
        return tuple(value)
    if kind is float and type(value) is int:
        value = float(value)
    if type(value) is not kind:
        words = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}
        raise RecipeError(f"{name} is {words[kind]}, not {value!r}")
    least, most = limits.get("least"), limits.get("most")
    if kind is float and not math.isfinite(value):
        raise RecipeError(f"{name} is a finite number, not {value!r}")
    if (least is not None and not value >= least) or (most is not None and not value <= most):
        upper = "" if most is None else f" and at most {most}"
        raise RecipeError(f"{name} is at least {least}{upper}, not {value!r}")
    return value


def _read(word: str, kind: Any) -> Any:
    """A word of the command line: TOML where it is TOML, else the text itself."""
    try:
        value = tomllib.loads(f"value = {word}")["value"]
    except tomllib.TOMLDecodeError:
        value = str(word)
    if kind is str and not isinstance(value, str):
        return str(word)
    if kind == tuple[str, ...] and not isinstance(value, list):
        return [part for part in str(word).split(",") if part]
    return value


def _lines(section: Any, prefix: str) -> Iterable[str]:
    nested = []
    for item in dataclasses.fields(section):
        value = getattr(section, item.name)
        if value is None:  # not given
            continue
        if dataclasses.is_dataclass(value):
            nested.append((prefix + item.name, value))
        else:
            plain = list(value) if isinstance(value, tuple) else value
            told = json.dumps(plain, ensure_ascii=False).replace("\x7f", "\\u007f")  # then JSON of these is TOML
            yield f"{item.name} = {told}"
    for name, value in nested:
        yield f"\n[{name}]"
        yield from _lines(value, name + ".")
