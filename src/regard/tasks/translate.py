"""Text to text: translation, spelling out, rewriting; any pair of sequences of tokens."""

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from regard import models, search, storage
from regard.data import batching, files
from regard.data.corpora import CORPORA
from regard.data.tokenizers import TOKENIZERS, Tokenizer
from regard.decoders import Decoder
from regard.errors import DataError, RecipeError, pick
from regard.models import Seq2Seq
from regard.recipe import Recipe, Search
from regard.types import END, PAD, SPECIALS, UNKNOWN, AttentionMap, Batch, Example, Hypothesis, Memory, Prediction

SEARCH_TOKENS = 8000  # source tokens times beams that are searched at once
LONGEST = 5000  # tokens of a source that is answered, or data.max_length where that is more: maps grow with the square


class Examples(NamedTuple):
    """The examples of a run, and what is to be said about them."""

    train: list[Example]
    dev: list[Example]
    test: list[Example]
    notes: list[str]


class Encoded(NamedTuple):
    """Examples as ids, without BEGIN and END."""

    examples: list[Example]
    sources: list[list[int]]
    targets: list[list[int]]

    def lengths(self) -> list[tuple[int, int]]:
        """The room each example takes on either side."""
        return [(len(source) + 1, len(target) + 1) for source, target in zip(self.sources, self.targets, strict=True)]


