"""Checkpoints of fairseq compute its published equations."""

import argparse
import math
import sys
import types
from typing import Any

import pytest
import reference
import torch
from torch import nn

from regard.errors import DataError
from regard.interop import IMPORTS

SPECIAL = ["<s>", "<pad>", "</s>", "<unk>"]
WORDS, OTHERS = [*SPECIAL, "one", "two", "three"], [*SPECIAL, "uno", "dos", "tres", "y"]
SOURCE, TARGET = ("three", "one", "one", "two"), ("dos", "y")
DIM, INNER, HEADS, LAYERS = 8, 10, 2, 2


def settings(architecture, **changes):
    """The namespace of a model's settings."""
    sizes = {"embed_dim": DIM, "ffn_embed_dim": INNER, "layers": LAYERS, "attention_heads": HEADS}
    sizes |= {"normalize_before": False, "learned_pos": False}
    values = {f"{side}_{key}": value for side in ("encoder", "decoder") for key, value in sizes.items()}
    values |= {"arch": architecture, "source_lang": "en", "target_lang": "es", "adaptive_softmax_cutoff": None}
    return argparse.Namespace(**(values | changes))


def import_model(tmp_path, state, args, **content):
    """The run of a checkpoint with dictionaries beside it."""
    folder = tmp_path / "model"
    folder.mkdir(parents=True)
    for language, words in {"en": WORDS, "es": OTHERS}.items():
        lines = [f"{word} {100 - number}" for number, word in enumerate(words[len(SPECIAL) :])]
        (folder / f"dict.{language}.txt").write_text("\n".join(lines) + "\n")
    legacy = content.pop("legacy", False)
    file = folder / "checkpoint_best.pt"
    torch.save({"args": args, "model": state} | content, file, _use_new_zipfile_serialization=not legacy)
    run, _ = IMPORTS["fairseq"](folder, "mine", tmp_path / "runs")
    return run


def transformer(pre, learned, normed):
    """The weights of a Transformer by fairseq's names."""
    state = {
        "encoder.version": torch.tensor([3.0]),
        "encoder.embed_tokens.weight": torch.randn(len(WORDS), DIM),
        "decoder.embed_tokens.weight": torch.randn(len(OTHERS), DIM),
    }
    state["decoder.output_projection.weight"] = state["decoder.embed_tokens.weight"]

    def linear(name, rows, columns):
        state[f"{name}.weight"], state[f"{name}.bias"] = torch.randn(rows, columns) / 2, torch.randn(rows)

    def norm(name):
        state[f"{name}.weight"], state[f"{name}.bias"] = torch.randn(DIM), torch.randn(DIM)

    for side, attentions in {"encoder": ["self_attn"], "decoder": ["self_attn", "encoder_attn"]}.items():
        for start in (f"{side}.layers.{number}" for number in range(LAYERS)):
            for attention in attentions:
                for part in ("q_proj", "k_proj", "v_proj", "out_proj"):
                    linear(f"{start}.{attention}.{part}", DIM, DIM)
                norm(f"{start}.{attention}_layer_norm")
            linear(f"{start}.fc1", INNER, DIM)
            linear(f"{start}.fc2", DIM, INNER)
            norm(f"{start}.final_layer_norm")
        if pre:
            norm(f"{side}.layer_norm")
        if normed:
            norm(f"{side}.layernorm_embedding")
        if learned:
            state[f"{side}.embed_positions.weight"] = torch.randn(12 if side == "encoder" else 9, DIM)
        else:
            state[f"{side}.embed_positions._float_tensor"] = torch.zeros(1)
    return state


def transformer_logits(state, pre, learned, normed):
    """The logits after the end (which begins the output) and after each word of the target."""
    exact = {name: tensor.double() for name, tensor in state.items()}

    def affine(name):
        return exact[f"{name}.weight"], exact[f"{name}.bias"]

    def run(side, attentions, words, read, memory=None):
        vectors = exact[f"{side}.embed_tokens.weight"][[words.index(word) for word in read]] * math.sqrt(DIM)
        if learned:
            vectors = vectors + exact[f"{side}.embed_positions.weight"][2 : 2 + len(read)]
        else:
            vectors = vectors + reference.tensor2tensor_positions(len(read), DIM, 2)
        if normed:
            vectors = reference.norm(affine(f"{side}.layernorm_embedding"), vectors, 1e-5)
        layers = []
        for start in (f"{side}.layers.{number}" for number in range(LAYERS)):
            parts = {"inner": affine(f"{start}.fc1"), "outer": affine(f"{start}.fc2")}
            parts["feed_norm"] = affine(f"{start}.final_layer_norm")
            for name, attention in attentions.items():
                names = ("q_proj", "k_proj", "v_proj", "out_proj")
                parts[name] = [affine(f"{start}.{attention}.{part}") for part in names]
                parts[f"{name}_norm"] = affine(f"{start}.{attention}_layer_norm")
            layers.append(parts)
        states = reference.stack(layers, vectors, memory, heads=HEADS, pre=pre, eps=1e-5)
        return reference.norm(affine(f"{side}.layer_norm"), states, 1e-5) if pre else states

    memory = run("encoder", {"self": "self_attn"}, WORDS, (*SOURCE, "</s>"))
    states = run("decoder", {"self": "self_attn", "cross": "encoder_attn"}, OTHERS, ("</s>", *TARGET), memory)
    return states @ exact["decoder.output_projection.weight"].T


