"""Checkpoints of OpenNMT-py compute what its modules compute."""

import argparse
import math

import pytest
import reference
import torch
from safetensors.torch import save_file
from torch import nn

import regard
from regard.analysis.forced import word_axes
from regard.data.tokenizers import Word
from regard.errors import CorruptError, DataError, RegardError
from regard.interop import IMPORTS
from regard.types import END, Example

WORDS = ["<unk>", "<blank>", "<s>", "</s>", "one", "two", "three"]
OTHERS = ["<unk>", "<blank>", "<s>", "</s>", "uno", "dos", "tres", "y"]
SOURCE, TARGET = ("three", "one", "one", "two"), ("dos", "y")
EMBEDDING = "embeddings.make_embedding.emb_luts.0"


def import_model(tmp_path, options, parts, **changes):
    """The run of a checkpoint with these settings and modules; `generator` is its output layer."""
    state = {f"{name}.{key}": value for name, part in parts.items() for key, value in part.state_dict().items()}
    generator = {name.removeprefix("generator."): state.pop(name) for name in list(state) if "generator" in name}
    vocabulary = {"src": WORDS, "tgt": OTHERS, "data_task": "seq2seq", "decoder_start_token": "<s>"}
    common = {"model_task": "seq2seq", "copy_attn": False, "_all_transform": {"filtertoolong"}}
    content = {"model": state, "generator": generator, "vocab": vocabulary, "optim": {"steps": 3}}
    torch.save(content | {"opt": argparse.Namespace(**(common | options | changes))}, tmp_path / "model_step_5.pt")
    run, _ = IMPORTS["opennmt"](tmp_path / "model_step_5.pt", "mine", tmp_path / "runs")
    return run


