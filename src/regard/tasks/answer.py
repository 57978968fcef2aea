"""Question and context to the words of the context that answer: extractive question answering, on any encoder."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional

from regard.data import batching, files
from regard.data.files import Loaded
from regard.data.tokenizers import TOKENIZERS, Tokenizer
from regard.errors import DataError, pick
from regard.maps import AttentionMap
from regard.models import span
from regard.models.span import Pointed, SpanModel
from regard.recipe import Recipe, Search
from regard.sources.text import SOURCE, build_tokenizer
from regard.storage import Run
from regard.tasks import core
from regard.tasks.core import Encoded, Task
from regard.types import END, SPECIALS, BatchFirst, Example, Padded, Prediction

READ_TOKENS = 16_000  # that are read at once
ROWS = ("first", "last")  # of the map: where the answer begins and ends


class Span(NamedTuple):
    """The first and the last token of an answer, counted in the context."""

    first: int
    last: int


@dataclass(frozen=True)
class Questions(Encoded):
    """Questions and contexts as ids, without END, and where the answers stand."""

    questions: list[list[int]]
    contexts: list[list[int]]
    spans: list[Span]

    def lengths(self) -> list[tuple[int, int]]:
        """The room each example takes: question and context stand in one row."""
        both = zip(self.questions, self.contexts, strict=True)
        return [(len(question) + 1 + len(context) + 1, 1) for question, context in both]


@dataclass(frozen=True)
class QuestionBatch(BatchFirst):
    """Rows of question END context END, and where the answers stand in them."""

    source: Padded
    context: Bool[Tensor, "batch length"]  # True where an answer may stand
    spans: Int[Tensor, "batch 2"]
    examples: Int[Tensor, " batch"]  # where each row stands in the data, for messages


class Answer(Task[SpanModel, Questions, QuestionBatch]):
    """Question and context to the answer's words in the context: extractive question answering."""

    metrics = ("exact_match", "answer_f1", "character_errors")
    noun = "question"

    def __init__(self, recipe: Recipe, source: Tokenizer) -> None:
        super().__init__(recipe)
        self.source = source

    @staticmethod
    def check(recipe: Recipe) -> None:
        """Refuse a recipe that names what is not there, before any data is read."""
        pick(TOKENIZERS, recipe.tokens.source, "tokenizer")
        with torch.device("meta"):  # the model without its memory: sizes that do not fit show here
            span.build(recipe.model, size=len(SPECIALS))

    @staticmethod
    def read(names: tuple[str, ...]) -> Loaded:
        """The examples of files of question<TAB>context<TAB>answer."""
        return files.questions(names)

    @classmethod
    def learn(cls, recipe: Recipe, examples: Sequence[Example], origin: Run | None = None) -> "Answer":
        """Build the tokenizer on questions and contexts, unless the run one starts from has it."""
        texts = [part for each in examples for part in parts(each.source)]
        return cls(recipe, build_tokenizer(recipe.tokens.source, texts, recipe.tokens.size, SOURCE, origin))

    @classmethod
    def restore(cls, recipe: Recipe, read: Callable[[str], bytes]) -> "Answer":
        """The task of a stored run."""
        return cls(recipe, pick(TOKENIZERS, recipe.tokens.source, "tokenizer").from_bytes(read(SOURCE)))

    def files(self) -> dict[str, bytes]:
        """What a run must keep besides the weights."""
        return {SOURCE: self.source.to_bytes()}

    def build(self) -> SpanModel:
        """A model with fresh weights."""
        return span.build(self.recipe.model, size=self.source.size)

    def encode(self, examples: Sequence[Example]) -> Questions:
        """All examples as ids, with the places of their answers."""
        both = [parts(each.source) for each in examples]
        return Questions(
            list(examples),
            [self.source.encode(question) for question, _ in both],
            [self.source.encode(context) for _, context in both],
            [self.find(context, each) for (_, context), each in zip(both, examples, strict=True)],
        )

    def find(self, context: str, example: Example) -> Span:
        """Where the answer stands first in its context; tokens of which it takes only a part are taken whole."""
        answer = example.target.strip()
        begin = context.find(answer)
        if begin < 0:
            raise DataError(
                f"{example.origin}: the answer {answer!r} does not stand in its context; "
                "it must be a part of it, letter by letter"
            )
        places = self.source.places(context)
        covered = [index for index, place in enumerate(places) if place[1] > begin and place[0] < begin + len(answer)]
        return Span(covered[0], covered[-1])

    def told(self, data: Questions, dev: Questions) -> Iterator[str]:
        """The size of the vocabulary, and the length of the answers."""
        unknown = f"{core.unknown(dev.questions + dev.contexts):.2%} of the dev tokens unknown"
        yield f"a vocabulary of {self.source.size:,} tokens, {unknown}"
        longest = max(each.last - each.first + 1 for each in data.spans)
        most = self.recipe.search.max_answer
        short = f", but only {most} are looked for: raise search.max_answer" if longest > most else ""
        yield f"answers of up to {longest} tokens{short}"

    def collate(self, data: Questions, indices: Sequence[int]) -> QuestionBatch:
        """The batch of these examples."""
        questions, contexts = ([ids[index] for index in indices] for ids in (data.questions, data.contexts))
        source, context = arrange(questions, contexts)
        begins = torch.tensor([[len(question) + 1] for question in questions])
        spans = begins + torch.tensor([data.spans[index] for index in indices])
        return QuestionBatch(source, context, spans, torch.tensor(indices, dtype=torch.long))

    def tokens(self, batch: QuestionBatch) -> int:
        """Two a question: where the answer begins, and where it ends."""
        return batch.spans.numel()

    def loss(
        self, model: SpanModel, batch: QuestionBatch, smoothing: float = 0.0, sampling: float = 0.0
    ) -> Float[Tensor, ""]:
        """The summed cross-entropy of first and last tokens; smoothed labels are spread over the context."""
        pointed = model(batch.source, batch.context)
        lost = batch.spans.new_zeros((), dtype=pointed.first.dtype)
        for place, chances in zip(batch.spans.unbind(1), pointed, strict=True):
            right = chances.gather(1, place.unsqueeze(1)).sum()
            spread = chances.masked_fill(~batch.context, 0.0).sum(1) / batch.context.sum(1)
            lost = lost - (1 - smoothing) * right - smoothing * spread.sum()
        return lost

    @torch.no_grad()
    def answer(
        self, model: SpanModel, texts: Sequence[str], settings: Search, n_best: int = 1, seed: int = 0
    ) -> list[Prediction]:
        """The best answer to each question<TAB>context, the next best as alternatives.

        The map shows where the answer may begin and end. A blank text, one without a context, or one too long gets a
        blank answer.
        """
        model.eval()
        device = next(model.parameters()).device
        answers = [core.blank(text) for text in texts]
        for places, _ in core.ask(texts, self._ids, self.longest, READ_TOKENS):
            places = [place for place in places if all(part.strip() for part in parts(texts[place]))]
            if not places:
                continue
            both = [[self.source.encode(part) for part in parts(texts[place])] for place in places]
            source, context = arrange(*zip(*both, strict=True))
            pointed = model(source.to(device), context.to(device))
            for row, place in enumerate(places):
                of_context = context[row].to(device)
                own = Pointed(pointed.first[row, of_context], pointed.last[row, of_context])
                answers[place] = self.tell(texts[place], both[row][1], own, settings.max_answer, n_best)
        return answers

    def _ids(self, text: str) -> list[int]:
        return [token for part in parts(text) for token in [*self.source.encode(part), END]]

    def too_long(self, text: str) -> bool:
        """Whether a text is answered with nothing because of its length."""
        return bool(text.strip()) and len(self._ids(text)) > self.longest

    def tell(self, text: str, ids: Sequence[int], pointed: Pointed, most: int, n_best: int) -> Prediction:
        """The best answers to one question, as they stand in the context."""
        _, context = parts(text)
        places, pieces = self.source.places(context), tuple(self.source.piece(token) for token in ids)
        seen = AttentionMap(torch.stack(pointed).exp().cpu(), ROWS, pieces)
        told = []
        for score, (first, last) in best_spans(pointed, most, n_best):
            words = context[places[first][0] : places[last][1]].strip()
            told.append(Prediction(text, words, score, pieces[first : last + 1], seen))
        best, *others = told
        return replace(best, alternatives=tuple(others))


