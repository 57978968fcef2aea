"""OpenNMT-py 3: Transformers, and recurrent models with attention in Luong's order, with or without input feeding."""

import re
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from regard.errors import CorruptError, DataError, pick, shown
from regard.interop.orphans import restricted, runs
from regard.interop.orphans.options import Options
from regard.interop.orphans.runs import Affine, LayerNames, Tensors, Vocabulary, projections
from regard.storage import Run

TOOLKIT = "OpenNMT-py"
PARTS = ("vocab", "opt")  # of a checkpoint, besides weights
OUT = "generator."
EMBEDDING = "embeddings.make_embedding.emb_luts.0.weight"
LONGEST = 5000  # positions of a sinusoidal table
PADDING, UNKNOWN, BEGIN, END = "<blank>", "<unk>", "<s>", "</s>"
FEED = ("feed_forward.w_1", "feed_forward.w_2", "feed_forward.layer_norm")
PROJECTIONS = (".linear_query", ".linear_keys", ".linear_values", ".final_linear")
LAYERS = {  # where the layers are, and the names of their parts
    "encoder": ("transformer", LayerNames(projections("self_attn", *PROJECTIONS), "layer_norm", *FEED)),
    "decoder": (
        "transformer_layers",
        LayerNames(
            projections("self_attn", *PROJECTIONS),
            "layer_norm_1",
            *FEED,
            projections("context_attn", *PROJECTIONS),
            "layer_norm_2",
        ),
    ),
}
# What a Transformer must have; the first value is the default.
TRANSFORMER: dict[str, tuple[object, ...]] = {
    "self_attn_type": ("scaled-dot", "scaled-dot-flash"),
    "pos_ffn_activation_fn": ("relu", "gelu"),
    "layer_norm": ("standard",),
    "max_relative_positions": (0,),
    "relative_positions_buckets": (0,),
    "parallel_residual": (False,),
    "num_kv": (0,),
    "num_experts": (0,),
    "sliding_window": (0,),
}
# What a recurrent model must have.
RECURRENT: dict[str, tuple[object, ...]] = {
    "rnn_type": ("LSTM", "GRU"),
    "global_attention": ("general", "dot", "mlp"),
    "bridge": (False,),
    "context_gate": (None,),
    "coverage_attn": (False,),
    "position_encoding": (False,),
}
SCORES = {"mlp": "additive", "general": "general", "dot": "dot"}


def load(path: Path, name: str, parent: Path) -> Run:
    """The run of a checkpoint of OpenNMT-py, NAME_step_N.pt, or of the last one in a folder.

    It has weights, settings and vocabularies.
    """
    path = _last(path) if path.is_dir() else path
    checkpoint = restricted.load(path)
    if not isinstance(checkpoint, dict) or not checkpoint.keys() >= set(PARTS):
        raise DataError(f"{path} is no checkpoint of {TOOLKIT} 3, which has {', '.join(PARTS)}")
    options, vocabulary = (Options(path, TOOLKIT, checkpoint[part]) for part in ("opt", "vocab"))
    state, generator = _weights(path, checkpoint)
    options.only("model_task", "seq2seq")
    options.only("copy_attn", False)
    kinds = options.get("encoder_type", str), options.get("decoder_type", str)
    if kinds == ("transformer", "transformer"):
        settings, tensors = _transformer(options, state)
    elif kinds[0] in ("rnn", "brnn") and kinds[1] == "rnn":
        settings, tensors = _recurrent(options, state)
    else:
        raise DataError(f"{path}: regard has no counterpart of a {kinds[0]} encoder with a {kinds[1]} decoder")
    source = Vocabulary(path, vocabulary.texts("src"), (PADDING, UNKNOWN, BEGIN, END))
    begin = vocabulary.get("decoder_start_token", str, BEGIN)
    target = Vocabulary(path, vocabulary.texts("tgt"), (PADDING, UNKNOWN, begin, END), dropped=[BEGIN])
    tensors["encoder.embedding.weight"] = source.rows(state[f"encoder.{EMBEDDING}"])
    tensors["decoder.embedding.weight"] = target.rows(state[f"decoder.{EMBEDDING}"])
    tensors["decoder.out.weight"] = target.rows(generator["weight"])
    tensors["decoder.out.bias"] = target.bias(generator["bias"])
    state.check_read(".pe.pe")
    return runs.make(parent, name, settings, (source, target), tensors, ends=False)


def _weights(path: Path, checkpoint: dict[str, Any]) -> tuple[Tensors, Tensors]:
    """The tensors of the model and of its output layer, which may be in files of safetensors beside the checkpoint."""
    if "model" in checkpoint:
        return Tensors(path, checkpoint["model"]), Tensors(path, checkpoint.get("generator"))
    shard = re.compile(rf"{re.escape(path.stem)}\.\d+\.safetensors")
    files = sorted(file for file in path.parent.iterdir() if shard.fullmatch(file.name))
    if not files:
        raise DataError(f"{path} has no weights, and there is no {path.stem}.00.safetensors beside it")
    tensors: dict[str, Tensor] = {}
    for file in files:
        try:
            tensors |= load_file(file)
        except (SafetensorError, OSError, ValueError, RuntimeError) as error:
            raise CorruptError(f"{file} holds no tensors: {shown(str(error))}") from error
    out = {name.removeprefix(OUT): tensors.pop(name) for name in sorted(tensors) if name.startswith(OUT)}
    return Tensors(files[0], tensors), Tensors(files[0], out)


