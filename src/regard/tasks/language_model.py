"""Text by itself: every token predicted from those before it, and a text continued."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

from regard import search
from regard.data import batching, files
from regard.data.files import Loaded
from regard.data.tokenizers import TOKENIZERS, Tokenizer
from regard.errors import DataError, RecipeError, pick
from regard.metrics import METRICS, Cost
from regard.models import language
from regard.models.language import LanguageModel
from regard.recipe import Recipe, Search
from regard.search.sample import DRAW
from regard.sources.text import SOURCE, build_tokenizer
from regard.storage import Run
from regard.tasks import core
from regard.tasks.core import Encoded, Examples, Scored, Task
from regard.types import BEGIN, END, PAD, SPECIALS, UNKNOWN, Batch, Example, Hypothesis, Memory, Padded, Prediction

SEARCH_TOKENS = 8000  # tokens times beams that are continued at once
TURN = 1_000_003  # between the seeds of two turns: torch takes the lower 32 bits of a seed alone


@dataclass(frozen=True)
class Rows(Encoded):
    """Texts as one stream of ids, and the stretches of it that are the rows: lines with their END, or windows.

    There are as many rows as `lengths`. Every row is read after BEGIN, which the stream does not hold.
    """

    stream: Int[Tensor, " all"]
    starts: Int[Tensor, " rows"]
    ends: Int[Tensor, " rows"]
    homes: Int[Tensor, " rows"]  # the example in which each row begins

    def lengths(self) -> list[tuple[int, int]]:
        """The tokens that are predicted in each row; there is no source."""
        return [(0, length) for length in (self.ends - self.starts).tolist()]

    def only(self, indices: Sequence[int]) -> "Rows":
        """Those rows, and the examples in which they begin."""
        chosen = torch.tensor(indices, dtype=torch.long)
        kept, homes = self.homes[chosen].unique(return_inverse=True)
        examples = [self.examples[index] for index in kept.tolist()]
        return Rows(examples, self.stream, self.starts[chosen], self.ends[chosen], homes)

    def windows(self, window: int, stride: int) -> "Rows":
        """The stream in windows that begin at every `stride`-th token; the last reaches its end, and may be shorter."""
        last = max(0, math.ceil((len(self.stream) - window) / stride))
        starts = torch.arange(last + 1) * stride
        ends = (starts + window).clamp(max=len(self.stream))
        return replace(self, starts=starts, ends=ends, homes=_homes(self.examples, starts, len(self.stream)))


class Written(NamedTuple):
    """What was written after a text."""

    tokens: list[int]
    score: float  # their log-probability, after the text
    finished: bool  # False where the room was used up

    def then(self, more: "Written") -> "Written":
        """This and what was written after it."""
        return Written([*self.tokens, *more.tokens], self.score + more.score, more.finished)


class Continue(Task[LanguageModel, Rows, Batch]):
    """A language model: plain text, cross-entropy of every token after those before it; it continues texts.

    With data.window, all text is one stream, newlines and all, that is cut into windows of so many tokens; without it,
    each line is a text of its own that ends with END.
    """

    metrics = ("perplexity", "bits_per_character")
    shows = False
    noun = "line"

    def __init__(self, recipe: Recipe, source: Tokenizer) -> None:
        super().__init__(recipe)
        self.source = source

    @staticmethod
    def check(recipe: Recipe) -> None:
        """Refuse a recipe that names what is not there, or does not fit together, before any data is read."""
        pick(TOKENIZERS, recipe.tokens.source, "tokenizer")
        data, model = recipe.data, recipe.model
        if data.stride > data.window:
            raise RecipeError(
                f"data.stride is at most data.window = {data.window}, not {data.stride}: text would be skipped"
            )
        if recipe.train.sampling:
            raise RecipeError("train.sampling is for models with a source; a language model needs it to be 0")
        read = data.window or data.max_length + 1
        if model.decoder.kind == "transformer" and model.positions == "learned" and model.longest < read:
            raise RecipeError(
                f"model.longest = {model.longest} positions are learned, but {read} tokens are read at once; raise it"
            )
        with torch.device("meta"):  # the model without its memory: sizes that do not fit show here
            language.build(model, size=len(SPECIALS))

    # from files to rows

    @staticmethod
    def read(names: tuple[str, ...]) -> Loaded:
        """All lines of plain texts, newlines and blank ones kept: a stream."""
        return Loaded(files.stream(names), 0)

    @staticmethod
    def read_lines(names: tuple[str, ...]) -> Loaded:
        """The lines of plain texts that are not blank, without their newlines: each a text of its own."""
        lines = files.stream(names)
        kept = [replace(each, target=each.target.removesuffix("\n")) for each in lines if each.target.strip()]
        if not kept:
            raise DataError(f"{' and '.join(names)}: no line is left, for all {len(lines):,} are blank")
        return Loaded(kept, len(lines) - len(kept))

    @classmethod
    def reader(cls, recipe: Recipe) -> Callable[[tuple[str, ...]], Loaded]:
        """What reads a stream, or lines."""
        stream = super().reader(recipe)
        return stream if recipe.data.window else cls.read_lines

    @classmethod
    def examples(cls, recipe: Recipe) -> Examples:
        """Read or generate all text; where no dev file is given, dev is the end of a stream, or some of the lines."""
        data, read = recipe.data, cls.reader(recipe)
        if not data.train:
            train, dev, test, notes = super().examples(recipe)
            taken = _ended if data.window else list
            return Examples(taken(train), taken(dev), taken(test), notes)
        train, dropped = read(data.train)
        notes = [" and ".join(data.train) + (f", {dropped:,} blank lines dropped" if dropped else "")]
        test = read(data.test).examples if data.test else []
        if data.dev:
            return Examples(train, read(data.dev).examples, test, notes)
        train, dev = _last_tenth(train) if data.window else _some_lines(train, recipe.train.seed)
        part = f"the last tenth, {_characters(dev):,} characters, is" if data.window else f"{len(dev):,} lines are"
        return Examples(train, dev, test, [*notes, f"no data.dev given: {part} split off for it"])

    @classmethod
    def learn(cls, recipe: Recipe, examples: Sequence[Example], origin: Run | None = None) -> "Continue":
        """Build the tokenizer on the training text, unless the run one starts from has it."""
        texts = [each.target for each in examples]
        return cls(recipe, build_tokenizer(recipe.tokens.source, texts, recipe.tokens.size, SOURCE, origin))

    @classmethod
    def restore(cls, recipe: Recipe, read: Callable[[str], bytes]) -> "Continue":
        """The task of a stored run."""
        return cls(recipe, pick(TOKENIZERS, recipe.tokens.source, "tokenizer").from_bytes(read(SOURCE)))

    def files(self) -> dict[str, bytes]:
        """What a run must keep besides the weights."""
        return {SOURCE: self.source.to_bytes()}

    def build(self) -> LanguageModel:
        """A model with fresh weights."""
        return language.build(self.recipe.model, size=self.source.size)

    def encode(self, examples: Sequence[Example]) -> Rows:
        """All text as ids; windows do not overlap."""
        window = self.recipe.data.window
        return self._stream(examples).windows(window, window) if window else self._lines(examples)

    def _stream(self, examples: Sequence[Example]) -> Rows:
        """All text as one row; encoded at once, for sub-words would begin anew with every line."""
        ids = torch.tensor(self.source.encode("".join(each.target for each in examples)), dtype=torch.long)
        if not len(ids):
            raise DataError("a text to learn from or to be scored on has no tokens; give more of it")
        first = torch.zeros(1, dtype=torch.long)
        return Rows(list(examples), ids, first, first + len(ids), first)

    def _lines(self, examples: Sequence[Example]) -> Rows:
        """Every line as a row, with its END."""
        rows = [[*self.source.encode(each.target), END] for each in examples]
        ids = torch.tensor([token for row in rows for token in row], dtype=torch.long)
        ends = torch.tensor([len(row) for row in rows], dtype=torch.long).cumsum(0)
        return Rows(list(examples), ids, functional.pad(ends[:-1], (1, 0)), ends, torch.arange(len(rows)))

    def within_length(self, data: Rows) -> Rows:
        """What is learned from: lines that are short enough; of a stream, windows that may overlap."""
        settings = self.recipe.data
        if not settings.window:
            return super().within_length(data)
        if len(data.stream) < settings.window:
            raise DataError(
                f"the training text has {len(data.stream):,} tokens, fewer than one window of {settings.window:,}; "
                "give more text or a smaller data.window"
            )
        return data.windows(settings.window, settings.stride or settings.window)

    def told(self, data: Rows, dev: Rows) -> Iterator[str]:
        """The size of the vocabulary, what it does not hold, and how many windows there are."""
        unknown = int((dev.stream == UNKNOWN).sum()) / len(dev.stream)
        yield f"a vocabulary of {self.source.size:,} tokens, {unknown:.2%} of the dev tokens unknown"
        if window := self.recipe.data.window:
            stride = self.recipe.data.stride or window
            cut = f"{len(data.starts):,} windows of {window:,} tokens, one every {stride:,}"
            yield f"{cut}; {len(dev.starts):,} dev windows"

    def collate(self, data: Rows, indices: Sequence[int]) -> Batch:
        """The batch of these rows; its source is empty."""
        chosen = torch.tensor(indices, dtype=torch.long)
        starts, ends = data.starts[chosen].unsqueeze(1), data.ends[chosen].unsqueeze(1)
        places = torch.arange(int((ends - starts).max()))
        real = places < ends - starts
        ids = data.stream[(starts + places).clamp(max=len(data.stream) - 1)].masked_fill(~real, PAD)
        target = Padded(functional.pad(ids, (1, 0), value=BEGIN), functional.pad(real, (1, 0), value=True))
        return Batch(Padded(ids[:, :0], real[:, :0]), target, data.homes[chosen])

    # from rows to what is lost on them

    def tokens(self, batch: Batch) -> int:
        """The tokens that are predicted in a batch: all but BEGIN."""
        return int(batch.target.mask[:, 1:].sum())

    def loss(
        self, model: LanguageModel, batch: Batch, smoothing: float = 0.0, sampling: float = 0.0
    ) -> Float[Tensor, ""]:
        """The summed cross-entropy of every token after the ones before it."""
        return core.cross_entropy(model(batch).logits, batch.target.ids[:, 1:], smoothing)

    def measure(self, model: LanguageModel, examples: Sequence[Example], metric: str, settings: Search) -> Scored:
        """What the model pays for the text, in all and, of lines, by group; nothing is continued for it."""
        self.check_metric(metric)
        if not examples:
            raise DataError("there is no text to score; give at least one line")
        window = self.recipe.data.window
        grouped: dict[str, list[Example]] = {}
        for each in examples:
            grouped.setdefault("" if window else each.group, []).append(each)
        costs = {group: self.cost(model, part) for group, part in grouped.items()}
        how = f"tokenizer:{self.recipe.tokens.source}|" + (f"window:{window}" if window else "lines")
        total = {name: METRICS[name](_total(costs.values()), how) for name in self.metrics}
        groups = {group: METRICS[metric](cost, how).value for group, cost in costs.items() if group}
        return Scored(metric, total.pop(metric), groups, total)

    @torch.no_grad()
    def cost(self, model: LanguageModel, examples: Sequence[Example]) -> Cost:
        """What the model pays for the text."""
        model.eval()
        data = self.encode(examples)
        nats = 0.0
        for indices in batching.in_order(data.lengths(), self.recipe.train.batch_tokens):
            nats += self.nats(model, self.collate(data, indices)).double().sum().item()
        unknown = int((data.stream == UNKNOWN).sum())
        return Cost(len(data.starts), len(data.stream), _characters(examples), unknown, nats)

    def nats(self, model: LanguageModel, batch: Batch) -> Float[Tensor, "batch tokens"]:
        """Minus the log-probability of every token after BEGIN; nothing where there is none."""
        batch = batch.to(next(model.parameters()).device)
        logits, wanted = model(batch).logits, batch.target.ids[:, 1:]
        precise = logits.to(torch.promote_types(logits.dtype, torch.float32)).transpose(1, 2)
        return functional.cross_entropy(precise, wanted, ignore_index=PAD, reduction="none")

    # from texts to texts that go on

    @torch.no_grad()
    def answer(
        self, model: LanguageModel, texts: Sequence[str], settings: Search, n_best: int = 1, seed: int = 0
    ) -> list[Prediction]:
        """Each text with what the model writes after it, at most search.max_extra tokens; nothing is a text as well.

        A prediction's `text` begins with the text that was given, its `tokens` and `score` are of the new ones alone.
        Of a stream, a model looks back a window at most: of a longer text it sees the end, and when the window is
        full it goes on from the latter half. Of lines, a text too long gets a blank answer.
        """
        model.eval()
        answers = [core.blank(text) for text in texts]
        prompts = {place: self.source.encode(text) for place, text in enumerate(texts) if not self.too_long(text)}
        seen = {place: self._context(prompt) for place, prompt in prompts.items()}
        for places in _alike(seen, settings.max_extra, SEARCH_TOKENS // max(settings.beam, n_best)):
            seeds = [seed + place for place in places]
            found = self.write(model, [prompts[place] for place in places], settings, seeds, n_best)
            for place, written in zip(places, found, strict=True):
                best, *others = [self.tell(texts[place], prompts[place], each) for each in written]
                answers[place] = replace(best, alternatives=tuple(others))
        return answers

    def write(
        self, model: LanguageModel, prompts: list[list[int]], settings: Search, seeds: list[int], n_best: int
    ) -> list[list[Written]]:
        """What follows each prompt, in as many turns as a window needs; what is seen of them is of one length."""
        most, kept = settings.max_extra, self.recipe.data.window // 2
        first = self._turn(model, [self._context(each) for each in prompts], settings, most, seeds, n_best)
        found = {(row, draw): each for row, drawn in enumerate(first) for draw, each in enumerate(drawn)}
        turn = 0
        while going := [key for key, each in found.items() if not each.finished and len(each.tokens) < most]:
            turn += 1
            so_far = [[*prompts[key[0]], *found[key].tokens] for key in going]
            fresh = [seeds[row] + draw * DRAW + turn * TURN for row, draw in going]  # or each turn would draw alike
            left = most - len(found[going[0]].tokens)  # all have filled the same room
            contexts = [each[len(each) - kept :] for each in so_far]
            for key, (more,) in zip(going, self._turn(model, contexts, settings, left, fresh, 1), strict=True):
                found[key] = found[key].then(more)
        return [[found[row, draw] for draw in range(len(drawn))] for row, drawn in enumerate(first)]

    def _turn(
        self,
        model: LanguageModel,
        contexts: list[list[int]],
        settings: Search,
        most: int,
        seeds: list[int],
        n_best: int,
    ) -> list[list[Written]]:
        """What follows contexts of one length, as far as the window reaches."""
        window, length = self.recipe.data.window, len(contexts[0])
        limits = [length + (min(most, window - length) if window else most)] * len(contexts)
        device = next(model.parameters()).device
        prefix = torch.tensor(contexts, dtype=torch.long, device=device).view(len(contexts), length)
        memory = Memory.none(len(contexts), device, model.decoder.embedding.weight.dtype)
        found = search.find(model.decoder, memory, settings, limits=limits, seeds=seeds, n_best=n_best, prefix=prefix)
        scores = iter(self._scores(model, [each for drawn in found for each in drawn], length))
        return [[Written(each.tokens[length:], next(scores), each.finished) for each in drawn] for drawn in found]

    def _scores(self, model: LanguageModel, found: list[Hypothesis], length: int) -> list[float]:
        """The log-probability of what comes after so many tokens: no penalty is in it, nor the context."""
        target = batching.pad([[BEGIN, *each.tokens, *([END] if each.finished else [])] for each in found])
        nothing = Padded(target.ids[:, :0], target.mask[:, :0])
        nats = self.nats(model, Batch(nothing, target, torch.arange(len(found))))
        return (-nats[:, length:].double().sum(1)).tolist()

    def _context(self, prompt: list[int]) -> list[int]:
        """What is seen of a prompt: all but the oldest tokens that leave no room in the window for a new one."""
        window = self.recipe.data.window
        return prompt[max(0, len(prompt) - window + 1) :] if window else prompt

    def too_long(self, text: str) -> bool:
        """Whether a text is answered with nothing because of its length; of a stream, its end is enough."""
        return not self.recipe.data.window and len(self.source.encode(text)) > self.longest

    def tell(self, text: str, prompt: Sequence[int], written: Written) -> Prediction:
        """The text with its continuation: what the new tokens add to the old ones, so that spaces are right."""
        whole, before = self.source.decode([*prompt, *written.tokens]), self.source.decode(prompt)
        tokens = tuple(self.source.piece(token) for token in written.tokens)
        return Prediction(text, text + whole.removeprefix(before), written.score, tokens, None)


def _ended(examples: Sequence[Example]) -> list[Example]:
    """The texts of a corpus, each with a newline where it has none, as files have them."""
    return [replace(each, target=each.target.removesuffix("\n") + "\n") for each in examples]


def _characters(examples: Sequence[Example]) -> int:
    return sum(len(each.target) for each in examples)


def _last_tenth(examples: Sequence[Example]) -> tuple[list[Example], list[Example]]:
    """The text up to nine tenths of its characters, and the rest; a line may be cut in two."""
    room = _characters(examples) * 9 // 10
    train: list[Example] = []
    for number, each in enumerate(examples):
        if len(each.target) > room:
            first, second = replace(each, target=each.target[:room]), replace(each, target=each.target[room:])
            return [*train, first], [second, *examples[number + 1 :]]
        train.append(each)
        room -= len(each.target)
    raise AssertionError("a text has characters, and nine tenths of them are not all")


def _some_lines(examples: Sequence[Example], seed: int) -> tuple[list[Example], list[Example]]:
    """Most lines, and some; equal lines stay together, so that dev is unseen."""
    if len(examples) < 2:
        raise DataError("no dev part can be split off a single line; give more of them, or data.dev=FILE")
    by_text = files.split([replace(each, source=each.target) for each in examples], seed)
    train, dev = ([replace(each, source="") for each in part] for part in by_text)
    return train, dev


def _homes(examples: Sequence[Example], starts: Int[Tensor, " rows"], tokens: int) -> Int[Tensor, " rows"]:
    """The example that holds each of these tokens; of tokens other than characters, about: it is for messages."""
    ends = torch.tensor([len(each.target) for each in examples]).cumsum(0)
    places = starts * int(ends[-1]) // tokens
    return torch.searchsorted(ends, places, right=True).clamp(max=len(examples) - 1)


def _total(costs: Iterable[Cost]) -> Cost:
    texts, tokens, characters, unknown, nats = zip(*costs, strict=True)
    return Cost(sum(texts), sum(tokens), sum(characters), sum(unknown), math.fsum(nats))


def _alike(contexts: Mapping[int, Sequence[int]], extra: int, budget: int) -> Iterator[list[int]]:
    """The places of contexts of one length, as many at a time as a budget of tokens allows."""
    by_length: dict[int, list[int]] = {}
    for place, context in contexts.items():
        by_length.setdefault(len(context), []).append(place)
    for length, places in by_length.items():
        rows = max(1, budget // (length + extra))
        yield from (places[start : start + rows] for start in range(0, len(places), rows))
