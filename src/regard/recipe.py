"""Recipes: frozen dataclasses to and from TOML, with `a.b=c` overrides; unknown keys are refused."""

import dataclasses
import json
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from pathlib import Path
from typing import Any, TypeVar, get_args, get_type_hints

from regard.errors import MOST_SUGGESTED, RecipeError, did_you_mean, listed, names_all, shown

EMBEDDED = Path(__file__).parent / "recipes"
SMALL = 0.02  # standard deviation of the weights with model.init = small
OVERRIDES, COMMAND_LINE = "the overrides", "the command line"  # where overrides stand, for messages
FORMAT = 5  # version of the TOML format, see `_upgrade`

# Bounds of what is parsed, far above those of any recipe: a recipe may come from a stranger.
LARGEST_RECIPE = 262_144  # bytes; with all texts and lists at their longest, `to_toml` writes fewer
LONGEST_TEXT, LONGEST_LIST = 512, 32_768  # characters of a text, and of a list of file names as JSON
MOST_NUMBERS = 1000  # of a list
MOST_KEY_PARTS = 16  # of a dotted key
KEY_PART = r"""(?:[A-Za-z0-9_-]++|"(?:[^"\\\n]|\\.)*+"|'[^'\n]*+')"""
DEEP_KEY = re.compile(rf"(?<![\w\\-]){KEY_PART}(?:[ \t]*+\.[ \t]*+{KEY_PART}){{{MOST_KEY_PARTS}}}")

# Keys that moved in format 3, to the section of the only task that uses them.
MOVED = {
    "data.format": "tag.format",
    "data.header": "classify.header",
    "data.window": "language_model.window",
    "data.stride": "language_model.stride",
    "tokens.least": "tag.least",
    "model.pooling": "classify.pooling",
    "model.segments": "answer.segments",
    "model.overlap": "answer.overlap",
    "model.letters": "tag.letters",
    "train.masked": "masked_lm.masked",
    "train.whole_words": "masked_lm.whole_words",
}

# Sections of a recipe that one task alone uses; they have its name.
TASK_SECTIONS = ("classify", "language_model", "tag", "masked_lm", "answer", "forecast")

# What regard has instead of keys of other toolkits, and the names of these keys, without their section.
INSTEAD = {
    "regard counts updates, not epochs: train.updates=N": "epoch epochs num_epochs max_epochs num_train_epochs",
    "write train.updates=N": "steps max_steps num_steps train_steps iterations",
    "regard counts tokens, not pairs: train.batch_tokens=N": "batch_size batch",
    "write train.learning_rate=X": "lr learningrate",
    "it is AdamW; train.learning_rate, train.weight_decay and train.clip set it": "optimizer optim",
    "write train.schedule=NAME": "scheduler lr_scheduler",
    "write train.warmup=N": "warmup_steps warmup_updates",
    "write train.clip=X": "grad_clip clip_norm max_grad_norm",
    "write train.accumulate=N": "gradient_accumulation_steps update_freq",
    "write train.patience=N": "early_stopping early_stop",
    "write train.validate=N": "eval_steps valid_steps",
    "write train.precision=auto": "fp16 bf16 amp",
    "write train.smoothing=X": "label_smoothing",
    "write model.encoder.dim=N model.decoder.dim=N": "hidden_size hidden_dim hidden d_model",
    "write model.encoder.layers=N model.decoder.layers=N": "num_layers n_layers",
    "write model.encoder.inner_dim=N model.decoder.inner_dim=N": "ffn_dim d_ff dim_feedforward",
    "write model.attention.heads=N": "num_heads n_heads nhead",
    "write model.embedding=N": "embedding_dim embed_dim embedding_size emb_size",
    "write tokens.size=N": "vocab_size vocabulary_size",
    "write tokens.source=NAME tokens.target=NAME": "tokenizer",
    "write search.beam=N": "beam_size beam_width num_beams",
}
ELSEWHERE = {name: hint for hint, names in INSTEAD.items() for name in names.split()}


def _number(default: float | None, least: float, most: float) -> Any:
    """A dataclass field for a number with a smallest and a largest value.

    The largest is far above any sensible use, but low enough that nothing overflows or hangs; whether a model fits
    into memory is checked before it is built (`regard.memory`).
    """
    return field(default=default, metadata={"least": least, "most": most})


@dataclass(frozen=True)
class Limits:
    """The largest data file that is read; a file that is larger, such as a decompression bomb, is refused early."""

    file_bytes: int = _number(8_000_000_000, 1, 1_000_000_000_000)  # size of a file, unpacked
    lines: int = _number(100_000_000, 1, 2_147_483_647)  # number of lines of a file
    line_bytes: int = _number(200_000_000, 1, 1_000_000_000_000)  # size of a line with its end, or of a Parquet page
    expansion: int = _number(100, 1, 1_000_000)  # unpacked size of a gz or Parquet file by its size; above 16 MB only
    archive_members: int = _number(1_000_000, 1, 100_000_000)  # number of members of a tar file
    recording_bytes: int = _number(500_000_000, 1, 1_000_000_000_000)  # size of a recording, as it is stored
    recording_seconds: int = _number(600, 1, 1_000_000)  # duration of a recording
    picture_bytes: int = _number(50_000_000, 1, 1_000_000_000)  # size of the file of a picture
    picture_pixels: int = _number(50_000_000, 1, 178_000_000)  # width x height of a picture, before it is resized


