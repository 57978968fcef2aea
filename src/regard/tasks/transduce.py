"""Sequence-to-sequence tasks, such as translation, transliteration or rewriting: any source of `SOURCES` to text."""

import math
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import groupby, pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from regard import models, plugins, search
from regard.attention import terms
from regard.console import counted
from regard.data import batching, captions, media, store
from regard.data.archives import ENDING, Places
from regard.data.batching import Mixture, length_array
from regard.data.captions import NORMALIZATIONS
from regard.data.files import Loaded, is_tsv
from regard.data.needs import check_found
from regard.data.paths import is_there
from regard.data.records import NOTHING_GIVEN, PAIRS, Given
from regard.data.shards import Shards, are_stored
from regard.data.store import IntegerRows, Shared, StoredExamples, joined
from regard.data.tokenizers import TOKENIZERS, Tokenizer
from regard.decoders import ORDERS, Decoder
from regard.device import map_in_parallel, only_shapes
from regard.errors import DataError, RecipeError, pick, plural, shown
from regard.kernels.choose import pause_observers
from regard.maps import TEXT, AttentionMap, AttentionMaps, Layout, SourceView
from regard.metrics import MULTI_REFERENCE
from regard.models import CROSS, DECODER_SELF, ENCODER_SELF, Seq2Seq
from regard.models.ctc import least_positions
from regard.recipe import Recipe, Search, Tokens, Train
from regard.sources import SOURCES, AnySource, Source, Text
from regard.sources.text import SOURCE, TARGET, build_tokenizer
from regard.storage import Run
from regard.tasks import core
from regard.tasks.core import DECODER_ROWS, Axes, Collated, DevLoss, Examples, Pairs, Task
from regard.tasks.parts import Part, join, join_maps
from regard.tasks.rewards import Rewards
from regard.types import BEGIN, END, SPECIALS, Batch, Example, Hypothesis, Memory, Padded, Prediction, Step, Vocabulary

SEARCH_TOKENS = 8000  # size of a batch of a search: source tokens times beams
FORCED_TOKENS = 2000  # tokens of a batch in `force`
HINTED = 20  # sources that are looked at for `_media_hint`
HINTS = {"picture": ("pictures", "shapes"), "speech": ("recordings", "tones")}  # a noun, and a recipe to start from
CTC_ROWS = ("ctc.out.weight", "ctc.out.bias")  # tensors of the CTC layer with a row for each target token


class Forced(NamedTuple):
    """The result of forced decoding for one target."""

    score: float  # log-probability
    log_probs: Float[Tensor, " tokens"]  # of each token, END included
    map: AttentionMap | None
    maps: AttentionMaps | None  # of all sites, layers and heads, if they were asked for


