"""Encoder, attention, decoder and loss together: every kind of model with every variant is built, and learns."""

from itertools import product

import pytest
import torch
from small import ATTENDING, TRANSFORMERS, Case, Variant, every_kind, make_batch, make_model, near
from torch.nn import functional

from regard.attention import NORMALIZERS, SCOPES, SCORES
from regard.decoders import ORDERS, STARTS
from regard.layers.recurrence import CELLS
from regard.types import PAD
from shapes import unchecked

SOURCES = [[4, 5, 6], [6, 5], [7, 8, 4, 5], [8], [5, 5, 7, 4, 6]]
TARGETS = [[9, 4], [5, 7, 10], [6], [8, 8, 4, 5], [10, 9, 8]]


def cases() -> list[Case]:
    """Every order with every cell, every attending order with every score and scope, and every normaliser."""
    models = [Case(order, cell) for order, cell in product(ORDERS, CELLS)]
    models += [Case(order, variant=Variant(score)) for order, score in product(ATTENDING, SCORES)]
    models += [Case(order, "lstm", variant=Variant(scope=scope)) for order, scope in product(ATTENDING, SCOPES)]
    models += [Case("luong", variant=Variant(normalizer=normalizer)) for normalizer in NORMALIZERS]
    models += [
        Case("bahdanau", variant=Variant("dot", "entmax15", "local_p", 2)),
        Case("luong", variant=Variant(heads=3)),
    ]
    models += [Case("luong_feeding", start=start) for start in STARTS]
    return list(dict.fromkeys(models + TRANSFORMERS))


@pytest.mark.parametrize("case", cases(), ids=str)
def test_every_combination_learns(case):
    model = make_model(case, scale=None, dtype=torch.float32).train()
    batch = make_batch(SOURCES, TARGETS)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)

    def loss() -> torch.Tensor:
        logits, targets = model(batch).logits, batch.target.ids[:, 1:]
        return functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=PAD)

    first = loss().item()  # with checked shapes
    with unchecked():
        for _ in range(20):
            optimizer.zero_grad()
            loss().backward()
            optimizer.step()
        assert loss().item() < 0.5 * first


@every_kind()
def test_predictions_depend_only_on_earlier_target_tokens(case):
    """Row t of the logits follows from BEGIN and the t target tokens before it, and from nothing later."""
    model, batch = make_model(case), make_batch(SOURCES, TARGETS)
    logits = model(batch).logits
    length = batch.target.ids.shape[1]
    assert logits.shape == (len(SOURCES), length - 1, 11)
    memory = model.encoder(batch.source)
    for row in range(length - 1):
        near(logits[:, row], model.decoder(batch.target.ids[:, : row + 1], memory).logits[:, -1])
