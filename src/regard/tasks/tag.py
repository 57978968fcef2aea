"""Sequence tagging: one tag for each word, such as parts of speech, names or chunks."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import accumulate

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from regard.console import counted
from regard.data import batching, store, tagged
from regard.data.batching import Lengths
from regard.data.files import Loaded
from regard.data.records import NOTHING_GIVEN, Given
from regard.data.store import IntegerRows, mapped, row_lengths
from regard.data.tokenizers import TOKENIZERS, Character, Tokenizer, Word
from regard.device import only_shapes
from regard.errors import RecipeError, pick
from regard.maps import AttentionMap
from regard.models import ENCODER_SELF, tagger
from regard.models.letters import Spelled
from regard.models.tagger import Tagger
from regard.recipe import Recipe, Search
from regard.search.path import best_path, bio
from regard.sources.text import SOURCE, TARGET, build_tokenizer
from regard.storage import Run
from regard.tasks import core
from regard.tasks.core import Axes, Encoded, Task
from regard.types import BEGIN, END, PAD, SPECIALS, UNKNOWN, Capturable, Example, Prediction, Vocabulary

LETTERS = "letters.tokens"
LONGEST_WORD = 30  # letters of a word that are read; of a longer word, only its first and last letters
SPELLED = 100_000  # size of the cache of encoded words
ANSWER_TOKENS = 8000  # words of a batch for predictions
PIECES = ("sentencepiece", "hugging_face")  # tokenizers that may split a word; its first piece gets its tag


@dataclass(frozen=True)
class Sentences(Encoded):
    """Encoded sentences: ids of words and tags, and per sentence a tensor of letter ids, padded to its longest word.

    If words are read in pieces, `words` are the ids of pieces; a word's tag stands at its first piece, PAD elsewhere.
    """

    words: Sequence[list[int]]
    letters: Sequence[Int[Tensor, "_words _letters"]]
    tags: Sequence[list[int]]

    def lengths(self) -> Lengths:
        """The positions that each example takes as (source, target)."""
        sizes = row_lengths(self.words) + 1
        return np.stack([sizes, sizes], axis=1)

    def widest(self) -> list[int]:
        """The indices of a few examples that have, together, the width of the whole data, in letters too."""
        return [*super().widest(), max(range(len(self.letters)), key=lambda index: self.letters[index].shape[1])]


@dataclass(frozen=True)
class Tagged(Capturable):
    """A batch of sentences with their gold tags; PAD after the last word, and where no word begins."""

    source: Spelled
    tags: Int[Tensor, "batch length"]
    examples: Int[Tensor, " batch"]

    def crop(self, source_width: int, target_width: int) -> "Tagged":
        """The batch in this width, which is the same for words and tags."""
        return Tagged(self.source.crop(source_width), self.tags[:, :target_width], self.examples)

    def count_predictions(self) -> Int[Tensor, ""]:
        """The number of tags."""
        return (self.tags != PAD).sum()


class Tag(Task[Tagger, Sentences, Tagged]):
    """Sequence tagging: learns from tagged sentences with cross-entropy; predicts the best path of tags."""

    metrics = ("tag_accuracy", "entity_f1", "exact_match")
    noun = "sentence"
    columns = ("words", "tags")
    mistakes = "tags"
    aligned = True
    ignores = (*core.NO_DECODER, "tokens.sample", "tokens.rejoin", "model.tied", "search")

    def __init__(self, recipe: Recipe, words: Tokenizer, letters: Tokenizer, tags: Tokenizer) -> None:
        super().__init__(recipe)
        self.words = words
        self.letters = letters
        self.tags = tags
        self.names = [tags.piece(token) for token in range(len(SPECIALS), tags.size)]
        self.rules = bio(self.names)
        self.spell = lru_cache(SPELLED)(self._spell)

    @classmethod
    def check(cls, recipe: Recipe) -> None:
        """Refuse a recipe with unknown names or sizes that do not fit, before any data is read."""
        pick(tagged.FORMATS, recipe.tag.format, "format")
        if recipe.tokens.source not in (Word.kind, *PIECES) or recipe.tokens.target != Word.kind:
            raise RecipeError(
                'a tagger reads words and writes tags; write tokens.source = tokens.target = "word"; to read words in '
                f"pieces, tokens.source = {' or '.join(PIECES)}"
            )
        with only_shapes():  # fails if sizes do not fit
            tagger.build(
                recipe.model, recipe.tag.letters, words=len(SPECIALS), letters=len(SPECIALS), tags=len(SPECIALS)
            )

    @classmethod
    def line_reader(cls, recipe: Recipe) -> Callable[[tuple[str, ...]], Loaded]:
        """Returns the function that reads files in tag.format."""
        return partial(pick(tagged.FORMATS, recipe.tag.format, "format"), limits=recipe.data.limits)

    @classmethod
    def reader(cls, recipe: Recipe, given: Given = NOTHING_GIVEN) -> Callable[[tuple[str, ...]], Loaded]:
        """Returns the function that reads files as the recipe says, and checks that every word has a tag."""
        read = super().reader(recipe, given)
        return lambda names: tagged.check(read(names))

    @classmethod
    def learn(cls, recipe: Recipe, examples: Sequence[Example], origin: Run | None = None) -> "Tag":
        """Builds the vocabularies from the training examples, or takes those of `origin`."""
        tokens = recipe.tokens
        sources, targets = store.sources(examples), store.targets(examples)
        frequent = _frequent(mapped(sources, lambda source: core.lowered(source, recipe)), recipe.tag.least)
        words = build_tokenizer(tokens.source, frequent, tokens.size, SOURCE, origin)
        tags = build_tokenizer(tokens.target, targets, 0, TARGET, origin)
        if core.unknown(mapped(targets, tags.encode)):  # the tags of `origin` are not those of this data
            tags = build_tokenizer(tokens.target, targets, 0, TARGET)
        stored = origin.read(LETTERS) if origin is not None and origin.has_file(LETTERS) else None
        letters = Character.build(sources, 0) if stored is None else Character.from_bytes(stored)
        return cls(recipe, words, letters, tags)

    @classmethod
    def restore(cls, recipe: Recipe, read: Callable[[str], bytes]) -> "Tag":
        """Builds the task of a stored run."""
        words = pick(TOKENIZERS, recipe.tokens.source, "tokenizer").from_bytes(read(SOURCE))
        tags = pick(TOKENIZERS, recipe.tokens.target, "tokenizer").from_bytes(read(TARGET))
        return cls(recipe, words, Character.from_bytes(read(LETTERS)), tags)

    def files(self) -> dict[str, bytes]:
        """The content of the files that a run must store besides the weights, by file name."""
        return {SOURCE: self.words.to_bytes(), LETTERS: self.letters.to_bytes(), TARGET: self.tags.to_bytes()}

    def build(self) -> Tagger:
        """Builds the model with newly initialised weights."""
        sizes = {"words": self.words.size, "letters": self.letters.size, "tags": self.tags.size}
        return tagger.build(self.recipe.model, self.recipe.tag.letters, **sizes)

    def vocabularies(self) -> dict[str, Vocabulary]:
        """The words and letters of the embeddings, and the tags of the output layer."""
        words = core.rows_of(core.tokens_of(self.words), "encoder.embedding.weight")
        letters = core.rows_of(core.tokens_of(self.letters, "letters"), "letters.embedding.weight")
        return words | letters | core.rows_of(core.tokens_of(self.tags, "tags"), "tags.weight", "tags.bias")

    def encode(self, examples: Sequence[Example]) -> Sentences:
        """Encodes all examples as ids of words, letters and tags."""
        sources, targets = store.sources(examples), store.targets(examples)
        words = IntegerRows.of(map(self.encode_words, counted(sources, "encoding words")))
        tags = IntegerRows.of(map(self.encode_tags, sources, targets))
        letters = [self.encode_letters(source) for source in counted(sources, "encoding letters")]
        return Sentences(examples, words, letters, tags)

    @property
    def reads_words(self) -> bool:
        """Whether the model reads whole words, and not their pieces."""
        return self.recipe.tokens.source not in PIECES

    def encode_words(self, text: str) -> list[int]:
        """The ids of the words of a text; if words are read in pieces, those of the pieces, with special tokens."""
        if self.reads_words:
            return self.words.encode(core.lowered(text, self.recipe))
        return self.words.framed([token for word in self._pieces(text) for token in word])

    def places(self, text: str) -> list[int]:
        """The position of each word of a text, or of its first piece, among the ids of `encode_words`."""
        if self.reads_words:
            return [*range(len(text.split()))]
        before = len(self.words.framed([])) - 1  # special tokens that come first
        return [*accumulate(map(len, self._pieces(text)), initial=before)][:-1]

    def _pieces(self, text: str) -> list[list[int]]:
        """The ids of the pieces of each word; UNKNOWN for a word without any, such as one of control characters."""
        return [self.words.encode_word(word) or [UNKNOWN] for word in core.lowered(text, self.recipe).split()]

    def encode_tags(self, text: str, tags: str) -> list[int]:
        """The ids of the tags, each at the position of its word, and PAD at other positions."""
        if self.reads_words:
            return self.tags.encode(tags)
        spread = [PAD] * len(self.encode_words(text))
        for place, tag in zip(self.places(text), self.tags.encode(tags), strict=True):
            spread[place] = tag
        return spread

    def encode_letters(self, text: str) -> Int[Tensor, "words letters"]:
        """The ids of the letters of the words of a text, padded to the longest word.

        If words are read in pieces, the first piece of a word has its letters, and all other positions have none.
        """
        words = text.split()
        if not self.reads_words:
            at = dict(zip(self.places(text), words, strict=True))
            words = [at.get(place, "") for place in range(len(self.encode_words(text)))]
        return pad_sequence([self.spell(word) for word in words], batch_first=True)

    def _spell(self, word: str) -> Int[Tensor, " letters"]:
        """The ids of a word's letters, with BEGIN and END; `spell` is the cached form."""
        half = LONGEST_WORD // 2
        shown = word if len(word) <= LONGEST_WORD else word[:half] + word[-half:]
        return torch.tensor([BEGIN, *self.letters.encode(shown), END], dtype=torch.int32)

    def describe(self, data: Sentences, dev: Sentences) -> Iterator[str]:
        """Reports the sizes of the vocabularies, the share of unknown dev words, and whether tags are BIO."""
        counts = f"{self.words.size:,} words, {self.letters.size:,} letters, {len(self.names):,} tags"
        unknown = core.describe_unknown(core.unknown(dev.words), self.recipe.train, "words")
        yield f"vocabularies of {counts}; {unknown}"
        if self.rules is not None:
            broken = sum(not self.lawful(tags) for tags in data.tags)
            but = f" (not so in {broken:,} training sentences)" if broken else ""
            yield f"the tags are BIO: in answers, I-X comes only after B-X or I-X{but}"

    def lawful(self, tags: Sequence[int]) -> bool:
        """Whether the tags of a sentence follow the BIO rules, if there are any; an unknown tag does not."""
        tags = [tag for tag in tags if tag != PAD]
        if self.rules is None or not tags:
            return True
        if min(tags) < len(SPECIALS):  # a tag that is not in the vocabulary
            return False
        places = torch.tensor(tags) - len(SPECIALS)
        return bool(self.rules.first[places[0]] and self.rules.after[places[:-1], places[1:]].all())

    def collate(self, data: Sentences, indices: Sequence[int]) -> Tagged:
        """Makes the batch of the examples at these indices."""
        source = spelled([data.words[index] for index in indices], [data.letters[index] for index in indices])
        tags = batching.pad([data.tags[index] for index in indices]).ids
        return Tagged(source, tags, torch.tensor(indices, dtype=torch.long))

    def tokens(self, batch: Tagged) -> int:
        """The number of words of a batch."""
        return int(batch.count_predictions())

    def loss(self, model: Tagger, batch: Tagged, smoothing: float = 0.0, sampling: float = 0.0) -> Float[Tensor, ""]:
        """The cross-entropy summed over words; in training with word dropout, which leaves a word only its letters."""
        source = core.drop_words(batch.source, self.recipe.train.word_dropout if model.training else 0.0)
        return core.cross_entropy(model(source), batch.tags, smoothing)

    @torch.no_grad()
    def answer(
        self,
        model: Tagger,
        texts: Sequence[str],
        settings: Search,
        n_best: int = 1,
        seed: int = 0,
        *,
        all_maps: bool = False,
    ) -> list[Prediction]:
        """Predicts the best tags for the words of each text.

        With a Transformer, the map is the self-attention of its last layer, averaged over heads. A blank or too long
        text gets a blank prediction.
        """
        model.eval()
        device = next(model.parameters()).device
        rules = None if self.rules is None else type(self.rules)(*(rule.to(device) for rule in self.rules))
        answers = [core.blank(text) for text in texts]
        for places, ids in core.input_batches(texts, self.encode_words, self.longest, ANSWER_TOKENS):
            source = spelled(ids, [self.encode_letters(texts[place]) for place in places]).to(device)
            with core.recording_sites(model, all_maps) as recording:
                logits, weights = core.with_last_attention(model, source)
            logits = logits[..., len(SPECIALS) :]  # without the special tokens, which are no tags
            words = batching.pad([self.places(texts[place]) for place in places]).to(device)
            scores = logits.float().log_softmax(-1).gather(1, words.ids.unsqueeze(-1).expand(-1, -1, logits.shape[-1]))
            paths = best_path(scores, words.mask, rules)
            maps = [None] * len(places) if weights is None else weights.cpu()
            tags, totals = paths.tags.tolist(), paths.scores.tolist()
            for index, (place, row, score, own) in enumerate(zip(places, tags, totals, maps, strict=True)):
                answers[place] = self.prediction(texts[place], row, score, own)
                if all_maps:
                    labels = self.positions(texts[place])
                    axes = {ENCODER_SELF: Axes(answers[place].tokens if self.reads_words else labels, labels)}
                    answers[place] = replace(answers[place], maps=core.recorded_maps(model, recording, index, axes))
        return answers

    def prediction(self, text: str, row: Sequence[int], score: float, weights: Tensor | None) -> Prediction:
        """Makes the prediction of one text from its tags; its map, if any, has a row per tag and a column per word."""
        words = tuple(text.split())
        tags = tuple(self.names[tag] for tag in row[: len(words)])
        attention_map = None
        if weights is not None and self.reads_words:
            attention_map = AttentionMap(weights[: len(words), : len(words)], tags, words)
        elif weights is not None:
            labels = self.positions(text)
            attention_map = AttentionMap(weights[self.places(text), : len(labels)], tags, labels)
        return Prediction(text, " ".join(tags), score, tags, attention_map, source_tokens=words)

    def positions(self, text: str) -> tuple[str, ...]:
        """The words of a text, or their pieces with special tokens."""
        return tuple(text.split() if self.reads_words else map(self.words.piece, self.encode_words(text)))

    def too_long(self, text: str) -> bool:
        """Whether a text is too long, so that its prediction is blank."""
        return len(text.split() if self.reads_words else self.encode_words(text)) > self.longest

    def unknown_parts(self, text: str) -> list[str]:
        """The letters of a text that are not in the vocabulary, in their order; if letters are not read, its words."""
        if self.recipe.tag.letters.dim:
            return core.unknown_parts(self.letters, "".join(text.split()))
        return core.unknown_parts(self.words, core.lowered(text, self.recipe))


def spelled(words: Sequence[list[int]], letters: Sequence[Int[Tensor, "_words _letters"]]) -> Spelled:
    """Makes one padded batch of sentences, from the ids of their words and letters."""
    padded = batching.pad(words)
    size = *padded.ids.shape, max(sentence.shape[1] for sentence in letters)
    joined = torch.zeros(size, dtype=torch.int32)
    for row, sentence in enumerate(letters):
        joined[row, : sentence.shape[0], : sentence.shape[1]] = sentence
    return Spelled(padded.ids, padded.mask, joined)


def _frequent(texts: Sequence[str], least: int) -> Sequence[str]:
    """The texts without the words that occur fewer than `least` times in all texts together."""
    counts = Counter(word for text in texts for word in text.split())
    return mapped(texts, lambda text: " ".join(word for word in text.split() if counts[word] >= least))
