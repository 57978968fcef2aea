"""Extractive question answering: the answer is a span of the context; with any encoder."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional

from regard.console import counted
from regard.data import batching, files
from regard.data.batching import Lengths
from regard.data.files import LIMITS, Loaded
from regard.data.store import IntegerRows, row_lengths
from regard.errors import DataError, shown
from regard.maps import AttentionMap
from regard.models import ENCODER_SELF, span
from regard.models.span import Pointed, SpanModel
from regard.recipe import Limits, Recipe, Search
from regard.tasks import core
from regard.tasks.core import Axes, Encoded, TextTask
from regard.types import END, BatchFirst, Example, Padded, Prediction

ROWS = ("first", "last")  # labels of the rows of a map: the first and the last token of the answer


class Span(NamedTuple):
    """The indices of the first and the last token of an answer, in the context."""

    first: int
    last: int


@dataclass(frozen=True)
class Questions(Encoded):
    """Encoded examples: questions and contexts as token ids, without END, and the spans of the answers."""

    questions: Sequence[list[int]]
    contexts: Sequence[list[int]]
    spans: Sequence[Span]

    def lengths(self) -> Lengths:
        """The positions that each example takes: question and context are one row."""
        sizes = row_lengths(self.questions) + 1 + row_lengths(self.contexts) + 1
        return np.stack([sizes, np.ones_like(sizes)], axis=1)


@dataclass(frozen=True)
class QuestionBatch(BatchFirst):
    """A batch of rows `question END context END`, and the spans of the answers in them."""

    source: Padded
    context: Bool[Tensor, "batch length"]  # True for the tokens of the context
    spans: Int[Tensor, "batch 2"]  # first and last token of the answer, counted in the row
    examples: Int[Tensor, " batch"]  # index of each row's example in the data, for messages


class Answer(TextTask[SpanModel, Questions, QuestionBatch]):
    """Extractive question answering: predicts the first and the last token of the answer in the context."""

    metrics = ("exact_match", "answer_f1", "character_errors")
    noun = "question"
    columns = ("question", "context", "answer")
    ignores = (
        *(*core.NO_DECODER, *core.NOT_CAPTURED),
        *("tokens.target", "tokens.lower", "tokens.rejoin", "model.tied", "train.word_dropout"),
        *(f"search.{key.name}" for key in fields(Search) if key.name != "max_answer"),
    )

    @staticmethod
    def model(recipe: Recipe, size: int) -> SpanModel:
        """Builds the model for a vocabulary of this size, with newly initialised weights."""
        return span.build(recipe.model, recipe.answer, size=size)

    @staticmethod
    def read(names: tuple[str, ...], limits: Limits = LIMITS) -> Loaded:
        """Reads the examples of files of question<TAB>context<TAB>answer."""
        return files.questions(names, limits)

    @classmethod
    def texts(cls, recipe: Recipe, example: Example) -> Sequence[str]:
        """The question and the context of an example."""
        return parts(example.source)

    def encode(self, examples: Sequence[Example]) -> Questions:
        """Encodes all examples as token ids, with the spans of their answers."""
        return Questions(
            examples,
            IntegerRows.of(self.source.encode(parts(example.source)[0]) for example in examples),
            IntegerRows.of(self.source.encode(parts(example.source)[1]) for example in counted(examples, "encoding")),
            [self.find(parts(example.source)[1], example) for example in counted(examples, "encoding answers")],
        )

    def find(self, context: str, example: Example) -> Span:
        """The span of the answer's first occurrence in its context; tokens that it covers in part are included."""
        answer = example.target.strip()
        begin = context.find(answer)
        if begin < 0:
            raise DataError(
                f"{example.origin}: the answer {shown(answer)} is not in its context; "
                "it must be a part of it, letter by letter"
            )
        places = self.source.offsets(context)
        covered = [index for index, place in enumerate(places) if place[1] > begin and place[0] < begin + len(answer)]
        return Span(covered[0], covered[-1])

    def describe(self, data: Questions, dev: Questions) -> Iterator[str]:
        """Reports the size of the vocabulary and the length of the longest answer."""
        unknown = core.describe_unknown(core.unknown(dev.questions, dev.contexts), self.recipe.train)
        yield f"a vocabulary of {self.source.size:,} tokens, {unknown}"
        longest = max(answer.last - answer.first + 1 for answer in data.spans)
        most = self.recipe.search.max_answer
        short = f", but predictions have at most {most}: raise search.max_answer" if longest > most else ""
        yield f"answers of up to {longest} tokens{short}"

    def collate(self, data: Questions, indices: Sequence[int]) -> QuestionBatch:
        """Makes the batch of the examples at these indices."""
        questions, contexts = ([ids[index] for index in indices] for ids in (data.questions, data.contexts))
        begun = [self.source.framed(question)[:-1] for question in questions]
        source, context = arrange(begun, contexts)
        begins = torch.tensor([[len(question) + 1] for question in begun])
        spans = begins + torch.tensor([data.spans[index] for index in indices])
        return QuestionBatch(source, context, spans, torch.tensor(indices, dtype=torch.long))

    def tokens(self, batch: QuestionBatch) -> int:
        """Two predictions per question: the first and the last token of the answer."""
        return batch.spans.numel()

    def loss(
        self, model: SpanModel, batch: QuestionBatch, smoothing: float = 0.0, sampling: float = 0.0
    ) -> Float[Tensor, ""]:
        """The summed cross-entropy of first and last tokens; label smoothing is uniform over the context."""
        pointed = model(batch.source, batch.context)
        loss = batch.spans.new_zeros((), dtype=pointed.first.dtype)
        for place, log_probs in zip(batch.spans.unbind(1), pointed, strict=True):
            right = log_probs.gather(1, place.unsqueeze(1)).sum()
            uniform = log_probs.masked_fill(~batch.context, 0.0).sum(1) / batch.context.sum(1)
            loss = loss - (1 - smoothing) * right - smoothing * uniform.sum()
        return loss

    @torch.no_grad()
    def answer(
        self,
        model: SpanModel,
        texts: Sequence[str],
        settings: Search,
        n_best: int = 1,
        seed: int = 0,
        *,
        all_maps: bool = False,
    ) -> list[Prediction]:
        """Predicts the best answer to each question<TAB>context, with the next best ones as alternatives.

        The map shows the probabilities of each token of the context to be the first and the last of the answer. A text
        that is too long, or whose question or context is blank, gets a blank prediction.
        """
        model.eval()
        device = next(model.parameters()).device
        answers = [core.blank(text) for text in texts]
        for places, _ in core.input_batches(texts, self._ids, self.longest):
            places = [place for place in places if all(part.strip() for part in parts(texts[place]))]
            if not places:
                continue
            both = [[self.source.encode(part) for part in parts(texts[place])] for place in places]
            begun = ((self.source.framed(question)[:-1], context) for question, context in both)
            source, context = arrange(*zip(*begun, strict=True))
            with core.recording_sites(model, all_maps) as recording:
                pointed = model(source.to(device), context.to(device))
            for row, place in enumerate(places):
                of_context = context[row].to(device)
                own = Pointed(pointed.first[row, of_context], pointed.last[row, of_context])
                answers[place] = self.prediction(texts[place], both[row][1], own, settings.max_answer, n_best)
                if all_maps:
                    pieces = tuple(map(self.source.piece, self._ids(texts[place])))
                    axes = {ENCODER_SELF: Axes(pieces, pieces)}
                    answers[place] = replace(answers[place], maps=core.recorded_maps(model, recording, row, axes))
        return answers

    def _ids(self, text: str) -> list[int]:
        """The token ids of question END context END."""
        question, context = (self.source.encode(part) for part in parts(text))
        return [*self.source.framed(question), *context, END]

    def positions(self, text: str) -> tuple[str, ...]:
        """The tokens of question END context END."""
        return tuple(map(self.source.piece, self._ids(text)))

    def too_long(self, text: str) -> bool:
        """Whether a text is too long, so that its prediction is blank."""
        return bool(text.strip()) and len(self._ids(text)) > self.longest

    def unknown_parts(self, text: str) -> list[str]:
        """The parts of question and context that are not in the vocabulary, in their order."""
        return [part for field in text.split("\t") for part in super(Answer, self).unknown_parts(field)]

    def prediction(self, text: str, ids: Sequence[int], pointed: Pointed, most: int, n_best: int) -> Prediction:
        """Makes the prediction for one question: the text of the best spans in the context."""
        _, context = parts(text)
        places, pieces = self.source.offsets(context), tuple(self.source.piece(token) for token in ids)
        attention_map = AttentionMap(torch.stack(pointed).exp().cpu(), ROWS, pieces)
        predictions = []
        for score, (first, last) in best_spans(pointed, most, n_best):
            words = context[places[first][0] : places[last][1]].strip()
            predictions.append(Prediction(text, words, score, pieces[first : last + 1], attention_map))
        return core.with_alternatives(predictions)


