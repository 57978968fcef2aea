"""Methods that are special cases of `attend` and need no class, and scores that are special cases of one another."""

import math

import pytest
import torch
from torch import Tensor, nn

from regard.attention import NORMALIZERS, SCORES, attend
from regard.attention.scores import Additive, Concat, Cosine, Dot, Gaussian, General, LinearConcat, Multiplicative

BATCH, QUERY, KEY = 2, 3, 5
QUERY_DIM, KEY_DIM, DIM = 4, 6, 7


def random(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def near(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=0.0, atol=1e-12)


def inputs() -> tuple[Tensor, Tensor]:
    """Random queries, and states that are keys and values."""
    return random(BATCH, QUERY, QUERY_DIM), random(BATCH, KEY, KEY_DIM)


def make(name: str) -> nn.Module:
    return SCORES[name](query_dim=QUERY_DIM, key_dim=KEY_DIM, dim=DIM).double()


# Scores that are special cases of one another


def test_linear_concat_ignores_its_query_under_softmax():
    score = make("linear_concat")
    query, states = inputs()
    keys = score.project(states)
    one = attend(query, keys, states, score=score)
    other = attend(1000 * random(BATCH, QUERY, QUERY_DIM), keys, states, score=score)
    assert not torch.allclose(score(query, keys), score(2 * query, keys))  # the scores do depend on it
    near(one.weights, torch.softmax(score.project(states).transpose(1, 2), dim=-1).expand(-1, QUERY, -1))
    # adding and subtracting a large number rounds
    torch.testing.assert_close(other.weights, one.weights, rtol=0.0, atol=1e-9)
    near(one.context, one.context[:, :1].expand(-1, QUERY, -1))


@pytest.mark.parametrize("name", ["softmax", "sparsemax", "entmax15"])
def test_the_query_of_linear_concat_has_no_gradient_if_weights_sum_to_one(name):
    score = make("linear_concat")
    query, states = inputs()
    query.requires_grad_()
    attended = attend(query, score.project(states), states, score=score, normalize=NORMALIZERS[name].function)
    attended.context.square().sum().backward()
    near(query.grad, torch.zeros_like(query))


def test_linear_concat_does_not_ignore_its_query_under_sigmoid():
    score = make("linear_concat")
    query, states = inputs()
    sigmoid = NORMALIZERS["sigmoid"].function
    keys = score.project(states)
    one = attend(query, keys, states, score=score, normalize=sigmoid).weights
    other = attend(query + 1, keys, states, score=score, normalize=sigmoid).weights
    assert (one - other).abs().min() > 1e-3


@pytest.mark.parametrize("name", [name for name in SCORES if name != "linear_concat"])
def test_every_other_score_depends_on_its_query(name):
    width = {} if name in ("general", "multiplicative", "concat", "additive", "location") else {"query_dim": KEY_DIM}
    score = SCORES[name](**{"query_dim": QUERY_DIM, "key_dim": KEY_DIM, "dim": DIM} | width).double()
    query, states = random(BATCH, QUERY, width.get("query_dim", QUERY_DIM)), random(BATCH, KEY, KEY_DIM)
    weights = attend(query, score.project(states), states, score=score).weights
    assert (weights[:, 0] - weights[:, 1]).abs().max() > 1e-3


def test_additive_is_a_perceptron_on_the_concatenation():
    additive = Additive(query_dim=QUERY_DIM, key_dim=KEY_DIM, dim=DIM).double()
    query, states = inputs()
    layer = nn.Linear(QUERY_DIM + KEY_DIM, DIM).double()
    with torch.no_grad():
        layer.weight.copy_(torch.cat([additive.query.weight, additive.key.weight], dim=1))
        layer.bias.copy_(additive.key.bias)
    pairs = torch.cat(
        [query.unsqueeze(2).expand(-1, -1, KEY, -1), states.unsqueeze(1).expand(-1, QUERY, -1, -1)], dim=-1
    )
    near(additive(query, additive.project(states)), additive.out(torch.tanh(layer(pairs))).squeeze(-1))


def test_concat_is_additive_with_its_weights_stacked_and_no_bias():
    additive = Additive(query_dim=QUERY_DIM, key_dim=KEY_DIM, dim=DIM).double()
    concat = Concat(query_dim=QUERY_DIM, key_dim=KEY_DIM, dim=DIM).double()
    with torch.no_grad():
        concat.weight.weight.copy_(torch.cat([additive.query.weight, additive.key.weight], dim=1))
        concat.out.weight.copy_(additive.out.weight)
        additive.key.bias.zero_()
    query, states = inputs()
    near(concat(query, concat.project(states)), additive(query, additive.project(states)))


def test_concat_with_a_constant_beside_the_keys_is_additive_with_a_bias():
    additive = Additive(query_dim=QUERY_DIM, key_dim=KEY_DIM, dim=DIM).double()
    concat = Concat(query_dim=QUERY_DIM, key_dim=KEY_DIM + 1, dim=DIM).double()
    with torch.no_grad():
        stacked = [additive.query.weight, additive.key.weight, additive.key.bias.unsqueeze(1)]
        concat.weight.weight.copy_(torch.cat(stacked, dim=1))
        concat.out.weight.copy_(additive.out.weight)
    query, states = inputs()
    with_one = torch.cat([states, torch.ones_like(states[..., :1])], dim=-1)
    near(concat(query, concat.project(with_one)), additive(query, additive.project(states)))


def test_multiplicative_is_general_with_both_weights_multiplied():
    multiplicative = Multiplicative(query_dim=QUERY_DIM, key_dim=KEY_DIM, dim=DIM).double()
    general = General(query_dim=QUERY_DIM, key_dim=KEY_DIM).double()
    with torch.no_grad():
        general.key.weight.copy_(multiplicative.query.weight.T @ multiplicative.key.weight)
    query, states = inputs()
    near(multiplicative(query, multiplicative.project(states)), general(query, general.project(states)))


def test_cosine_is_dot_of_unit_vectors_and_starts_unscaled():
    cosine, dot = Cosine(query_dim=KEY_DIM, key_dim=KEY_DIM).double(), Dot(query_dim=KEY_DIM, key_dim=KEY_DIM)
    query, states = random(BATCH, QUERY, KEY_DIM), random(BATCH, KEY, KEY_DIM)
    unit_vectors = [vectors / vectors.norm(dim=-1, keepdim=True) for vectors in (query, states)]
    near(cosine(query, cosine.project(states)), dot(*unit_vectors))
    near(cosine(9 * query, cosine.project(0.1 * states)), cosine(query, cosine.project(states)))


# Special cases of `attend`


def test_attention_looks_up_a_key_value_store():
    """Deck 001: if the query is one of the keys and the weights are sharp, the context is that key's value."""
    store = {"red": 3.0, "green": -1.0, "blue": 7.0}
    keys = torch.eye(3, dtype=torch.float64).unsqueeze(0)
    values = torch.tensor(list(store.values()), dtype=torch.float64).view(1, 3, 1)
    query = torch.stack([keys[0, list(store).index(word)] for word in ("blue", "red")]).unsqueeze(0)

    def sharp(query: Tensor, keys: Tensor) -> Tensor:
        return 100 * query @ keys.transpose(-1, -2)

    near(attend(query, keys, values, score=sharp).context, torch.tensor([[[7.0], [3.0]]], dtype=torch.float64))
    exact = attend(query, keys, values, score=sharp, normalize=NORMALIZERS["sparsemax"].function)
    assert exact.context.flatten().tolist() == [7.0, 3.0]
    # a query between red and green gives the mean of both values
    half = attend((keys[:, :1] + keys[:, 1:2]), keys, values, score=sharp)
    near(half.context, torch.tensor([[[1.0]]], dtype=torch.float64))


def test_self_attention_without_parameters():
    """Deck 004: e_ij = x_i . x_j, softmax over j, sum of a_ij x_j."""
    words = random(1, KEY, KEY_DIM)
    dot = Dot(query_dim=KEY_DIM, key_dim=KEY_DIM)
    context, weights, _ = attend(words, dot.project(words), words, score=dot)
    rows = words[0].tolist()
    for i, row in enumerate(rows):
        powers = [math.exp(sum(a * b for a, b in zip(row, other, strict=True))) for other in rows]
        row_weights = [power / sum(powers) for power in powers]
        near(weights[0, i], torch.tensor(row_weights, dtype=torch.float64))
        pairs = list(zip(row_weights, rows, strict=True))
        weighted_sum = [sum(weight * other[at] for weight, other in pairs) for at in range(KEY_DIM)]
        near(context[0, i], torch.tensor(weighted_sum, dtype=torch.float64))


@pytest.mark.parametrize("bandwidth", [0.2, 1.0])
def test_gaussian_attention_is_nadaraya_watson_regression(bandwidth):
    """Deck 002: f(x) = sum_i K(x - x_i) y_i / sum_i K(x - x_i), with the Gaussian kernel."""
    points, outputs = torch.linspace(0, 5, 20, dtype=torch.float64), random(20)
    score = Gaussian(query_dim=1, key_dim=1).double()
    with torch.no_grad():
        score.weight.fill_(math.log(score.bandwidth / bandwidth))
    queries = torch.linspace(-1, 6, 11, dtype=torch.float64)
    keys = score.project(points.view(1, -1, 1))
    context = attend(queries.view(1, -1, 1), keys, outputs.view(1, -1, 1), score=score).context
    for x, estimate in zip(queries.tolist(), context.flatten().tolist(), strict=True):
        kernel = [math.exp(-(((x - point) / bandwidth) ** 2) / 2) for point in points.tolist()]
        expected = sum(k * y for k, y in zip(kernel, outputs.tolist(), strict=True)) / sum(kernel)
        assert estimate == pytest.approx(expected, abs=1e-10)


def test_attention_of_one_zero_query_is_the_mean_of_a_sentence():
    """Deck 004: a sentence vector is the context of one query over all tokens; equal weights give their mean."""
    words = random(BATCH, KEY, KEY_DIM)
    dot = Dot(query_dim=KEY_DIM, key_dim=KEY_DIM)
    attended = attend(torch.zeros(BATCH, 1, KEY_DIM, dtype=torch.float64), words, words, score=dot)
    near(attended.context[:, 0], words.mean(1))


def test_the_scale_keeps_the_variance_of_scores_whatever_the_width():
    deviations = {}
    for width in (16, 1024):
        query, keys = torch.randn(1, 200, width), torch.randn(1, 200, width)
        for name in ("dot", "scaled_dot"):
            deviations[name, width] = SCORES[name](query_dim=width, key_dim=width)(query, keys).std().item()
    assert deviations["dot", 1024] == pytest.approx(32, rel=0.1)
    assert deviations["scaled_dot", 16] == pytest.approx(1, rel=0.1)
    assert deviations["scaled_dot", 1024] == pytest.approx(1, rel=0.1)


def test_the_docstring_of_linear_concat_warns_that_its_query_cancels():
    assert "Its query cancels in softmax" in LinearConcat.__doc__