def parts(text: str) -> tuple[str, str]:
    """Question and context of a text."""
    fields = text.split("\t")
    if len(fields) != 2:
        shown = text if len(text) <= 80 else f"{text[:80]}..."
        raise DataError(f"a question comes with its context, as question<TAB>context; this does not: {shown!r}")
    return fields[0], fields[1]


def arrange(
    questions: Sequence[list[int]], contexts: Sequence[list[int]]
) -> tuple[Padded, Bool[Tensor, "batch length"]]:
    """Rows of question END context END, and which of their tokens are the context's."""
    source = batching.pad(
        [[*question, END, *context, END] for question, context in zip(questions, contexts, strict=True)]
    )
    places = torch.arange(source.ids.shape[1])
    begin = torch.tensor([[len(question) + 1] for question in questions])
    end = begin + torch.tensor([[len(context)] for context in contexts])
    return source, (places >= begin) & (places < end)


def best_spans(pointed: Pointed, most: int, n_best: int) -> list[tuple[float, Span]]:
    """The likeliest spans of at most so many tokens, log P(first) + log P(last), the best first."""
    length = len(pointed.first)
    width = min(most, length)
    lasts = functional.pad(pointed.last, (0, width - 1), value=-torch.inf).unfold(0, width, 1)
    scores = pointed.first.unsqueeze(1) + lasts  # first token, tokens after it
    found = scores.flatten().topk(min(n_best, scores.numel()))
    pairs = [(score, divmod(place, width)) for score, place in zip(*map(Tensor.tolist, found), strict=True)]
    return [(score, Span(first, first + more)) for score, (first, more) in pairs if score > -torch.inf]