class Translate:
    """Text to text: pairs from files or an embedded corpus, cross-entropy, search."""

    def __init__(self, recipe: Recipe, source: Tokenizer, target: Tokenizer) -> None:
        self.recipe = recipe
        self.source = source
        self.target = target

    @staticmethod
    def check(recipe: Recipe) -> None:
        """Refuse a recipe that names what is not there, before any data is read."""
        pick(TOKENIZERS, recipe.tokens.source, "tokenizer")
        pick(TOKENIZERS, recipe.tokens.target, "tokenizer")
        if recipe.tokens.shared and recipe.tokens.source != recipe.tokens.target:
            raise RecipeError("tokens.shared needs tokens.source and tokens.target to be the same")
        with torch.device("meta"):  # the model without its memory: sizes that do not fit show here
            models.build(recipe.model, source_size=len(SPECIALS), target_size=len(SPECIALS))

    @staticmethod
    def examples(recipe: Recipe) -> Examples:
        """Read or generate all pairs; where there is no dev set, one is split off."""
        data, notes = recipe.data, []
        test = files.pairs(data.test).examples if data.test else []
        dev = files.pairs(data.dev).examples if data.dev else []
        if not data.train:
            if not data.corpus:
                raise RecipeError("nothing to learn from: give data.train=FILE.tsv or data.corpus=NAME")
            splits = pick(CORPORA, data.corpus, "corpus")(recipe.train.seed, data.size)
            notes.append(f"corpus {data.corpus}, generated")
            return Examples(splits.train, dev or splits.dev, test or splits.test, notes)
        train, dropped = files.pairs(data.train)
        notes.append(" and ".join(data.train) + (f", {dropped:,} pairs with an empty side dropped" if dropped else ""))
        if dev:
            return Examples(train, dev, test, notes)
        part = files.split(train, recipe.train.seed)
        notes.append(f"no data.dev given: {len(part.dev):,} pairs split off for it")
        return Examples(part.train, part.dev, test, notes)

    @classmethod
    def learn(cls, recipe: Recipe, examples: Sequence[Example]) -> "Translate":
        """Build the tokenizers on the training examples; what was built before is taken from the cache."""
        tokens = recipe.tokens
        sources, targets = [each.source for each in examples], [each.target for each in examples]
        if tokens.shared:
            both = _tokenizer(tokens.source, sources + targets, tokens.size)
            return cls(recipe, both, both)
        source = _tokenizer(tokens.source, sources, tokens.size)
        return cls(recipe, source, _tokenizer(tokens.target, targets, tokens.size))

    @classmethod
    def restore(cls, recipe: Recipe, read: Callable[[str], bytes]) -> "Translate":
        """The task of a stored run."""
        source = pick(TOKENIZERS, recipe.tokens.source, "tokenizer").from_bytes(read("source.tokens"))
        target = pick(TOKENIZERS, recipe.tokens.target, "tokenizer").from_bytes(read("target.tokens"))
        return cls(recipe, source, target)

    def files(self) -> dict[str, bytes]:
        """What a run must keep besides the weights."""
        return {"source.tokens": self.source.to_bytes(), "target.tokens": self.target.to_bytes()}

    def build(self) -> Seq2Seq:
        """A model with fresh weights."""
        return models.build(self.recipe.model, source_size=self.source.size, target_size=self.target.size)

    def encode(self, examples: Sequence[Example]) -> Encoded:
        """All examples as ids."""
        sources = [self.source.encode(each.source) for each in examples]
        return Encoded(list(examples), sources, [self.target.encode(each.target) for each in examples])

    def within_length(self, data: Encoded) -> Encoded:
        """The examples that are short enough to learn from."""
        longest = self.recipe.data.max_length
        kept = [row for row in zip(*data, strict=True) if max(len(row[1]), len(row[2])) <= longest]
        if not kept:
            raise DataError(f"every pair is longer than data.max_length = {longest} tokens; raise it")
        examples, sources, targets = zip(*kept, strict=True)
        return Encoded(list(examples), list(sources), list(targets))

    def unknown(self, data: Encoded) -> float:
        """The share of tokens that the vocabularies do not hold."""
        ids = [token for row in data.sources + data.targets for token in row]
        return ids.count(UNKNOWN) / max(1, len(ids))

    def collate(self, data: Encoded, indices: Sequence[int]) -> Batch:
        """The batch of these examples."""
        return batching.collate(data.sources, data.targets, indices)

    def tokens(self, batch: Batch) -> int:
        """The target tokens of a batch, END counted."""
        return int(batch.target.mask[:, 1:].sum())

    def loss(self, model: Seq2Seq, batch: Batch, smoothing: float = 0.0, sampling: float = 0.0) -> Float[Tensor, ""]:
        """The summed cross-entropy of every target token after the ones before it."""
        logits = _sampled(model, batch, sampling) if sampling else model(batch).logits
        return self.cross_entropy(logits, batch, smoothing)

    def cross_entropy(
        self, logits: Float[Tensor, "batch tokens vocabulary"], batch: Batch, smoothing: float
    ) -> Float[Tensor, ""]:
        """What the logits cost, summed over all target tokens."""
        wanted = batch.target.ids[:, 1:].flatten()
        precise = logits.flatten(0, 1).to(torch.promote_types(logits.dtype, torch.float32))
        return functional.cross_entropy(precise, wanted, ignore_index=PAD, reduction="sum", label_smoothing=smoothing)

    @torch.no_grad()
    def answer(
        self, model: Seq2Seq, texts: Sequence[str], settings: Search, n_best: int = 1, seed: int = 0
    ) -> list[Prediction]:
        """The best outputs for each text, with their maps; a blank text, or one too long, gets a blank answer."""
        model.eval()
        device = next(model.parameters()).device
        answers = [Prediction(text, "", 0.0, (), None) for text in texts]
        encoded = {index: self.source.encode(text) for index, text in enumerate(texts) if text.strip()}
        asked = [index for index, row in encoded.items() if len(row) <= self.longest]
        ids = [encoded[index] for index in asked]
        for group in batching.in_order([(len(row) + 1, 0) for row in ids], max(1, SEARCH_TOKENS // settings.beam)):
            source = batching.pad([[*ids[index], END] for index in group]).to(device)
            limits = [int(settings.max_ratio * len(ids[index])) + settings.max_extra for index in group]
            seeds = [seed + asked[index] * n_best for index in group]
            found = _search(model.decoder, model.encoder(source), settings, limits, seeds, n_best)
            for index, hypotheses in zip(group, found, strict=True):
                best, *others = [self.tell(texts[asked[index]], ids[index], each) for each in hypotheses]
                answers[asked[index]] = replace(best, alternatives=tuple(others))
        return answers

    @property
    def longest(self) -> int:
        """The tokens of a source that is still answered."""
        return max(LONGEST, self.recipe.data.max_length)

    def too_long(self, text: str) -> bool:
        """Whether a text is answered with nothing because of its length."""
        return len(self.source.encode(text)) > self.longest

    def tell(self, text: str, ids: Sequence[int], hypothesis: Hypothesis) -> Prediction:
        """A hypothesis in words, with the labels of its map."""
        tokens = tuple(self.target.piece(token) for token in hypothesis.tokens)
        columns = (*(self.source.piece(token) for token in ids), SPECIALS[END])
        seen = None
        if hypothesis.map is not None:
            seen = AttentionMap(hypothesis.map[: len(tokens), : len(columns)].cpu(), tokens, columns)
        return Prediction(text, self.target.decode(hypothesis.tokens), hypothesis.score, tokens, seen)


def _search(
    decoder: Decoder[Any, Any], memory: Memory, settings: Search, limits: list[int], seeds: list[int], n_best: int
) -> list[list[Hypothesis]]:
    """As the settings say: the best by beam search, or drawn at random."""
    if settings.temperature:
        return search.sample(
            decoder,
            memory,
            limits=limits,
            seeds=seeds,
            temperature=settings.temperature,
            top_k=settings.top_k,
            top_p=settings.top_p,
            count=n_best,
        )
    return search.beam(
        decoder,
        memory,
        width=settings.beam,
        limits=limits,
        length_penalty=settings.length_penalty,
        coverage_penalty=settings.coverage_penalty,
        no_repeat=settings.no_repeat,
        n_best=n_best,
    )


def _sampled(model: Seq2Seq, batch: Batch, share: float) -> Float[Tensor, "batch tokens vocabulary"]:
    """Bengio et al. 2015, scheduled sampling: for that share of its inputs, the decoder reads its own best guess."""
    decoder: Decoder[Any, Any] = model.decoder
    ready = decoder.prepare(model.encoder(batch.source))
    state = decoder.start(ready)
    given = batch.target.ids
    tokens, logits = given[:, :1], []
    for place in range(1, given.shape[1]):
        step = decoder.step(tokens, state, ready)
        state = step.state
        logits.append(step.logits)
        own = torch.rand(len(given), 1, device=given.device) < share
        tokens = torch.where(own, step.logits.argmax(-1), given[:, place : place + 1])
    return torch.cat(logits, dim=1)


def _tokenizer(kind: str, texts: Sequence[str], size: int) -> Tokenizer:
    """A tokenizer of that kind for these texts, built once."""
    tokenizer = pick(TOKENIZERS, kind, "tokenizer")
    digest = hashlib.sha256(json.dumps([kind, size, texts]).encode()).hexdigest()
    return tokenizer.from_bytes(storage.cached("tokenizers", digest, lambda: tokenizer.build(texts, size).to_bytes()))
