"""Sequence-to-sequence tasks, such as translation, transliteration or rewriting: any source of `SOURCES` to text."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from regard import models, plugins, search
from regard.attention import terms
from regard.console import counted
from regard.data import batching, store
from regard.data.batching import length_array
from regard.data.files import Loaded
from regard.data.records import NOTHING_GIVEN, Given
from regard.data.store import IntegerRows, Shared, joined
from regard.data.tokenizers import TOKENIZERS, Tokenizer
from regard.decoders import ORDERS, Decoder
from regard.device import map_in_parallel, only_shapes
from regard.errors import DataError, RecipeError, pick
from regard.kernels.choose import pause_observers
from regard.maps import TEXT, AttentionMap, AttentionMaps, Layout
from regard.metrics import MULTI_REFERENCE
from regard.models import CROSS, DECODER_SELF, ENCODER_SELF, Seq2Seq
from regard.recipe import Recipe, Search, Tokens
from regard.sources import SOURCES, AnySource, Source, Text
from regard.sources.text import SOURCE, TARGET, build_tokenizer
from regard.storage import Run
from regard.tasks import core
from regard.tasks.core import DECODER_ROWS, Axes, Collated, DevLoss, Examples, Pairs, Task
from regard.types import BEGIN, END, SPECIALS, Batch, Example, Hypothesis, Padded, Prediction, Step, Vocabulary

SEARCH_TOKENS = 8000  # size of a batch of a search: source tokens times beams
FORCED_TOKENS = 2000  # tokens of a batch in `force`


class Forced(NamedTuple):
    """The result of forced decoding for one target."""

    score: float  # log-probability
    log_probs: Float[Tensor, " tokens"]  # of each token, END included
    map: AttentionMap | None
    maps: AttentionMaps | None  # of all sites, layers and heads, if they were asked for


class Transduce(Task[Seq2Seq, Pairs, Batch]):
    """Source to text: learns from pairs with cross-entropy; predicts by beam search or sampling."""

    metrics = ("exact_match", "character_errors", "word_errors", "bleu", "bleu_tokenised", "chrf", *MULTI_REFERENCE)
    ignores = ("tokens.lower", "train.word_dropout", "search.max_answer")

    def __init__(self, recipe: Recipe, inputs: AnySource, target: Tokenizer) -> None:
        super().__init__(recipe)
        self.inputs, self.target = inputs, target
        self.source = inputs.tokenizer if isinstance(inputs, Text) else None

    @property
    def reads_files(self) -> bool:
        """Whether an input is the name of a file, such as a recording, and not a text."""
        return self.inputs.reads_files

    def locate(self, name: str, file: str) -> str:
        """The input that a line of a file names, which may be relative to the folder of that file."""
        return self.inputs.locate(name, file)

    @classmethod
    def check(cls, recipe: Recipe) -> None:
        """Refuse a recipe with unknown names or sizes that do not fit, before any data is read."""
        plugins.pick(SOURCES, recipe.source, "source", Source).check(recipe)
        pick(TOKENIZERS, recipe.tokens.target, "tokenizer")
        if recipe.tokens.shared and (recipe.source != "text" or recipe.tokens.source != recipe.tokens.target):
            raise RecipeError("tokens.shared needs source = text, and tokens.source and tokens.target to be the same")
        if recipe.source != "text" and recipe.tokens.source != Tokens.source:
            raise RecipeError(f"tokens.source is for source = text, not {recipe.source}; leave it out")
        _check_copies(recipe)
        _check_terms(recipe)
        _check_search(recipe)
        size = len(SPECIALS)
        with only_shapes():  # fails if sizes do not fit
            models.build(recipe.model, source_size=size, target_size=size, shared=recipe.tokens.shared)

    @classmethod
    def reader(cls, recipe: Recipe, given: Given = NOTHING_GIVEN) -> Callable[[tuple[str, ...]], Loaded]:
        """Returns the function that reads files as the recipe says; names of pictures are relative to their file."""
        read, kind = super().reader(recipe, given), plugins.pick(SOURCES, recipe.source, "source", Source)

        def located(names: tuple[str, ...]) -> Loaded:
            loaded = read(names)
            return loaded._replace(examples=store.with_sources(loaded.examples, kind.locate))

        return read if recipe.source == "text" else located

    @classmethod
    def examples(cls, recipe: Recipe, given: Given = NOTHING_GIVEN) -> Examples:
        """Reads or generates all examples; the source may add variants of those for training."""
        found, kind = super().examples(recipe, given), plugins.pick(SOURCES, recipe.source, "source", Source)
        count = len(kind.variants(recipe, ""))
        if count == 1:
            return found
        return found._replace(train=store.with_variants(found.train, partial(kind.variants, recipe), count))

    @classmethod
    def learn(cls, recipe: Recipe, examples: Sequence[Example], origin: Run | None = None) -> "Transduce":
        """Builds the tokenizers (or other source encoding) from the training examples, or takes those of `origin`."""
        tokens = recipe.tokens
        sources, targets = store.sources(examples), store.targets(examples)
        if tokens.shared:
            if origin is not None and origin.has_file(TARGET) and origin.read(SOURCE) != origin.read(TARGET):
                how = "write false, or train.new_vocabulary=true"
                raise RecipeError(f"tokens.shared is true, but {origin.path} has two vocabularies; {how}")
            both = Text.fit(recipe, joined([sources, targets]), origin)
            return cls(recipe, both, both.tokenizer)
        inputs = plugins.pick(SOURCES, recipe.source, "source", Source).fit(recipe, sources, origin)
        return cls(recipe, inputs, build_tokenizer(tokens.target, targets, tokens.size, TARGET, origin))

    @classmethod
    def restore(cls, recipe: Recipe, read: Callable[[str], bytes]) -> "Transduce":
        """Builds the task of a stored run."""
        inputs = plugins.pick(SOURCES, recipe.source, "source", Source).restore(recipe, read)
        return cls(recipe, inputs, pick(TOKENIZERS, recipe.tokens.target, "tokenizer").from_bytes(read(TARGET)))

    def files(self) -> dict[str, bytes]:
        """The content of the files that a run must store besides the weights, by file name."""
        return self.inputs.files() | {TARGET: self.target.to_bytes()}

    def build(self) -> Seq2Seq:
        """Builds the model with newly initialised weights."""
        model, shared = self.recipe.model, self.recipe.tokens.shared
        return models.assemble(model, self.inputs.front(model), target_size=self.target.size, shared=shared)

    def vocabularies(self) -> dict[str, Vocabulary]:
        """The vocabularies of the embeddings and of the output layer; the first only if the source is text."""
        target = core.rows_of(core.tokens_of(self.target), *DECODER_ROWS)
        source = {} if self.source is None else core.rows_of(core.tokens_of(self.source), "encoder.embedding.weight")
        return source | target

    def encode(self, examples: Sequence[Example]) -> Pairs:
        """Encodes all examples."""
        sources = self.inputs.encode_all(store.sources(examples))
        targets = IntegerRows.of(map(self.target.encode, counted(store.targets(examples), "encoding targets")))
        distinct = sources.distinct if isinstance(sources, Shared) else sources
        sizes = np.fromiter(map(self.inputs.size, counted(distinct, "measuring sources")), np.int32, len(distinct))
        return Pairs(examples, sources, targets, sizes[sources.numbers] if isinstance(sources, Shared) else sizes)

    def describe(self, data: Pairs, dev: Pairs) -> Iterator[str]:
        """Reports the sizes of the vocabularies, the share of unknown dev tokens, and targets too long to be output."""
        if self.source is None:
            if message := self.inputs.describe(dev.sources):
                yield message
            unknown = core.describe_unknown(core.unknown(dev.targets), self.recipe.train)
            yield f"a vocabulary of {self.target.size:,} target tokens, {unknown}"
        else:
            unknown = core.describe_unknown(core.unknown(dev.sources, dev.targets), self.recipe.train)
            yield f"vocabularies of {self.source.size:,} and {self.target.size:,} tokens, {unknown}"
        yield from self._describe_cut(dev)

    def _describe_cut(self, dev: Pairs) -> Iterator[str]:
        """Reports how many dev targets are longer than any output that the search may write for their source."""
        settings = self.recipe.search
        cut = sum(target > self.limit(source - 1, settings) for source, target in length_array(dev.lengths()).tolist())
        if cut:
            most = f"{settings.max_ratio:g} x source length + {settings.max_extra} tokens"
            how = "raise search.max_ratio or search.max_extra" + (
                "" if math.isinf(core.position_limit(self.recipe.model)) else ", or model.longest"
            )
            yield f"{cut:,} of {len(dev.examples):,} dev targets are longer than outputs may be ({most}); {how}"

    def collate(self, data: Pairs, indices: Sequence[int]) -> Batch:
        """Makes the batch of the examples at these indices."""
        source = self.inputs.collate([data.sources[index] for index in indices])
        target = _targets(data, indices)
        batch = Batch(source, target, torch.tensor(indices, dtype=torch.long))
        if not self.recipe.train.guided:
            return batch
        links = torch.zeros(len(indices), target.ids.shape[1] - 1, source.mask.shape[1])
        for row, index in enumerate(indices):
            for column, token in data.examples[index].links:
                links[row, token, column] = 1.0
        return replace(batch, links=links)

    def collate_all(self, data: Pairs) -> Collated:
        """All examples of the data as tensors; a source that several share, such as a picture, is there once."""
        if not isinstance(data.sources, Shared):
            return super().collate_all(data)
        used, numbers = np.unique(data.sources.numbers, return_inverse=True)
        source = self.inputs.collate([data.sources.distinct[number] for number in used.tolist()])
        everything = range(len(data.targets))
        return Collated(source, torch.from_numpy(numbers), _targets(data, everything), torch.tensor(everything))

    def tokens(self, batch: Batch) -> int:
        """The number of target tokens of a batch, with END."""
        return int(batch.target.mask[:, 1:].sum())

    def loss(self, model: Seq2Seq, batch: Batch, smoothing: float = 0.0, sampling: float = 0.0) -> Float[Tensor, ""]:
        """The cross-entropy summed over target tokens; in training, plus the `terms` or with scheduled sampling."""
        if sampling:
            return self.cross_entropy(_sampled(model, batch, sampling), batch, smoothing)
        step = model(batch)
        loss = self.cross_entropy(step.logits, batch, smoothing)
        return loss + sum(self.terms(model, step, batch)) if model.training else loss

    def terms(self, model: Seq2Seq, step: Step, batch: Batch) -> Iterator[Float[Tensor, ""]]:
        """The terms that the recipe adds to the loss for the attention weights; for hard attention, REINFORCE."""
        settings, real, weights = self.recipe.train, batch.target.mask[:, 1:], step.attention
        if weights is None:
            return
        assert step.memory is not None
        if settings.coverage:
            yield settings.coverage * terms.coverage(weights, real)
        if settings.doubly_stochastic:
            yield settings.doubly_stochastic * terms.doubly_stochastic(weights, real, step.memory.mask)
        if batch.links is not None:
            yield settings.guided * terms.guided(weights, batch.links)
        if step.log_prob is not None:
            wanted = batch.target.ids[:, 1:]
            costs = functional.cross_entropy(step.logits.float().transpose(1, 2), wanted, reduction="none")
            assert isinstance(model.decoder.baseline, Tensor)
            yield terms.reinforce(step.log_prob, costs, real, model.decoder.baseline, settings.entropy)

    def dev_loss(self, model: Seq2Seq, batch: Batch) -> DevLoss:
        """The summed cross-entropy of a dev batch, and the attention weights."""
        step = model(batch)
        loss = self.cross_entropy(step.logits, batch, smoothing=0.0)
        assert step.memory is not None
        return DevLoss(loss, step.attention, step.memory.mask, step.memory.layout)

    def cross_entropy(
        self, logits: Float[Tensor, "batch tokens vocabulary"], batch: Batch, smoothing: float
    ) -> Float[Tensor, ""]:
        """The cross-entropy of the logits, summed over all target tokens."""
        return core.cross_entropy(logits, batch.target.ids[:, 1:], smoothing)

    def answer(
        self,
        model: Seq2Seq,
        texts: Sequence[str],
        settings: Search,
        n_best: int = 1,
        seed: int = 0,
        *,
        all_maps: bool = False,
    ) -> list[Prediction]:
        """Predicts the best outputs for each text, with maps; a blank or too long text gets a blank prediction.

        With `all_maps`, the best output of each text is forced after the search, and its `maps` are recorded then.
        """
        model.eval()
        device = next(model.parameters()).device
        answers = [core.blank(text) for text in texts]

        def search_in(asked: core.InputBatch) -> tuple[Layout, list[list[Hypothesis]]]:
            source = self.inputs.collate(asked.items).to(device)
            limits = [self.limit(self.inputs.size(item) - 1, settings) for item in asked.items]
            seeds = [seed + place for place in asked.indices]
            memory = model.read(source)
            found = search.find(model.decoder, memory, settings, limits=limits, seeds=seeds, n_best=n_best)
            return memory.layout, found

        rows = max(settings.beam, n_best)  # rows of a search for each text
        budget = max(1, SEARCH_TOKENS // rows)
        items = iter(self.inputs.encode_inputs([text for text in texts if text.strip()]))
        batches = list(core.input_batches(texts, lambda _: next(items), self.longest, budget, self.inputs.size))
        best: dict[int, tuple[Any, list[int]]] = {}  # by text: its encoded source, and the tokens of its best output
        found = zip(batches, map_in_parallel(search_in, batches, model), strict=True)
        for asked, (layout, outputs) in counted(found, "answering", len(batches), size=1):
            for place, item, hypotheses in zip(*asked, outputs, strict=True):
                predictions = [self.prediction(texts[place], item, hypothesis, layout) for hypothesis in hypotheses]
                answers[place] = core.with_alternatives(predictions)
                best[place] = item, hypotheses[0].tokens
        if all_maps and best:  # only now: other threads would run with the recording hooks
            sources, targets = zip(*best.values(), strict=True)
            sizes = np.array([self.inputs.size(item) for item in sources], np.int32)
            data = Pairs([Example(texts[place], "") for place in best], sources, targets, sizes)
            with pause_observers():  # a caller's recording has the best outputs from the search already
                forced = self.forced(model, data, all_maps=True, with_end=False)
            for place, again in zip(best, forced, strict=True):
                answers[place] = replace(answers[place], maps=again.maps)
        return answers

    def force(self, model: Seq2Seq, examples: Sequence[Example], *, all_maps: bool = False) -> list[Prediction]:
        """Forced decoding: the log-probability and the map of each given target; the last row of a map is END's."""
        data = self.encode(examples)
        for example, room in zip(examples, data.lengths(), strict=True):
            if max(room) > self.longest + 1:
                where = f"{example.origin}: " if example.origin else ""
                raise DataError(f"{where}a side has more than {self.longest:,} tokens; take the pair out")
        predictions = []
        for example, target, forced in zip(examples, data.targets, self.forced(model, data, all_maps), strict=True):
            tokens = tuple(map(self.target.piece, target))
            prediction = Prediction(example.source, example.target, forced.score, tokens, forced.map, maps=forced.maps)
            predictions.append(replace(prediction, token_scores=tuple(forced.log_probs.tolist())))
        return predictions

    @torch.no_grad()
    def forced(self, model: Seq2Seq, data: Pairs, all_maps: bool = False, with_end: bool = True) -> list[Forced]:
        """Forced decoding of encoded pairs; maps have a last row for END, unless `with_end` is False."""
        model.eval()
        device = next(model.parameters()).device
        forced: dict[int, Forced] = {}
        for indices in counted(batching.sorted_batches(data.lengths(), FORCED_TOKENS), "forcing outputs", size=1):
            batch = self.collate(data, indices).to(device)
            with core.recording_sites(model, all_maps) as recording:
                step = model(batch)
            layout = TEXT if step.memory is None else step.memory.layout
            log_probs = step.logits.float().log_softmax(-1).gather(-1, batch.target.ids[:, 1:, None]).squeeze(-1)
            scores = log_probs.masked_fill(~batch.target.mask[:, 1:], 0.0).sum(-1).tolist()
            for row, index in enumerate(indices):
                source, target = self.inputs.labels(data.sources[index]), map(self.target.piece, data.targets[index])
                written = (*target, SPECIALS[END])[: None if with_end else -1]
                read = (SPECIALS[BEGIN], *written)[: len(written)]  # the decoder's input while it writes each of them
                weights = None if step.attention is None else step.attention[row]
                own = self.map(weights, written, data.sources[index], layout)
                sides = {CROSS: Axes(written, source, layout), DECODER_SELF: Axes(written, read)}
                sides[ENCODER_SELF] = Axes(source, source, layout)
                maps = core.recorded_maps(model, recording, row, sides) if all_maps else None
                forced[index] = Forced(scores[row], log_probs[row, : len(data.targets[index]) + 1], own, maps)
        return [forced[index] for index in range(len(data.examples))]

    def limit(self, length: int, settings: Search) -> int:
        """The largest number of output tokens, with END, for a source of this length."""
        return int(min(settings.max_ratio * length + settings.max_extra, core.position_limit(self.recipe.model) - 1))

    def too_long(self, text: str) -> bool:
        """Whether a text is too long, so that its prediction is blank."""
        return bool(text.strip()) and self.inputs.size(self.inputs.encode(text)) - 1 > self.longest

    def unknown_parts(self, text: str) -> list[str]:
        """The parts of a text that are not in the vocabulary, in their order; none if the source is not text."""
        return [] if self.source is None else core.unknown_parts(self.source, text)

    def prediction(self, text: str, item: Any, hypothesis: Hypothesis, layout: Layout) -> Prediction:
        """Makes the prediction of a hypothesis: its tokens as text, and its labelled map."""
        tokens = tuple(self.target.piece(token) for token in hypothesis.tokens)
        attention_map = self.map(hypothesis.map, tokens, item, layout)
        output = self.target.decode(hypothesis.tokens)
        return Prediction(text, output, hypothesis.score, tokens, attention_map, finished=hypothesis.finished)

    def map(
        self, weights: Float[Tensor, "tokens source"] | None, rows: tuple[str, ...], item: Any, layout: Layout
    ) -> AttentionMap | None:
        """The labelled map of these rows over an encoded source, without padding; None without attention.

        `layout` is that of the memory: the encoder may read other positions than a batch has.
        """
        if weights is None:
            return None
        columns = self.inputs.labels(item)
        return AttentionMap(weights[: len(rows), : len(columns)].cpu(), rows, columns, layout)