def of_omegaconf(values, monkeypatch):
    """Settings as OmegaConf 2.0 pickles them; it does not install beside today's packages, so its classes stand in."""
    classes = {}
    monkeypatch.setitem(sys.modules, "omegaconf", types.ModuleType("omegaconf"))
    for path in ("dictconfig.DictConfig", "base.ContainerMetadata", "base.Metadata", "nodes.AnyNode"):
        module, name = f"omegaconf.{path}".rsplit(".", 1)
        classes[name] = type(name, (), {"__module__": module})
        holder = sys.modules.get(module) if module in sys.modules else types.ModuleType(module)
        setattr(holder, name, classes[name])
        monkeypatch.setitem(sys.modules, module, holder)

    def made(kind, **attributes):
        created = classes[kind]()
        vars(created).update(attributes)
        return created

    def node(value, parent):
        if not isinstance(value, dict):
            return made("AnyNode", _metadata=made("Metadata", ref_type=Any), _parent=parent, _val=value)
        metadata = made("ContainerMetadata", ref_type=Any, object_type=dict)
        section = made("DictConfig", _metadata=metadata, _parent=parent)
        section._content = {key: node(part, section) for key, part in value.items()}
        return section

    return node(values, None)


def old_names(state):
    """The weights as fairseq wrote them before 0.9: numbered norms, one matrix for queries, keys and values; tied."""
    norms = {
        "encoder": {"self_attn_layer_norm": 0, "final_layer_norm": 1},
        "decoder": {"self_attn_layer_norm": 0, "encoder_attn_layer_norm": 1, "final_layer_norm": 2},
    }
    old = {}
    for name, tensor in state.items():
        side = name.partition(".")[0]
        for norm, number in norms[side].items():
            name = name.replace(f".{norm}.", f".layer_norms.{number}.")
        if ".q_proj." in name:
            parts = [state[name.replace("q_proj", f"{letter}_proj")] for letter in "qkv"]
            old[name.replace("q_proj.", "in_proj_")] = torch.cat(parts)
        elif "k_proj" not in name and "v_proj" not in name and "output_projection" not in name:
            old[name] = tensor
    return old


@pytest.mark.parametrize(
    ("pre", "learned", "normed", "form"),
    [
        (False, False, False, "args"),
        (False, False, False, "omegaconf"),
        (True, True, False, "cfg"),
        (True, False, True, "old"),
        (False, True, True, "args"),
    ],
)
def test_a_transformer_computes_its_equations(tmp_path, monkeypatch, pre, learned, normed, form):
    torch.manual_seed(4)
    state = transformer(pre, learned, normed)
    args = settings("transformer_iwslt_de_en", layernorm_embedding=normed)
    for side in ("encoder", "decoder"):
        vars(args)[f"{side}_normalize_before"] = pre
        vars(args)[f"{side}_learned_pos"] = learned
    if form == "omegaconf":
        task = {"source_lang": "en", "target_lang": "es"}
        config = of_omegaconf({"model": vars(args), "task": task}, monkeypatch)
        run = import_model(tmp_path, state, None, cfg=config)
    elif form == "cfg":
        config = {"model": args, "task": {"_name": "translation", "source_lang": "en", "target_lang": "es"}}
        run = import_model(tmp_path, state, None, cfg=config)
    else:
        run = import_model(tmp_path, old_names(state) if form == "old" else state, args, legacy=form == "old")
    own = reference.regard_logits(run, " ".join(SOURCE), " ".join(TARGET))
    reference.assert_equal(own, transformer_logits(state, pre, learned, normed), OTHERS)


