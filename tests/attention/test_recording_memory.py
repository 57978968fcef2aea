"""Recording 64 rows of one layer of a long input takes little more memory than not recording."""

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

from regard import recipe as recipes
from regard.attention.record import record
from regard.data.batching import pad
from regard.models import build

TOKENS, DIM, HEADS, LAYERS = 4096, 64, 4, 2
ROWS = range(1000, 1064)
MOST = 1.5  # times the memory of not recording


def peak(run: Callable[[], object]) -> int:
    """The largest number of bytes that torch's allocator held at once in a call, above those before it."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        run()
    events = [event for event in profiler.profiler.kineto_results.events() if event.name() == "[memory]"]
    held = highest = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        held += event.nbytes()
        highest = max(highest, held)
    return highest


def regard_encoder() -> tuple[nn.Module, Callable[[], object], str]:
    """The encoder of a Transformer, which computes its attention by a fused kernel."""
    keys = [f"model.encoder.{key}" for key in ("kind=transformer", f"layers={LAYERS}", f"dim={DIM}")]
    keys += [f"model.attention.heads={HEADS}", "model.attention.score=scaled_dot", f"model.embedding={DIM}"]
    model = build(recipes.parse("", "it", [*keys, "name=long"]).model, source_size=11, target_size=11).eval()
    source = pad([[7] * TOKENS])
    return model, lambda: model.encoder(source), "encoder.stack.0.attention.attention"


def torch_encoder() -> tuple[nn.Module, Callable[[], object], str]:
    """torch's encoder, while it is trained: its fast path of inference is not fused, and holds all weights itself."""
    layer = nn.TransformerEncoderLayer(DIM, HEADS, 4 * DIM, batch_first=True, dropout=0.0)
    model, states = (
        nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False).train(),
        torch.randn(1, TOKENS, DIM),
    )
    return model, lambda: model(states), "layers.0.self_attn"


def hugging_face() -> tuple[nn.Module, Callable[[], object], str]:
    """A BERT of Hugging Face."""
    transformers = pytest.importorskip("transformers")
    sizes = {
        "hidden_size": DIM,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "intermediate_size": 4 * DIM,
    }
    model = transformers.BertModel(
        transformers.BertConfig(**sizes, vocab_size=11, max_position_embeddings=TOKENS)
    ).eval()
    tokens = torch.full((1, TOKENS), 7)
    return model, lambda: model(input_ids=tokens), "encoder.layer.0.attention.self"


@pytest.mark.takes("fused_attention")
@pytest.mark.parametrize("make", [regard_encoder, torch_encoder, hugging_face])
def test_64_rows_of_one_layer_take_little_memory(make):
    torch.manual_seed(1)
    model, run, name = make()
    with torch.no_grad():
        run()  # what is allocated once, such as tables of positions
        plain = peak(run)
        with record(model, layers=[name], rows=ROWS) as recording:
            recorded = peak(run)
        assert recording.weights[name].shape == (1, HEADS, len(ROWS), TOKENS)
        torch.testing.assert_close(recording.weights[name].sum(-1), torch.ones(1, HEADS, len(ROWS)))
        assert TOKENS * DIM * 4 < plain < TOKENS**2 * 4  # it is fused, so that all rows would not fit
        assert recorded <= MOST * plain
