"""JoeyNMT 2: Transformers, and recurrent models with attention in Luong's order with input feeding."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regard.errors import DataError, pick
from regard.interop.orphans import restricted, runs
from regard.interop.orphans.options import Options, read_yaml
from regard.interop.orphans.runs import Affine, LayerNames, Tensors, Vocabulary, projections
from regard.storage import Run

TOOLKIT = "JoeyNMT"
BEST, CONFIG = "best.ckpt", "config.yaml"
SPECIAL = ("pad", "unk", "bos", "eos")
DEFAULTS = {"unk": 0, "pad": 1, "bos": 2, "eos": 3}  # ids
SCORES = {"bahdanau": "additive", "luong": "general"}
KINDS = {"encoder": "recurrent", "decoder": "transformer"}  # of a side without `type`
HEADS, DEPTHS, WIDTH, INNER = {"encoder": 4, "decoder": 8}, {"encoder": 8, "decoder": 4}, 512, 2048  # other defaults
FEED = ("feed_forward.pwff_layer.0", "feed_forward.pwff_layer.3", "feed_forward.layer_norm")
PROJECTIONS = (".q_layer", ".k_layer", ".v_layer", ".output_layer")
LAYERS = {
    "encoder": LayerNames(projections("src_src_att", *PROJECTIONS), "layer_norm", *FEED),
    "decoder": LayerNames(
        projections("trg_trg_att", *PROJECTIONS),
        "x_layer_norm",
        *FEED,
        projections("src_trg_att", *PROJECTIONS),
        "dec_layer_norm",
    ),
}


def load(folder: Path, name: str, parent: Path) -> Run:
    """The run of a JoeyNMT model directory: its best checkpoint, config.yaml and both vocabularies."""
    config = Options(folder / CONFIG, TOOLKIT, read_yaml(folder / CONFIG, TOOLKIT))
    model, data = config.section("model"), config.section("data") if "data" in config.values else config
    checkpoint = restricted.load(folder / BEST)
    state = Tensors(folder / BEST, checkpoint.get("model_state") if isinstance(checkpoint, dict) else None)
    tied, shared = (model.get(key, bool, False) for key in ("tied_softmax", "tied_embeddings"))
    if shared and not tied:
        raise DataError(f"{folder}: JoeyNMT's tied_embeddings without tied_softmax has no counterpart in regard")
    kinds = [model.section(side).get("type", str, KINDS[side]) for side in LAYERS]
    if kinds[0] != kinds[1]:
        raise DataError(f"{folder}: a JoeyNMT {kinds[0]} encoder with a {kinds[1]} decoder is not read")
    settings, tensors = (_transformer if kinds[0] == "transformer" else _recurrent)(model, state)
    special = data.section("special_symbols") if "special_symbols" in data.values else data
    ids = [special.get(f"{key}_id", int, DEFAULTS[key]) for key in SPECIAL]
    source, target = (_vocabulary(folder / f"{side}_vocab.txt", ids) for side in ("src", "trg"))
    tensors["encoder.embedding.weight"] = source.rows(state["src_embed.lut.weight"])
    tensors["decoder.embedding.weight"] = target.rows(state["trg_embed.lut.weight"])
    out = target.rows(state["decoder.output_layer.weight"])
    if not tied:
        tensors |= {"decoder.out.weight": out, "decoder.out.bias": torch.zeros(len(out))}
    if shared:
        del tensors["decoder.embedding.weight"]  # it is stored as the encoder's
    state.check_read(".pe.pe")
    settings |= {"model.tied": tied, "tokens.shared": shared}
    return runs.make(parent, name, settings, (source, target), tensors)


def _vocabulary(path: Path, ids: list[int]) -> Vocabulary:
    """The words of a file, one in a line, of which these are special."""
    try:
        words = path.read_text("utf-8").rstrip("\n").split("\n")
        return Vocabulary(path, words, [words[number] for number in ids])
    except (OSError, ValueError, IndexError) as error:
        raise DataError(f"{path} cannot be read: {error}") from error


def _transformer(model: Options, state: Tensors) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The settings and the tensors of the layers of a Transformer."""
    parts = {side: model.section(side) for side in LAYERS}
    norm, activation, scaled = _shared(model)
    sizes: dict[str, dict[str, Any]] = {}
    tensors: dict[str, Tensor] = {}
    for side, part in parts.items():
        part.only("activation", "relu", "gelu", "swish")
        part.only("alpha", 1.0)
        sizes[side] = {
            "dim": part.get("hidden_size", int, WIDTH),
            "inner_dim": part.get("ff_size", int, INNER),
            "layers": part.get("num_layers", int, DEPTHS[side]),
            "self_attention.heads": part.get("num_heads", int, HEADS[side]),
        }

        def linear(name: str) -> Affine:
            return Affine(state[f"{name}.weight"], state[f"{name}.bias"])

        for number in range(sizes[side]["layers"]):
            old = f"{side}.layers.{number}"
            tensors |= runs.layer(
                f"{side}.stack.{number}", LAYERS[side], *[lambda name, old=old: linear(f"{old}.{name}")] * 2
            )
        if norm == "pre":
            tensors |= linear(f"{side}.layer_norm").named(f"{side}.top.norm")
    sizes["decoder"]["cross_attention.heads"] = sizes["decoder"]["self_attention.heads"]
    settings = runs.sides(sizes["encoder"], sizes["decoder"]) | {
        "model.norm": norm,
        "model.norm_eps": 1e-6,
        "model.activation": activation,
        "model.positions": "sinusoidal",
        "model.embedding_scaled": scaled,
    }
    return settings, tensors