@dataclass(frozen=True)
class Data:
    """The training, dev and test data: files, or an embedded corpus if no training file is given."""

    corpus: str = ""  # name of an embedded corpus; `regard list corpora`
    size: int = _number(25_000, 1, 10_000_000)  # number of training pairs to generate for an embedded corpus
    train: tuple[str, ...] = ()  # TSV files, or two line-parallel texts; or files with columns; plain or gz; patterns
    weights: tuple[float, ...] = ()  # of pairs: the share of each corpus in an epoch, in the order of `train`
    temperature: float = _number(1.0, 0.01, 1e6)  # of pairs: a corpus of n has the weight n ^ (1 / temperature)
    store_from: int = _number(50_000_000, 0, 1_000_000_000_000)  # pairs: bytes of files from which ids are on disk
    dev: tuple[str, ...] = ()  # if no file is given, a part of `train` is split off
    split_seed: int = _number(1, 0, 9_223_372_036_854_775_807)  # random seed of that part; see dev
    test: tuple[str, ...] = ()  # files that `regard score RUN` computes the score on
    columns: tuple[str, ...] = ()  # of CSV, TSV, JSONL and Parquet files: those of source and target
    max_length: int = _number(250, 1, 1_000_000_000)  # pairs with more tokens on either side are dropped from training
    limits: Limits = Limits()
    pictures: tuple[str, ...] = ()  # folders and tar files of the pictures that the data names
    normalize: str = "none"  # how captions and other targets are changed before use; `regard list normalizations`


@dataclass(frozen=True)
class Tokens:
    """The tokenizers of source and target."""

    source: str = "character"  # tokenizer of the source; `regard list tokenizers`
    target: str = "character"  # tokenizer of the target
    size: int = _number(8000, 1, 10_000_000)  # largest size of the vocabulary
    sample: int = _number(1_000_000, 0, 100_000_000)  # examples that vocabularies are built from at most; 0: all
    shared: bool = False  # one vocabulary for both sides
    lower: bool = False  # lowercase the input of taggers (except their letters), classifiers, masked LMs
    rejoin: bool = False  # for classifiers: read English split as in the Penn Treebank (do n't) as it is printed


@dataclass(frozen=True)
class Attention:
    """Attention at every site; the sections of single sites may change keys. `dim` is the inner width of the score."""

    score: str = "additive"  # the score function; `regard list scores`
    dim: int = _number(128, 1, 65_536)  # inner width of the score; a Transformer uses its own dim instead
    normalizer: str = "softmax"  # `regard list normalizers`; hard: encoder self-attention uses softmax
    scope: str = "global"  # `regard list scopes`; if it uses past weights: encoder self-attention is global
    window: int = _number(10, 1, 1_000_000)  # for local scopes: how many positions they reach to either side
    heads: int = _number(1, 1, 4096)  # number of attention heads; dim is divided among them
    groups: int = _number(0, 0, 4096)  # grouped-query attention: number of key and value heads; 0: as many as heads
    dropout: float = _number(0.0, 0.0, 0.95)  # dropout rate of the attention weights


@dataclass(frozen=True)
class Site:
    """Attention at one site; a key that is not set here has its value in model.attention."""

    score: str | None = None  # see model.attention
    dim: int | None = _number(None, 1, 65_536)  # see model.attention
    normalizer: str | None = None  # see model.attention
    scope: str | None = None  # see model.attention
    window: int | None = _number(None, 1, 1_000_000)  # see model.attention
    heads: int | None = _number(None, 1, 4096)  # see model.attention
    groups: int | None = _number(None, 0, 4096)  # see model.attention
    dropout: float | None = _number(None, 0.0, 0.95)  # see model.attention

    def of(self, default: Attention) -> Attention:
        """Returns the attention settings of this site: `default`, with the keys that are set here."""
        own = {name: value for name, value in vars(self).items() if value is not None}
        return replace(default, **own)


@dataclass(frozen=True)
class Encoder:
    """The encoder, which reads the source; `dim` is the width of a state, both directions together."""

    kind: str = "recurrent"  # type of the encoder; `regard list encoders`
    cell: str = "gru"  # if recurrent: type of the cell; `regard list cells`
    dim: int = _number(128, 1, 65_536)  # width of a state
    layers: int = _number(1, 1, 256)  # number of layers
    bidirectional: bool = True  # if recurrent: read in both directions
    bias: bool = True  # if recurrent: the layers have a bias
    inner_dim: int = _number(0, 0, 1_048_576)  # LSTM: projected to dim, 0: none; Transformer: feed-forward, 0: 4 x dim
    dropout: float = _number(0.0, 0.0, 0.95)  # dropout rate
    inner_dropout: float = _number(0.0, 0.0, 0.95)  # dropout rate inside a Transformer's feed-forward layers
    self_attention: Site = Site()  # of a Transformer


