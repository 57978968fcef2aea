"""Small models that say varied things, and what they are asked: what the laws of search are held against."""

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
VARIANTS = (
    ("gru", Variant()),
    ("lstm", Variant("general", "sparsemax", "local_m")),
    ("gru", Variant("scaled_dot", "softmax", "local_p", 2)),
    ("rnn", Variant("additive", "sigmoid")),
)
STACKED = {  # Transformers by their norm, as varied
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
WRITERS = (*ORDERS, *STACKED)  # all that search can meet
LOOKERS = (*ATTENDING, *STACKED)
SEEDS = range(3)  # an rnn has no gates: so spread, it is chaotic, and float32 is too coarse for it


@dataclass(frozen=True)
class World:
    """A model and what it is asked, together and one by one."""

    model: Seq2Seq
    source: Padded
    memory: Memory
    alone: list[Memory]
    tolerance: float


def case_of(writer: str, seed: int) -> Case:
    """The case of an order or of a kind of Transformer."""
    if writer in STACKED:
        return STACKED[writer][seed]
    cell, variant = VARIANTS[seed]
    return Case(writer, cell, 1 + seed % 2, variant)


def make_world(order: str, seed: int = 0, dtype: torch.dtype = torch.float64, vocabulary: int = 10) -> World:
    torch.manual_seed(seed)
    case, stacked = case_of(order, seed), order in STACKED
    model = make_model(case, vocabulary=vocabulary, dtype=dtype, scale=0.5 if stacked else 0.8)
    source = make_sources(*LENGTHS)
    with torch.no_grad():  # each word changes what is said next; some end early, some are cut
        if stacked:  # what layers add to any word at all must not drown what tells words apart
            heard = torch.randint(vocabulary, (len(LENGTHS), 3))
            heard[:, 0] = BEGIN
            model.decoder.out.bias -= model.decoder(heard, model.encoder(source)).logits.mean((0, 1))
        else:
            model.encoder.embedding.weight *= 3
            model.decoder.embedding.weight *= 3
            model.decoder.out.bias.zero_()[END] = 0.5
    owns = [
        Padded(source.ids[row : row + 1, :length], source.mask[row : row + 1, :length])
        for row, length in enumerate(LENGTHS)
    ]
    with torch.no_grad():
        memory, alone = model.encoder(source), [model.encoder(own) for own in owns]
    return World(model, source, memory, alone, DTYPES[dtype])


NORM_BY_NORM = [(tuple(STACKED)[seed % 2], seed) for seed in SEEDS]  # the plain beam meets them all
worlds = pytest.mark.parametrize(("order", "seed"), [*product(ORDERS, SEEDS), *NORM_BY_NORM])
all_worlds = pytest.mark.parametrize(("order", "seed"), list(product(WRITERS, range(len(VARIANTS)))))


@torch.no_grad()
def log_probs(model: Seq2Seq, memory: Memory, rows: list[list[int]]) -> torch.Tensor:
    """By teacher forcing, the log-probability of every word after BEGIN and after each token of each row."""
    tokens = torch.tensor([[BEGIN, *row] for row in rows])
    return model.decoder(tokens, memory.repeat(len(rows))).logits.log_softmax(-1)


def penalty(tokens: int, exponent: float) -> float:
    return ((5 + tokens) / 6) ** exponent


def rescored(model: Seq2Seq, memory: Memory, found: Hypothesis, exponent: float) -> float:
    said = [*found.tokens, END] if found.finished else found.tokens
    rows = log_probs(model, memory, [found.tokens])[0]
    return sum(rows[at, word].item() for at, word in enumerate(said)) / penalty(len(said), exponent)


def greedy(model: Seq2Seq, memory: Memory, limit: int) -> tuple[list[int], bool]:
    tokens: list[int] = []
    while len(tokens) < limit:
        row = log_probs(model, memory, [tokens])[0, -1]
        row[PAD] = row[BEGIN] = -torch.inf
        word = int(row.argmax())
        if word == END:
            return tokens, True
        tokens.append(word)
    return tokens, False