def recurrent(kind, attention, feeds, layers, dim=6, width=5, score="mlp"):
    options = {"encoder_type": "brnn", "decoder_type": "rnn", "rnn_type": kind, "enc_layers": layers}
    options |= {"dec_layers": layers, "hidden_size": dim, "src_word_vec_size": width, "tgt_word_vec_size": width}
    options |= {"global_attention": attention, "global_attention_function": "softmax", "input_feed": int(feeds)}
    cell, rnn = {"LSTM": (nn.LSTMCell, nn.LSTM), "GRU": (nn.GRUCell, nn.GRU)}[kind]
    parts = {
        f"encoder.{EMBEDDING}": nn.Embedding(len(WORDS), width),
        f"decoder.{EMBEDDING}": nn.Embedding(len(OTHERS), width),
        "encoder.rnn": rnn(width, dim // 2, layers, batch_first=True, bidirectional=True),
        "generator": nn.Linear(dim, len(OTHERS)),
        "decoder.attn.linear_out": nn.Linear(2 * dim, dim, bias=attention == "mlp"),
    }
    if feeds:
        for number in range(layers):
            parts[f"decoder.rnn.layers.{number}"] = cell(dim if number else width + dim, dim)
    else:
        parts["decoder.rnn"] = rnn(width, dim, layers, batch_first=True)
    if attention == "mlp":
        parts["decoder.attn.linear_context"] = nn.Linear(dim, dim, bias=False)
        parts["decoder.attn.linear_query"] = nn.Linear(dim, dim)
        parts["decoder.attn.v"] = nn.Linear(dim, 1, bias=False)
    elif attention == "general":
        parts["decoder.attn.linear_in"] = nn.Linear(dim, dim, bias=False)
    return options, parts


@pytest.mark.parametrize(
    ("kind", "attention", "feeds", "layers"),
    [("LSTM", "mlp", True, 2), ("GRU", "general", True, 1), ("LSTM", "dot", True, 1), ("GRU", "mlp", False, 2)],
)
def test_a_recurrent_model_computes_its_equations(tmp_path, kind, attention, feeds, layers):
    torch.manual_seed(2)
    options, parts = recurrent(kind, attention, feeds, layers)
    run = import_model(tmp_path, options, parts)
    parts = {name: part.double() for name, part in parts.items()}
    attn = {name.rpartition(".")[2]: part for name, part in parts.items() if name.startswith("decoder.attn")}
    with torch.no_grad():
        ids = torch.tensor([[WORDS.index(word) for word in SOURCE]])  # the encoder reads no end
        states, last = parts["encoder.rnn"](parts[f"encoder.{EMBEDDING}"](ids))
        lasts = last if kind == "LSTM" else (last,)
        hidden = [torch.cat([part[0::2], part[1::2]], dim=2) for part in lasts]  # layers, 1, dim
        fed, rows = torch.zeros(1, 6, dtype=torch.float64), []
        for word in ("<s>", *TARGET):
            inputs = parts[f"decoder.{EMBEDDING}"](torch.tensor([OTHERS.index(word)]))
            if feeds:
                inputs = torch.cat([inputs, fed], dim=1)
                for number in range(layers):
                    before = tuple(part[number] for part in hidden)
                    after = parts[f"decoder.rnn.layers.{number}"](inputs, before if kind == "LSTM" else before[0])
                    for part, new in zip(hidden, after if kind == "LSTM" else (after,), strict=True):
                        part[number] = new
                    inputs = hidden[0][number]
                query = inputs
            else:
                begun = tuple(hidden) if kind == "LSTM" else hidden[0]
                outputs, after = parts["decoder.rnn"](inputs.unsqueeze(1), begun)
                hidden, query = [*(after if kind == "LSTM" else (after,))], outputs[:, 0]
            if attention == "mlp":
                scores = attn["v"](torch.tanh(attn["linear_query"](query) + attn["linear_context"](states[0])))[:, 0]
            else:
                scores = states[0] @ (attn["linear_in"](query) if attention == "general" else query)[0]
            context = scores.softmax(0) @ states[0]
            fed = attn["linear_out"](torch.cat([context.unsqueeze(0), query], dim=1))
            fed = fed if attention == "mlp" else torch.tanh(fed)
            rows.append(parts["generator"](fed)[0])
    own = reference.regard_logits(run, " ".join(SOURCE), " ".join(TARGET))
    reference.assert_equal(own, torch.stack(rows), OTHERS)


def test_weights_may_be_in_safetensors(tmp_path):
    torch.manual_seed(7)
    options, parts = recurrent("GRU", "dot", True, 1)
    first = import_model(tmp_path, options, parts)
    file = tmp_path / "model_step_5.pt"
    checkpoint = torch.load(file, weights_only=False)
    generator = {f"generator.{name}": tensor for name, tensor in checkpoint["generator"].items()}
    save_file(checkpoint["model"] | generator, tmp_path / "model_step_5.00.safetensors")
    torch.save({name: checkpoint[name] for name in ("vocab", "opt", "optim")}, file)
    torch.save({}, tmp_path / "model_step_4.pt")
    second, _ = IMPORTS["opennmt"](tmp_path, "mine", tmp_path / "runs")  # the last one in the folder
    assert second.read("model.safetensors") == first.read("model.safetensors")
    (tmp_path / "model_step_5.00.safetensors").write_bytes(b"no")
    with pytest.raises(CorruptError, match="holds no tensors"):
        IMPORTS["opennmt"](file, "mine", tmp_path / "runs")
    (tmp_path / "model_step_5.00.safetensors").unlink()
    with pytest.raises(DataError, match=r"there is no model_step_5\.00\.safetensors beside it"):
        IMPORTS["opennmt"](file, "mine", tmp_path / "runs")


def test_tensors_of_odd_shapes_get_a_sentence(tmp_path):
    options, parts = transformer(True)
    parts["encoder.transformer.0.self_attn.linear_keys"] = nn.Linear(3, 5)
    with pytest.raises(DataError, match="its weights do not fit together"):
        import_model(tmp_path, options, parts)
    options, parts = transformer(True)
    for change in ({"hidden_size": 10**9}, {"enc_layers": 10**9}, {"transformer_ff": -1}):
        with pytest.raises(RegardError):
            import_model(tmp_path, options, parts, position_encoding_type="SinusoidalConcat", **change)


def test_more_layers_than_there_are_tensors_are_refused(tmp_path):
    options, parts = recurrent("GRU", "dot", True, 1)
    with pytest.raises(DataError, match=r"it has no tensors of decoder\.rnn\.layers\.1"):
        import_model(tmp_path, options, parts, dec_layers=10**9)


def test_a_source_without_an_end_has_none_in_maps_and_files(tmp_path):
    options, parts = recurrent("GRU", "dot", True, 1)
    task = regard.load(import_model(tmp_path, options, parts)).task
    assert word_axes(task, Example("one two", "dos"))[1].labels == ("one", "two")
    tokenizer = Word.from_bytes(Word(["a"], ends=False).to_bytes())
    assert (tokenizer.framed([4]), tokenizer.framed([])) == ([4], [END])
    assert Word.from_bytes(Word(["a"]).to_bytes()).framed([4]) == [4, END]
    with pytest.raises(CorruptError, match="`ends` is neither true nor false"):
        Word.from_bytes(b'{"kind": "word", "tokens": [], "ends": 1}')


def transformer(biases, dim=8, layers=2):
    options = {"encoder_type": "transformer", "decoder_type": "transformer", "enc_layers": layers, "heads": 2}
    options |= {"dec_layers": layers, "hidden_size": dim, "transformer_ff": 10, "position_encoding": True}
    options |= {"src_word_vec_size": dim, "tgt_word_vec_size": dim, "norm_eps": 1e-3}
    parts = {"generator": nn.Linear(dim, len(OTHERS))}
    places = {
        "encoder.transformer": (["self_attn"], ["layer_norm"]),
        "decoder.transformer_layers": (["self_attn", "context_attn"], ["layer_norm_1", "layer_norm_2"]),
    }
    for place, (attentions, norms) in places.items():
        side = place.partition(".")[0]
        parts[f"{side}.{EMBEDDING}"] = nn.Embedding(len(WORDS if side == "encoder" else OTHERS), dim)
        for number in range(layers):
            start = f"{place}.{number}"
            for attention in attentions:
                for name in ("linear_query", "linear_keys", "linear_values", "final_linear"):
                    parts[f"{start}.{attention}.{name}"] = nn.Linear(dim, dim, bias=biases)
            parts |= {f"{start}.{name}": nn.LayerNorm(dim) for name in (*norms, "feed_forward.layer_norm")}
            parts[f"{start}.feed_forward.w_1"] = nn.Linear(dim, 10)
            parts[f"{start}.feed_forward.w_2"] = nn.Linear(10, dim)
        parts[f"{side}.layer_norm"] = nn.LayerNorm(dim)
    for part in parts.values():  # norms that do nothing would hide mistakes
        for parameter in part.parameters():
            nn.init.normal_(parameter, std=0.5)
    return options, parts


@pytest.mark.parametrize(("biases", "positions"), [(False, "SinusoidalInterleaved"), (True, "SinusoidalConcat")])
def test_a_transformer_computes_its_equations(tmp_path, biases, positions):
    torch.manual_seed(3)
    options, parts = transformer(biases)
    run = import_model(tmp_path, options, parts, position_encoding_type=positions)

    def affine(name):
        part = parts[name].double()
        bias = part.bias if part.bias is not None else torch.zeros(len(part.weight), dtype=torch.float64)
        return part.weight.detach(), bias.detach()

    def layer(start, norms):
        found = {
            "inner": affine(f"{start}.feed_forward.w_1"),
            "outer": affine(f"{start}.feed_forward.w_2"),
            "feed_norm": affine(f"{start}.feed_forward.layer_norm"),
        }
        for name, (attention, own) in norms.items():
            names = ("linear_query", "linear_keys", "linear_values", "final_linear")
            found[name] = [affine(f"{start}.{attention}.{part}") for part in names]
            found[f"{name}_norm"] = affine(f"{start}.{own}")
        return found

    def embedded(side, ids):
        vectors = parts[f"{side}.{EMBEDDING}"].double().weight.detach()[ids] * math.sqrt(8)
        if positions == "SinusoidalConcat":
            return vectors + reference.tensor2tensor_positions(len(ids), 8, 0)
        angles = [[place / 10000 ** (i / 8) for i in range(0, 8, 2)] for place in range(len(ids))]
        waves = torch.tensor([[f(a) for a in row for f in (math.sin, math.cos)] for row in angles])
        return vectors + waves

    settings = {"heads": 2, "pre": True, "eps": 1e-3}
    layers = [layer(f"encoder.transformer.{n}", {"self": ("self_attn", "layer_norm")}) for n in range(2)]
    states = reference.stack(layers, embedded("encoder", [WORDS.index(word) for word in SOURCE]), **settings)
    memory = reference.norm(affine("encoder.layer_norm"), states, 1e-3)
    sites = {"self": ("self_attn", "layer_norm_1"), "cross": ("context_attn", "layer_norm_2")}
    layers = [layer(f"decoder.transformer_layers.{n}", sites) for n in range(2)]
    read = embedded("decoder", [OTHERS.index(word) for word in ("<s>", *TARGET)])
    states = reference.norm(affine("decoder.layer_norm"), reference.stack(layers, read, memory, **settings), 1e-3)
    own = reference.regard_logits(run, " ".join(SOURCE), " ".join(TARGET))
    reference.assert_equal(own, reference.linear(affine("generator"), states), OTHERS)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"bridge": True}, "no counterpart of OpenNMT-py's bridge = True, only False"),
        ({"rnn_type": "SRU"}, "rnn_type = SRU, only LSTM or GRU"),
        ({"coverage_attn": True}, "coverage_attn = True"),
        ({"copy_attn": True}, "copy_attn = True"),
        ({"context_gate": "both"}, "context_gate = both"),
        ({"encoder_type": "ggnn"}, "no counterpart of a ggnn encoder with a rnn decoder"),
        ({"model_task": "lm"}, "model_task = lm"),
        ({"hidden_size": "6"}, "hidden_size is '?6'?, but regard needs a int"),
        ({"hidden_size": [[]]}, "hidden_size is a list, but"),
    ],
)
def test_what_regard_cannot_express_is_refused(tmp_path, change, message):
    options, parts = recurrent("GRU", "mlp", True, 1)
    with pytest.raises(DataError, match=message):
        import_model(tmp_path, options, parts, **change)
    assert not (tmp_path / "runs").exists()


def test_a_tensor_that_has_no_place_is_refused_by_name(tmp_path):
    options, parts = recurrent("GRU", "general", True, 1)
    with pytest.raises(DataError, match=r"regard has no place for decoder\.attn.linear_cover.weight"):
        import_model(tmp_path, options, parts | {"decoder.attn.linear_cover": nn.Linear(1, 6, bias=False)})
    del parts["decoder.attn.linear_in"]
    with pytest.raises(DataError, match=r"it has no tensor decoder\.attn.linear_in.weight"):
        import_model(tmp_path, options, parts)