@dataclass(frozen=True)
class Decoder:
    """The decoder, which writes the target; `order` sets at which point of a step a recurrent decoder attends."""

    kind: str = "recurrent"  # type of the decoder; `regard list decoders`
    order: str = "bahdanau"  # if recurrent: order of cell and attention in a step; `regard list orders`
    start: str = "bridge"  # if recurrent: how its initial state is made; `regard list starts`
    cell: str = "gru"  # if recurrent: type of the cell; `regard list cells`
    dim: int = _number(128, 1, 65_536)  # width of a state
    layers: int = _number(1, 1, 256)  # number of layers
    inner_dim: int = _number(0, 0, 1_048_576)  # width of a Transformer's feed-forward layers; 0: 4 x dim
    copies: bool = False  # if recurrent: copy mechanism, it may copy a token of the source (pointer-generator)
    dropout: float = _number(0.0, 0.0, 0.95)  # dropout rate
    inner_dropout: float = _number(0.0, 0.0, 0.95)  # dropout rate inside a Transformer's feed-forward layers
    self_attention: Site = Site()  # of a Transformer
    cross_attention: Site = Site()  # attention to the source
    gated_context: bool = False  # if recurrent: a gate computed from the query multiplies the context (Xu et al. 2015)
    linear_readout: bool = False  # if recurrent: no tanh after the layer that the prediction is computed from


@dataclass(frozen=True)
class Model:
    """The parts of the model, and what they share."""

    embedding: int = _number(64, 1, 65_536)  # width of a token's embedding; a Transformer uses its dim instead
    embedding_from: tuple[str, ...] = ()  # word vectors to start from: a text file, or safetensors and tokenizer.json
    tied: bool = False  # output layer and embedding share one matrix; if tokens.shared, the source embedding too
    norm: str = "pre"  # layer normalisation of a Transformer: pre or post (before or after each sub-layer)
    norm_kind: str = "layer"  # of a Transformer: layer (mean and variance) or rms (the root mean square alone)
    activation: str = "relu"  # activation of a Transformer's feed-forward layers; `regard list activations`
    positions: str = "sinusoidal"  # positions of a Transformer; `regard list positions`
    init: str = "glorot"  # initial weights of a Transformer; `regard list inits`
    longest: int = _number(1024, 1, 1_000_000)  # learned positions: for positions = learned, and the score location
    norm_eps: float = _number(1e-5, 0.0, 1.0)  # of a Transformer's normalisations: added to the variance
    embedding_norm: bool = False  # of a Transformer: normalise embeddings with their positions, before the first layer
    embedding_scaled: bool = True  # of a Transformer: multiply embeddings by the square root of its width
    encoder: Encoder = Encoder()
    attention: Attention = Attention()
    decoder: Decoder = Decoder()


@dataclass(frozen=True)
class Train:
    """How the model is trained."""

    updates: int = _number(1000, 1, 1_000_000_000)  # number of updates at most; see patience
    batch_tokens: int = _number(4000, 1, 100_000_000)  # largest size of a batch: rows x length of the longest side
    learning_rate: float = _number(0.001, 0.0, 1e37)  # highest learning rate
    schedule: str = "constant"  # learning rate schedule; `regard list schedules`
    warmup: int = _number(0, 0, 1_000_000_000)  # updates until the highest learning rate is reached
    clip: float = _number(1.0, 0.0, 1e37)  # gradient clipping: largest norm of the gradient; 0: none
    weight_decay: float = _number(0.0, 0.0, 10.0)  # AdamW: weights shrink by this x rate at each update
    smoothing: float = _number(0.0, 0.0, 0.95)  # label smoothing
    word_dropout: float = _number(0.0, 0.0, 0.95)  # for classifiers, taggers: share of words made unknown
    validate: int = _number(250, 1, 1_000_000_000)  # updates between two validations on dev
    validate_examples: int = _number(100, 0, 1_000_000)  # dev examples that a validation predicts, greedily; 0: none
    best_by: str = "loss"  # what makes a validation the best, for keep and patience: loss (on dev) or metric
    accumulate: int = _number(1, 1, 10_000)  # gradient accumulation: batches per update
    ema: float = _number(0.0, 0.0, 0.99999)  # decay of an exponential moving average of the weights; 0: none
    average: int = _number(1, 1, 1000)  # checkpoint averaging: number of validations whose weights are averaged
    keep: str = "best"  # weights stored in the run: best (see best_by) or last
    sampling: float = _number(0.0, 0.0, 1.0)  # scheduled sampling: share at the end; it grows from 0
    coverage: float = _number(0.0, 0.0, 1e6)  # weight of See et al.'s coverage loss, against repeated attention
    doubly_stochastic: float = _number(0.0, 0.0, 1e6)  # weight of Xu et al.'s loss: total weight per key near 1
    guided: float = _number(0.0, 0.0, 1e6)  # weight of the guided attention loss, from known links; characters only
    entropy: float = _number(0.01, 0.0, 1e6)  # weight of the entropy bonus for hard attention
    patience: int = _number(0, 0, 1_000_000_000)  # early stopping: validations without a new best; 0: never
    start_from: str = ""  # a run to start from: its tokenizers, and its weights whose names and shapes fit, are used
    new_vocabulary: bool = False  # with start_from: build vocabularies from the data; rows of tokens in both are taken
    lora_rank: int = _number(0, 0, 4096)  # with start_from, LoRA: rank of matrices beside attention's own; 0: none
    seed: int = _number(1, 0, 9_223_372_036_854_775_807)  # random seed of weights, batches, dropout, embedded corpora
    device: str = "auto"  # cpu, cuda, or auto: the GPU if there is one
    threads: int = _number(0, 0, 512)  # number of CPU threads; 0: torch's default
    precision: str = "float32"  # of matrix products: float32, bfloat16, or auto: bfloat16 if the GPU is fast in it
    capture: bool = True  # on a GPU: run each update as one CUDA graph, if possible
    compile: bool = False  # use torch.compile in captured updates: takes a minute, worth it for large models
    parallel: str = "auto"  # more processes: ddp (a whole model in each), fsdp (a part in each), auto: ddp if several
    timeout: int = _number(600, 1, 1_000_000)  # more processes: seconds that they wait for each other
    deterministic: bool = False  # use only deterministic algorithms, which give the same bits again; slower on a GPU
    ctc: float = _number(0.0, 0.0, 1.0)  # joint CTC loss: its weight; the decoder's is 1 - ctc; 0: no CTC layer
    reward: tuple[str, ...] = ()  # metrics to train on after the cross-entropy: their sum over drawn outputs
    reward_after: int = _number(0, 0, 1_000_000_000)  # updates with cross-entropy before those with reward
    reward_samples: int = _number(5, 2, 1000)  # outputs that an update with reward draws for each source
    reward_rate: float = _number(0.00005, 0.0, 1e37)  # highest learning rate of updates with reward

    @property
    def cross_entropy_updates(self) -> int:
        """The number of updates with cross-entropy: all, unless there is a reward."""
        return min(self.reward_after, self.updates) if self.reward else self.updates

    def validations(self, update: int) -> int:
        """Returns how many validations there are up to an update: every `validate` updates, and after the last one."""
        return update // self.validate + (update == self.updates and update % self.validate > 0)