def _last(folder: Path) -> Path:
    """The checkpoint of the most steps in a folder."""
    steps = {file: file.stem.rpartition("_step_")[2] for file in folder.glob("*_step_*.pt")}
    numbered = {file: int(step) for file, step in steps.items() if step.isdecimal()}
    if len({file.stem.rpartition("_step_")[0] for file in numbered}) != 1:
        raise DataError(f"{folder} has not the checkpoints *_step_N.pt of one model of {TOOLKIT}; name a file")
    return max(numbered, key=lambda file: numbered[file])


def _transformer(options: Options, state: Tensors) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The settings and the tensors of the layers of a Transformer."""
    for key, allowed in TRANSFORMER.items():
        options.only(key, *allowed)
    dim = options.get("hidden_size", int)
    longest = 0
    tensors: dict[str, Tensor] = {}
    for side, (place, names) in LAYERS.items():
        for number in range(options.get(f"{side[:3]}_layers", int)):
            old = f"{side}.{place}.{number}"

            def linear(part: str, old: str = old) -> Affine:
                weight = state[f"{old}.{part}.weight"]
                has_bias = f"{old}.{part}.bias" in state  # those of projections are an option
                return Affine(weight, state[f"{old}.{part}.bias"] if has_bias else torch.zeros(len(weight)))

            tensors |= runs.layer(f"{side}.stack.{number}", names, linear, linear)
        top = Affine(state[f"{side}.layer_norm.weight"], state[f"{side}.layer_norm.bias"])
        tensors |= top.named(f"{side}.top.norm")
        if options.get("position_encoding_type", str, "SinusoidalInterleaved") == "SinusoidalConcat":
            longest = LONGEST
            tensors[f"{side}.positions.table.weight"] = runs.sinusoids(state.width(f"{side}.{EMBEDDING}"), longest)
    has_positions = options.get("position_encoding", bool, False)
    if longest and not has_positions:
        raise DataError(f"{options.path}: position_encoding_type is set, but position_encoding is false")
    sizes = {"dim": dim, "inner_dim": options.get("transformer_ff", int)}
    settings = runs.sides(
        sizes | {"layers": options.get("enc_layers", int)}, sizes | {"layers": options.get("dec_layers", int)}
    )
    settings |= {
        "model.norm": "pre",
        "model.norm_eps": float(options.values.get("norm_eps", 1e-6)),
        "model.activation": options.get("pos_ffn_activation_fn", str, "relu"),
        "model.attention.heads": options.get("heads", int),
        "model.positions": ("learned" if longest else "sinusoidal") if has_positions else "none",
        "model.embedding_scaled": has_positions,
    }
    return settings | ({"model.longest": longest} if longest else {}), tensors


def _recurrent(options: Options, state: Tensors) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The settings and the tensors of the layers of a recurrent model."""
    for key, allowed in RECURRENT.items():
        options.only(key, *allowed)
    options.only("tgt_word_vec_size", options.get("src_word_vec_size", int))
    feeds, kind = bool(options.values.get("input_feed", 1)), options.get("global_attention", str, "general")
    dim, layers = options.get("hidden_size", int), options.get("dec_layers", int)
    tensors = {f"encoder.recurrence.rnn.{name}": tensor for name, tensor in state.beginning("encoder.rnn.")}
    if feeds:  # one cell for each layer
        tensors |= state.numbered("decoder.rnn.layers", layers, "decoder.recurrence.rnn")
    else:
        tensors |= {f"decoder.recurrence.rnn.{name}": tensor for name, tensor in state.beginning("decoder.rnn.")}
    score, attention = "decoder.attention.score", "decoder.attn"
    if kind == "mlp":  # its bias belongs to the query, ours to the key: the sum is the same
        tensors[f"{score}.query.weight"] = state[f"{attention}.linear_query.weight"]
        tensors[f"{score}.key.weight"] = state[f"{attention}.linear_context.weight"]
        tensors[f"{score}.key.bias"] = state[f"{attention}.linear_query.bias"]
        tensors[f"{score}.out.weight"] = state[f"{attention}.v.weight"]
    elif kind == "general":  # it projects the query, regard the key: h (W s) = (W' h) s
        tensors[f"{score}.key.weight"] = state[f"{attention}.linear_in.weight"].T
    tensors["decoder.readout.weight"] = state[f"{attention}.linear_out.weight"]
    tensors["decoder.readout.bias"] = state[f"{attention}.linear_out.bias"] if kind == "mlp" else torch.zeros(dim)
    cell = options.get("rnn_type", str, "LSTM").lower()
    settings = {
        "model.embedding": options.get("src_word_vec_size", int),
        "model.encoder.bidirectional": options.get("encoder_type", str) == "brnn",
        "model.decoder.order": "luong_feeding" if feeds else "luong",
        "model.decoder.start": "last",
        "model.decoder.linear_readout": kind == "mlp",
        "model.attention.score": pick(SCORES, kind, "global_attention"),
        "model.attention.normalizer": options.get("global_attention_function", str, "softmax"),
        "model.attention.dim": dim,
        "model.attention.heads": 1,
    }
    settings |= {f"model.{side}.{key}": value for side in LAYERS for key, value in (("cell", cell), ("dim", dim))}
    return settings | {"model.encoder.layers": options.get("enc_layers", int), "model.decoder.layers": layers}, tensors
