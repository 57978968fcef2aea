"""Small models with varied predictions, and sources for them: the setups of the laws of search."""

from dataclasses import dataclass
from itertools import product

import pytest
import torch
from small import ATTENDING, Case, Variant, make_model, make_sources, transformer

from regard.decoders import ORDERS
from regard.models import Seq2Seq
from regard.types import BEGIN, END, PAD, Hypothesis, Memory, Padded

LENGTHS = (7, 4, 2)
LIMITS = (9, 6, 8)
DTYPES = {torch.float64: 1e-10, torch.float32: 1e-5}
CELLS_AND_VARIANTS = (
    ("gru", Variant()),
    ("lstm", Variant("general", "sparsemax", "local_m")),
    ("gru", Variant("scaled_dot", "softmax", "local_p", 2)),
    ("rnn", Variant("additive", "sigmoid")),
)
GATED = 1  # the number of the recurrent variant whose context has a gate, if its order attends
TRANSFORMER_KINDS = {  # Transformers by their norm, with as many variants of attention
    "transformer_pre": (
        transformer("sinusoidal", layers=1),
        transformer("rotary", variant=Variant("scaled_dot", "sparsemax", "local_m", 4, 2)),
        transformer("relative", variant=Variant("dot", "softmax", "local_m", 2), encoder="recurrent", layers=1),
        transformer("alibi", variant=Variant("additive", "sigmoid", "global", 2), layers=1),
    ),
    "transformer_post": (
        transformer("alibi", "post", layers=1),
        transformer("learned", "post", Variant("cosine", "entmax15", "global", 3, 1), layers=1),
        transformer("none", "post", Variant("scaled_dot", "softmax", "local_p", 2), encoder="recurrent", layers=1),
        transformer("rotary", "post", Variant("gaussian", "sigmoid", "global", 2), layers=1),
    ),
}
SETUP_KINDS = (*ORDERS, *TRANSFORMER_KINDS)  # all kinds of decoders: recurrent ones by order, Transformers by norm
ATTENDING_KINDS = (*ATTENDING, *TRANSFORMER_KINDS)
SEEDS = range(3)  # without the rnn: it has no gates, and with such large weights it is chaotic in float32


@dataclass(frozen=True)
class Setup:
    """A model, a batch of sources, and their memories as a batch and one by one."""

    model: Seq2Seq
    source: Padded
    memory: Memory
    alone: list[Memory]
    tolerance: float


def case_of(kind: str, seed: int) -> Case:
    """The case of a kind of decoder; the seed chooses its variant of attention."""
    if kind in TRANSFORMER_KINDS:
        return TRANSFORMER_KINDS[kind][seed]
    cell, variant = CELLS_AND_VARIANTS[seed]
    return Case(kind, cell, 1 + seed % 2, variant, gated=seed == GATED and kind in ATTENDING)


def make_setup(kind: str, seed: int = 0, dtype: torch.dtype = torch.float64, vocabulary: int = 10) -> Setup:
    torch.manual_seed(seed)
    case, is_transformer = case_of(kind, seed), kind in TRANSFORMER_KINDS
    model = make_model(case, vocabulary=vocabulary, dtype=dtype, scale=0.5 if is_transformer else 0.8)
    source = make_sources(*LENGTHS)
    with torch.no_grad():  # so that each word changes the next prediction; some outputs end early, some are cut
        if is_transformer:  # subtract the mean logits: otherwise one word would be the likeliest everywhere
            tokens = torch.randint(vocabulary, (len(LENGTHS), 3))
            tokens[:, 0] = BEGIN
            model.decoder.out.bias -= model.decoder(tokens, model.encoder(source)).logits.mean((0, 1))
        else:
            model.encoder.embedding.weight *= 3
            model.decoder.embedding.weight *= 3
            model.decoder.out.bias.zero_()[END] = 0.5
    sources_alone = [
        Padded(source.ids[row : row + 1, :length], source.mask[row : row + 1, :length])
        for row, length in enumerate(LENGTHS)
    ]
    with torch.no_grad():
        memory, alone = model.encoder(source), [model.encoder(each) for each in sources_alone]
    return Setup(model, source, memory, alone, DTYPES[dtype])


# Here the norms of Transformers take turns; `all_setups` has every kind with every variant.
NORM_BY_NORM = [(tuple(TRANSFORMER_KINDS)[seed % 2], seed) for seed in SEEDS]
setups = pytest.mark.parametrize(("kind", "seed"), [*product(ORDERS, SEEDS), *NORM_BY_NORM])
all_setups = pytest.mark.parametrize(("kind", "seed"), list(product(SETUP_KINDS, range(len(CELLS_AND_VARIANTS)))))


@torch.no_grad()
def log_probs(model: Seq2Seq, memory: Memory, rows: list[list[int]]) -> torch.Tensor:
    """The log-probabilities of all words after BEGIN and after each token of each row, by teacher forcing."""
    tokens = torch.tensor([[BEGIN, *row] for row in rows])
    return model.decoder(tokens, memory.repeat(len(rows))).logits.log_softmax(-1)


def penalty(tokens: int, exponent: float) -> float:
    """The length penalty of GNMT, which divides the score of a hypothesis."""
    return ((5 + tokens) / 6) ** exponent


def rescored(model: Seq2Seq, memory: Memory, hypothesis: Hypothesis, exponent: float) -> float:
    """The score of a hypothesis, computed by teacher forcing."""
    tokens = [*hypothesis.tokens, END] if hypothesis.finished else hypothesis.tokens
    rows = log_probs(model, memory, [hypothesis.tokens])[0]
    return sum(rows[at, word].item() for at, word in enumerate(tokens)) / penalty(len(tokens), exponent)


def greedy(model: Seq2Seq, memory: Memory, limit: int) -> tuple[list[int], bool]:
    """The tokens of greedy search by teacher forcing, and whether they ended before the limit."""
    tokens: list[int] = []
    while len(tokens) < limit:
        row = log_probs(model, memory, [tokens])[0, -1]
        row[PAD] = row[BEGIN] = -torch.inf
        word = int(row.argmax())
        if word == END:
            return tokens, True
        tokens.append(word)
    return tokens, False