@pytest.mark.parametrize("layers", [1, 2])
def test_lstms_compute_their_equations(tmp_path, layers):
    torch.manual_seed(5)
    width, dim = 5, 6
    parts = {
        "encoder.embed_tokens": nn.Embedding(len(WORDS), width),
        "decoder.embed_tokens": nn.Embedding(len(OTHERS), width),
        "encoder.lstm": nn.LSTM(width, dim // 2, layers, batch_first=True, bidirectional=True),
        "decoder.attention.input_proj": nn.Linear(dim, dim, bias=False),
        "decoder.attention.output_proj": nn.Linear(2 * dim, dim, bias=False),
        "decoder.fc_out": nn.Linear(dim, len(OTHERS)),
    }
    parts |= {f"decoder.layers.{n}": nn.LSTMCell(dim if n else width + dim, dim) for n in range(layers)}
    state = {f"{name}.{key}": value for name, part in parts.items() for key, value in part.state_dict().items()}
    sizes = {"encoder_hidden_size": dim // 2, "decoder_hidden_size": dim, "decoder_out_embed_dim": dim}
    sizes |= {"encoder_embed_dim": width, "decoder_embed_dim": width, "encoder_bidirectional": True}
    sizes |= {"encoder_layers": layers, "decoder_layers": layers, "decoder_attention": "1"}
    run = import_model(tmp_path, state, settings("lstm", **sizes))
    with pytest.raises(DataError, match=rf"it has no tensors of decoder\.layers\.{layers}"):
        import_model(tmp_path / "more", state, settings("lstm", **sizes | {"decoder_layers": 10**9}))
    parts = {name: part.double() for name, part in parts.items()}
    with torch.no_grad():
        ids = torch.tensor([[WORDS.index(word) for word in (*SOURCE, "</s>")]])
        states, lasts = parts["encoder.lstm"](parts["encoder.embed_tokens"](ids))
        hidden, cell = ([torch.cat([part[2 * n], part[2 * n + 1]], -1) for n in range(layers)] for part in lasts)
        fed, rows = torch.zeros(1, dim, dtype=torch.float64), []
        for word in ("</s>", *TARGET):
            inputs = torch.cat([parts["decoder.embed_tokens"](torch.tensor([OTHERS.index(word)])), fed], dim=1)
            for number in range(layers):
                hidden[number], cell[number] = parts[f"decoder.layers.{number}"](inputs, (hidden[number], cell[number]))
                inputs = hidden[number]
            scores = states[0] @ parts["decoder.attention.input_proj"](inputs)[0]
            context = (scores.softmax(0) @ states[0]).unsqueeze(0)
            fed = torch.tanh(parts["decoder.attention.output_proj"](torch.cat([context, inputs], dim=1)))
            rows.append(parts["decoder.fc_out"](fed)[0])
    own = reference.regard_logits(run, " ".join(SOURCE), " ".join(TARGET))
    reference.assert_equal(own, torch.stack(rows), OTHERS)


def shared_lists(levels):
    """A list that has itself twice at every level."""
    nested = []
    for _ in range(levels):
        nested = [nested, nested]
    return nested


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"decoder_attention_heads": shared_lists(30)}, "decoder_attention_heads = a list, only 2"),
        (
            {"encoder_attention_heads": shared_lists(30), "decoder_attention_heads": shared_lists(30)},
            "encoder_attention_heads is a list, but regard needs a int",
        ),
        ({"activation_fn": "swish"}, "no counterpart of fairseq's activation_fn = swish"),
        ({"adaptive_softmax_cutoff": "100"}, "adaptive_softmax_cutoff = 100"),
        ({"decoder_normalize_before": True}, "decoder_normalize_before = True, only False"),
        ({"arch": "fconv"}, "no counterpart of fairseq's 'fconv'"),
        ({"source_lang": "../x"}, "'../x' is no name of a language"),
        ({"target_lang": "fr"}, "copy fairseq's dictionaries beside the checkpoint"),
        ({"encoder_layers": 1}, "regard has no place for encoder.layers.1.fc1.bias"),
        ({"encoder_layers": 3}, "it has no tensor encoder.layers.2.self_attn.q_proj.weight"),
        (
            {"encoder_ffn_embed_dim": 11},
            r"encoder.stack.0.feed.inner.weight has the shape \[10, 8\], and regard expects \[11, 8\]",
        ),
    ],
)
def test_what_regard_cannot_express_is_refused(tmp_path, change, message):
    args = settings("transformer")
    with pytest.raises(DataError, match=message):
        import_model(tmp_path, transformer(False, False, False), argparse.Namespace(**(vars(args) | change)))
    assert not (tmp_path / "runs").exists()


def test_a_folder_without_a_checkpoint_is_refused(tmp_path):
    with pytest.raises(DataError, match=r"has no checkpoint of fairseq: checkpoint_best.pt, model.pt"):
        IMPORTS["fairseq"](tmp_path, "mine", tmp_path / "runs")