def _targets(data: Pairs, indices: Sequence[int]) -> Padded:
    """The targets of these examples, with BEGIN and END."""
    return batching.pad([[BEGIN, *data.targets[index], END] for index in indices])


def _check_copies(recipe: Recipe) -> None:
    """Refuse the copy mechanism if the vocabulary is not shared or the decoder does not attend to the source."""
    decoder = recipe.model.decoder
    if decoder.copies and not recipe.tokens.shared:
        raise RecipeError("model.decoder.copies needs tokens.shared = true: what is copied is a word of the target")
    if decoder.copies and (decoder.kind != "recurrent" or not pick(ORDERS, decoder.order, "order").attends()):
        raise RecipeError("model.decoder.copies needs a recurrent decoder whose order attends to the source")


def _check_terms(recipe: Recipe) -> None:
    """Refuse terms of the loss that do not fit the model or the tokens."""
    settings, model = recipe.train, recipe.model
    wanted = [name for name in ("coverage", "doubly_stochastic", "guided") if getattr(settings, name)]
    is_hard = model.decoder.cross_attention.of(model.attention).normalizer == "hard"
    recurrent = model.decoder.kind == "recurrent"
    if wanted and not (recurrent and pick(ORDERS, model.decoder.order, "order").attends()):
        raise RecipeError(f"train.{wanted[0]} needs attention weights in training: a recurrent decoder that attends")
    if (wanted or is_hard) and settings.sampling:
        what = f"train.{wanted[0]}" if wanted else "hard attention"
        raise RecipeError(f"{what} and train.sampling do not go together; leave one of them out")
    tokens = (recipe.source, recipe.tokens.source, recipe.tokens.target)
    if settings.guided and tokens != ("text", "character", "character"):
        raise RecipeError(
            "train.guided needs tokens.source = tokens.target = character: known links are between characters"
        )


def _check_search(recipe: Recipe) -> None:
    """Refuse a setting of the search that does not fit the model: it would fail only after all updates."""
    decoder = recipe.model.decoder
    attends = decoder.kind != "recurrent" or pick(ORDERS, decoder.order, "order").attends()
    if recipe.search.coverage_penalty and not attends:
        raise RecipeError("search.coverage_penalty needs a decoder that attends to the source; leave it out")


def _sampled(model: Seq2Seq, batch: Batch, share: float) -> Float[Tensor, "batch tokens vocabulary"]:
    """Bengio et al. 2015, scheduled sampling: for this share of its inputs, the decoder gets its own prediction."""
    decoder: Decoder[Any, Any] = model.decoder
    prepared = decoder.prepare(model.read(batch.source))
    state = decoder.start(prepared)
    targets = batch.target.ids
    tokens, logits = targets[:, :1], []
    for place in range(1, targets.shape[1]):
        step = decoder.step(tokens, state, prepared)
        state = step.state
        logits.append(step.logits)
        own = torch.rand(len(targets), 1, device=targets.device) < share
        tokens = torch.where(own, step.logits.argmax(-1), targets[:, place : place + 1])
    return torch.cat(logits, dim=1)