class Transduce(Task[Seq2Seq, Pairs, Batch]):
    """Source to text: learns from pairs with cross-entropy; predicts by beam search or sampling."""

    metrics = ("exact_match", "character_errors", "word_errors", "bleu", "bleu_tokenised", "chrf", *MULTI_REFERENCE)
    ignores = ("tokens.lower", "tokens.rejoin", "train.word_dropout", "search.max_answer")

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

    def accept(self, value: object, name: str) -> str:
        """The input for a value given in Python: a text or the name of a file, or what the source accepts."""
        if isinstance(value, str):
            return value
        if self.reads_files and isinstance(value, os.PathLike):
            return os.fsdecode(value)
        return self.inputs.accept(value, name)

    @property
    def noun_of_input(self) -> str:
        """The word for one input in messages."""
        return self.inputs.noun

    @property
    def output_tokens(self) -> Tokenizer:
        """The tokenizer of targets."""
        return self.target

    @property
    def longest_in_seconds(self) -> float:
        """The longest duration of a recording in training, as data.max_length limits it."""
        return self.inputs.time(self.longest_trained)

    def is_medium(self, name: str) -> bool:
        """Whether a file has a format that inputs have, by its first bytes."""
        return media.is_medium(name, self.inputs.recognises)

    def problem_of(self, source: str) -> str:
        """Why an input cannot be read, such as a damaged picture; empty if it can."""
        try:
            self.parts([source])
        except DataError as error:
            return str(error)
        return ""

    def files_in(self, folder: str) -> media.Folder:
        """The files of a folder that can be inputs, by their first bytes."""
        return media.files_in(folder, self.inputs.recognises)

    @classmethod
    def check(cls, recipe: Recipe) -> None:
        """Refuse a recipe with unknown names or sizes that do not fit, before any data is read."""
        plugins.pick(SOURCES, recipe.source, "source", Source).check(recipe)
        pick(TOKENIZERS, recipe.tokens.target, "tokenizer")
        if recipe.tokens.shared and (recipe.source != "text" or recipe.tokens.source != recipe.tokens.target):
            raise RecipeError("tokens.shared needs source = text, and tokens.source and tokens.target to be the same")
        if recipe.source != "text" and recipe.tokens.source != Tokens.source:
            raise RecipeError(f"tokens.source is for source = text, not {recipe.source}; leave it out")
        pick(NORMALIZATIONS, recipe.data.normalize, "normalization")
        _check_mixture(recipe)
        if recipe.data.pictures and recipe.source == "text":
            raise RecipeError("data.pictures is for sources that are files, not source = text; leave it out")
        _check_copies(recipe)
        _check_terms(recipe)
        _check_search(recipe)
        _check_ctc(recipe)
        cls.check_reward(recipe)
        size = len(SPECIALS)
        with only_shapes():  # fails if sizes do not fit
            models.build(recipe.model, source_size=size, target_size=size, shared=recipe.tokens.shared)

    @classmethod
    def check_reward(cls, recipe: Recipe) -> None:
        """Refuse a reward that is no metric of outputs, or that does not fit the model or the other settings."""
        settings, model = recipe.train, recipe.model
        if not settings.reward:
            for name in ("reward_after", "reward_samples", "reward_rate"):
                if getattr(settings, name) != getattr(Train, name):
                    raise RecipeError(f"train.{name} is for train.reward=METRIC, which is not set; leave it out")
            return
        for metric in settings.reward:
            cls.check_metric(metric)
        if settings.reward_after >= settings.updates:
            raise RecipeError(
                f"train.reward_after is {settings.reward_after:,}, and there are {settings.updates:,} updates, so that "
                "none is left for train.reward; lower it, or raise train.updates"
            )
        if settings.best_by == "loss" and settings.keep == "best":
            raise RecipeError(
                "train.reward raises a metric and not the likelihood of the dev data, so that the last validation "
                "before it would stay the best; add train.best_by=metric, or train.keep=last"
            )
        if settings.ctc:
            raise RecipeError("train.ctc and train.reward do not go together; leave one of them out")
        if model.decoder.cross_attention.of(model.attention).normalizer == "hard":
            raise RecipeError("hard attention and train.reward do not go together; leave one of them out")

    @classmethod
    def reader(cls, recipe: Recipe, given: Given = NOTHING_GIVEN) -> Callable[[tuple[str, ...]], Loaded]:
        """Returns the function that reads files as the recipe says; names of pictures are relative to their file.

        Pictures are first looked for in data.pictures. Targets are changed as data.normalize says.
        """
        read, kind = super().reader(recipe, given), plugins.pick(SOURCES, recipe.source, "source", Source)
        places = Places(recipe.data.pictures, recipe.data.limits)

        def locate(source: str, file: str) -> str:
            return places.full_name(source) or kind.locate(source, file)

        def located(names: tuple[str, ...]) -> Loaded:
            loaded = read(names)
            return loaded._replace(examples=store.with_sources(loaded.examples, locate))

        return _normalized(located if kind.reads_files else read, recipe.data.normalize)

    @classmethod
    def has_own_format(cls, recipe: Recipe, name: str) -> bool:
        """Whether a file is a published table of captions, such as Flickr30k's results.csv, for pictures."""
        kind = plugins.pick(SOURCES, recipe.source, "source", Source)
        return kind.reads_files and name.endswith(".csv") and captions.is_table(name, recipe.data.limits)

    @classmethod
    def line_reader(cls, recipe: Recipe) -> Callable[[tuple[str, ...]], Loaded]:
        """Returns the function that reads lines; beside pairs, files of captions as they are published."""
        kind = plugins.pick(SOURCES, recipe.source, "source", Source)
        return partial(captions.read, limits=recipe.data.limits) if kind.reads_files else super().line_reader(recipe)

    @classmethod
    def are_stored(cls, recipe: Recipe) -> bool:
        """Whether there are many pairs of texts; a reward needs texts, and columns and normalization change them."""
        data, settings = recipe.data, recipe.train
        is_plain = recipe.source == "text" and not data.columns and data.normalize == "none"
        return is_plain and not settings.reward and not settings.guided and are_stored(data)

    @classmethod
    def examples(cls, recipe: Recipe, given: Given = NOTHING_GIVEN) -> Examples:
        """Reads or generates all examples; the source may add variants of those for training."""
        _check_pictures(recipe)
        found, kind = super().examples(recipe, given), plugins.pick(SOURCES, recipe.source, "source", Source)
        if recipe.source == "text" and (hint := _media_hint(found.train)):
            return found._replace(notes=[*found.notes, hint])
        count = len(kind.variants(recipe, ""))
        if count == 1:
            return found
        return found._replace(train=store.with_variants(found.train, partial(kind.variants, recipe), count))

    @classmethod
    def learn(cls, recipe: Recipe, examples: Sequence[Example], origin: Run | None = None) -> "Transduce":
        """Builds the tokenizers (or other source encoding) from the training examples, or takes those of `origin`."""
        tokens = recipe.tokens
        examples = core.sampled(examples, tokens.sample) if recipe.source == "text" else examples
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
        front, ctc = self.inputs.front(model), self.recipe.train.ctc > 0
        return models.assemble(model, front, target_size=self.target.size, shared=shared, ctc=ctc)

    def vocabularies(self) -> dict[str, Vocabulary]:
        """The vocabularies of the embeddings and of the output layers; the first only if the source is text."""
        rows = (*DECODER_ROWS, *CTC_ROWS) if self.recipe.train.ctc else DECODER_ROWS
        target = core.rows_of(core.tokens_of(self.target), *rows)
        source = {} if self.source is None else core.rows_of(core.tokens_of(self.source), "encoder.embedding.weight")
        return source | target

    def encode(self, examples: Sequence[Example]) -> Pairs:
        """Encodes all examples."""
        if isinstance(examples, Shards):
            return self._encode_shards(examples)
        targets = IntegerRows.of(map(self.target.encode, counted(store.targets(examples), "encoding targets")))
        with self._explaining_texts(store.sources(examples)):
            sources = self.inputs.encode_all(store.sources(examples))
            distinct = sources.distinct if isinstance(sources, Shared) else sources
            sizes = np.fromiter(
                map(self.inputs.size, counted(distinct, "measuring lengths of sources")), np.int32, len(distinct)
            )
        return Pairs(examples, sources, targets, sizes[sources.numbers] if isinstance(sources, Shared) else sizes)

    def _encode_shards(self, examples: Shards) -> Pairs:
        """The encoded examples of files that are read block by block."""
        assert self.source is not None
        kinds = (self.recipe.tokens.source, self.recipe.tokens.target)
        sources, targets = examples.encode([*zip(kinds, (self.source, self.target), strict=True)])
        sizes = store.row_lengths(sources) + np.int32(self.inputs.size([]))
        return Pairs(examples.without_texts(), sources, targets, sizes)

    def mixture(self, data: Pairs) -> Mixture | None:
        """What draws the examples of an epoch by data.weights or data.temperature; None if it has each of them once."""
        settings, examples = self.recipe.data, data.examples
        if not settings.weights and settings.temperature == 1.0:
            return None
        assert isinstance(examples, StoredExamples)
        bounds = [*np.searchsorted(examples.lines, examples.corpora).tolist(), len(examples)]
        sizes = [end - start for start, end in pairwise(bounds)]
        if empty := [name for name, size in zip(settings.train, sizes, strict=True) if not size]:
            raise DataError(f"{empty[0]}: no pair is left to draw, by data.weights or data.temperature; leave it out")
        weights = settings.weights or [(size / max(sizes)) ** (1 / settings.temperature) for size in sizes]
        return Mixture(sizes, weights, self.recipe.train.seed)

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
        if self.recipe.train.ctc:
            yield from _describe_unaligned(data)

    def _describe_cut(self, dev: Pairs) -> Iterator[str]:
        """Reports how many dev targets are longer than any output that the search may write for their source."""
        settings = self.recipe.search
        cut = sum(target > self.limit(source - 1, settings) for source, target in length_array(dev.lengths()).tolist())
        if cut:
            most = f"{settings.max_ratio:g} x source length + {settings.max_extra} tokens"
            how = "raise search.max_ratio or search.max_extra" + (
                "" if math.isinf(core.position_limit(self.recipe)) else ", or model.longest"
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
        batch = Batch(source, _targets(data, everything), torch.tensor(everything))
        return Collated(batch, torch.from_numpy(numbers))

    def tokens(self, batch: Batch) -> int:
        """The number of target tokens of a batch, with END."""
        return int(batch.count_predictions())

    def loss(self, model: Seq2Seq, batch: Batch, smoothing: float = 0.0, sampling: float = 0.0) -> Float[Tensor, ""]:
        """The cross-entropy summed over target tokens, joined with the CTC loss if there is one.

        In training, the `terms` are added, or inputs are drawn by scheduled sampling.
        """
        if sampling:
            return self.cross_entropy(_sampled(model, batch, sampling), batch, smoothing)
        step = model(batch)
        loss = self.joint_loss(model, step, batch, smoothing)
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
            precise = step.logits.to(torch.promote_types(step.logits.dtype, torch.float32))
            costs = functional.cross_entropy(precise.transpose(1, 2), wanted, reduction="none")
            assert isinstance(model.decoder.baseline, Tensor)
            yield terms.reinforce(step.log_prob, costs, real, model.decoder.baseline, settings.entropy)

    def rewards(self, data: Pairs) -> Rewards:
        """What draws outputs for the sources of the data, and scores them by train.reward."""
        return Rewards(self, data)

    def dev_loss(self, model: Seq2Seq, batch: Batch) -> DevLoss:
        """The summed loss of a dev batch, without smoothing and `terms`, and the attention weights."""
        step = model(batch)
        loss = self.joint_loss(model, step, batch, smoothing=0.0)
        assert step.memory is not None
        return DevLoss(loss, step.attention, step.memory.mask, step.memory.layout)

    def joint_loss(self, model: Seq2Seq, step: Step, batch: Batch, smoothing: float) -> Float[Tensor, ""]:
        """Watanabe et al. 2017, multi-objective learning:  (1 - train.ctc) cross-entropy + train.ctc CTC."""
        loss = self.cross_entropy(step.logits, batch, smoothing)
        if model.ctc is None:
            return loss
        assert step.memory is not None
        weight = self.recipe.train.ctc
        return (1 - weight) * loss + weight * model.ctc.loss(step.memory, batch.target)

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

        With `all_maps`, the best output of each text is forced after the search, and its `maps` are recorded then. A
        recording that is too long is cut, its parts are answered, and the outputs of the same rank are joined.
        """
        check_ctc_search(settings, has_layer=model.ctc is not None)
        model.eval()
        answers = [core.blank(text) for text in texts]
        parts = self.parts(texts)
        outputs, layout = self._search(model, parts, settings, n_best, seed)
        maps = self._all_maps(model, texts, parts, outputs) if all_maps and outputs else {}
        for place, group in groupby(outputs, lambda number: parts[number].input):
            numbers = [*group]
            own, whole = [parts[number] for number in numbers], parts[numbers[0]].whole
            starts, size = [part.start for part in own], self.inputs.size(whole)
            ranks = zip(*(outputs[number] for number in numbers), strict=False)  # beams may find fewer than n_best
            joined = [join(rank, starts, size, self.target) for rank in ranks]
            predictions = [self.prediction(texts[place], whole, output.hypothesis, layout) for output in joined]
            cuts = tuple(self.inputs.time(start) for start in starts[1:])
            best = replace(core.with_alternatives(predictions), cuts=cuts)
            if all_maps:
                own_maps = [maps[number] for number in numbers]
                columns = self.inputs.labels(whole)
                best = replace(best, maps=join_maps(own_maps, joined[0].corners, best.tokens, columns))
            answers[place] = best
        return answers

    def parts(self, texts: Sequence[str]) -> list[Part]:
        """The encoded parts of all inputs that are not blank: one each, unless it is too long and can be cut."""
        places = [place for place, text in enumerate(texts) if text.strip()]
        with self._explaining_texts(texts):
            items = self.inputs.encode_inputs([texts[place] for place in places])
        return [
            Part(place, start, item, whole)
            for place, whole in zip(places, items, strict=True)
            for start, item in self.inputs.split(whole, self.longest_trained)
        ]

    @contextmanager
    def _explaining_texts(self, sources: Iterable[str]) -> Iterator[None]:
        """In the block, if sources are files, the error about one that is a text says what to give in its place."""
        try:
            yield
        except DataError as error:
            text = next((source for source in sources if self._is_text(source)), None)
            if text is None:
                raise
            noun, data = self.noun_of_input, self.recipe.data
            corpus = "" if data.train else data.corpus
            described = self.inputs.descriptions.get(corpus, "")
            other = f", or a description of the corpus {corpus}, such as {described}" if described else ""
            how = f"give the name of a file{other}"
            raise DataError(
                f"there is no {noun} {shown(text)}; {plural(noun)} are read here, not texts: {how}"
            ) from error

    def _is_text(self, source: str) -> bool:
        """Whether a source that should be the name of a file is a text."""
        is_described = source.partition(":")[0] in self.inputs.descriptions
        is_named = isinstance(source, media.Medium) or is_described or not media.is_text(source)
        return self.reads_files and bool(source.strip()) and not is_named and not is_there(source)

    def _search(
        self, model: Seq2Seq, parts: Sequence[Part], settings: Search, n_best: int, seed: int
    ) -> tuple[dict[int, list[Hypothesis]], Layout]:
        """The best outputs by the index of a part, sorted by it, without parts that are too long; and their layout."""
        device = next(model.parameters()).device

        def search_in(asked: core.InputBatch) -> tuple[Layout, list[list[Hypothesis]]]:
            source = self.inputs.collate(asked.items).to(device)
            limits = [self.limit(self.inputs.size(item) - 1, settings) for item in asked.items]
            seeds = [seed + parts[number].input for number in asked.indices]
            memory = model.read(source)
            scorer = _ctc_scorer(model, memory, settings.ctc)
            found = search.find(
                model.decoder, memory, settings, limits=limits, seeds=seeds, n_best=n_best, scorer=scorer
            )
            return memory.layout, found

        rows = max(settings.beam, n_best)  # rows of a search for each text
        budget = max(1, SEARCH_TOKENS // rows)
        items = {number: part.item for number, part in enumerate(parts)}
        batches = list(core.item_batches(items, self.longest, budget, self.inputs.size))
        outputs: dict[int, list[Hypothesis]] = {}
        layouts: list[Layout] = [TEXT]
        found = zip(batches, map_in_parallel(search_in, batches, model), strict=True)
        for asked, (layout, hypotheses) in counted(found, "answering", len(batches), size=1):
            layouts.append(layout)  # the same for all
            outputs |= {number: [*map(_on_cpu, own)] for number, own in zip(asked.indices, hypotheses, strict=True)}
        return dict(sorted(outputs.items())), layouts[-1]

    def _all_maps(
        self, model: Seq2Seq, texts: Sequence[str], parts: Sequence[Part], outputs: dict[int, list[Hypothesis]]
    ) -> dict[int, AttentionMaps | None]:
        """The maps of all sites, layers and heads for the best output of each part.

        Not while batches are searched: other threads would run with the recording hooks.
        """
        sources = [parts[number].item for number in outputs]
        targets = [hypotheses[0].tokens for hypotheses in outputs.values()]
        sizes = np.array([self.inputs.size(item) for item in sources], np.int32)
        examples = [Example(texts[parts[number].input], "") for number in outputs]  # maps are drawn on their sources
        data = Pairs(examples, sources, targets, sizes)
        with pause_observers():  # a caller's recording has the best outputs from the search already
            forced = self.forced(model, data, all_maps=True, with_end=False)
        return {number: again.maps for number, again in zip(outputs, forced, strict=True)}

    def force(self, model: Seq2Seq, examples: Sequence[Example], *, all_maps: bool = False) -> list[Prediction]:
        """Forced decoding: the log-probability and the map of each given target; the last row of a map is END's.

        The log-probability is the decoder's, also if the model has a CTC layer.
        """
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
            with core.recording_sites(model, all_maps) as recording, core.recording_norms(model, all_maps) as norms:
                step = model(batch)
            layout = TEXT if step.memory is None else step.memory.layout
            log_probs = step.logits.float().log_softmax(-1).gather(-1, batch.target.ids[:, 1:, None]).squeeze(-1)
            scores = log_probs.masked_fill(~batch.target.mask[:, 1:], 0.0).sum(-1).tolist()
            for row, index in enumerate(indices):
                source, target = self.inputs.labels(data.sources[index]), map(self.target.piece, data.targets[index])
                written = (*target, SPECIALS[END])[: None if with_end else -1]
                read = (SPECIALS[BEGIN], *written)[: len(written)]  # the decoder's input while it writes each of them
                weights = None if step.attention is None else step.attention[row]
                own = self.map(data.examples[index].source, weights, written, data.sources[index], layout)
                view = self.view(data.examples[index].source, layout)
                sides = {CROSS: Axes(written, source, layout, view=view), DECODER_SELF: Axes(written, read)}
                sides[ENCODER_SELF] = Axes(source, source, layout, view=view)
                maps = core.recorded_maps(model, recording, row, sides, norms) if all_maps else None
                forced[index] = Forced(scores[row], log_probs[row, : len(data.targets[index]) + 1], own, maps)
        return [forced[index] for index in range(len(data.examples))]

    def limit(self, length: int, settings: Search) -> int:
        """The largest number of output tokens, with END, for a source of this length."""
        return int(min(settings.max_ratio * length + settings.max_extra, core.position_limit(self.recipe)))

    def too_long(self, text: str) -> bool:
        """Whether a text is too long, so that its prediction is blank."""
        return any(self.inputs.size(part.item) - 1 > self.longest for part in self.parts([text]))

    def unknown_parts(self, text: str) -> list[str]:
        """The parts of a text that are not in the vocabulary, in their order; none if the source is not text."""
        return [] if self.source is None else core.unknown_parts(self.source, text)

    def positions(self, text: str) -> tuple[str, ...]:
        """The labels of all positions that the encoder reads; RecipeError if a recording would be cut."""
        parts = self.parts([text])
        if len(parts) != 1:
            what = "is blank" if not parts else f"would be cut into {len(parts)} parts"
            raise RecipeError(f"the {self.noun_of_input} {what}, so that its positions have no numbers; give another")
        return self.inputs.labels(parts[0].item)

    def prediction(self, text: str, item: Any, hypothesis: Hypothesis, layout: Layout) -> Prediction:
        """Makes the prediction of a hypothesis: its tokens as text, and its labelled map."""
        tokens = tuple(self.target.piece(token) for token in hypothesis.tokens)
        attention_map = self.map(text, hypothesis.map, tokens, item, layout)
        output = self.target.decode(hypothesis.tokens)
        return Prediction(text, output, hypothesis.score, tokens, attention_map, finished=hypothesis.finished)

    def view(self, text: str, layout: Layout) -> Callable[[], SourceView | None] | None:
        """The function that loads the picture or the recording of a source; None for a text."""
        return None if layout == TEXT else partial(self.inputs.view, text)

    def map(
        self,
        text: str,
        weights: Float[Tensor, "tokens source"] | None,
        rows: tuple[str, ...],
        item: Any,
        layout: Layout,
    ) -> AttentionMap | None:
        """The labelled map of these rows over an encoded source, without padding; None without attention.

        `layout` is that of the memory: the encoder may read other positions than a batch has.
        """
        if weights is None:
            return None
        columns = self.inputs.labels(item)
        own = weights[: len(rows), : len(columns)].cpu()
        return AttentionMap(own, rows, columns, layout, view=self.view(text, layout))


def _check_pictures(recipe: Recipe) -> None:
    """Raise DataError if a folder or an archive of data.pictures is missing."""
    check_found(recipe, [name for name in recipe.data.pictures if name.endswith(ENDING)])
    for name in recipe.data.pictures:
        if not is_there(name):
            raise DataError(f"data.pictures names {name}, which is not there; name folders and tar files that are")


def _normalized(read: Callable[[tuple[str, ...]], Loaded], normalize: str) -> Callable[[tuple[str, ...]], Loaded]:
    """The function that reads files, and changes every target; pairs whose target is blank then are left out."""
    if normalize == "none":
        return read
    change = pick(NORMALIZATIONS, normalize, "normalization")

    def changed(names: tuple[str, ...]) -> Loaded:
        loaded = read(names)
        examples = store.with_texts(loaded.examples, lambda source, target: (source, change(target)))
        kept = store.where(store.targets(examples), bool)
        if not len(kept):
            raise DataError(f"{' and '.join(names)}: no target is left by data.normalize = {normalize}; leave it out")
        return Loaded(store.take(examples, kept), loaded.dropped + len(examples) - len(kept))

    return changed


def _targets(data: Pairs, indices: Sequence[int]) -> Padded:
    """The targets of these examples, with BEGIN and END."""
    return batching.pad([[BEGIN, *data.targets[index], END] for index in indices])


def _media_hint(examples: Sequence[Example]) -> str:
    """A note if sources that are read as texts look like the names of pictures or recordings; otherwise empty."""
    kind = media.kind_by_names([example.source for example in examples[:HINTED]])
    if not kind:
        return ""
    noun, recipe = HINTS[kind]
    how = f"to read the files, add source={kind}, or use the recipe {recipe}"
    return f"the sources look like names of {noun}, such as {shown(examples[0].source)}, but are read as texts; {how}"


def _on_cpu(hypothesis: Hypothesis) -> Hypothesis:
    """The hypothesis with its map on the CPU, so that those of many inputs take no memory of a GPU."""
    return hypothesis if hypothesis.map is None else hypothesis._replace(map=hypothesis.map.cpu())


def _check_mixture(recipe: Recipe) -> None:
    """Refuse weights of corpora that do not fit the names of files, or the kind of their pairs."""
    data = recipe.data
    if not data.weights and data.temperature == 1.0:
        return
    if data.weights and data.temperature != 1.0:
        raise RecipeError("data.weights and data.temperature both set the shares of corpora; leave one of them out")
    key = "data.weights" if data.weights else "data.temperature"
    if recipe.source != "text" or data.columns or not data.train or PAIRS in data.train:
        raise RecipeError(f"{key} is for several TSV files of source<TAB>target in data.train; leave it out")
    if recipe.train.reward:
        raise RecipeError(f"{key} and train.reward do not go together; leave one of them out")
    count = 1 if len(data.train) == 2 and not all(map(is_tsv, data.train)) else len(data.train)
    if data.weights and len(data.weights) != count:
        raise RecipeError(
            f"data.weights has {len(data.weights):,} numbers, and data.train names {count:,} corpora; "
            "give a weight for each name: a TSV file, or a pattern of such files"
        )


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


def _check_ctc(recipe: Recipe) -> None:
    """Refuse the CTC loss if source or settings do not fit it, and a search with CTC scores of a model without it."""
    settings = recipe.train
    if settings.ctc and not plugins.pick(SOURCES, recipe.source, "source", Source).is_sequence:
        raise RecipeError(
            f"train.ctc aligns the target with a source that is in the same order, as speech is; source = "
            f"{recipe.source} has no such order; leave it out"
        )
    if settings.ctc and settings.sampling:
        raise RecipeError("train.ctc and train.sampling do not go together; leave one of them out")
    check_ctc_search(recipe.search, has_layer=settings.ctc > 0)


def check_ctc_search(settings: Search, *, has_layer: bool) -> None:
    """Refuse CTC scores in a search if the model has no CTC layer, or if outputs are sampled."""
    if settings.ctc and not has_layer:
        raise RecipeError(
            "search.ctc needs the CTC layer of a model that was trained with train.ctc, such as train.ctc=0.3; "
            "set search.ctc=0"
        )
    if settings.ctc and settings.temperature:
        raise RecipeError("search.ctc is for beam search, and search.temperature samples; set one of them to 0")


def _ctc_scorer(model: Seq2Seq, memory: Memory, weight: float) -> search.Scorer | None:
    """The scorer that joins the CTC layer's log-probabilities to the decoder's in a search; None without a weight."""
    if not weight:
        return None
    assert model.ctc is not None
    with torch.no_grad():
        return search.PrefixScorer.of(model.ctc(memory), memory.mask, weight)


def _describe_unaligned(data: Pairs) -> Iterator[str]:
    """Reports how many training targets CTC cannot align, because they need more positions than their source has."""
    needed = map(least_positions, counted(data.targets, "checking targets for CTC"))
    count = sum(positions > size for positions, size in zip(needed, data.sizes, strict=True))
    if count:
        reason = "they need more positions than their sources have"
        yield f"{count:,} of {len(data.examples):,} training targets are without CTC loss: {reason}"


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
