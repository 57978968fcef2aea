"""Text with holes to what stood there: a masked language model, on any encoder."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from regard.attention.record import record
from regard.attention.scopes import Scope
from regard.data import batching, files
from regard.data.files import Loaded
from regard.data.tokenizers import TOKENIZERS, Tokenizer
from regard.errors import RecipeError, pick
from regard.maps import AttentionMap
from regard.metrics import METRICS, Cost, Measured
from regard.models import masked
from regard.models.masked import MaskedLM
from regard.recipe import Recipe, Search
from regard.sources.text import SOURCE, build_tokenizer
from regard.storage import Run
from regard.tasks import core
from regard.tasks.core import Encoded, Scored, Task
from regard.types import END, PAD, SPECIALS, UNKNOWN, BatchFirst, Example, Padded, Prediction

BLANK = "___"  # a hole in a text that is to be filled with one token
MASK = "<mask>"  # how a hole shows on the axes of maps
HIDDEN, EXCHANGED = 0.8, 0.1  # of the tokens that are asked for; the others stay as they are
READ_TOKENS = 16_000  # that are read at once


@dataclass(frozen=True)
class Texts(Encoded):
    """Texts as ids, without END."""

    rows: list[list[int]]
    seeds: list[int | None]  # of each text's holes; None where they are drawn anew each time

    def lengths(self) -> list[tuple[int, int]]:
        """The room each text takes."""
        return [(len(row) + 1, 1) for row in self.rows]


@dataclass(frozen=True)
class MaskedBatch(BatchFirst):
    """Texts with holes, and what is asked for."""

    source: Padded  # as the model gets to read it
    wanted: Int[Tensor, "batch length"]  # what stood there, PAD where nothing is asked
    examples: Int[Tensor, " batch"]  # where each row stands in the data, for messages


class Holed(NamedTuple):
    """A text with blanks, as ids."""

    ids: list[int]
    places: list[int]  # of the blanks
    opening: list[bool]  # whether each begins a word


class Guess(NamedTuple):
    """A token for each blank, and the log-probability of them all."""

    score: float
    tokens: tuple[int, ...]


class Judged(NamedTuple):
    """One token that was asked for."""

    example: Example
    nats: float  # minus its log-probability
    said: str
    wanted: str


class MaskedText(Task[MaskedLM, Texts, MaskedBatch]):
    """Text with holes to what stood there (Devlin et al. 2019): any text teaches, no labels are needed."""

    metrics = ("perplexity", "masked_accuracy")
    noun = "text"

    def __init__(self, recipe: Recipe, source: Tokenizer) -> None:
        super().__init__(recipe)
        self.source = source
        self.mask = source.size  # after the vocabulary, which other tasks share
        self.begins = torch.tensor([token == END or source.begins(token) for token in range(source.size)])

    @staticmethod
    def check(recipe: Recipe) -> None:
        """Refuse a recipe that names what is not there, before any data is read."""
        pick(TOKENIZERS, recipe.tokens.source, "tokenizer")
        if recipe.train.whole_words and recipe.tokens.source != "sentencepiece":
            raise RecipeError(
                "train.whole_words is for words in pieces: "
                f"it needs tokens.source = sentencepiece, not {recipe.tokens.source}"
            )
        with torch.device("meta"):  # the model without its memory: sizes that do not fit show here
            masked.build(recipe.model, size=len(SPECIALS))

    @staticmethod
    def read(names: tuple[str, ...]) -> Loaded:
        """The texts of files, one a line."""
        return files.texts(names)

    @classmethod
    def learn(cls, recipe: Recipe, examples: Sequence[Example], origin: Run | None = None) -> "MaskedText":
        """Build the tokenizer on the training texts, unless the run one starts from has it."""
        texts = [_cased(_text(each), recipe) for each in examples]
        return cls(recipe, build_tokenizer(recipe.tokens.source, texts, recipe.tokens.size, SOURCE, origin))

    @classmethod
    def restore(cls, recipe: Recipe, read: Callable[[str], bytes]) -> "MaskedText":
        """The task of a stored run."""
        return cls(recipe, pick(TOKENIZERS, recipe.tokens.source, "tokenizer").from_bytes(read(SOURCE)))

    def files(self) -> dict[str, bytes]:
        """What a run must keep besides the weights."""
        return {SOURCE: self.source.to_bytes()}

    def build(self) -> MaskedLM:
        """A model with fresh weights."""
        return masked.build(self.recipe.model, size=self.source.size)

    def encode(self, examples: Sequence[Example]) -> Texts:
        """All texts as ids; their holes are fixed, so that the same text is always judged by the same ones."""
        rows = [self.source.encode(_cased(_text(each), self.recipe)) for each in examples]
        seeds: list[int | None] = [self.recipe.train.seed * 1_000_003 + place for place in range(len(rows))]
        return Texts(list(examples), rows, seeds)

    def within_length(self, data: Texts) -> Texts:
        """The texts to learn from: short enough, and with holes that are drawn anew at each update."""
        kept = super().within_length(data)
        return replace(kept, seeds=[None] * len(kept.rows))

    def told(self, data: Texts, dev: Texts) -> Iterator[str]:
        """The size of the vocabulary, and what is asked for."""
        yield f"a vocabulary of {self.source.size:,} tokens, {core.unknown(dev.rows):.2%} of the dev tokens unknown"
        words = ", whole words at once" if self.recipe.train.whole_words else ""
        yield f"{self.recipe.train.masked:.0%} of the tokens are asked for{words}"

    def collate(self, data: Texts, indices: Sequence[int]) -> MaskedBatch:
        """The batch of these texts, with holes in them."""
        whole = batching.pad([[*data.rows[index], END] for index in indices])
        chances = _chances([len(data.rows[index]) + 1 for index in indices], [data.seeds[index] for index in indices])
        source, wanted = self.hide(whole, chances)
        return MaskedBatch(source, wanted, torch.tensor(indices, dtype=torch.long))

    def hide(
        self, whole: Padded, chances: Float[Tensor, "batch length 3"]
    ) -> tuple[Padded, Int[Tensor, "batch length"]]:
        """Texts with holes, and what stood in them, as three chances for every token say.

        Each token, or each word, is asked for with the chance `train.masked`, and at least one of every text. Of what
        is asked for 80 % is hidden, 10 % exchanged for any token, 10 % left as it is. What the vocabulary does not
        hold is not asked for, unless a text holds nothing else.
        """
        choice, kind, other = chances.unbind(-1)
        if self.recipe.train.whole_words:
            choice = choice.gather(1, self._word_beginnings(whole.ids))
        text = whole.mask & (whole.ids != END)
        known = text & (whole.ids != UNKNOWN)
        asked = torch.where(known.any(1, keepdim=True), known, text)
        choice = choice.masked_fill(~asked, 2.0)
        asked &= choice <= choice.amin(1, keepdim=True).clamp(min=self.recipe.train.masked)
        any_token = len(SPECIALS) + (other * (self.source.size - len(SPECIALS))).long()
        ids = whole.ids.where(~asked | (kind >= HIDDEN + EXCHANGED), any_token.clamp(max=self.source.size - 1))
        ids = ids.masked_fill(asked & (kind < HIDDEN), self.mask)
        return Padded(ids, whole.mask), whole.ids.masked_fill(~asked, PAD)

    def _word_beginnings(self, ids: Int[Tensor, "batch length"]) -> Int[Tensor, "batch length"]:
        """For each token the place of the first one of its word."""
        places = torch.arange(ids.shape[1]).expand(ids.shape)
        return places.where(self.begins[ids], 0).cummax(1).values

    def tokens(self, batch: MaskedBatch) -> int:
        """The tokens that are asked for."""
        return int((batch.wanted != PAD).sum())

    def loss(
        self, model: MaskedLM, batch: MaskedBatch, smoothing: float = 0.0, sampling: float = 0.0
    ) -> Float[Tensor, ""]:
        """The summed cross-entropy of what is asked for, and of nothing else."""
        asked = batch.wanted != PAD
        return core.cross_entropy(model(batch.source, asked), batch.wanted[asked], smoothing)

    def measure(self, model: MaskedLM, examples: Sequence[Example], metric: str, settings: Search) -> Scored:
        """How well the holes of texts are filled, which are the same each time, in all and by group."""
        self.check_metric(metric)
        train = self.recipe.train
        how = f"masked:{train.masked}|whole_words:{'yes' if train.whole_words else 'no'}|seed:{train.seed}"
        judged = self._judged(model, self.encode(examples))
        grouped: dict[str, list[Judged]] = {}
        for each in judged:
            grouped.setdefault(each.example.group, []).append(each)
        groups = {group: _compare(metric, theirs, how).value for group, theirs in grouped.items() if group}
        others = {name: _compare(name, judged, how) for name in self.metrics if name != metric}
        return Scored(metric, _compare(metric, judged, how), groups, others)

    @torch.no_grad()
    def _judged(self, model: MaskedLM, data: Texts) -> list[Judged]:
        model.eval()
        device = next(model.parameters()).device
        judged = []
        for indices in batching.in_order(data.lengths(), READ_TOKENS):
            batch = self.collate(data, indices).to(device)
            asked = batch.wanted != PAD
            chances = model(batch.source, asked).float().log_softmax(-1)
            wanted = batch.wanted[asked]
            nats = -chances.gather(1, wanted.unsqueeze(1)).squeeze(1)
            rows = batch.examples[asked.nonzero()[:, 0]]
            columns = (rows, nats, chances.argmax(-1), wanted)
            for row, loss, said, meant in zip(*(column.tolist() for column in columns), strict=True):
                pieces = self.source.piece(said), self.source.piece(meant)
                judged.append(Judged(data.examples[row], loss, *pieces))
        return judged

    @torch.no_grad()
    def answer(
        self, model: MaskedLM, texts: Sequence[str], settings: Search, n_best: int = 1, seed: int = 0
    ) -> list[Prediction]:
        """Each text with its blanks (`___`) filled, one token each; what is next best are the alternatives.

        The map is that of the top layer of a Transformer, the mean of its heads: what each blank looked at.
        """
        model.eval()
        device = next(model.parameters()).device
        answers = [core.blank(text) for text in texts]
        for places, rows in core.ask(texts, lambda text: self.holed(text).ids, self.longest, READ_TOKENS):
            source = batching.pad([[*row, END] for row in rows]).to(device)
            asked = source.ids == self.mask
            with record(model, layers=_top_layer(model)) as seen:
                chances = model(source, asked).float().log_softmax(-1)
            maps = next((weights.mean(1) for weights in seen.weights.values()), None)
            per_row = chances.split(asked.sum(1).tolist())
            for row, (place, of_row) in enumerate(zip(places, per_row, strict=True)):
                answers[place] = self.tell(texts[place], of_row, None if maps is None else maps[row], n_best)
        return answers

    def too_long(self, text: str) -> bool:
        """Whether a text is answered with nothing because of its length."""
        return len(self.holed(text).ids) > self.longest

    def holed(self, text: str) -> Holed:
        """The ids of a text with MASK for every blank; a blank after a space has that space in it."""
        first, *rest = _cased(text, self.recipe).split(BLANK)
        holed = Holed(self.source.encode(first), [], [])
        for before, after in pairwise([first or " ", *rest]):
            opening = before[-1:].isspace()
            if opening and holed.ids and self.source.piece(holed.ids[-1]) == "▁":
                holed.ids.pop()
            holed.places.append(len(holed.ids))
            holed.opening.append(opening)
            holed.ids.extend([self.mask, *self.source.encode_on(after)])
        return holed

    def tell(
        self,
        text: str,
        chances: Float[Tensor, "blanks vocabulary"],
        weights: Float[Tensor, "source source"] | None,
        n_best: int,
    ) -> Prediction:
        """The best fillings of a text, in words, with the map of its blanks."""
        holed = self.holed(text)
        columns = (*(MASK if token == self.mask else self.source.piece(token) for token in holed.ids), SPECIALS[END])
        looks = None if weights is None or not holed.places else weights[holed.places, : len(columns)].cpu()
        told = []
        for guess in self.guesses(chances, holed.opening, n_best):
            pieces = tuple(self.source.piece(token) for token in guess.tokens)
            seen = None if looks is None else AttentionMap(looks, pieces, columns)
            told.append(Prediction(text, _filled(text, pieces), guess.score, pieces, seen))
        best, *others = told
        return replace(best, alternatives=tuple(others))

    def guesses(self, chances: Float[Tensor, "blanks vocabulary"], opening: Sequence[bool], n_best: int) -> list[Guess]:
        """The best fillings of all blanks together, each by itself: pieces begin a word where their blank does."""
        best = [Guess(0.0, ())]
        begins = self.begins.to(chances.device)
        for row, opens in zip(chances, opening, strict=True):
            fitting = begins if opens else ~begins
            fitting = fitting if fitting[len(SPECIALS) :].any() else torch.ones_like(fitting)
            fitting = fitting & (torch.arange(len(row), device=row.device) >= len(SPECIALS))
            found = row.masked_fill(~fitting, -torch.inf).topk(min(n_best, int(fitting.sum())))
            pairs = list(zip(found.values.tolist(), found.indices.tolist(), strict=True))
            longer = [Guess(guess.score + score, (*guess.tokens, token)) for guess in best for score, token in pairs]
            best = sorted(longer, key=lambda guess: -guess.score)[:n_best]
        return best


def _text(example: Example) -> str:
    """The text of an example of any corpus: those of language models have but a target."""
    return example.source or example.target


def _cased(text: str, recipe: Recipe) -> str:
    return text.lower() if recipe.tokens.lower else text


def _chances(lengths: Sequence[int], seeds: Sequence[int | None]) -> Float[Tensor, "batch length 3"]:
    """Three numbers from 0 to 1 for each token: anew from torch's own generator, or by the seed of each row."""
    fixed = [torch.Generator().manual_seed(seed) for seed in seeds if seed is not None]
    if not fixed:
        return torch.rand(len(lengths), max(lengths), 3)
    rows = [torch.rand(length, 3, generator=each) for length, each in zip(lengths, fixed, strict=True)]
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)


def _compare(metric: str, judged: Sequence[Judged], how: str) -> Measured:
    if metric != "perplexity":
        return METRICS[metric]([each.said for each in judged], [each.wanted for each in judged], how)
    texts = {id(each.example): each.example for each in judged}.values()
    unknown = sum(each.wanted == SPECIALS[UNKNOWN] for each in judged)
    characters = sum(len(_text(each)) for each in texts)
    cost = Cost(len(texts), len(judged), characters, unknown, sum(each.nats for each in judged))
    return METRICS[metric](cost, how)


def _top_layer(model: MaskedLM) -> list[str]:
    """The name of the attention of the encoder's last layer, where it has one."""
    return [name for name, module in model.named_modules() if isinstance(module, Scope)][-1:]


def _filled(text: str, pieces: Sequence[str]) -> str:
    first, *rest = text.split(BLANK)
    return first + "".join(piece.removeprefix("▁") + after for piece, after in zip(pieces, rest, strict=True))
