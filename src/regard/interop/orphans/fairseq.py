"""fairseq: Transformers from text to text with pre- or post-norm, and LSTMs with attention."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regard.errors import DataError, shown
from regard.interop.orphans import restricted, runs
from regard.interop.orphans.options import Options
from regard.interop.orphans.runs import Affine, LayerNames, Tensors, Vocabulary, projections
from regard.storage import Run

TOOLKIT = "fairseq"
CHECKPOINTS = ("checkpoint_best.pt", "model.pt", "checkpoint_last.pt")  # the first that is there
BEGIN, PADDING, END, UNKNOWN = SPECIAL = ("<s>", "<pad>", "</s>", "<unk>")  # the first words of every vocabulary
FIRST = 2  # the position of the first token: padding has 1
LONGEST = 1024  # positions of a sinusoidal table
FEED = ("fc1", "fc2", "final_layer_norm")
PROJECTIONS = (".q_proj", ".k_proj", ".v_proj", ".out_proj")
LAYERS = {
    "encoder": LayerNames(projections("self_attn", *PROJECTIONS), "self_attn_layer_norm", *FEED),
    "decoder": LayerNames(
        projections("self_attn", *PROJECTIONS),
        "self_attn_layer_norm",
        *FEED,
        projections("encoder_attn", *PROJECTIONS),
        "encoder_attn_layer_norm",
    ),
}
# Norms of a layer in checkpoints before 0.9, which number them.
OLD_NORMS = {
    "encoder": ("self_attn_layer_norm", "final_layer_norm"),
    "decoder": ("self_attn_layer_norm", "encoder_attn_layer_norm", "final_layer_norm"),
}
# What a model must have; the first value is the default.
TRANSFORMER: dict[str, tuple[object, ...]] = {
    "activation_fn": ("relu", "gelu"),
    "no_scale_embedding": (False, True),
    "adaptive_softmax_cutoff": (None,),
    "adaptive_input": (False,),
    "cross_self_attention": (False,),
    "no_cross_attention": (False,),
    "no_decoder_final_norm": (False,),
    "base_layers": (0,),
}
ARCHITECTURES = ("transformer", "lstm")  # and those whose names begin so
UNUSED = ("version", "_float_tensor", "embed_positions.weights")  # buffers


def load(path: Path, name: str, parent: Path) -> Run:
    """The run of a fairseq checkpoint, or of the folder that it is in; dict.*.txt must be beside it."""
    file = _checkpoint(path)
    checkpoint = restricted.load(file)
    if not isinstance(checkpoint, dict) or not isinstance(checkpoint.get("model"), dict):
        raise DataError(f"{file} is no checkpoint of {TOOLKIT}: it has no model")
    model, task = _settings(file, checkpoint)
    architecture = model.get("arch", str, model.values.get("_name") or "")
    state = Tensors(file, dict(_renamed(checkpoint["model"])))
    if architecture.startswith("transformer"):
        settings, tensors = _transformer(model, state)
    elif architecture.startswith("lstm"):
        settings, tensors = _recurrent(model, state)
    else:
        known = " and ".join(ARCHITECTURES)
        raise DataError(f"{file}: regard has no counterpart of {TOOLKIT}'s {shown(architecture)}, only of {known}")
    source, target = (_vocabulary(file.parent, task.get(f"{side}_lang", str)) for side in ("source", "target"))
    embedding = state["decoder.embed_tokens.weight"]
    out = state.first("decoder.output_projection.weight", "decoder.embed_out", "decoder.fc_out.weight")
    tensors["encoder.embedding.weight"] = source.rows(state["encoder.embed_tokens.weight"])
    tensors["decoder.embedding.weight"] = target.rows(embedding)
    tensors["decoder.out.weight"] = target.rows(embedding if out is None else out)  # never tied: its bias forbids BEGIN
    tensors["decoder.out.bias"] = target.bias(state.first("decoder.fc_out.bias"))
    state.check_read(*UNUSED)
    return runs.make(parent, name, settings, (source, target), tensors)


def _checkpoint(path: Path) -> Path:
    """The file of a checkpoint, which may be given by its folder."""
    if not path.is_dir():
        return path
    for name in CHECKPOINTS:
        if (path / name).is_file():
            return path / name
    raise DataError(f"{path} has no checkpoint of {TOOLKIT}: {', '.join(CHECKPOINTS)}; or name the file")


def _settings(file: Path, checkpoint: dict[str, Any]) -> tuple[Options, Options]:
    """The settings of the model and of its task: one namespace, or two sections of a configuration."""
    if checkpoint.get("args") is not None:
        options = Options(file, TOOLKIT, checkpoint["args"])
        return options, options
    config = Options(file, TOOLKIT, _plain(checkpoint.get("cfg")))
    return Options(file, TOOLKIT, _plain(config.values.get("model"))), Options(
        file, TOOLKIT, _plain(config.values.get("task"))
    )


def _plain(section: Any) -> Any:
    """A section with plain values: OmegaConf stores each value in a node, and all nodes in the content of a section."""
    if not isinstance(section, restricted.Settings) or "_content" not in section:
        return section
    content = section["_content"]
    if not isinstance(content, dict):
        return None
    return {
        key: node["_val"] if isinstance(node, restricted.Settings) and "_val" in node else node
        for key, node in content.items()
    }


def _renamed(state: dict[Any, Any]) -> Iterator[tuple[str, Any]]:
    """The tensors by today's names: before 0.9, norms were numbered and projections to q, k and v were one matrix."""
    for key, tensor in state.items():
        name = str(key)
        for side, norms in OLD_NORMS.items():
            for number, norm in enumerate(norms):
                if name.startswith(f"{side}.layers."):
                    name = name.replace(f".layer_norms.{number}.", f".{norm}.")
        if ".in_proj_" in name and isinstance(tensor, Tensor):
            attention, part = name.rsplit(".in_proj_", 1)
            for letter, rows in zip("qkv", tensor.chunk(3), strict=True):
                yield f"{attention}.{letter}_proj.{part}", rows
        else:
            yield name, tensor