def parts(text: str) -> tuple[str, str]:
    """Splits a text into question and context; DataError if it does not have these two parts."""
    fields = text.split("\t")
    if len(fields) != 2:
        raise DataError(f"a question comes with its context, as question<TAB>context; this does not: {shown(text)}")
    return fields[0], fields[1]


def arrange(
    questions: Sequence[list[int]], contexts: Sequence[list[int]]
) -> tuple[Padded, Bool[Tensor, "batch length"]]:
    """Makes padded rows `question END context END`, and the mask of the tokens of the context."""
    source = batching.pad(
        [[*question, END, *context, END] for question, context in zip(questions, contexts, strict=True)]
    )
    places = torch.arange(source.ids.shape[1])
    begin = torch.tensor([[len(question) + 1] for question in questions])
    end = begin + torch.tensor([[len(context)] for context in contexts])
    return source, (places >= begin) & (places < end)


def best_spans(pointed: Pointed, most: int, n_best: int) -> list[tuple[float, Span]]:
    """The best spans of at most `most` tokens, by log P(first) + log P(last), the best first."""
    length = len(pointed.first)
    width = min(most, length)
    lasts = functional.pad(pointed.last, (0, width - 1), value=-torch.inf).unfold(0, width, 1)
    scores = pointed.first.unsqueeze(1) + lasts  # axes: first token, number of tokens after it
    best = scores.flatten().topk(min(n_best, scores.numel()))
    pairs = [(score, divmod(place, width)) for score, place in zip(*map(Tensor.tolist, best), strict=True)]
    return [(score, Span(first, first + more)) for score, (first, more) in pairs if score > -torch.inf]
