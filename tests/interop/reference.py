"""A Transformer by its published equations, in float64, to hold imports against; and regard's logits."""

import math

import torch

import regard
from regard.types import BEGIN, END, UNKNOWN, Padded


def linear(affine, inputs):
    weight, bias = affine
    return inputs @ weight.T + bias


def norm(affine, states, eps):
    gain, bias = affine
    centred = states - states.mean(-1, keepdim=True)
    return centred / (centred.square().mean(-1, keepdim=True) + eps).sqrt() * gain + bias


def attend(parts, states, memory, heads, causal):
    query, key, value, out = parts
    projected = zip((query, key, value), (states, memory, memory), strict=True)
    queries, keys, values = (
        linear(affine, inputs).unflatten(-1, (heads, -1)).transpose(0, 1) for affine, inputs in projected
    )
    scores = queries @ keys.transpose(-1, -2) / math.sqrt(queries.shape[-1])
    if causal:
        scores = scores.masked_fill(torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1), -math.inf)
    return linear(out, (scores.softmax(-1) @ values).transpose(0, 1).flatten(1))


def stack(layers, states, memory=None, *, heads, pre, eps, activation=torch.relu):
    """Run layers; each is a dict of `self`, `cross` (four affine maps each), `inner`, `outer`, and norms by name."""
    for layer in layers:
        for name in ("self", "feed") if memory is None else ("self", "cross", "feed"):
            inputs = norm(layer[f"{name}_norm"], states, eps) if pre else states
            if name == "feed":
                update = linear(layer["outer"], activation(linear(layer["inner"], inputs)))
            else:
                seen, causal = (inputs, memory is not None) if name == "self" else (memory, False)
                update = attend(layer[name], inputs, seen, heads, causal)
            states = states + update if pre else norm(layer[f"{name}_norm"], states + update, eps)
    return states


def tensor2tensor_positions(length, dim, first):
    half = dim // 2
    return torch.tensor(
        [
            [f(place / 10000 ** (i / (half - 1))) for f in (math.sin, math.cos) for i in range(half)]
            for place in range(first, first + length)
        ],
        dtype=torch.float64,
    )


def regard_logits(run, source, target):
    """The logits after BEGIN and after each word of the target, by the words of the vocabulary."""
    predictor = regard.load(run)
    task, model = predictor.task, predictor.model
    ids = torch.tensor([task.source.framed(task.source.encode(source))])
    tokens = torch.tensor([[BEGIN, *task.target.encode(target)]])
    assert UNKNOWN not in ids
    assert UNKNOWN not in tokens
    with torch.no_grad():
        step = model.decoder(tokens, model.read(Padded(ids, torch.ones_like(ids, dtype=torch.bool))))
    predicted = [UNKNOWN, END, *range(4, task.target.size)]
    prediction = predictor.predict([source], beam=2)[0]
    assert prediction.map is not None
    assert prediction.map.weights.shape[1] == ids.shape[1]
    return {task.target.piece(token): step.logits[0, :, token].double() for token in predicted}


def assert_equal(own, expected, words):
    """The logits by word are the columns of `expected`, whose words are `words`, to 1e-5."""
    assert set(own) <= set(words)
    for word, logits in own.items():
        assert (logits - expected[:, words.index(word)]).abs().max() < 1e-5, word