def _vocabulary(folder: Path, language: str) -> Vocabulary:
    """The words of dict.LANGUAGE.txt, which has a word and its count in each line; the special words come before."""
    path = folder / f"dict.{language}.txt"
    if not language.replace("_", "").replace("-", "").isalnum():
        raise DataError(f"{folder}: {shown(language)} is no name of a language")
    try:
        lines = path.read_text("utf-8").rstrip("\n").split("\n")
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read: {error}; copy fairseq's dictionaries beside the checkpoint") from error
    words = [line.removesuffix(" #fairseq:overwrite").rpartition(" ")[0] for line in lines]
    return Vocabulary(path, [*SPECIAL, *words], (PADDING, UNKNOWN, END, END), dropped=[BEGIN])


def _transformer(model: Options, state: Tensors) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The settings and the tensors of the layers of a Transformer."""
    for key, allowed in TRANSFORMER.items():
        model.only(key, *allowed)
    for key in ("normalize_before", "learned_pos"):
        model.only(f"decoder_{key}", model.get(f"encoder_{key}", bool, False))
    model.only("decoder_attention_heads", model.get("encoder_attention_heads", int, 8))
    norm = "pre" if model.get("encoder_normalize_before", bool, False) else "post"
    sizes: dict[str, dict[str, Any]] = {}
    tensors: dict[str, Tensor] = {}

    def linear(name: str) -> Affine:
        return Affine(state[f"{name}.weight"], state[f"{name}.bias"])

    tables = {}
    for side, names in LAYERS.items():
        sizes[side] = {
            "dim": model.get(f"{side}_embed_dim", int, 512),
            "inner_dim": model.get(f"{side}_ffn_embed_dim", int, 2048),
            "layers": model.get(f"{side}_layers", int, 6),
        }
        for number in range(sizes[side]["layers"]):

            def inside(name: str, old: str = f"{side}.layers.{number}") -> Affine:
                return linear(f"{old}.{name}")

            tensors |= runs.layer(f"{side}.stack.{number}", names, inside, inside)
        if norm == "pre":
            tensors |= linear(f"{side}.layer_norm").named(f"{side}.top.norm")
        if model.get("layernorm_embedding", bool, False):
            tensors |= linear(f"{side}.layernorm_embedding").named(f"{side}.embedding_norm")
        if model.get(f"{side}_learned_pos", bool, False):
            tables[side] = state[f"{side}.embed_positions.weight"][FIRST:]
        else:
            tables[side] = runs.sinusoids(state.width(f"{side}.embed_tokens.weight"), LONGEST, FIRST)
    settings = runs.sides(sizes["encoder"], sizes["decoder"]) | {
        "model.norm": norm,
        "model.activation": model.get("activation_fn", str, "relu"),
        "model.positions": "none",
        "model.embedding_norm": model.get("layernorm_embedding", bool, False),
        "model.embedding_scaled": not model.get("no_scale_embedding", bool, False),
        "model.attention.heads": model.get("encoder_attention_heads", int, 8),
    }
    if not model.get("no_token_positional_embeddings", bool, False):
        longest = min(map(len, tables.values()))
        settings |= {"model.positions": "learned", "model.longest": longest}
        tensors |= {f"{side}.positions.table.weight": table[:longest] for side, table in tables.items()}
    return settings, tensors


def _recurrent(model: Options, state: Tensors) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The settings and the tensors of the layers of LSTMs: the decoder begins with the encoder's state, and attends."""
    model.only("decoder_attention", "1", "True", True, 1)
    dim, layers = model.get("decoder_hidden_size", int, 512), model.get("decoder_layers", int, 1)
    both = model.get("encoder_bidirectional", bool, False)
    width = model.get("encoder_hidden_size", int, 512) * (1 + both)
    if width != dim:
        raise DataError(f"{model.path}: regard has no counterpart of LSTMs of the widths {width} and {dim}")
    model.only("decoder_out_embed_dim", dim)
    model.only("decoder_embed_dim", model.get("encoder_embed_dim", int, 512))
    tensors = {f"encoder.recurrence.rnn.{name}": tensor for name, tensor in state.beginning("encoder.lstm.")}
    tensors |= state.numbered("decoder.layers", layers, "decoder.recurrence.rnn")
    # It projects the query, regard the keys: (W s) h = (W' h) s.
    tensors["decoder.attention.score.key.weight"] = state["decoder.attention.input_proj.weight"].T
    tensors["decoder.readout.weight"] = state["decoder.attention.output_proj.weight"]
    tensors["decoder.readout.bias"] = torch.zeros(dim)
    settings: dict[str, Any] = {
        "model.embedding": model.get("encoder_embed_dim", int, 512),
        "model.encoder.bidirectional": both,
        "model.encoder.layers": model.get("encoder_layers", int, 1),
        "model.decoder.layers": layers,
        "model.decoder.order": "luong_feeding",
        "model.decoder.start": "last",
        "model.attention.score": "general",
        "model.attention.dim": dim,
        "model.attention.heads": 1,
    }
    return settings | {
        f"model.{side}.{key}": value for side in LAYERS for key, value in (("cell", "lstm"), ("dim", dim))
    }, tensors
