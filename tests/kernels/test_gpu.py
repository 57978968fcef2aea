"""Where there is a GPU: its kernels give what the definitions give, both ways, and torch.compile sees one graph."""

import contextlib

import pytest
import torch
from torch import nn

from regard import recipe as recipes
from regard.attention import attend, fused
from regard.attention.heads import SelfAttention, join, split
from regard.attention.masks import Causal
from regard.attention.normalizers import softmax
from regard.attention.positions import Positions
from regard.attention.scopes import Global
from regard.attention.scores import Additive, ScaledDot
from regard.device import precision
from regard.kernels import add_norm as norms
from regard.kernels.choose import definitions_only, takes, watched
from regard.kernels.linear import one_gradient
from regard.layers.recurrence import CELLS, Gates, Recurrence
from regard.tasks import TASKS
from regard.types import Recurrent

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
    pytest.mark.takes("add_norm", "short_attention", "packed_attention", "fused_cell", "additive_attention"),
]
GPU = torch.device("cuda")


def drawn(*shape: int, kind: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, device=GPU).to(kind).requires_grad_()


@pytest.mark.parametrize("dim", [96, 384, 512, 1024])
def test_sum_and_norm_in_one_pass_are_the_definition(dim):
    torch.manual_seed(1)
    states, change, norm = drawn(7, 5, dim), drawn(7, 5, dim), nn.LayerNorm(dim, device=GPU)
    nn.init.normal_(norm.weight)
    nn.init.normal_(norm.bias)
    weights = [torch.randn(7, 5, dim, device=GPU) for _ in range(2)]
    found = {}
    for way in (norms.add_norm, norms.plain):
        results = way(states, change, norm, 0.0, True)
        total = sum((each * weight).sum() for each, weight in zip(results, weights, strict=True))
        found[way] = [*results, *torch.autograd.grad(total, [states, change, norm.weight, norm.bias])]
    for one, other in zip(*found.values(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


def test_what_is_dropped_is_dropped_both_ways_and_the_mean_stays():
    torch.manual_seed(2)
    states, change = drawn(64, 32, 512), torch.ones(64, 32, 512, device=GPU, requires_grad=True)
    norm = nn.LayerNorm(512, device=GPU)
    added, _ = norms.add_norm(states, change, norm, 0.3, True)
    more = (added - states).detach()
    kept = more > 0.5
    assert kept.float().mean().item() == pytest.approx(0.7, abs=0.002)
    assert more.mean().item() == pytest.approx(1.0, abs=0.003)
    (gradient,) = torch.autograd.grad(added.sum(), change)
    torch.testing.assert_close(gradient, torch.where(kept, 1 / 0.7, 0.0))
    again, _ = norms.add_norm(states, change, norm, 0.3, True)
    assert not torch.equal(again, added)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("queries", "keys", "width"), [(1, 1, 16), (17, 33, 32), (32, 32, 128), (64, 64, 64)])
def test_short_attention_is_the_definition(queries, keys, width, causal):
    torch.manual_seed(3)
    queries = keys if causal else queries
    query, key, value = (drawn(3, 4, time, width, kind=torch.bfloat16) for time in (queries, keys, keys))
    mask = torch.rand(3, 1, 1, keys, device=GPU) > 0.3
    mask[0] = False  # nothing in sight: zeros
    told = Causal() if causal else mask
    scale, given = width**-0.5, torch.randn(3, 4, queries, width, device=GPU)
    assert takes("short_attention", query, key, value, told, causal, None, 0.0)
    mine = fused.dot(query, key, value, scale=scale, mask=told, bias=None)
    exact = [each.detach().double().requires_grad_() for each in (query, key, value)]
    seen = told.drawn(query, key) if causal else mask
    weights = softmax(exact[0] @ exact[1].transpose(-1, -2) * scale, seen)
    theirs = weights @ exact[2]
    torch.testing.assert_close(mine.double(), theirs, rtol=0.03, atol=0.03)
    if not causal:
        assert not mine[0].any()
    one = torch.autograd.grad((mine * given).sum(), [query, key, value])
    other = torch.autograd.grad((theirs * given).sum(), exact)
    for found, wanted in zip(one, other, strict=True):
        torch.testing.assert_close(found.double(), wanted, rtol=0.05, atol=0.05)


@pytest.mark.parametrize("causal", [True, False])
def test_side_by_side_is_apart(causal):
    torch.manual_seed(4)
    wide = drawn(5, 20, 3 * 128, kind=torch.bfloat16)
    mask = Causal() if causal else torch.arange(20, device=GPU) < torch.tensor([3, 20, 1, 7, 9], device=GPU)[:, None]
    mask = mask if causal else mask[:, None, None]
    mine = fused.packed(wide, 4, scale=0.2, mask=mask)
    query, keys, values = split(wide, 12).split(4, dim=1)
    theirs = join(fused.dot(query, keys, values, scale=0.2, mask=mask, bias=None))
    torch.testing.assert_close(mine, theirs, rtol=0, atol=0)
    given = torch.randn_like(mine)
    one, other = (torch.autograd.grad((each * given).sum(), wide)[0] for each in (mine, theirs))
    torch.testing.assert_close(one, other, rtol=0, atol=0)


@pytest.mark.filterwarnings("ignore")  # torch's own, as it compiles
def test_a_compiler_sees_one_graph():
    recipe = recipes.load(
        "copy",
        [
            *("data.size=20", "model.encoder.kind=transformer", "model.decoder.kind=transformer"),
            *("model.attention.score=scaled_dot", "model.attention.heads=4", "model.encoder.dropout=0.1"),
            *("model.decoder.dropout=0.1", "model.attention.scope=global"),
        ],
    )
    task = TASKS[recipe.task].learn(recipe, TASKS[recipe.task].examples(recipe).train)
    data = task.encode(TASKS[recipe.task].examples(recipe).train)
    model, batch = task.build().to(GPU).train(), task.collate(data, range(8)).to(GPU)

    def loss() -> torch.Tensor:
        with precision("bfloat16", GPU):
            return task.loss(model, batch)

    assert torch._dynamo.explain(loss)().break_reasons == []


@pytest.mark.parametrize("flows", [True, False])
def test_what_flows_on_stays_single_and_what_is_read_is_half(flows):
    states, change, norm = drawn(4, 3, 64), drawn(4, 3, 64, kind=torch.bfloat16), nn.LayerNorm(64, device=GPU)
    with precision("bfloat16", GPU):
        added, normed = norms.add_norm(states, change, norm, 0.1, True, flows=flows)
    assert added.dtype == torch.float32
    assert normed.dtype == (torch.float32 if flows else torch.bfloat16)


@pytest.mark.parametrize("block", [one_gradient, contextlib.nullcontext])
@pytest.mark.parametrize(("queries", "keys", "inner", "width"), [(1, 1, 16, 24), (1, 28, 512, 1024), (5, 70, 200, 130)])
def test_additive_looks_are_the_definition(queries, keys, inner, width, block):
    torch.manual_seed(5)
    score = Additive(query_dim=48, key_dim=width, dim=inner).to(GPU)
    states, start = drawn(6, keys, width), drawn(6, 1, queries, 48)
    mask = torch.rand(6, keys, device=GPU) > 0.3
    mask[:, 0], mask[-1] = True, False  # one sees nothing
    along = torch.randn(6, 1, queries, keys, device=GPU)
    found = []
    for way in (block, contextlib.nullcontext):
        query, total = start, torch.zeros((), device=GPU)
        projected, values = (
            score.project(states).unsqueeze(1),
            states.masked_fill(~mask.unsqueeze(-1), 0.0).unsqueeze(1),
        )
        with way(), definitions_only(bool(found)):
            for _ in range(4):
                looked = attend(query, projected, values, score=score, mask=mask[:, None, None], cleared=True)
                query = torch.tanh(looked.context.mean(-1, keepdim=True) + query)
                total = total + query.square().sum() + (looked.weights * along).sum()
        found.append([total, looked.weights, *torch.autograd.grad(total, [states, start, *score.parameters()])])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("why", ["", "dropout", "groups", "grad", "hook"])
def test_self_attention_is_packed_if_it_is_plain(why):
    torch.manual_seed(6)
    dropout = 0.1 if why == "dropout" else 0.0
    attention = SelfAttention(
        lambda width: Global(ScaledDot(query_dim=width, key_dim=width), query_dim=width, fused=True, dropout=dropout),
        dim=64,
        heads=4,
        groups=2 if why == "groups" else None,
    ).to(GPU)
    if why == "hook":
        attention.attention.register_forward_hook(lambda *given: None)
    states, positions = drawn(5, 20, 64), Positions(dim=64, heads=4, longest=30, onward=True)
    found = []
    for plainly in (False, True):
        grad = torch.set_grad_enabled(why != "grad")
        with precision("bfloat16", GPU), grad, definitions_only(plainly), watched() as answers:
            found.append(attention(states, mask=Causal(), bias=None, positions=positions)[0])
        if not plainly:
            assert answers["packed_attention"].taken == (not why)
    if not dropout:
        torch.testing.assert_close(*found, rtol=0.05, atol=0.05)


@pytest.mark.parametrize("kind", ["gru", "lstm"])
def test_a_fused_cell_is_the_definition(kind):
    torch.manual_seed(7)
    recurrence = Recurrence(CELLS[kind], input_dim=6, dim=8, layers=2).to(GPU)
    word, start = drawn(3, 1, 6), drawn(3, 2, 8)
    found = []
    for plainly in (False, True):
        with watched() as answers:
            gates = Gates.of(recurrence, 6)
        assert gates is not None
        assert answers["fused_cell"].taken == 1
        if plainly:
            with definitions_only():
                gates = Gates(recurrence, 6)
        output, after = gates.step(
            word, gates.given(word.squeeze(1)), None, Recurrent(start, start.sin() if kind == "lstm" else None)
        )
        results = [output, after.hidden] + ([] if after.cell is None else [after.cell])
        total = sum((each * each.detach().cos()).sum() for each in results)
        found.append([*results, *torch.autograd.grad(total, [word, start, *recurrence.parameters()])])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
