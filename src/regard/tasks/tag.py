"""Words to tags, one for each: parts of speech, names, chunks."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from regard.attention.record import record
from regard.attention.scopes import Scope
from regard.data import batching, tagged
from regard.data.files import Loaded
from regard.data.tokenizers import TOKENIZERS, Character, Tokenizer, Word
from regard.errors import RecipeError, pick
from regard.maps import AttentionMap
from regard.models import tagger
from regard.models.letters import Spelled
from regard.models.tagger import Tagger
from regard.recipe import Recipe, Search
from regard.search.path import best_path, bio
from regard.sources.text import SOURCE, TARGET, build_tokenizer
from regard.storage import Run
from regard.tasks import core
from regard.tasks.core import Encoded, Task
from regard.types import BEGIN, END, SPECIALS, UNKNOWN, BatchFirst, Example, Prediction

LETTERS = "letters.tokens"
LONGEST_WORD = 30  # letters of a word that are read: of a longer one, its beginning and its end
SPELLED = 100_000  # words whose letters are kept at hand
ANSWER_TOKENS = 8000  # words that are answered at once


@dataclass(frozen=True)
class Sentences(Encoded):
    """Tagged sentences as ids; the letters of each are a tensor, padded to its longest word."""

    words: list[list[int]]
    letters: list[Int[Tensor, "_words _letters"]]
    tags: list[list[int]]

    def lengths(self) -> list[tuple[int, int]]:
        """The room each example takes on either side."""
        return [(len(words) + 1, len(words) + 1) for words in self.words]


@dataclass(frozen=True)
class Tagged(BatchFirst):
    """Sentences with the tags they should get, PAD where there is no word."""

    source: Spelled
    tags: Int[Tensor, "batch length"]
    examples: Int[Tensor, " batch"]


class Tag(Task[Tagger, Sentences, Tagged]):
    """Words to tags, one for each: sentences from files or an embedded corpus, cross-entropy, the best path."""

    metrics = ("tag_accuracy", "entity_f1", "exact_match")
    noun = "sentence"

    def __init__(self, recipe: Recipe, words: Tokenizer, letters: Tokenizer, tags: Tokenizer) -> None:
        super().__init__(recipe)
        self.words = words
        self.letters = letters
        self.tags = tags
        self.names = [tags.piece(token) for token in range(len(SPECIALS), tags.size)]
        self.rules = bio(self.names)
        self.spell = lru_cache(SPELLED)(self._spell)

    @staticmethod
    def check(recipe: Recipe) -> None:
        """Refuse a recipe that names what is not there, before any data is read."""
        pick(tagged.FORMATS, recipe.data.format, "format")
        if (recipe.tokens.source, recipe.tokens.target) != (Word.kind, Word.kind):
            raise RecipeError('a tagger reads words and writes tags; write tokens.source = tokens.target = "word"')
        with torch.device("meta"):  # the model without its memory: sizes that do not fit show here
            tagger.build(recipe.model, words=len(SPECIALS), letters=len(SPECIALS), tags=len(SPECIALS))

    @classmethod
    def reader(cls, recipe: Recipe) -> Callable[[tuple[str, ...]], Loaded]:
        """What reads files as data.format says, and checks that every word has its tag."""
        read = pick(tagged.FORMATS, recipe.data.format, "format")
        return lambda names: tagged.check(read(names))

    @classmethod
    def learn(cls, recipe: Recipe, examples: Sequence[Example], origin: Run | None = None) -> "Tag":
        """Build the vocabularies on the training examples, unless the run one starts from has them."""
        tokens = recipe.tokens
        sources, targets = [each.source for each in examples], [each.target for each in examples]
        kept = _frequent([_cased(source, recipe) for source in sources], tokens.least)
        words = build_tokenizer(tokens.source, kept, tokens.size, SOURCE, origin)
        tags = build_tokenizer(tokens.target, targets, 0, TARGET, origin)
        if core.unknown([tags.encode(target) for target in targets]):  # the run before had others to learn
            tags = build_tokenizer(tokens.target, targets, 0, TARGET)
        given = origin.read(LETTERS) if origin is not None and origin.holds(LETTERS) else None
        letters = Character.build(sources, 0) if given is None else Character.from_bytes(given)
        return cls(recipe, words, letters, tags)

    @classmethod
    def restore(cls, recipe: Recipe, read: Callable[[str], bytes]) -> "Tag":
        """The task of a stored run."""
        words = pick(TOKENIZERS, recipe.tokens.source, "tokenizer").from_bytes(read(SOURCE))
        tags = pick(TOKENIZERS, recipe.tokens.target, "tokenizer").from_bytes(read(TARGET))
        return cls(recipe, words, Character.from_bytes(read(LETTERS)), tags)

    def files(self) -> dict[str, bytes]:
        """What a run must keep besides the weights."""
        return {SOURCE: self.words.to_bytes(), LETTERS: self.letters.to_bytes(), TARGET: self.tags.to_bytes()}

    def build(self) -> Tagger:
        """A model with fresh weights."""
        sizes = {"words": self.words.size, "letters": self.letters.size, "tags": self.tags.size}
        return tagger.build(self.recipe.model, **sizes)

    def encode(self, examples: Sequence[Example]) -> Sentences:
        """All examples as ids."""
        sources = [example.source for example in examples]
        tags = [self.tags.encode(example.target) for example in examples]
        words = [self.encode_words(source) for source in sources]
        return Sentences(list(examples), words, [self.encode_letters(source) for source in sources], tags)

    def encode_words(self, text: str) -> list[int]:
        """The ids of the words of a text."""
        return self.words.encode(_cased(text, self.recipe))

    def encode_letters(self, text: str) -> Int[Tensor, "words letters"]:
        """The ids of the letters of its words."""
        spelled = [self.spell(word) for word in text.split()]
        return pad_sequence(spelled, batch_first=True)

    def _spell(self, word: str) -> Int[Tensor, " letters"]:
        """The ids of a word's letters between BEGIN and END."""
        half = LONGEST_WORD // 2
        shown = word if len(word) <= LONGEST_WORD else word[:half] + word[-half:]
        return torch.tensor([BEGIN, *self.letters.encode(shown), END], dtype=torch.int32)

    def told(self, data: Sentences, dev: Sentences) -> Iterator[str]:
        """The sizes of the vocabularies, what they do not hold, and the rules that answers keep."""
        counts = f"{self.words.size:,} words, {self.letters.size:,} letters, {len(self.names):,} tags"
        yield f"vocabularies of {counts}; {core.unknown(dev.words):.2%} of the dev words unknown"
        if self.rules is not None:
            broken = sum(not self.lawful(tags) for tags in data.tags)
            but = f" (not so in {broken:,} training sentences)" if broken else ""
            yield f"the tags are BIO: in answers, I-X comes only after B-X or I-X{but}"

    def lawful(self, tags: Sequence[int]) -> bool:
        """Whether a sentence keeps the rules of its tags."""
        if self.rules is None or not tags:
            return True
        places = torch.tensor(tags) - len(SPECIALS)
        return bool(self.rules.first[places[0]] and self.rules.after[places[:-1], places[1:]].all())

    def collate(self, data: Sentences, indices: Sequence[int]) -> Tagged:
        """The batch of these examples."""
        source = spelled([data.words[index] for index in indices], [data.letters[index] for index in indices])
        tags = batching.pad([data.tags[index] for index in indices]).ids
        return Tagged(source, tags, torch.tensor(indices, dtype=torch.long))

    def tokens(self, batch: Tagged) -> int:
        """The words of a batch."""
        return int(batch.source.mask.sum())

    def loss(self, model: Tagger, batch: Tagged, smoothing: float = 0.0, sampling: float = 0.0) -> Float[Tensor, ""]:
        """The summed cross-entropy of the tag of every word; in training some have only their letters."""
        share = self.recipe.train.word_dropout if model.training else 0.0
        source = _hidden(batch.source, share) if share else batch.source
        return core.cross_entropy(model(source), batch.tags, smoothing)

    @torch.no_grad()
    def answer(
        self, model: Tagger, texts: Sequence[str], settings: Search, n_best: int = 1, seed: int = 0
    ) -> list[Prediction]:
        """The best tags of each text's words; a Transformer adds the map of its last layer, its heads' mean."""
        model.eval()
        device = next(model.parameters()).device
        rules = None if self.rules is None else type(self.rules)(*(rule.to(device) for rule in self.rules))
        looks = [name for name, module in model.named_modules() if isinstance(module, Scope)][-1:]
        answers = [core.blank(text) for text in texts]
        for places, ids in core.ask(texts, self.encode_words, self.longest, ANSWER_TOKENS):
            source = spelled(ids, [self.encode_letters(texts[place]) for place in places]).to(device)
            with record(model, layers=looks) as seen:
                logits = model(source)[..., len(SPECIALS) :]  # those of PAD and its like are no answers
            found = best_path(logits.float().log_softmax(-1), source.mask, rules)
            weights = seen.weights[looks[0]].mean(1).cpu() if looks else [None] * len(places)
            tags, scores = found.tags.tolist(), found.scores.tolist()
            for place, row, score, looked in zip(places, tags, scores, weights, strict=True):
                answers[place] = self.tell(texts[place], row, score, looked)
        return answers

    def tell(self, text: str, row: Sequence[int], score: float, looked: Tensor | None) -> Prediction:
        """The tags of one text, and its map where there is one: a row for each tag, a column for each word."""
        words = tuple(text.split())
        tags = tuple(self.names[tag] for tag in row[: len(words)])
        seen = None
        if looked is not None:
            seen = AttentionMap(looked[: len(words), : len(words)], tags, words)
        return Prediction(text, " ".join(tags), score, tags, seen, source_tokens=words)

    def too_long(self, text: str) -> bool:
        """Whether a text is answered with nothing because of its length."""
        return len(text.split()) > self.longest


def spelled(words: Sequence[list[int]], letters: Sequence[Int[Tensor, "_words _letters"]]) -> Spelled:
    """Sentences as one batch."""
    padded = batching.pad(words)
    size = *padded.ids.shape, max(each.shape[1] for each in letters)
    joined = torch.zeros(size, dtype=torch.int32)
    for row, each in enumerate(letters):
        joined[row, : each.shape[0], : each.shape[1]] = each
    return Spelled(padded.ids, padded.mask, joined)


def _hidden(source: Spelled, share: float) -> Spelled:
    """The same with that share of the words unknown, as new words will be."""
    hidden = source.mask & (torch.rand(source.ids.shape, device=source.ids.device) < share)
    return replace(source, ids=source.ids.masked_fill(hidden, UNKNOWN))


def _cased(text: str, recipe: Recipe) -> str:
    return text.lower() if recipe.tokens.lower else text


def _frequent(texts: Sequence[str], least: int) -> list[str]:
    """The texts without words that all of them together have fewer times."""
    counts = Counter(word for text in texts for word in text.split())
    return [" ".join(word for word in text.split() if counts[word] >= least) for text in texts]
