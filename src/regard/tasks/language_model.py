"""Language modelling: predicts each token from those before it; continues texts."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

from regard import search
from regard.attention.record import Recording
from regard.console import counted
from regard.data import batching, files, store
from regard.data.batching import Lengths
from regard.data.files import LIMITS, Loaded
from regard.data.records import NOTHING_GIVEN, Fields, Given
from regard.data.store import Indices, IntegerRows, Mapped, Texts, joined, take, where
from regard.data.tokenizers import Tokenizer
from regard.errors import DataError, RecipeError, quantity
from regard.kernels.choose import pause_observers
from regard.maps import AttentionMaps
from regard.metrics import METRICS, Cost, Outcome
from regard.models import DECODER_SELF, language
from regard.models.language import LanguageModel
from regard.recipe import Limits, Recipe, Search
from regard.search.sample import SEED_STEP
from regard.tasks import core
from regard.tasks.core import Axes, Encoded, Examples, Scored, TextTask
from regard.types import (
    BEGIN,
    END,
    PAD,
    SPECIALS,
    UNKNOWN,
    Batch,
    Example,
    Hypothesis,
    Memory,
    Padded,
    Prediction,
    Vocabulary,
)

SEARCH_TOKENS = 8000  # size of a batch of a search: tokens times beams
TURN = 1_000_003  # distance of the seeds of two turns; torch uses only the lower 32 bits of a seed


@dataclass(frozen=True)
class Rows(Encoded):
    """Encoded text: one stream of token ids, and the start and end of each row in it: lines with END, or windows.

    The number of rows is that of `lengths`, not of `examples`. BEGIN before each row is not part of the stream.
    """

    stream: Int[Tensor, " all"]
    starts: Int[Tensor, " rows"]
    ends: Int[Tensor, " rows"]
    row_examples: Int[Tensor, " rows"]  # index of the example in which each row begins

    def lengths(self) -> Lengths:
        """The number of tokens to predict in each row, as (0, tokens): there is no source."""
        sizes = (self.ends - self.starts).numpy().astype(np.int32)
        return np.stack([np.zeros_like(sizes), sizes], axis=1)

    def only(self, indices: Indices) -> "Rows":
        """The data of the rows at these indices, with the examples in which they begin."""
        chosen = torch.as_tensor(indices, dtype=torch.long)
        used, row_examples = self.row_examples[chosen].unique(return_inverse=True)
        examples = take(self.examples, used.numpy())
        return Rows(examples, self.stream, self.starts[chosen], self.ends[chosen], row_examples)

    def windows(self, window: int, stride: int) -> "Rows":
        """Cuts the stream into windows, one every `stride` tokens; the last ends with the stream and may be shorter."""
        last = max(0, math.ceil((len(self.stream) - window) / stride))
        starts = torch.arange(last + 1) * stride
        ends = (starts + window).clamp(max=len(self.stream))
        return replace(self, starts=starts, ends=ends, row_examples=_homes(self.examples, starts, len(self.stream)))


class Written(NamedTuple):
    """A generated continuation of a text."""

    tokens: list[int]
    score: float  # log-probability of these tokens, given the text
    finished: bool  # whether it ended with END; False if it reached the limit of tokens

    def then(self, more: "Written") -> "Written":
        """This continuation with a further one appended."""
        return Written([*self.tokens, *more.tokens], self.score + more.score, more.finished)


class LanguageModelling(TextTask[LanguageModel, Rows, Batch]):
    """Language modelling: learns from plain text with the cross-entropy of each next token; continues texts.

    With language_model.window, all text is one stream, including newlines, cut into windows of this many tokens.
    Without it, each line is a separate text that ends with END.
    """

    metrics = ("perplexity", "bits_per_character")
    shows = False
    noun = "line"
    columns = ("text",)
    mistakes = "texts"
    ignores = (
        *("source", "tokens.target", "tokens.shared", "tokens.lower", "tokens.rejoin", "train.word_dropout"),
        *(*core.ATTENTION_TERMS, *core.REWARD),
        *("model.encoder", "model.decoder.copies", "model.decoder.gated_context", "model.decoder.cross_attention"),
        *("search.max_ratio", "search.coverage_penalty", "search.max_answer", "search.ctc", *core.OF_PAIRS),
    )

    @classmethod
    def check(cls, recipe: Recipe) -> None:
        """Refuse a recipe with unknown names or settings that do not fit together, before any data is read."""
        super().check(recipe)
        settings, model = recipe.language_model, recipe.model
        if settings.stride > settings.window:
            raise RecipeError(
                f"language_model.stride is at most language_model.window = {settings.window}, not {settings.stride}: "
                "text would be skipped"
            )
        read = settings.window or recipe.data.max_length + 1
        if model.decoder.kind == "transformer" and model.positions == "learned" and model.longest < read:
            raise RecipeError(
                f"model.longest = {model.longest} positions are learned, but {read} tokens are read at once; raise it"
            )

    @staticmethod
    def model(recipe: Recipe, size: int) -> LanguageModel:
        """Builds the model for a vocabulary of this size, with newly initialised weights."""
        return language.build(recipe.model, size=size)

    # from files to rows

    @staticmethod
    def read(names: tuple[str, ...], limits: Limits = LIMITS) -> Loaded:
        """Reads all lines of plain text for a stream, with newlines and blank lines."""
        return Loaded(files.stream(names, limits), 0)

    @staticmethod
    def read_lines(names: tuple[str, ...], limits: Limits = LIMITS) -> Loaded:
        """Reads the lines of plain text as separate texts, without newlines and blank lines."""
        lines = files.stream(names, limits)
        filled = take(lines, where(counted(store.targets(lines), "reading"), lambda line: bool(line.strip())))
        if not filled:
            raise DataError(f"{' and '.join(names)}: no line is left, for all {len(lines):,} are blank")
        without_ends = store.with_texts(filled, lambda _, line: ("", line.removesuffix("\n")))
        return Loaded(without_ends, len(lines) - len(filled))

    @classmethod
    def line_reader(cls, recipe: Recipe) -> Callable[[tuple[str, ...]], Loaded]:
        """Returns the function that reads a stream if language_model.window is set, otherwise lines."""
        read = cls.read if recipe.language_model.window else cls.read_lines
        return partial(read, limits=recipe.data.limits)

    @classmethod
    def from_fields(cls, recipe: Recipe, fields: Fields) -> Texts:
        """The text of a record, which is a target without a source; in a stream, a newline ends it."""
        return "", fields[0] + ("\n" if recipe.language_model.window else "")

    @classmethod
    def examples(cls, recipe: Recipe, given: Given = NOTHING_GIVEN) -> Examples:
        """Reads or generates all text; without a dev file, dev is the last tenth of a stream, or some of the lines."""
        data, read, window = recipe.data, cls.reader(recipe, given), recipe.language_model.window
        if not data.train:
            train, dev, test, notes = super().examples(recipe, given)
            convert = _ended if window else list
            return Examples(convert(train), convert(dev), convert(test), notes)
        train, dropped = read(data.train)
        notes = core.describe_dropped(data.train, dropped, "blank line")
        test = read(data.test).examples if data.test else []
        if data.dev:
            dev, dropped = read(data.dev)
            return Examples(train, dev, test, [*notes, *core.describe_dropped(data.dev, dropped, "blank line")])
        train, dev = _last_tenth(train) if window else _some_lines(train, data.split_seed)
        part = (
            f"the last tenth, {_characters(dev):,} characters, is"
            if window
            else f"{quantity(len(dev), 'line')} {'is' if len(dev) == 1 else 'are'}"
        )
        return Examples(train, dev, test, [*notes, f"no data.dev given: {part} split off for it"])

    @classmethod
    def texts(cls, recipe: Recipe, example: Example) -> Sequence[str]:
        """The text of an example, which is its target."""
        return [example.target]

    def vocabularies(self) -> dict[str, Vocabulary]:
        """The vocabulary of the embedding and of the output layer."""
        return core.rows_of(core.tokens_of(self.source), *core.DECODER_ROWS)

    def encode(self, examples: Sequence[Example]) -> Rows:
        """Encodes all text as lines, or as windows that do not overlap."""
        window = self.recipe.language_model.window
        return self._stream(examples).windows(window, window) if window else self._lines(examples)

    def _stream(self, examples: Sequence[Example]) -> Rows:
        """Encodes all text as one row, in one call: line by line, sub-words would differ at line breaks."""
        ids = torch.tensor(self.source.encode("".join(store.targets(examples))), dtype=torch.long)
        if not len(ids):
            raise DataError("a text to learn from or to be scored on has no tokens; give more of it")
        first = torch.zeros(1, dtype=torch.long)
        return Rows(examples, ids, first, first + len(ids), first)

    def _lines(self, examples: Sequence[Example]) -> Rows:
        """Encodes each line as a row, with END."""
        lines = counted(store.targets(examples), "encoding")
        rows = IntegerRows.of([*self.source.encode(line), END] for line in lines)
        ids, ends = (torch.from_numpy(numbers.astype(np.int64)) for numbers in (rows.numbers, rows.ends))
        return Rows(examples, ids, functional.pad(ends[:-1], (1, 0)), ends, torch.arange(len(rows)))

    def within_length(self, data: Rows) -> Rows:
        """The rows for training: lines that are short enough, or windows, which may overlap (language_model.stride)."""
        settings = self.recipe.language_model
        if not settings.window:
            return super().within_length(data)
        if len(data.stream) < settings.window:
            raise DataError(
                f"the training text has {len(data.stream):,} tokens, fewer than one window of {settings.window:,}; "
                "give more text or a smaller language_model.window"
            )
        return data.windows(settings.window, settings.stride or settings.window)

    def describe(self, data: Rows, dev: Rows) -> Iterator[str]:
        """Reports the size of the vocabulary, the share of unknown dev tokens, and the number of windows."""
        share = int((dev.stream == UNKNOWN).sum()) / len(dev.stream)
        yield f"a vocabulary of {self.source.size:,} tokens, {core.describe_unknown(share, self.recipe.train)}"
        if window := self.recipe.language_model.window:
            stride = self.recipe.language_model.stride or window
            cut = f"{len(data.starts):,} windows of {window:,} tokens, one every {stride:,}"
            yield f"{cut}; {len(dev.starts):,} dev windows"

    def collate(self, data: Rows, indices: Sequence[int]) -> Batch:
        """Makes the batch of the rows at these indices; its source is empty."""
        chosen = torch.tensor(indices, dtype=torch.long)
        starts, ends = data.starts[chosen].unsqueeze(1), data.ends[chosen].unsqueeze(1)
        places = torch.arange(int((ends - starts).max()))
        real = places < ends - starts
        ids = data.stream[(starts + places).clamp(max=len(data.stream) - 1)].masked_fill(~real, PAD)
        target = Padded(functional.pad(ids, (1, 0), value=BEGIN), functional.pad(real, (1, 0), value=True))
        return Batch(Padded(ids[:, :0], real[:, :0]), target, data.row_examples[chosen])

    # from rows to the loss

    def tokens(self, batch: Batch) -> int:
        """The number of tokens to predict in a batch: all but BEGIN."""
        return int(batch.count_predictions())

    def loss(
        self, model: LanguageModel, batch: Batch, smoothing: float = 0.0, sampling: float = 0.0
    ) -> Float[Tensor, ""]:
        """The cross-entropy summed over tokens, each predicted from those before it."""
        return core.cross_entropy(model(batch).logits, batch.target.ids[:, 1:], smoothing)

    def measure(self, model: LanguageModel, examples: Sequence[Example], metric: str, settings: Search) -> Scored:
        """Computes a metric from the log-probability of the text, in total and, for lines, by group."""
        self.check_metric(metric)
        if not examples:
            raise DataError("there is no text to score; give at least one line")
        window = self.recipe.language_model.window
        grouped: dict[str, list[Example]] = {}
        for example in examples:
            grouped.setdefault("" if window else example.group, []).append(example)
        results = {group: self.cost(model, part) for group, part in grouped.items()}
        costs = {group: cost for group, (cost, _) in results.items()}
        how = f"tokenizer:{self.recipe.tokens.source}|" + (f"window:{window}" if window else "lines")
        total = _total(costs.values())
        names = [name for name in self.metrics if name != metric]
        others = core.measure_each(names, lambda name: METRICS[name](total, how))
        by_group = core.measure_each(filter(None, costs), lambda group: METRICS[metric](costs[group], how))
        groups = {group: measured.value for group, measured in by_group.items()}
        outcomes = joined([texts for _, texts in results.values()])
        return Scored(metric, METRICS[metric](total, how), groups, others, outcomes=outcomes)

    def part(self, examples: Sequence[Example], count: int) -> Sequence[Example]:
        """The first examples: lines of a text that follow each other."""
        return examples[:count]

    def probes(self, examples: Sequence[Example]) -> list[Example]:
        """The first half of each text, to be continued."""
        return [replace(example, source=example.target[: len(example.target) // 2].rstrip()) for example in examples]

    @torch.no_grad()
    def cost(self, model: LanguageModel, examples: Sequence[Example]) -> tuple[Cost, Sequence[Outcome]]:
        """The negative log-probability of the text, with the counts that metrics need; and that of each row."""
        model.eval()
        data = self.encode(examples)
        nats, row_nats = 0.0, [0.0] * len(data.starts)
        batches = batching.sorted_batches(data.lengths(), self.recipe.train.batch_tokens)
        for indices in counted(batches, "scoring", size=1):
            batch_nats = self.nats(model, self.collate(data, indices)).double()
            nats += batch_nats.sum().item()
            for row, value in zip(indices, batch_nats.sum(1).tolist(), strict=True):
                row_nats[row] = value
        unknown = int((data.stream == UNKNOWN).sum())
        rows = Mapped(np.arange(len(row_nats)), lambda row: self._outcome(data, row, row_nats[row]))
        return Cost(len(data.starts), len(data.stream), _characters(examples), unknown, nats), rows

    def _outcome(self, data: Rows, row: int, nats: float) -> Outcome:
        """The cost of one line or window, with its text."""
        tokens = data.stream[data.starts[row] : data.ends[row]]
        window = self.recipe.language_model.window
        text = self.source.decode(tokens.tolist()) if window else data.examples[row].target
        cost = Cost(1, len(tokens), len(text), int((tokens == UNKNOWN).sum()), nats)
        return Outcome("", (text,), "", -nats / len(tokens), cost)

    def nats(self, model: LanguageModel, batch: Batch) -> Float[Tensor, "batch tokens"]:
        """Minus the log-probability of each token after BEGIN; 0 for padding."""
        batch = batch.to(next(model.parameters()).device)
        logits, wanted = model(batch).logits, batch.target.ids[:, 1:]
        precise = logits.to(torch.promote_types(logits.dtype, torch.float32)).transpose(1, 2)
        return functional.cross_entropy(precise, wanted, ignore_index=PAD, reduction="none")

    # from texts to continuations

    @torch.no_grad()
    def answer(
        self,
        model: LanguageModel,
        texts: Sequence[str],
        settings: Search,
        n_best: int = 1,
        seed: int = 0,
        *,
        all_maps: bool = False,
    ) -> list[Prediction]:
        """Continues each text by at most search.max_extra tokens; a text may be empty.

        The `text` of a prediction begins with the given text; `tokens` and `score` are those of the new tokens only.
        With language_model.window, the model sees at most one window: only the end of a longer text, and if the window
        is full, generation goes on from its second half. Without it, a text that is too long gets a blank prediction.
        With `all_maps`, the best output of each text has `maps` if it fits into one window.
        """
        model.eval()
        answers = [core.blank(text) for text in texts]
        prompts = {place: self.source.encode(text) for place, text in enumerate(texts) if not self.too_long(text)}
        contexts = {place: self._context(prompt) for place, prompt in prompts.items()}
        for places in _equally_long(contexts, settings.max_extra, SEARCH_TOKENS // max(settings.beam, n_best)):
            seeds = [seed + place for place in places]
            with core.recording_sites(model, all_maps) as recording:
                continuations = self.write(model, [prompts[place] for place in places], settings, seeds, n_best)
            for row, (place, ranked) in enumerate(zip(places, continuations, strict=True)):
                predictions = [self.prediction(texts[place], prompts[place], written) for written in ranked]
                answers[place] = core.with_alternatives(predictions)
                if all_maps:
                    maps = self.maps(model, recording, row, contexts[place], ranked[0].tokens)
                    answers[place] = replace(answers[place], maps=maps)
        return answers

    def maps(
        self, model: LanguageModel, recording: Recording, row: int, context: list[int], written: list[int]
    ) -> AttentionMaps | None:
        """The self-attention of all layers and heads of one row's best output; None if it took several windows.

        A row of a map is a new token, a column a token that was read before it.
        """
        window = self.recipe.language_model.window
        if not written or (window and len(context) + len(written) > window):
            return None
        new, before = (tuple(map(self.source.piece, ids)) for ids in (written, [BEGIN, *context, *written[:-1]]))
        return core.recorded_maps(model, recording, row, {DECODER_SELF: Axes(new, before, start=len(context))})

    def write(
        self, model: LanguageModel, prompts: list[list[int]], settings: Search, seeds: list[int], n_best: int
    ) -> list[list[Written]]:
        """Continues prompts whose contexts are equally long, in several turns if the window gets full."""
        most, half = settings.max_extra, self.recipe.language_model.window // 2
        first = self._turn(model, [self._context(prompt) for prompt in prompts], settings, seeds, n_best)
        written = {(row, draw): each for row, drawn in enumerate(first) for draw, each in enumerate(drawn)}
        turn = 0
        while unfinished := [key for key, each in written.items() if not each.finished and len(each.tokens) < most]:
            turn += 1
            so_far = [[*prompts[key[0]], *written[key].tokens] for key in unfinished]
            # new random numbers each turn
            fresh = [seeds[row] + draw * SEED_STEP + turn * TURN for row, draw in unfinished]
            left = most - len(written[unfinished[0]].tokens)  # the same for all, since their contexts are equally long
            contexts = [tokens[len(tokens) - half :] for tokens in so_far]
            with pause_observers():  # a recording has the first window of each output
                further = self._turn(model, contexts, replace(settings, max_extra=left), fresh, 1)
            for key, (more,) in zip(unfinished, further, strict=True):
                written[key] = written[key].then(more)
        return [[written[row, draw] for draw in range(len(drawn))] for row, drawn in enumerate(first)]

    def _turn(
        self, model: LanguageModel, contexts: list[list[int]], settings: Search, seeds: list[int], n_best: int
    ) -> list[list[Written]]:
        """Generates continuations of equally long contexts, until the window is full."""
        window, length, most = self.recipe.language_model.window, len(contexts[0]), settings.max_extra
        limits = [length + (min(most, window - length) if window else most)] * len(contexts)
        device = next(model.parameters()).device
        prefix = torch.tensor(contexts, dtype=torch.long, device=device).view(len(contexts), length)
        memory = Memory.none(len(contexts), device, model.decoder.embedding.weight.dtype)
        rows = search.find(model.decoder, memory, settings, limits=limits, seeds=seeds, n_best=n_best, prefix=prefix)
        scores = iter(self._scores(model, [hypothesis for row in rows for hypothesis in row], length))
        return [[Written(each.tokens[length:], next(scores), each.finished) for each in row] for row in rows]

    def _scores(self, model: LanguageModel, hypotheses: list[Hypothesis], length: int) -> list[float]:
        """The log-probabilities of the tokens after the first `length` ones, without the penalties of the search."""
        target = batching.pad([[BEGIN, *each.tokens, *([END] if each.finished else [])] for each in hypotheses])
        no_source = Padded(target.ids[:, :0], target.mask[:, :0])
        with pause_observers():  # a recording has the best outputs from the search already
            nats = self.nats(model, Batch(no_source, target, torch.arange(len(hypotheses))))
        return (-nats[:, length:].double().sum(1)).tolist()

    def _context(self, prompt: list[int]) -> list[int]:
        """The end of a prompt that the model sees; with a window, it leaves room for one new token."""
        window = self.recipe.language_model.window
        return prompt[max(0, len(prompt) - window + 1) :] if window else prompt

    @property
    def output_tokens(self) -> Tokenizer:
        """The tokenizer of texts and their continuations."""
        return self.source

    def positions(self, text: str) -> tuple[str, ...]:
        """BEGIN and the tokens of a text that the model sees: with language_model.window, only its end."""
        return tuple(map(self.source.piece, [BEGIN, *self._context(self.source.encode(text))]))

    def erasable(self, text: str) -> int:
        """The last token but one: the first new token is predicted from the last."""
        return len(self.positions(text)) - 1

    def axes(self, text: str, written: tuple[str, ...], site: str) -> Axes:
        """The axes of the self-attention of new tokens."""
        before = self.positions(text)
        return Axes((*written, SPECIALS[END]), (*before, *written), start=len(before) - 1)

    def too_long(self, text: str) -> bool:
        """Whether a text is too long, so that its prediction is blank; with language_model.window, no text is."""
        return not self.recipe.language_model.window and len(self.source.encode(text)) > self.longest

    def prediction(self, text: str, prompt: Sequence[int], written: Written) -> Prediction:
        """Makes the prediction of a continuation; it is decoded with the prompt, so that spaces are right."""
        whole, before = self.source.decode([*prompt, *written.tokens]), self.source.decode(prompt)
        tokens = tuple(self.source.piece(token) for token in written.tokens)
        return Prediction(text, text + whole.removeprefix(before), written.score, tokens, None)


def _ended(examples: Sequence[Example]) -> list[Example]:
    """The texts of a corpus, each with a newline at its end, like the lines of a file."""
    return [replace(example, target=example.target.removesuffix("\n") + "\n") for example in examples]


def _characters(examples: Sequence[Example]) -> int:
    """The number of characters of all examples."""
    return sum(map(len, store.targets(examples)))


def _last_tenth(examples: Sequence[Example]) -> tuple[Sequence[Example], Sequence[Example]]:
    """Splits the text after nine tenths of its characters into train and dev; a line may be cut in two."""
    room = _characters(examples) * 9 // 10
    for number, line in enumerate(examples):
        if len(line.target) > room:
            first, second = replace(line, target=line.target[:room]), replace(line, target=line.target[room:])
            return joined([examples[:number], [first]]), joined([[second], examples[number + 1 :]])
        room -= len(line.target)
    raise AssertionError("a text has characters, and nine tenths of them are not all")


def _some_lines(examples: Sequence[Example], seed: int) -> tuple[Sequence[Example], Sequence[Example]]:
    """Splits the lines at random into train and dev; equal lines stay together, so that no dev line is in train."""
    if len(examples) < 2:
        raise DataError("no dev part can be split off a single line; give more of them, or data.dev=FILE")
    by_text = files.split(store.with_texts(examples, lambda _, line: (line, line)), seed)
    train, dev = (store.with_texts(part, lambda _, line: ("", line)) for part in by_text)
    return train, dev


def _homes(examples: Sequence[Example], starts: Int[Tensor, " rows"], tokens: int) -> Int[Tensor, " rows"]:
    """The index of the example of each of these tokens, for messages; approximate if tokens are not characters."""
    ends = torch.tensor([*map(len, store.targets(examples))]).cumsum(0)
    places = starts * int(ends[-1]) // tokens
    return torch.searchsorted(ends, places, right=True).clamp(max=len(examples) - 1)


def _total(costs: Iterable[Cost]) -> Cost:
    """The sum of all costs."""
    texts, tokens, characters, unknown, nats = zip(*costs, strict=True)
    return Cost(sum(texts), sum(tokens), sum(characters), sum(unknown), math.fsum(nats))


def _equally_long(contexts: Mapping[int, Sequence[int]], extra: int, budget: int) -> Iterator[list[int]]:
    """Yields the keys of equally long contexts, as many at a time as a budget of tokens allows."""
    by_length: dict[int, list[int]] = {}
    for place, context in contexts.items():
        by_length.setdefault(len(context), []).append(place)
    for length, places in by_length.items():
        rows = max(1, budget // (length + extra))
        yield from (places[start : start + rows] for start in range(0, len(places), rows))
