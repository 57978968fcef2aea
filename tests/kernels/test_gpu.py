"""On a GPU: kernels equal their definitions in values and gradients, and torch.compile traces one graph."""

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
from regard.kernels.choose import count_answers, definitions_only, takes
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


def random(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, device=GPU).to(dtype).requires_grad_()


@pytest.mark.parametrize("dim", [96, 384, 512, 1024])
def test_add_norm_equals_the_definition(dim):
    torch.manual_seed(1)
    states, change, norm = random(7, 5, dim), random(7, 5, dim), nn.LayerNorm(dim, device=GPU)
    nn.init.normal_(norm.weight)
    nn.init.normal_(norm.bias)
    weights = [torch.randn(7, 5, dim, device=GPU) for _ in range(2)]
    results = {}
    for function in (norms.add_norm, norms.plain):
        outputs = function(states, change, norm, 0.0, True)
        total = sum((output * weight).sum() for output, weight in zip(outputs, weights, strict=True))
        results[function] = [*outputs, *torch.autograd.grad(total, [states, change, norm.weight, norm.bias])]
    for actual, expected in zip(*results.values(), strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)


def test_backward_draws_the_same_dropout_mask_and_the_mean_stays():
    torch.manual_seed(2)
    states, change = random(64, 32, 512), torch.ones(64, 32, 512, device=GPU, requires_grad=True)
    norm = nn.LayerNorm(512, device=GPU)
    added, _ = norms.add_norm(states, change, norm, 0.3, True)
    update = (added - states).detach()
    kept = update > 0.5
    assert kept.float().mean().item() == pytest.approx(0.7, abs=0.002)
    assert update.mean().item() == pytest.approx(1.0, abs=0.003)
    (gradient,) = torch.autograd.grad(added.sum(), change)
    torch.testing.assert_close(gradient, torch.where(kept, 1 / 0.7, 0.0))
    again, _ = norms.add_norm(states, change, norm, 0.3, True)
    assert not torch.equal(again, added)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("queries", "keys", "width"), [(1, 1, 16), (17, 33, 32), (32, 32, 128), (64, 64, 64)])
def test_short_attention_equals_the_definition(queries, keys, width, causal):
    torch.manual_seed(3)
    queries = keys if causal else queries
    query, key, value = (random(3, 4, time, width, dtype=torch.bfloat16) for time in (queries, keys, keys))
    mask = torch.rand(3, 1, 1, keys, device=GPU) > 0.3
    mask[0] = False  # no visible key: the context is zero
    visible = Causal() if causal else mask
    scale, output_gradient = width**-0.5, torch.randn(3, 4, queries, width, device=GPU)
    assert takes("short_attention", query, key, value, visible, causal, None, 0.0)
    fused_context = fused.dot(query, key, value, scale=scale, mask=visible, bias=None)
    exact = [tensor.detach().double().requires_grad_() for tensor in (query, key, value)]
    boolean = visible.materialize(query, key) if causal else mask
    weights = softmax(exact[0] @ exact[1].transpose(-1, -2) * scale, boolean)
    context = weights @ exact[2]
    torch.testing.assert_close(fused_context.double(), context, rtol=0.03, atol=0.03)
    if not causal:
        assert not fused_context[0].any()
    fast = torch.autograd.grad((fused_context * output_gradient).sum(), [query, key, value])
    defined = torch.autograd.grad((context * output_gradient).sum(), exact)
    for actual, expected in zip(fast, defined, strict=True):
        torch.testing.assert_close(actual.double(), expected, rtol=0.05, atol=0.05)


@pytest.mark.parametrize("causal", [True, False])
def test_packed_attention_equals_attention_of_separate_projections(causal):
    torch.manual_seed(4)
    wide = random(5, 20, 3 * 128, dtype=torch.bfloat16)
    mask = Causal() if causal else torch.arange(20, device=GPU) < torch.tensor([3, 20, 1, 7, 9], device=GPU)[:, None]
    mask = mask if causal else mask[:, None, None]
    fused_context = fused.packed(wide, 4, scale=0.2, mask=mask)
    query, keys, values = split(wide, 12).split(4, dim=1)
    context = join(fused.dot(query, keys, values, scale=0.2, mask=mask, bias=None))
    torch.testing.assert_close(fused_context, context, rtol=0, atol=0)
    output_gradient = torch.randn_like(fused_context)
    actual, expected = (
        torch.autograd.grad((result * output_gradient).sum(), wide)[0] for result in (fused_context, context)
    )
    torch.testing.assert_close(actual, expected, rtol=0, atol=0)


