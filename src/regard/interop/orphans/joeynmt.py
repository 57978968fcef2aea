"""JoeyNMT 2: Transformers, and recurrent models with attention in Luong's order with input feeding."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regard.errors import DataError, MissingExtraError
from regard.interop.orphans import restricted, runs
from regard.storage import Run

NAME = "JoeyNMT"
BEST, CONFIG = "best.ckpt", "config.yaml"


def load(folder: Path, name: str, parent: Path) -> Run:
    """The run of a JoeyNMT model directory: its best checkpoint, config.yaml and both vocabularies."""
    config = _config(folder)
    model, data = config["model"], config.get("data", {})
    state = restricted.load(folder / BEST)["model_state"]
    words = [_words(folder / f"{side}_vocab.txt") for side in ("src", "trg")]
    special = data.get("special_symbols", config.get("special_symbols", {}))
    ids = [special.get(f"{name}_id", place) for place, name in enumerate(("unk", "pad", "bos", "eos"))]
    tied, shared = bool(model.get("tied_softmax")), bool(model.get("tied_embeddings"))
    if shared and not tied:
        raise DataError(f"{folder}: JoeyNMT's tied_embeddings without tied_softmax has no counterpart in regard")
    kinds = {side: model[side].get("type", "recurrent") for side in ("encoder", "decoder")}
    if len(set(kinds.values())) > 1:
        raise DataError(f"{folder}: a JoeyNMT {kinds['encoder']} encoder with a {kinds['decoder']} decoder is not read")
    convert = _transformer if kinds["encoder"] == "transformer" else _recurrent
    settings, tensors = convert(folder, model, state)

    def rows(table: Tensor) -> Tensor:
        return runs.with_our_specials(table, *ids)

    tensors["encoder.embedding.weight"] = rows(state["src_embed.lut.weight"])
    tensors["decoder.embedding.weight"] = rows(state["trg_embed.lut.weight"])
    if not tied:
        out = rows(state["decoder.output_layer.weight"])
        tensors |= {"decoder.out.weight": out, "decoder.out.bias": torch.zeros(len(out))}
    if shared:
        del tensors["encoder.embedding.weight"]
    plain = [[word for row, word in enumerate(side) if row not in ids] for side in words]
    settings |= {"model.tied": tied, "tokens.shared": shared}
    return runs.make(parent, name, settings, (plain[0], plain[1]), tensors)


def _config(folder: Path) -> dict[str, Any]:
    """The settings of the model directory."""
    try:
        import yaml
    except ImportError:
        raise MissingExtraError("pyyaml", "hf", "an import from JoeyNMT") from None
    try:
        config = yaml.safe_load((folder / CONFIG).read_text("utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise DataError(f"{folder / CONFIG} cannot be read ({error}); name the model directory of JoeyNMT") from error
    if not isinstance(config, dict) or not isinstance(config.get("model"), dict):
        raise DataError(f"{folder / CONFIG} describes no model of JoeyNMT")
    return config


def _words(path: Path) -> list[str]:
    """The words of a vocabulary, one in a line."""
    try:
        return path.read_text("utf-8").rstrip("\n").split("\n")
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read: {error}") from error


def _refuse(folder: Path, settings: Mapping[str, Any], allowed: Mapping[str, tuple[object, ...]]) -> None:
    """Raise DataError if a setting has a value that regard cannot express."""
    for key, values in allowed.items():
        if settings.get(key, values[0]) not in values:
            choices = " or ".join(map(str, values))
            raise DataError(f"{folder}: regard has no counterpart of JoeyNMT's {key} = {settings[key]}, only {choices}")


# ---- Transformers


def _transformer(
    folder: Path, model: Mapping[str, Any], state: Mapping[str, Tensor]
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The settings and the tensors of the layers."""
    tensors: dict[str, Tensor] = {}
    for side in ("encoder", "decoder"):
        own = model[side]
        _refuse(folder, own, {"activation": ("relu", "gelu"), "alpha": (1.0, 1)})
        _refuse(folder, own["embeddings"], {"scale": (True,)})
        for number in range(own["num_layers"]):
            tensors |= dict(_layer(state, side, number))
        if own.get("layer_norm", "post") == "pre":
            tensors |= _pair(state, f"{side}.layer_norm", f"{side}.top.norm")
    encoder, decoder = model["encoder"], model["decoder"]
    for key in ("layer_norm", "activation", "num_heads"):
        if encoder.get(key) != decoder.get(key):
            raise DataError(f"{folder}: encoder and decoder have different values of {key}, which regard does not read")
    settings = {
        "model.norm": encoder.get("layer_norm", "post"),
        "model.activation": encoder.get("activation", "relu"),
        "model.positions": "sinusoidal",
        "model.attention.score": "scaled_dot",
        "model.attention.heads": encoder["num_heads"],
    }
    for side in ("encoder", "decoder"):
        settings |= {f"model.{side}.kind": "transformer", f"model.{side}.dim": model[side]["hidden_size"]}
        settings |= {
            f"model.{side}.layers": model[side]["num_layers"],
            f"model.{side}.inner_dim": model[side]["ff_size"],
        }
    return settings, tensors


