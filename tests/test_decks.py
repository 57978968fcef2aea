"""The numbers and examples of the five slide decks that regard is based on, computed again with its parts."""

import math

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from regard.attention import SCOPES, MultiHead, attend
from regard.attention.normalizers import softmax
from regard.attention.scores import Additive, Concat, Dot, General, ScaledDot
from regard.layers.recurrence import CELLS, Recurrence
from regard.types import Recurrent

BATCH, QUERY, KEY, DIM = 2, 3, 5, 4


def random(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def assert_near(actual: Tensor, expected: Tensor, tolerance: float = 1e-12) -> None:
    torch.testing.assert_close(actual, expected, rtol=0.0, atol=tolerance)


# Deck 000: the attention of the lab exercise, in Keras


def dense(inputs: Tensor, kernel: Tensor, bias: Tensor) -> Tensor:
    """Keras's `Dense` without its activation; the kernel has the shape (input, output)."""
    return inputs @ kernel + bias


def softmax_over_time(scores: Tensor) -> Tensor:
    """The softmax of the lab: e^x over its sum along axis 1, time, of (batch, time, 1)."""
    powers = torch.exp(scores - scores.amax(1, keepdim=True))
    return powers / powers.sum(1, keepdim=True)


def one_step_attention(
    states: Tensor, before: Tensor, first: tuple[Tensor, Tensor], second: tuple[Tensor, Tensor]
) -> tuple[Tensor, Tensor]:
    """RepeatVector, Concatenate([h, s]), Dense(10, tanh), Dense(1, softmax over time), Dot(axes=1)."""
    repeated = before.unsqueeze(1).repeat(1, states.shape[1], 1)
    mixed = torch.tanh(dense(torch.cat([states, repeated], dim=-1), *first))
    alphas = softmax_over_time(dense(mixed, *second))
    return torch.einsum("bto,btd->bod", alphas, states), alphas


def test_the_one_step_attention_of_the_lab_is_the_additive_score():
    states, before = random(BATCH, KEY, 6), random(BATCH, DIM)
    first, second = (random(6 + DIM, 10), random(10)), (random(10, 1), random(1))
    score = Additive(query_dim=DIM, key_dim=6, dim=10).double()
    with torch.no_grad():
        score.key.weight.copy_(first[0][:6].T)  # the lab puts h before s(t-1)
        score.query.weight.copy_(first[0][6:].T)
        score.key.bias.copy_(first[1])
        score.out.weight.copy_(second[0].T)  # its second bias is the same for all keys, so softmax cancels it
    context, alphas = one_step_attention(states, before, first, second)
    attended = attend(before.unsqueeze(1), score.project(states), states, score=score)
    assert_near(attended.weights.transpose(1, 2), alphas)
    assert_near(attended.context, context)


def test_softmax_over_time_is_softmax_over_the_keys():
    scores = random(BATCH, KEY, 1)
    weights = softmax(scores.transpose(1, 2), None)
    assert_near(weights.transpose(1, 2), softmax_over_time(scores))
    assert_near(weights.sum(-1), torch.ones(BATCH, 1, dtype=torch.float64))
    assert (torch.softmax(scores, dim=-1) == 1).all()  # over the wrong axis every weight would be one


def test_without_a_mask_padding_is_attended_and_with_one_it_is_not():
    """The lab has no mask, so padding gets a part of the weights."""
    states, query = random(1, KEY, DIM), random(1, 1, DIM)
    mask = torch.tensor([[[True, True, True, False, False]]])
    dot = Dot(query_dim=DIM, key_dim=DIM)
    assert attend(query, states, states, score=dot).weights[..., 3:].sum() > 0.01
    masked = attend(query, states, states, score=dot, mask=mask)
    assert (masked.weights[..., 3:] == 0).all()
    assert_near(masked.context, attend(query, states[:, :3], states[:, :3], score=dot).context)


# Deck 002: worked weights, scores, Keras's layers


def test_the_weights_of_the_worked_example():
    """The deck gives only the weights 0.51, 0.28, 0.14, 0.07; these scores with one decimal lead to them."""
    scores = torch.tensor([[[1.5, 0.9, 0.2, -0.5]]], dtype=torch.float64)
    states = torch.eye(4, dtype=torch.float64).unsqueeze(0)
    query = scores  # the states are unit vectors, so its dot products with them are the scores
    context, weights, _ = attend(query, states, states, score=Dot(query_dim=4, key_dim=4))
    assert [round(weight, 2) for weight in weights.flatten().tolist()] == [0.51, 0.28, 0.14, 0.07]
    assert_near(context, weights)  # the context holds a share of each state
    powers = [math.exp(score) for score in scores.flatten().tolist()]
    assert_near(weights.flatten(), torch.tensor([power / sum(powers) for power in powers], dtype=torch.float64))


def test_the_context_is_the_weighted_sum_of_the_encoder_states():
    states, query = random(1, 4, DIM), random(1, 1, DIM)
    context, weights, _ = attend(query, states, states, score=Dot(query_dim=DIM, key_dim=DIM))
    assert_near(context[0, 0], sum(weights[0, 0, position] * states[0, position] for position in range(4)))


@pytest.mark.parametrize("name", ["dot", "bilinear", "perceptron"])
def test_the_three_scores_are_those_of_the_slide(name):
    hidden, states = random(DIM), random(KEY, DIM)
    bilinear, first, second = random(DIM, DIM), random(7, 2 * DIM), random(7)
    scores = {
        "dot": Dot(query_dim=DIM, key_dim=DIM),
        "bilinear": General(query_dim=DIM, key_dim=DIM).double(),
        "perceptron": Concat(query_dim=DIM, key_dim=DIM, dim=7).double(),
    }
    with torch.no_grad():
        scores["bilinear"].key.weight.copy_(bilinear)
        scores["perceptron"].weight.weight.copy_(first)
        scores["perceptron"].out.weight.copy_(second.unsqueeze(0))
    slide = {
        "dot": lambda state: hidden @ state,
        "bilinear": lambda state: hidden @ bilinear @ state,
        "perceptron": lambda state: second @ torch.tanh(first @ torch.cat([hidden, state])),
    }[name]
    score = scores[name]
    scored = score(hidden.view(1, 1, DIM), score.project(states.unsqueeze(0)))[0, 0]
    assert_near(scored, torch.stack([slide(state) for state in states]))


def keras(query: Tensor, value: Tensor, scores: Tensor, mask: Tensor | None) -> Tensor:
    """The documented formula of both layers: masked scores lowered by 1e9, softmax over the last axis, times values."""
    lowered = scores if mask is None else scores - 1e9 * (~mask).double().unsqueeze(1)
    return torch.softmax(lowered, dim=-1) @ value


@pytest.mark.parametrize("masked", [False, True])
def test_keras_attention_is_the_dot_score(masked):
    """tf.keras.layers.Attention: scores = matmul(query, key, transpose_b=True), the value being the key too."""
    query, value = random(BATCH, QUERY, DIM), random(BATCH, KEY, DIM)
    mask = torch.arange(KEY) < torch.tensor([[KEY], [3]]) if masked else None
    expected = keras(query, value, torch.einsum("bqd,bkd->bqk", query, value), mask)
    query_mask = None if mask is None else mask.unsqueeze(1)
    assert_near(attend(query, value, value, score=Dot(query_dim=DIM, key_dim=DIM), mask=query_mask).context, expected)


def test_keras_attention_with_a_scale_and_keys_of_their_own():
    """Attention(use_scale=True)([query, value, key]): the scores times a learned number."""
    query, value, key = random(BATCH, QUERY, DIM), random(BATCH, KEY, 7), random(BATCH, KEY, DIM)
    expected = keras(query, value, 1.7 * torch.einsum("bqd,bkd->bqk", query, key), None)
    assert_near(attend(1.7 * query, key, value, score=Dot(query_dim=DIM, key_dim=DIM)).context, expected)


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("masked", [False, True])
def test_keras_additive_attention_is_the_additive_score_without_projections(scaled, masked):
    """tf.keras.layers.AdditiveAttention: scores = reduce_sum(scale * tanh(query + value), axis=-1)."""
    query, value = random(BATCH, QUERY, DIM), random(BATCH, KEY, DIM)
    scale = random(DIM) if scaled else torch.ones(DIM, dtype=torch.float64)
    mask = torch.arange(KEY) < torch.tensor([[KEY], [3]]) if masked else None
    scores = (scale * torch.tanh(query.unsqueeze(2) + value.unsqueeze(1))).sum(-1)
    additive = Additive(query_dim=DIM, key_dim=DIM, dim=DIM).double()
    with torch.no_grad():
        nn.init.eye_(additive.query.weight)
        nn.init.eye_(additive.key.weight)
        nn.init.zeros_(additive.key.bias)
        additive.out.weight.copy_(scale.unsqueeze(0))
    query_mask = None if mask is None else mask.unsqueeze(1)
    attended = attend(query, additive.project(value), value, score=additive, mask=query_mask)
    assert_near(attended.context, keras(query, value, scores, mask))


# Deck 004: embeddings and recurrent layers


def test_an_embedding_is_a_product_with_one_hot_rows():
    torch.manual_seed(123)
    index = torch.tensor([2, 3, 1])
    embedding = nn.Embedding(4, 5)
    slide = [
        [0.6957, -1.8061, -1.1589, 0.3255, -0.6315],
        [-2.8400, -0.7849, -1.4096, -0.4076, 0.7953],
        [1.3010, 1.2753, -0.2010, -0.1606, -0.4015],
    ]
    assert_near(embedding(index), torch.tensor(slide), 5e-5)  # the slide shows four decimals
    product = functional.one_hot(index, 4).float() @ embedding.weight
    assert_near(product, embedding(index), 0.0)


def test_one_hot_letters_pick_rows_of_the_embedding():
    """S, U, N, N, Y: their one-hot matrix times a 26 x 3 embedding picks five rows, the row of N twice."""
    letters = torch.tensor([ord(letter) - ord("A") for letter in "SUNNY"])
    embedding = nn.Embedding(26, 3)
    rows = functional.one_hot(letters, 26).float() @ embedding.weight
    assert rows.shape == (5, 3)
    assert_near(rows, embedding(letters), 0.0)
    assert_near(rows[2], rows[3], 0.0)


def batch_first(tensor: Tensor) -> Tensor:
    """Swap the first two dimensions: the deck puts time, or layers, before the batch; regard never does."""
    return tensor.transpose(0, 1)


def test_the_lstm_example_gives_the_outputs_of_torch():
    """nn.LSTM(10, 20, 2): input (5, 3, 10), states (2, 3, 20), output (5, 3, 20)."""
    lstm = nn.LSTM(10, 20, 2)
    inputs, hidden, cell = torch.randn(5, 3, 10), torch.randn(2, 3, 20), torch.randn(2, 3, 20)
    output, (last_hidden, last_cell) = lstm(inputs, (hidden, cell))
    assert (output.shape, last_hidden.shape, last_cell.shape) == ((5, 3, 20), (2, 3, 20), (2, 3, 20))
    ours = Recurrence(CELLS["lstm"], input_dim=10, dim=20, layers=2)
    ours.rnn.load_state_dict(lstm.state_dict())
    outputs, after = ours(batch_first(inputs), Recurrent(batch_first(hidden), batch_first(cell)))
    assert (outputs.shape, after.hidden.shape, after.cell.shape) == ((3, 5, 20), (3, 2, 20), (3, 2, 20))
    assert_near(batch_first(outputs), output, 1e-6)
    assert_near(batch_first(after.hidden), last_hidden, 1e-6)
    assert_near(batch_first(after.cell), last_cell, 1e-6)


def test_the_lstm_cell_example_gives_the_outputs_of_torch():
    """nn.LSTMCell(10, 20) in a loop over (2, 3, 10): the stacked outputs are (2, 3, 20)."""
    rnn = nn.LSTMCell(10, 20)
    inputs, hidden, cell = torch.randn(2, 3, 10), torch.randn(3, 20), torch.randn(3, 20)
    first = Recurrent(hidden.unsqueeze(1), cell.unsqueeze(1))
    output = []
    for step in range(inputs.size()[0]):
        hidden, cell = rnn(inputs[step], (hidden, cell))
        output.append(hidden)
    stacked = torch.stack(output, dim=0)
    assert stacked.shape == (2, 3, 20)
    ours = Recurrence(CELLS["lstm"], input_dim=10, dim=20)
    ours.rnn.load_state_dict({f"{name}_l0": value for name, value in rnn.state_dict().items()})
    outputs, after = ours(batch_first(inputs), first)
    assert_near(batch_first(outputs), stacked, 1e-6)
    assert_near(after.hidden[:, 0], hidden, 1e-6)
    assert_near(after.cell[:, 0], cell, 1e-6)


@pytest.mark.parametrize(
    "options",
    [
        {"layers": 3},
        {"bias": False},
        {"bidirectional": True},
        {"inner_dim": 30},
        {"layers": 2, "bidirectional": True, "inner_dim": 30, "bias": False},
    ],
)
def test_every_option_of_the_lstm_gives_the_outputs_of_torch(options):
    """num_layers, bias, bidirectional and proj_size of the deck, by regard's names; `batch_first` is always true."""
    bidirectional = options.get("bidirectional", False)
    ours = Recurrence(CELLS["lstm"], input_dim=10, dim=20, **options).double()
    theirs = nn.LSTM(
        10,
        options.get("inner_dim", 20) // (1 + bidirectional),
        num_layers=options.get("layers", 1),
        bias=options.get("bias", True),
        bidirectional=bidirectional,
        proj_size=20 // (1 + bidirectional) if "inner_dim" in options else 0,
        batch_first=True,
    ).double()
    theirs.load_state_dict(ours.rnn.state_dict())
    inputs = random(3, 5, 10)
    outputs, after = ours.read(inputs, torch.ones(3, 5, dtype=torch.bool))
    output, (hidden, cell) = theirs(inputs)
    assert_near(outputs, output)
    for our_state, their_state in ((after.hidden, hidden), (after.cell, cell)):
        side_by_side = their_state.unflatten(0, (-1, 1 + bidirectional)).permute(2, 0, 1, 3).flatten(2)
        assert_near(our_state, side_by_side)


def test_multi_head_attention_of_the_slide_has_eight_heads_of_width_64():
    """T x 512, h = 8, d_v = 64: the heads of `MultiHead` share the width as the slide says."""
    widths: list[int] = []

    def make(width: int) -> nn.Module:
        widths.append(width)
        return SCOPES["global"](ScaledDot(query_dim=width, key_dim=width), query_dim=width)

    words = torch.randn(1, 6, 512)
    attention = MultiHead(make, query_dim=512, key_dim=512, dim=512, heads=8)
    attended = attention(words, attention.project(words), attention.content(words), mask=None)
    assert widths == [64]
    assert attention.project(words).shape == attention.content(words).shape == (1, 8, 6, 64)
    assert attended.context.shape == (1, 6, 512)
    theirs = nn.MultiheadAttention(512, 8, batch_first=True)
    with torch.no_grad():
        parts = (attention.query, attention.key, attention.value)
        theirs.in_proj_weight.copy_(torch.cat([part.weight for part in parts]))
        theirs.in_proj_bias.copy_(torch.cat([part.bias for part in parts]))
        theirs.out_proj.weight.copy_(attention.out.weight)
        theirs.out_proj.bias.copy_(attention.out.bias)
    context, weights = theirs(words, words, words)
    assert_near(attended.context, context, 1e-5)
    assert_near(attended.weights, weights, 1e-6)