@dataclass(frozen=True)
class Search:
    """How outputs are generated: beam search, or sampling if temperature is above 0."""

    beam: int = _number(1, 1, 1000)  # width of the beam; 1: greedy search
    length_penalty: float = _number(0.0, 0.0, 10.0)  # exponent of GNMT's length penalty; 0: none
    coverage_penalty: float = _number(0.0, 0.0, 1000.0)  # weight of GNMT's coverage penalty; 0: none
    no_repeat: int = _number(0, 0, 1000)  # no n-gram of this length is generated twice; 0: no limit
    ends_in_beam: bool = False  # beam search: an output ends only with an END among its sentence's best tokens
    temperature: float = _number(0.0, 0.0, 1000.0)  # above 0: outputs are sampled with this temperature; 0: beam search
    top_k: int = _number(0, 0, 10_000_000)  # sample from this many of the most probable tokens; 0: from all
    top_p: float = _number(1.0, 0.01, 1.0)  # nucleus sampling: smallest set of tokens with this probability
    max_ratio: float = _number(2.0, 0.0, 100.0)  # an output has at most max_ratio x source length + max_extra tokens
    max_extra: int = _number(20, 1, 100_000)  # see max_ratio
    max_answer: int = _number(30, 1, 100_000)  # for task = answer: largest number of tokens of an answer
    ctc: float = _number(0.0, 0.0, 1.0)  # beam search: weight of the CTC layer's scores; the decoder's is 1 - ctc


@dataclass(frozen=True)
class Classify:
    """Settings of task = classify alone."""

    header: bool = False  # the first line of each TSV file holds column names and is skipped
    pooling: str = "attention"  # how the states become one vector; `regard list poolings`
    consistency: float = _number(0.0, 0.0, 100.0)  # R-Drop: read texts twice in training; weight of the divergence


@dataclass(frozen=True)
class LanguageModel:
    """Settings of task = language_model alone."""

    window: int = _number(0, 0, 1_000_000)  # tokens per window of text; 0: each line is its own text
    stride: int = _number(0, 0, 1_000_000)  # tokens between the starts of two training windows; 0: as window


@dataclass(frozen=True)
class MaskedLM:
    """Settings of task = masked_lm alone."""

    masked: float = _number(0.15, 0.01, 0.95)  # share of tokens to predict
    whole_words: bool = False  # whole-word masking: all pieces of a word are predicted together
    mask_seed: int = _number(1, 0, 9_223_372_036_854_775_807)  # random seed of the masks of dev and test texts


@dataclass(frozen=True)
class Answer:
    """Settings of task = answer alone."""

    segments: bool = False  # add a learned vector to the question, and another to the context
    overlap: bool = False  # add a learned vector to context tokens that are in the question


@dataclass(frozen=True)
class Letters:
    """How a tagger reads the letters of a word, in addition to the word's embedding."""

    kind: str = "convolutional"  # type of the letter encoder; `regard list letters`
    embedding: int = _number(32, 1, 65_536)  # width of a letter's embedding
    dim: int = _number(64, 0, 65_536)  # width of the vector computed from a word's letters; 0: letters are not used


@dataclass(frozen=True)
class Tag:
    """Settings of task = tag alone."""

    format: str = "pairs"  # file format of the data; `regard list formats`
    least: int = _number(1, 1, 1_000_000_000)  # words that occur less often in the training data are unknown
    letters: Letters = Letters()