def _layer(state: Mapping[str, Tensor], side: str, number: int) -> Iterator[tuple[str, Tensor]]:
    """The tensors of one layer by regard's names."""
    old, new = f"{side}.layers.{number}", f"{side}.stack.{number}"
    own, norm = ("src_src_att", "layer_norm") if side == "encoder" else ("trg_trg_att", "x_layer_norm")
    for part in ("weight", "bias"):
        parts = [state[f"{old}.{own}.{name}_layer.{part}"] for name in ("q", "k", "v")]
        yield f"{new}.attention.all.{part}", torch.cat(parts)
    pairs = {f"{own}.output_layer": "attention.out", norm: "around_attention.norm"}
    if side == "decoder":
        cross = {"q_layer": "query", "k_layer": "key", "v_layer": "value", "output_layer": "out"}
        pairs |= {f"src_trg_att.{name}": f"cross.{ours}" for name, ours in cross.items()}
        pairs["dec_layer_norm"] = "around_cross.norm"
    pairs |= {"feed_forward.pwff_layer.0": "feed.inner", "feed_forward.pwff_layer.3": "feed.out"}
    pairs["feed_forward.layer_norm"] = "around_feed.norm"
    for theirs, ours in pairs.items():
        yield from _pair(state, f"{old}.{theirs}", f"{new}.{ours}").items()


def _pair(state: Mapping[str, Tensor], old: str, new: str) -> dict[str, Tensor]:
    """Weight and bias under a new name."""
    return {f"{new}.{part}": state[f"{old}.{part}"] for part in ("weight", "bias")}


# ---- recurrent models


def _recurrent(
    folder: Path, model: Mapping[str, Any], state: Mapping[str, Tensor]
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The settings and the tensors of a recurrent model."""
    encoder, decoder = model["encoder"], model["decoder"]
    for side in (encoder, decoder):
        _refuse(folder, side, {"rnn_type": ("gru", "lstm")})
        _refuse(folder, side["embeddings"], {"scale": (False,)})
    _refuse(folder, decoder, {"init_hidden": ("bridge", "zeros"), "activation": ("tanh",)})
    _refuse(folder, decoder, {"attention": ("bahdanau", "luong")})
    directions = 2 if encoder.get("bidirectional", True) else 1
    if directions == 1:
        raise DataError(f"{folder}: JoeyNMT's recurrent encoder is read with bidirectional = True only")
    layers, dim = decoder.get("num_layers", 1), decoder["hidden_size"]
    settings = {
        "model.embedding": encoder["embeddings"]["embedding_dim"],
        "model.encoder.cell": encoder.get("rnn_type", "gru"),
        "model.encoder.dim": 2 * encoder["hidden_size"],
        "model.encoder.layers": encoder.get("num_layers", 1),
        "model.decoder.cell": decoder.get("rnn_type", "gru"),
        "model.decoder.dim": dim,
        "model.decoder.layers": layers,
        "model.decoder.order": "luong_feeding" if decoder.get("input_feeding", True) else "luong",
        "model.decoder.start": decoder.get("init_hidden", "bridge"),
        "model.attention.score": "additive" if decoder.get("attention", "bahdanau") == "bahdanau" else "general",
        "model.attention.dim": dim,
        "model.attention.heads": 1,
    }
    tensors = {
        name.replace(f"{side}.rnn.", f"{side}.recurrence.rnn."): tensor
        for side in ("encoder", "decoder")
        for name, tensor in state.items()
        if name.startswith(f"{side}.rnn.")
    }
    key = state["decoder.attention.key_layer.weight"]
    tensors["decoder.attention.score.key.weight"] = key
    if settings["model.attention.score"] == "additive":
        tensors["decoder.attention.score.key.bias"] = torch.zeros(len(key))
        tensors["decoder.attention.score.query.weight"] = state["decoder.attention.query_layer.weight"]
        tensors["decoder.attention.score.out.weight"] = state["decoder.attention.energy_layer.weight"]
    readout = state["decoder.att_vector_layer.weight"]  # it reads state and context, ours context and state
    tensors["decoder.readout.weight"] = torch.cat([readout[:, dim:], readout[:, :dim]], dim=1)
    tensors["decoder.readout.bias"] = state["decoder.att_vector_layer.bias"]
    if settings["model.decoder.start"] == "bridge":  # one matrix, for all layers and for cell states
        for part in ("hidden", *(["cell"] if settings["model.decoder.cell"] == "lstm" else [])):
            for name in ("weight", "bias"):
                tensors[f"decoder.bridge.{part}.{name}"] = torch.cat([state[f"decoder.bridge_layer.{name}"]] * layers)
    return settings, tensors