def _shared(model: Options) -> tuple[str, str, bool]:
    """The settings that both sides of a Transformer share: norm, activation, and whether embeddings are scaled.

    Without `layer_norm`, an encoder of JoeyNMT 2.0 and 2.1 is post-norm, but one of 2.3 is pre-norm with no norm at the
    top, and the weights have the same names. So the setting is required.
    """
    encoder, decoder = (model.section(side) for side in LAYERS)
    if encoder.values.get("layer_norm") is None:
        raise DataError(
            f"{model.path}: the encoder has no layer_norm, which versions of {TOOLKIT} read differently; "
            "if version 2.0 or 2.1 trained it, add layer_norm: post"
        )
    embeddings = [side.section("embeddings") for side in (encoder, decoder)]
    if model.get("tied_embeddings", bool, False):
        embeddings[1] = embeddings[0]  # the decoder has the encoder's embedding, and its factor
    norms = [side.get("layer_norm", str, "post") for side in (encoder, decoder)]
    activations = [side.get("activation", str, "relu") for side in (encoder, decoder)]
    scales = [part.get("scale", bool, False) for part in embeddings]
    both: dict[str, Sequence[object]] = {"layer_norm": norms, "activation": activations, "embeddings.scale": scales}
    for key, values in both.items():
        if values[0] != values[1]:
            raise DataError(f"{model.path}: encoder and decoder differ in {key}, which regard does not read")
    return norms[0], activations[0], scales[0]


def _recurrent(model: Options, state: Tensors) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The settings and the tensors of the layers of a recurrent model."""
    encoder, decoder = (model.section(side) for side in LAYERS)
    for side in (encoder, decoder):
        side.only("rnn_type", "gru", "lstm")
        side.section("embeddings").only("scale", False)
    encoder.only("bidirectional", True)
    decoder.only("init_hidden", "bridge", "zeros", "zero")
    decoder.only("activation", "tanh")
    decoder.only("attention", "bahdanau", "luong")
    layers, dim = decoder.get("num_layers", int, 1), decoder.get("hidden_size", int)
    score = pick(SCORES, decoder.get("attention", str, "bahdanau"), "attention")
    start = "bridge" if decoder.get("init_hidden", str, "bridge") == "bridge" else "zeros"
    cells = {side: part.get("rnn_type", str, "gru") for side, part in (("encoder", encoder), ("decoder", decoder))}
    settings = {
        "model.embedding": encoder.section("embeddings").get("embedding_dim", int),
        "model.encoder.cell": cells["encoder"],
        "model.encoder.dim": 2 * encoder.get("hidden_size", int),
        "model.encoder.layers": encoder.get("num_layers", int, 1),
        "model.decoder.cell": cells["decoder"],
        "model.decoder.dim": dim,
        "model.decoder.layers": layers,
        "model.decoder.order": "luong_feeding" if decoder.get("input_feeding", bool, True) else "luong",
        "model.decoder.start": start,
        "model.attention.score": score,
        "model.attention.dim": dim,
        "model.attention.heads": 1,
    }
    tensors = {
        f"{side}.recurrence.rnn.{name}": tensor for side in LAYERS for name, tensor in state.beginning(f"{side}.rnn.")
    }
    key = state["decoder.attention.key_layer.weight"]
    tensors["decoder.attention.score.key.weight"] = key
    if score == "additive":
        tensors["decoder.attention.score.key.bias"] = torch.zeros(len(key))
        tensors["decoder.attention.score.query.weight"] = state["decoder.attention.query_layer.weight"]
        tensors["decoder.attention.score.out.weight"] = state["decoder.attention.energy_layer.weight"]
    readout = state["decoder.att_vector_layer.weight"]  # it reads state and context, ours context and state
    tensors["decoder.readout.weight"] = torch.cat([readout[:, dim:], readout[:, :dim]], dim=1)
    tensors["decoder.readout.bias"] = state["decoder.att_vector_layer.bias"]
    if start == "bridge":  # one matrix, for all layers and for cell states
        state[f"decoder.rnn.weight_hh_l{layers - 1}"]  # there are so many layers, not only according to the settings
        bridge = Affine(state["decoder.bridge_layer.weight"], state["decoder.bridge_layer.bias"])
        for part in ("hidden", *(["cell"] if cells["decoder"] == "lstm" else [])):
            tensors |= Affine(*(torch.cat([tensor] * layers) for tensor in bridge)).named(f"decoder.bridge.{part}")
    return settings, tensors