@pytest.mark.filterwarnings("ignore")  # warnings of torch itself while it compiles
def test_torch_compile_traces_one_graph():
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


@pytest.mark.parametrize("is_residual", [True, False])
def test_norm_is_float32_if_it_is_the_residual_stream_and_bfloat16_otherwise(is_residual):
    states, change, norm = random(4, 3, 64), random(4, 3, 64, dtype=torch.bfloat16), nn.LayerNorm(64, device=GPU)
    with precision("bfloat16", GPU):
        added, normed = norms.add_norm(states, change, norm, 0.1, True, is_residual=is_residual)
    assert added.dtype == torch.float32
    assert normed.dtype == (torch.float32 if is_residual else torch.bfloat16)


@pytest.mark.parametrize("block", [one_gradient, contextlib.nullcontext])
@pytest.mark.parametrize(("queries", "keys", "inner", "width"), [(1, 1, 16, 24), (1, 28, 512, 1024), (5, 70, 200, 130)])
def test_additive_attention_equals_the_definition(queries, keys, inner, width, block):
    torch.manual_seed(5)
    score = Additive(query_dim=48, key_dim=width, dim=inner).to(GPU)
    states, start = random(6, keys, width), random(6, 1, queries, 48)
    mask = torch.rand(6, keys, device=GPU) > 0.3
    mask[:, 0], mask[-1] = True, False  # the last row sees no key
    weights_factor = torch.randn(6, 1, queries, keys, device=GPU)
    results = []
    for manager in (block, contextlib.nullcontext):
        query, total = start, torch.zeros((), device=GPU)
        projected, values = (
            score.project(states).unsqueeze(1),
            states.masked_fill(~mask.unsqueeze(-1), 0.0).unsqueeze(1),
        )
        with manager(), definitions_only(bool(results)):
            for _ in range(4):
                attended = attend(query, projected, values, score=score, mask=mask[:, None, None], cleared=True)
                query = torch.tanh(attended.context.mean(-1, keepdim=True) + query)
                total = total + query.square().sum() + (attended.weights * weights_factor).sum()
        results.append([total, attended.weights, *torch.autograd.grad(total, [states, start, *score.parameters()])])
    for actual, expected in zip(*results, strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("obstacle", ["", "dropout", "groups", "grad", "hook"])
def test_self_attention_is_packed_only_if_nothing_prevents_it(obstacle):
    torch.manual_seed(6)
    dropout = 0.1 if obstacle == "dropout" else 0.0
    attention = SelfAttention(
        lambda width: Global(ScaledDot(query_dim=width, key_dim=width), query_dim=width, fused=True, dropout=dropout),
        dim=64,
        heads=4,
        groups=2 if obstacle == "groups" else None,
    ).to(GPU)
    if obstacle == "hook":
        attention.attention.register_forward_hook(lambda *inputs: None)
    states, positions = random(5, 20, 64), Positions(dim=64, heads=4, longest=30, causal=True)
    results = []
    for plain in (False, True):
        grad = torch.set_grad_enabled(obstacle != "grad")
        with precision("bfloat16", GPU), grad, definitions_only(plain), count_answers() as answers:
            results.append(attention(states, mask=Causal(), bias=None, positions=positions)[0])
        if not plain:
            assert answers["packed_attention"].taken == (not obstacle)
    if not dropout:
        torch.testing.assert_close(*results, rtol=0.05, atol=0.05)


@pytest.mark.parametrize("kind", ["gru", "lstm"])
def test_a_fused_cell_equals_the_definition(kind):
    torch.manual_seed(7)
    recurrence = Recurrence(CELLS[kind], input_dim=6, dim=8, layers=2).to(GPU)
    word, start = random(3, 1, 6), random(3, 2, 8)
    results = []
    for plain in (False, True):
        with count_answers() as answers:
            gates = Gates.of(recurrence, 6)
        assert gates is not None
        assert answers["fused_cell"].taken == 1
        if plain:
            with definitions_only():
                gates = Gates(recurrence, 6)
        output, after = gates.step(
            word, gates.word_part(word.squeeze(1)), None, Recurrent(start, start.sin() if kind == "lstm" else None)
        )
        outputs = [output, after.hidden] + ([] if after.cell is None else [after.cell])
        total = sum((state * state.detach().cos()).sum() for state in outputs)
        results.append([*outputs, *torch.autograd.grad(total, [word, start, *recurrence.parameters()])])
    for actual, expected in zip(*results, strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)
