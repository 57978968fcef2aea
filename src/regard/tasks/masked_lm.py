"""Masked language modelling: predicts masked tokens of a text, with any encoder."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from regard.console import counted
from regard.data import batching, files
from regard.data.batching import Lengths
from regard.data.files import LIMITS, Loaded
from regard.data.records import Fields
from regard.data.store import IntegerRows, Mapped, row_lengths
from regard.data.store import Texts as Sides
from regard.data.tokenizers import Tokenizer
from regard.errors import RecipeError
from regard.maps import AttentionMap
from regard.metrics import METRICS, Cost, Measured, Outcome
from regard.models import ENCODER_SELF, masked
from regard.models.masked import MaskedLM
from regard.recipe import Limits, Recipe, Search
from regard.tasks import core
from regard.tasks.core import Axes, Encoded, Scored, TextTask
from regard.types import BEGIN, END, PAD, SPECIALS, UNKNOWN, BatchFirst, Example, Padded, Prediction, Vocabulary

BLANK = "___"  # a blank in an input text, to be filled with one token
MASK = "<mask>"  # label of a blank on the axes of maps
HIDDEN, EXCHANGED = 0.8, 0.1  # shares of the tokens to predict; the others stay as they are


@dataclass(frozen=True)
class Texts(Encoded):
    """Encoded texts: token ids, without END."""

    rows: Sequence[list[int]]
    seeds: Sequence[int | None]  # seeds of the masks; None: a new mask is drawn each time

    def lengths(self) -> Lengths:
        """The positions that each text takes."""
        sizes = row_lengths(self.rows) + 1
        return np.stack([sizes, np.ones_like(sizes)], axis=1)


@dataclass(frozen=True)
class MaskedBatch(BatchFirst):
    """A batch of masked texts, and the tokens to predict."""

    source: Padded  # the input of the model, with masked tokens
    wanted: Int[Tensor, "batch length"]  # the tokens to predict, PAD at all other positions
    examples: Int[Tensor, " batch"]  # index of each row's example in the data, for messages


class TextWithBlanks(NamedTuple):
    """An encoded text with blanks."""

    ids: list[int]
    places: list[int]  # positions of the blanks
    opening: list[bool]  # whether each blank begins a word


class Guess(NamedTuple):
    """A token for each blank, and the sum of their log-probabilities."""

    score: float
    tokens: tuple[int, ...]


class PredictedToken(NamedTuple):
    """One predicted token, compared with the right one."""

    example: Example
    example_index: int
    place: int  # of the token in its text
    nats: float  # minus the log-probability of the right token
    score: float  # log-probability of the predicted token
    said: str  # the predicted token
    wanted: str  # the right token


class MaskedText(TextTask[MaskedLM, Texts, MaskedBatch]):
    """Masked language modelling (Devlin et al. 2019): learns from plain text, without labels; fills in blanks."""

    metrics = ("perplexity", "masked_accuracy")
    noun = "text"
    columns = ("text",)
    mistakes = "tags"
    aligned = True
    ignores = (*core.NO_DECODER, *core.NOT_CAPTURED, "tokens.target", "tokens.rejoin", "train.word_dropout", "search")

    def __init__(self, recipe: Recipe, source: Tokenizer) -> None:
        super().__init__(recipe, source)
        self.mask = source.size  # the id after the vocabulary, so that other tasks can share the vocabulary
        self.begins = torch.tensor([token == END or source.begins(token) for token in range(source.size)])

    @classmethod
    def check(cls, recipe: Recipe) -> None:
        """Refuse a recipe with unknown names or sizes that do not fit, before any data is read."""
        super().check(recipe)
        if recipe.masked_lm.whole_words and recipe.tokens.source not in ("sentencepiece", "hugging_face"):
            raise RecipeError(
                "masked_lm.whole_words is for words in pieces: "
                f"it needs tokens.source = sentencepiece, not {recipe.tokens.source}"
            )

    @staticmethod
    def model(recipe: Recipe, size: int) -> MaskedLM:
        """Builds the model for a vocabulary of this size, with newly initialised weights."""
        return masked.build(recipe.model, size=size)

    @staticmethod
    def read(names: tuple[str, ...], limits: Limits = LIMITS) -> Loaded:
        """Reads the texts of files, one per line."""
        return files.texts(names, limits)

    @classmethod
    def from_fields(cls, recipe: Recipe, fields: Fields) -> Sides:
        """The text of a record, as source and as target."""
        return fields[0], fields[0]

    @classmethod
    def texts(cls, recipe: Recipe, example: Example) -> Sequence[str]:
        """The text of an example of any corpus."""
        return [core.lowered(_text(example), recipe)]

    def vocabularies(self) -> dict[str, Vocabulary]:
        """The vocabulary of the embedding and of the output layer."""
        names = ("encoder.embedding.weight", "out.weight", "out.bias", "bias")
        return core.rows_of(core.tokens_of(self.source), *names)

    def encode(self, examples: Sequence[Example]) -> Texts:
        """Encodes all texts, each with a fixed seed of its mask, so that every validation predicts the same tokens."""
        texts = map(_text, counted(examples, "encoding"))
        rows = IntegerRows.of(self.source.encode(core.lowered(text, self.recipe)) for text in texts)
        first = self.recipe.masked_lm.mask_seed * 1_000_003
        return Texts(examples, rows, range(first, first + len(rows)))

    def within_length(self, data: Texts) -> Texts:
        """The texts for training: those that are short enough, with a new mask at each update."""
        short = super().within_length(data)
        return replace(short, seeds=[None] * len(short.rows))

    def describe(self, data: Texts, dev: Texts) -> Iterator[str]:
        """Reports the size of the vocabulary and the share of tokens to predict."""
        unknown = core.describe_unknown(core.unknown(dev.rows), self.recipe.train)
        yield f"a vocabulary of {self.source.size:,} tokens, {unknown}"
        words = ", whole words at once" if self.recipe.masked_lm.whole_words else ""
        yield f"{self.recipe.masked_lm.masked:.0%} of the tokens are masked and predicted{words}"

    def collate(self, data: Texts, indices: Sequence[int]) -> MaskedBatch:
        """Makes the batch of the texts at these indices, with masked tokens."""
        rows = [self.source.framed(data.rows[index]) for index in indices]
        whole = batching.pad(rows)
        chances = _chances([len(row) for row in rows], [data.seeds[index] for index in indices])
        source, wanted = self.hide(whole, chances)
        return MaskedBatch(source, wanted, torch.tensor(indices, dtype=torch.long))

    def hide(
        self, whole: Padded, chances: Float[Tensor, "batch length 3"]
    ) -> tuple[Padded, Int[Tensor, "batch length"]]:
        """Masks texts: returns the input of the model, and the tokens to predict.

        `chances` are three random numbers for each token: whether it is predicted, how it is masked, and by which token
        it is replaced. Each token, or each word if masked_lm.whole_words, is predicted with probability
        masked_lm.masked, and at least one in each text. Of the tokens to predict, 80 % are masked, 10 % replaced by any
        token, 10 % left as they are. Unknown tokens are not predicted, unless a text has no others.
        """
        choice, kind, other = chances.unbind(-1)
        if self.recipe.masked_lm.whole_words:
            choice = choice.gather(1, self._word_beginnings(whole.ids))
        text = whole.mask & (whole.ids != END) & (whole.ids != BEGIN)
        known = text & (whole.ids != UNKNOWN)
        asked = torch.where(known.any(1, keepdim=True), known, text)
        choice = choice.masked_fill(~asked, 2.0)
        asked &= choice <= choice.amin(1, keepdim=True).clamp(min=self.recipe.masked_lm.masked)
        any_token = len(SPECIALS) + (other * (self.source.size - len(SPECIALS))).long()
        ids = whole.ids.where(~asked | (kind >= HIDDEN + EXCHANGED), any_token.clamp(max=self.source.size - 1))
        ids = ids.masked_fill(asked & (kind < HIDDEN), self.mask)
        return Padded(ids, whole.mask), whole.ids.masked_fill(~asked, PAD)

    def _word_beginnings(self, ids: Int[Tensor, "batch length"]) -> Int[Tensor, "batch length"]:
        """For each token, the position of the first token of its word."""
        places = torch.arange(ids.shape[1]).expand(ids.shape)
        return places.where(self.begins[ids], 0).cummax(1).values

    def tokens(self, batch: MaskedBatch) -> int:
        """The number of tokens to predict."""
        return int((batch.wanted != PAD).sum())

    def loss(
        self, model: MaskedLM, batch: MaskedBatch, smoothing: float = 0.0, sampling: float = 0.0
    ) -> Float[Tensor, ""]:
        """The cross-entropy summed over the tokens to predict."""
        asked = batch.wanted != PAD
        return core.cross_entropy(model(batch.source, asked), batch.wanted[asked], smoothing)

    def measure(self, model: MaskedLM, examples: Sequence[Example], metric: str, settings: Search) -> Scored:
        """Computes a metric of predicted masked tokens, in total and by group; the seed fixes the masks."""
        self.check_metric(metric)
        words = "yes" if self.recipe.masked_lm.whole_words else "no"
        how = f"masked:{self.recipe.masked_lm.masked}|whole_words:{words}|seed:{self.recipe.masked_lm.mask_seed}"
        judged = self._predict_tokens(model, self.encode(examples))
        grouped: dict[str, list[PredictedToken]] = {}
        for token in judged:
            grouped.setdefault(token.example.group, []).append(token)
        by_group = core.measure_each(filter(None, grouped), lambda group: _compare(metric, grouped[group], how))
        groups = {group: measured.value for group, measured in by_group.items()}
        names = [name for name in self.metrics if name != metric]
        others = core.measure_each(names, lambda name: _compare(name, judged, how))
        by_text: dict[int, list[PredictedToken]] = {}
        for token in judged:
            by_text.setdefault(token.example_index, []).append(token)
        outcomes = Mapped(np.array(sorted(by_text)), lambda index: self._outcome(by_text[index]))
        return Scored(metric, _compare(metric, judged, how), groups, others, outcomes=outcomes)

    def _outcome(self, tokens: Sequence[PredictedToken]) -> Outcome:
        """The predicted tokens of one text: `source` is the text with blanks, the answer a word for each blank."""
        text = source = core.lowered(_text(tokens[0].example), self.recipe)
        places = self.source.offsets(text)
        for token in reversed(tokens):
            start, end = places[token.place]
            start += len(text[start:end]) - len(text[start:end].lstrip())
            source = source[:start] + BLANK + source[end:]
        said, wanted = (
            " ".join("▁" if piece.isspace() else piece for piece in pieces)
            for pieces in zip(*((token.said, token.wanted) for token in tokens), strict=True)
        )
        return Outcome(source, (wanted,), said, sum(token.score for token in tokens), _cost(tokens))

    @torch.no_grad()
    def _predict_tokens(self, model: MaskedLM, data: Texts) -> list[PredictedToken]:
        """Predicts all masked tokens of the data."""
        model.eval()
        device = next(model.parameters()).device
        judged = []
        for indices in batching.sorted_batches(data.lengths(), core.READ_TOKENS):
            batch = self.collate(data, indices).to(device)
            asked = batch.wanted != PAD
            log_probs = model(batch.source, asked).float().log_softmax(-1)
            wanted = batch.wanted[asked]
            nats = -log_probs.gather(1, wanted.unsqueeze(1)).squeeze(1)
            rows, places = asked.nonzero().unbind(1)
            places = places - (batch.source.ids[0, 0] == BEGIN).int()  # counted in the text
            examples = {index: data.examples[index] for index in indices}
            columns = (batch.examples[rows], places, nats, log_probs.amax(-1), log_probs.argmax(-1), wanted)
            for index, place, loss, score, said, meant in zip(*(column.tolist() for column in columns), strict=True):
                pieces = self.source.piece(said), self.source.piece(meant)
                judged.append(PredictedToken(examples[index], index, place, loss, score, *pieces))
        return judged

    @torch.no_grad()
    def answer(
        self,
        model: MaskedLM,
        texts: Sequence[str],
        settings: Search,
        n_best: int = 1,
        seed: int = 0,
        *,
        all_maps: bool = False,
    ) -> list[Prediction]:
        """Fills each blank (`___`) of each text with one token; the next best fillings are the alternatives.

        With a Transformer, the map is the attention of each blank in the last layer, averaged over heads. A blank or
        too long text gets a blank prediction.
        """
        model.eval()
        device = next(model.parameters()).device
        answers = [core.blank(text) for text in texts]
        for places, rows in core.input_batches(texts, lambda text: self.encode_blanks(text).ids, self.longest):
            source = batching.pad([self.source.framed(row) for row in rows]).to(device)
            asked = source.ids == self.mask
            with core.recording_sites(model, all_maps) as recording:
                logits, maps = core.with_last_attention(model, source, asked)
            per_row = logits.float().log_softmax(-1).split(asked.sum(1).tolist())
            for row, (place, of_row) in enumerate(zip(places, per_row, strict=True)):
                answers[place] = self.prediction(texts[place], of_row, None if maps is None else maps[row], n_best)
                if all_maps:
                    axes = {ENCODER_SELF: Axes(self.pieces(rows[row]), self.pieces(rows[row]))}
                    answers[place] = replace(answers[place], maps=core.recorded_maps(model, recording, row, axes))
        return answers

    def probes(self, examples: Sequence[Example]) -> list[Example]:
        """Each text with a blank in place of its middle word."""
        rows = [_text(example).split() for example in examples]
        return [
            replace(
                example,
                source=" ".join([*row[: len(row) // 2], BLANK, *row[len(row) // 2 + 1 :]]),
                target=" ".join(row),
            )
            for example, row in zip(examples, rows, strict=True)
        ]

    def positions(self, text: str) -> tuple[str, ...]:
        """The tokens of a text with blanks, special ones included."""
        return self.pieces(self.encode_blanks(text).ids)

    def too_long(self, text: str) -> bool:
        """Whether a text is too long, so that its prediction is blank."""
        return len(self.encode_blanks(text).ids) > self.longest

    def unknown_parts(self, text: str) -> list[str]:
        """The parts of a text that are not in the vocabulary, in their order; blanks do not count."""
        return [part for known in text.split(BLANK) for part in super(MaskedText, self).unknown_parts(known)]

    def encode_blanks(self, text: str) -> TextWithBlanks:
        """Encodes a text with the mask id for each blank; a space before a blank becomes part of the blank."""
        first, *rest = core.lowered(text, self.recipe).split(BLANK)
        holed = TextWithBlanks(self.source.encode(first), [], [])
        for before, after in pairwise([first or " ", *rest]):
            opening = before[-1:].isspace()
            if opening and holed.ids and self.source.piece(holed.ids[-1]) == "▁":
                holed.ids.pop()
            holed.places.append(len(holed.ids))
            holed.opening.append(opening)
            holed.ids.extend([self.mask, *self.source.encode_continuation(after)])
        return holed

    def pieces(self, ids: Sequence[int]) -> tuple[str, ...]:
        """The labels of a text with blanks, and of its special tokens."""
        framed = self.source.framed(ids)
        return tuple(MASK if token == self.mask else self.source.piece(token) for token in framed)

    def prediction(
        self,
        text: str,
        chances: Float[Tensor, "blanks vocabulary"],
        weights: Float[Tensor, "source source"] | None,
        n_best: int,
    ) -> Prediction:
        """Makes the prediction of a text from the log-probabilities of its blanks: the best fillings, with maps."""
        holed = self.encode_blanks(text)
        columns = self.pieces(holed.ids)
        before = len(columns) - len(holed.ids) - 1  # special tokens that come first
        places = [before + place for place in holed.places]
        rows = None if weights is None or not places else weights[places, : len(columns)].cpu()
        predictions = []
        for guess in self.guesses(chances, holed.opening, n_best):
            pieces = tuple(self.source.piece(token) for token in guess.tokens)
            attention_map = None if rows is None else AttentionMap(rows, pieces, columns)
            predictions.append(Prediction(text, _filled(text, pieces), guess.score, pieces, attention_map))
        return core.with_alternatives(predictions)

    def guesses(self, chances: Float[Tensor, "blanks vocabulary"], opening: Sequence[bool], n_best: int) -> list[Guess]:
        """The best fillings of all blanks together; blanks are independent.

        A blank that begins a word gets a token that begins one, if there are such tokens. `chances` are
        log-probabilities.
        """
        best = [Guess(0.0, ())]
        begins = self.begins.to(chances.device)
        for row, opens in zip(chances, opening, strict=True):
            fitting = begins if opens else ~begins
            fitting = fitting if fitting[len(SPECIALS) :].any() else torch.ones_like(fitting)
            fitting = fitting & (torch.arange(len(row), device=row.device) >= len(SPECIALS))
            top = row.masked_fill(~fitting, -torch.inf).topk(min(n_best, int(fitting.sum())))
            pairs = list(zip(top.values.tolist(), top.indices.tolist(), strict=True))
            longer = [Guess(guess.score + score, (*guess.tokens, token)) for guess in best for score, token in pairs]
            best = sorted(longer, key=lambda guess: -guess.score)[:n_best]
        return best


def _text(example: Example) -> str:
    """The text of an example of any corpus; examples of language models have only a target."""
    return example.source or example.target


def _chances(lengths: Sequence[int], seeds: Sequence[int | None]) -> Float[Tensor, "batch length 3"]:
    """Three random numbers in [0, 1) for each token, from torch's global generator or from the seed of each row."""
    fixed = [torch.Generator().manual_seed(seed % 2**64) for seed in seeds if seed is not None]
    if not fixed:
        return torch.rand(len(lengths), max(lengths), 3)
    rows = [torch.rand(length, 3, generator=generator) for length, generator in zip(lengths, fixed, strict=True)]
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)


def _compare(metric: str, judged: Sequence[PredictedToken], how: str) -> Measured:
    """Computes a metric over predicted tokens; `how` becomes part of its signature."""
    if metric != "perplexity":
        return METRICS[metric]([token.said for token in judged], [token.wanted for token in judged], how)
    return METRICS[metric](_cost(judged), how)


def _cost(judged: Sequence[PredictedToken]) -> Cost:
    """The negative log-likelihood of the right tokens, with counts."""
    texts = {token.example_index: token.example for token in judged}.values()
    unknown = sum(token.wanted == SPECIALS[UNKNOWN] for token in judged)
    characters = sum(len(_text(example)) for example in texts)
    return Cost(len(texts), len(judged), characters, unknown, sum(token.nats for token in judged))


def _filled(text: str, pieces: Sequence[str]) -> str:
    """The text with its blanks replaced by these pieces."""
    first, *rest = text.split(BLANK)
    return first + "".join(piece.removeprefix("▁") + after for piece, after in zip(pieces, rest, strict=True))