@dataclass(frozen=True)
class Picture:
    """Settings of source = picture alone."""

    size: int = _number(64, 8, 1024)  # height and width that every picture is resized to, in pixels
    fit: str = "crop"  # how a picture becomes square; `regard list fits`
    front: str = "convolution"  # the layers that turn pixels into a grid of vectors; `regard list fronts`
    channels: int = _number(32, 1, 4096)  # channels of the first block; each further block has twice as many
    blocks: int = _number(3, 1, 8)  # number of blocks; each halves height and width
    kernel: int = _number(2, 2, 8)  # width of the kernels, an even number; 2: a cell sees its own pixels only
    squeeze_excite: bool = False  # squeeze-and-excitation after each block: a gate for each channel
    positions: str = "sinusoidal"  # how the vectors of the grid know their place; `regard list grid_positions`
    frozen: bool = True  # pretrained fronts: their weights do not change, and features are computed once and cached
    mirror: bool = False  # train on a mirrored copy of each picture, too


@dataclass(frozen=True)
class Speech:
    """Settings of source = speech alone. SpecAugment and speed perturbation change recordings in training only."""

    rate: int = _number(0, 0, 384_000)  # samples per second that recordings are resampled to; 0: of the first one
    bands: int = _number(80, 1, 512)  # number of mel bands of the log-mel features
    window: float = _number(0.025, 0.002, 0.1)  # seconds of a window, from which a frame is computed
    hop: float = _number(0.01, 0.001, 0.1)  # seconds between two frames
    centre: bool = False  # cepstral mean normalisation: subtract from each band its mean in the recording
    front: str = "convolution"  # the layers that join neighbouring frames; `regard list speech_fronts`
    layers: int = _number(2, 1, 5)  # number of the front's layers; each halves the number of positions
    width: int = _number(128, 4, 65_536)  # width of the front's vectors; a Transformer uses its dim instead
    time_masks: int = _number(0, 0, 100)  # SpecAugment: number of masks over time
    time_width: int = _number(40, 0, 100_000)  # SpecAugment: largest width of a mask over time, in frames
    time_share: float = _number(0.2, 0.0, 1.0)  # SpecAugment: largest width as a share of the recording
    band_masks: int = _number(0, 0, 100)  # SpecAugment: number of masks over bands
    band_width: int = _number(27, 0, 512)  # SpecAugment: largest width of a mask over bands
    speed: float = _number(0.0, 0.0, 0.5)  # speed perturbation: two copies, slower and faster by this share; 0: none


@dataclass(frozen=True)
class Forecast:
    """Settings of task = forecast alone."""

    horizon: int = _number(24, 1, 100_000)  # number of steps to forecast
    context: int = _number(0, 0, 1_000_000)  # number of steps before them that the model reads; 0: as horizon
    format: str = ""  # of the files: long, wide, m4 or matrix (columns without times); empty: told by their header
    frequency: str = ""  # of the steps, such as hour or 15 minutes; empty: inferred from the times
    start: str = ""  # time of the first value in files without times, such as 1990-01-01; empty: not known
    season: int = _number(0, 0, 1_000_000)  # steps of a season, for metrics and baselines; 0: by the frequency
    lags: str = "calendar"  # a step reads the values so many steps before: 1,24,168 or 1-24; calendar: by the frequency
    scaling: str = "mean"  # how each window is scaled; `regard list scalings`
    likelihood: str = "student_t"  # the distribution of a value; `regard list likelihoods`
    lag_mixture: bool = False  # attention by location to lagged values; their weighted sum centres the distribution
    weighted: bool = True  # training draws series with a probability proportional to their mean absolute value
    by_series: bool = False  # an embedding for each series of the training data
    categories: tuple[str, ...] = ()  # columns with static categories of a series, such as its region
    known: tuple[str, ...] = ()  # columns with covariates that are known in advance, such as holidays
    past: tuple[str, ...] = ()  # columns with covariates that are known up to the present only
    samples: int = _number(100, 1, 100_000)  # number of sample paths of a forecast
    windows: int = _number(1, 1, 10_000)  # windows at the end of each series to score, if there is no data.test
    stride: int = _number(0, 0, 100_000)  # steps between the starts of two of these windows; 0: as horizon


@dataclass(frozen=True)
class Recipe:
    """All settings of a run; a task refuses keys that it does not use."""

    name: str = "run"  # name of the run directory
    task: str = "translate"  # what is learned; `regard list tasks`
    metric: str = "exact_match"  # the score of a run, computed on dev after training; `regard list metrics`
    source: str = "text"  # for task = translate: kind of the input; `regard list sources`
    data: Data = Data()
    tokens: Tokens = Tokens()
    model: Model = Model()
    train: Train = Train()
    search: Search = Search()
    classify: Classify = Classify()
    language_model: LanguageModel = LanguageModel()
    tag: Tag = Tag()
    masked_lm: MaskedLM = MaskedLM()
    answer: Answer = Answer()
    picture: Picture = Picture()
    speech: Speech = Speech()
    forecast: Forecast = Forecast()


def names() -> list[str]:
    """Names of the recipes that come with regard."""
    return sorted(path.stem for path in EMBEDDED.glob("*.toml"))


def load(name: str | Path, overrides: Iterable[str] = (), place: str = OVERRIDES) -> Recipe:
    """Reads a recipe that comes with regard, by name, or a .toml file, and applies `a.b=c` overrides.

    `place` is where the overrides stand, for messages about them.
    """
    path, content = _content(name)
    return override_all(parse(content, str(path)), list(overrides), place)


def comment(name: str | Path) -> list[str]:
    """The comment lines at the top of a recipe: what it trains, which paper, what it needs or leaves out."""
    path, content = _content(name)
    lines = _decode(content, str(path)).split("\n")
    return [line.removeprefix("#").strip() for line in takewhile(lambda line: line.startswith("#"), lines)]


def _content(name: str | Path) -> tuple[Path, bytes]:
    """The path and the content of a recipe; of a file that is too large, only its beginning."""
    path = Path(name)
    if path.suffix != ".toml":
        path = EMBEDDED / f"{name}.toml"
        if str(name) not in names():
            if "=" in str(name):
                raise RecipeError(f"{shown(str(name))} changes a recipe; name one before it, such as dates")
            near = did_you_mean(str(name), names())
            choices = f"{names_all('recipe', after=near)}; or give a .toml file"
            raise RecipeError(f"no recipe {shown(str(name))}{near}{choices}")
    try:
        if path.exists() and not path.is_file():  # reading a FIFO or a device might never end
            raise RecipeError(f"the recipe {path} cannot be read: it is not a file; name a .toml file")
        with path.open("rb") as file:
            return path, file.read(LARGEST_RECIPE + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise RecipeError(f"the recipe {path} cannot be read: {reason}") from error


def _decode(content: bytes, origin: str) -> str:
    """The text of a recipe; refuses one that is too large or not UTF-8."""
    if len(content) > LARGEST_RECIPE:
        raise RecipeError(f"{origin} cannot be read: a recipe has at most {LARGEST_RECIPE:,} bytes; make it smaller")
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise RecipeError(f"{origin} cannot be read: it is not UTF-8 text (byte {error.start + 1:,})") from error


def parse(content: str | bytes, origin: str, overrides: Iterable[str] = (), format: int = FORMAT) -> Recipe:
    """Parses a recipe from TOML and converts it to the current format; `origin` is its name in error messages.

    `format` is the format version of a text that does not state one.
    """
    try:
        values = _parse_toml(_decode(content, origin) if isinstance(content, bytes) else content)
    except ValueError as error:
        raise RecipeError(f"{origin} is not valid TOML: {error}") from error
    format = values.pop("format", format)
    if type(format) is not int or not 1 <= format <= FORMAT:
        raise RecipeError(
            f"{origin} is of format {shown(format)}, and this regard reads 1 to {FORMAT}; use a version that fits"
        )
    recipe = fill(Recipe(), _upgrade(values, format), origin, "")
    for text in overrides:
        recipe = override(recipe, text)
    return recipe


def _parse_toml(text: str) -> dict[str, Any]:
    """Parses TOML in a bounded time; ValueError if it is not valid, or larger or deeper than any recipe is."""
    if len(text) > LARGEST_RECIPE:
        raise ValueError(f"it has more than {LARGEST_RECIPE:,} characters")
    if DEEP_KEY.search(text):  # the parser takes a time and memory that grow as the square of the number of parts
        raise ValueError(f"a key has more than {MOST_KEY_PARTS} parts")
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        raise
    except ValueError:  # Python converts at most 4,300 digits
        raise ValueError("a number has too many digits") from None
    except RecursionError:
        raise ValueError("lists or tables are nested too deep") from None


def _upgrade(values: dict[str, Any], format: int) -> dict[str, Any]:
    """Converts the values of a recipe of an older format; keys that its task did not use are dropped."""
    if format == 1:  # model.decoder.order = gnmt meant today's gnmt_v2
        decoder = _section(_section(values, "model"), "decoder")
        if decoder.get("order") == "gnmt":
            decoder["order"] = "gnmt_v2"
    for old, new in MOVED.items() if format < 3 else ():
        (section, key), (task, name) = old.split("."), new.split(".")
        if key in _section(values, section):
            value = values[section].pop(key)
            if task == values.get("task"):
                values.setdefault(task, {})
                _section(values, task)[name] = value
    data, settings = _section(values, "data"), _section(values, "train")
    if format < 4 and "seed" in settings and data.get("train") and not data.get("dev"):
        data["split_seed"] = settings["seed"]  # the dev part was split off with the seed of training
    if format < 5 and "seed" in settings and values.get("task") == "masked_lm":
        values.setdefault("masked_lm", {})
        _section(values, "masked_lm")["mask_seed"] = settings["seed"]  # it was the seed of the masks, too
    return values


def _section(values: dict[str, Any], name: str) -> dict[str, Any]:
    """The values of a section; none if it is missing, or not a section, which `fill` refuses later."""
    section = values.get(name)
    return section if isinstance(section, dict) else {}


def changed(section: Any, prefix: str = "") -> Iterator[str]:
    """The names of the keys whose values are not the defaults."""
    for item in dataclasses.fields(section):
        value, name = getattr(section, item.name), prefix + item.name
        if dataclasses.is_dataclass(value):
            yield from changed(value, name + ".")
        elif value != item.default:
            yield name


def entries(section: Any, prefix: str = "") -> Iterator[tuple[str, str, Any]]:
    """The section, the name and the value of all keys, those of a section before its sub-sections."""
    own = [(item.name, getattr(section, item.name)) for item in dataclasses.fields(section)]
    for name, value in own:
        if not dataclasses.is_dataclass(value):
            yield prefix, name, value
    for name, value in own:
        if dataclasses.is_dataclass(value):
            yield from entries(value, f"{prefix}.{name}" if prefix else name)


def values(recipe: Recipe) -> dict[str, Any]:
    """The values of all keys by their full names, such as `model.attention.score`."""
    return {f"{section}.{key}" if section else key: value for section, key, value in entries(recipe)}


def limits() -> dict[str, tuple[float, float]]:
    """The smallest and the largest value of all numbers by the full names of their keys."""

    def of(kind: Any, prefix: str) -> Iterator[tuple[str, tuple[float, float]]]:
        for item in dataclasses.fields(kind):
            if dataclasses.is_dataclass(item.default):
                yield from of(item.default, f"{prefix}{item.name}.")
            elif item.metadata:
                yield prefix + item.name, (item.metadata["least"], item.metadata["most"])

    return dict(of(Recipe, ""))


def override(recipe: Recipe, text: str, place: str = OVERRIDES) -> Recipe:
    """Returns the recipe with one key changed; `text` is an override such as `model.attention.score=dot`."""
    return fill(recipe, parse_override(text), place, "")


def override_all(recipe: Recipe, overrides: Sequence[str], place: str = OVERRIDES) -> Recipe:
    """Returns the recipe with all overrides; refuses a data.corpus that would not be read, because there are files."""
    changed = recipe
    for text in overrides:
        changed = override(changed, text, place)
    keys = {text.partition("=")[0].strip() for text in overrides}
    if "data.corpus" in keys and "data.train" not in keys and changed.data.corpus and changed.data.train:
        files = {"data.train": changed.data.train, "data.dev": changed.data.dev, "data.test": changed.data.test}
        without = " ".join(f"{key}=" for key, names in files.items() if names)
        named = f"the recipe names files, such as {changed.data.train[0]}"
        raise RecipeError(f"data.corpus={changed.data.corpus} is not read, because {named}; add: {without}")
    return changed


def parse_override(text: str) -> dict[str, Any]:
    """Parses `KEY=VALUE` into nested dicts, the form that `fill` takes."""
    key, equals, value = text.partition("=")
    if not equals:
        raise RecipeError(f"an override is KEY=VALUE, such as train.seed=7, not {shown(text)}")
    if not text.isprintable() and any("\ud800" <= character <= "\udfff" for character in text):
        raise RecipeError(f"an override is UTF-8 text, which {shown(text)} is not; rename the file")
    first, *parts = key.strip().split(".", MOST_KEY_PARTS)
    values: Any = _Argument(value)
    for part in reversed(parts):
        values = {part: values}
    return {first: values}


def origins(name: str | Path, overrides: Iterable[str] = ()) -> dict[str, str]:
    """Where the value of each key comes from that is set in a recipe's file or on the command line."""
    path, content = _content(name)
    values = _parse_toml(_decode(content, str(path)))
    values = _upgrade(values, values.pop("format", FORMAT))
    return dict.fromkeys(_dotted(values), path.name) | overridden(overrides)


def overridden(overrides: Iterable[str]) -> dict[str, str]:
    """Where the value of each key comes from that is set on the command line."""
    return {key: COMMAND_LINE for text in overrides for key in _dotted(parse_override(text))}


def _dotted(values: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """The names of all keys in nested sections."""
    for key, value in values.items():
        yield from _dotted(value, f"{prefix}{key}.") if isinstance(value, Mapping) else [prefix + key]


def to_toml(recipe: Recipe) -> str:
    """The whole recipe as TOML, with its format version and every key."""
    return "\n".join([f"format = {FORMAT}", *_lines(recipe, "")]) + "\n"


class _Argument(str):
    """A value from the command line; the type of its key decides how it is parsed."""


Section = TypeVar("Section")


def fill(section: Section, values: Mapping[str, Any], origin: str, prefix: str) -> Section:
    """Returns the section with these values; refuses unknown keys and values of the wrong type or range."""
    return _fill(section, values, origin, prefix, list(_keys(section, prefix)))


def _keys(section: Any, prefix: str) -> Iterator[str]:
    """The full names of all keys of a section and of the sections in it."""
    for name, value in vars(section).items():
        if dataclasses.is_dataclass(value):
            yield from _keys(value, f"{prefix}{name}.")
        else:
            yield prefix + name


def _fill(section: Section, values: Mapping[str, Any], origin: str, prefix: str, keys: list[str]) -> Section:
    """`fill`, for a section of one whose keys are suggested if one is unknown."""
    known = {item.name: item for item in dataclasses.fields(section)}  # type: ignore[arg-type]
    kinds = get_type_hints(type(section))
    changed = {}
    for key, value in values.items():
        name = prefix + key
        if key not in known:
            if name in MOVED:
                raise RecipeError(f"{name} in {origin} is now called {MOVED[name]}, since only one task uses it")
            raise RecipeError(f"unknown key {shown(name)} in {origin}{_suggestion(name, [*known], prefix, keys)}")
        if dataclasses.is_dataclass(kinds[key]):
            if not isinstance(value, Mapping):
                raise RecipeError(f"{name} in {origin} is a section of keys, not a value; write {name}.KEY=VALUE")
            changed[key] = _fill(getattr(section, key), value, origin, name + ".", keys)
        else:
            changed[key] = _value(value, kinds[key], known[key].metadata, f"{name} in {origin}")
    return dataclasses.replace(section, **changed)  # type: ignore[type-var]


def suggestion_for_option(option: str) -> str:
    """The end of a message about an option such as --epochs or --seed, if it is a key of a recipe; else empty."""
    found = _elsewhere(option.lstrip("-").replace("-", "_"), list(_keys(Recipe(), "")))
    return f"{found} Keys of a recipe are written KEY=VALUE, without --" if found.endswith("?") else found


def _suggestion(name: str, known: list[str], prefix: str, keys: list[str]) -> str:
    """The end of a message about an unknown key: regard's own, of another section, a similar one, or all there are."""
    similar = _elsewhere(name, keys) or did_you_mean(name, [prefix + key for key in known])
    return similar or f"; there are {', '.join(known)}"


def _elsewhere(name: str, keys: list[str]) -> str:
    """The end of a message about a key that has another name here, or stands in another section; else empty."""
    last = name.rpartition(".")[2]
    if hint := ELSEWHERE.get(last.lower().replace("-", "_")):
        return f"; {hint}"
    elsewhere = [key for key in keys if key.rpartition(".")[2] == last]
    fewest = min((key.count(".") for key in elsewhere), default=0)
    general = [key for key in elsewhere if key.count(".") == fewest]  # of the fewest parts
    return f"; did you mean {listed(general[:MOST_SUGGESTED])}?" if general else ""


def _value(value: Any, kind: Any, limits: Mapping[str, Any], name: str) -> Any:
    """Converts a value to the type `kind` of its key, and checks its limits."""
    if type(None) in get_args(kind):  # a key of a `Site`, where None means: as in model.attention
        (kind,) = set(get_args(kind)) - {type(None)}
    if isinstance(value, _Argument):
        value = _parse_argument(value, kind)
    if kind == tuple[str, ...]:
        value = (value,) if isinstance(value, str) else value
        if not isinstance(value, list | tuple) or not all(isinstance(item, str) for item in value):
            raise RecipeError(f"{name} is a name or a list of names, not {shown(value)}")
        if (size := len(json.dumps(value))) > LONGEST_LIST:
            raise RecipeError(f"{name} has at most {LONGEST_LIST:,} characters in all, not {size:,}; name fewer")
        return tuple(value)
    if kind == tuple[float, ...]:
        numbers = value if isinstance(value, list | tuple) else [value]
        if not all(type(number) in (int, float) and 0 < number < 1e37 for number in numbers):
            raise RecipeError(f"{name} is a number above 0 or a list of such numbers, not {shown(value)}")
        if len(numbers) > MOST_NUMBERS:
            raise RecipeError(f"{name} has at most {MOST_NUMBERS:,} numbers, not {len(numbers):,}")
        return tuple(map(float, numbers))
    if type(value) is not kind and (kind is not float or type(value) is not int):
        words = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}
        raise RecipeError(f"{name} is {words[kind]}, not {shown(value)}")
    if kind is str and len(value) > LONGEST_TEXT:
        raise RecipeError(f"{name} is a text of at most {LONGEST_TEXT:,} characters, not {len(value):,}")
    if limits and not limits["least"] <= value <= limits["most"]:  # NaN is refused too
        least, most = limits["least"], limits["most"]
        raise RecipeError(f"{name} is at least {least} and at most {most:,}, not {shown(value)}")
    return float(value) if kind is float else value


def _parse_argument(argument: str, kind: Any) -> Any:
    """Parses a value from the command line as TOML; if it is not valid TOML, it is taken as plain text."""
    try:
        value = _parse_toml(f"value = {argument}")["value"]
    except ValueError:
        value = str(argument)
    if kind is str and not isinstance(value, str):
        return str(argument)
    if kind == tuple[str, ...] and not isinstance(value, list):
        return [part for part in str(argument).split(",") if part]
    if kind == tuple[float, ...] and isinstance(value, str):
        try:
            return [float(part) for part in value.split(",") if part]
        except ValueError:
            return value
    return value


def encoded(value: Any) -> str:
    """The value of a key as TOML: JSON of these types is, except that TOML wants the control character 7F escaped."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _lines(section: Any, prefix: str) -> Iterable[str]:
    """The TOML lines of a section: its own keys first, then its sub-sections."""
    for name, value in vars(section).items():
        if value is not None and not dataclasses.is_dataclass(value):  # None: a key that is not set
            yield f"{name} = {encoded(value)}"
    for name, value in vars(section).items():
        if dataclasses.is_dataclass(value):
            yield f"\n[{prefix}{name}]"
            yield from _lines(value, f"{prefix}{name}.")
