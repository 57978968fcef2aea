"""Encoder-decoders of Hugging Face as runs of `translate`: Marian, BART and T5."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard.attention.positions import Relative
from regard.errors import DataError, shown
from regard.interop.hugging_face_folder import CONFIG, ModelFolder
from regard.interop.hugging_face_weights import (
    Family,
    Source,
    Table,
    Vocabulary,
    activation_of,
    by_token,
    changed,
    output_bias,
    places,
    same,
    with_bias,
    zeros,
)
from regard.interop.marian_vocabulary import marian_vocabularies
from regard.sources.text import SOURCE, TARGET

ENCODER, DECODER, OUTPUT = "encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "lm_head.weight"
SHARED = "shared.weight"
LOGITS = "final_logits_bias"


# ---- the tables


def bart_layers(side: str) -> dict[str, Source]:
    """The lines of a table for the layers of an encoder or decoder of BART or Marian."""
    ours, theirs = f"{side}.stack.{{}}", f"{side}.layers.{{}}"
    attention = f"{theirs}.self_attn"
    return {
        **with_bias(f"{ours}.attention.all", *(f"{attention}.{part}_proj" for part in "qkv")),
        **with_bias(f"{ours}.attention.out", f"{attention}.out_proj"),
        **with_bias(f"{ours}.around_attention.norm", f"{attention}_layer_norm"),
        **with_bias(f"{ours}.feed.inner", f"{theirs}.fc1"),
        **with_bias(f"{ours}.feed.out", f"{theirs}.fc2"),
        **with_bias(f"{ours}.around_feed.norm", f"{theirs}.final_layer_norm"),
    }


CROSS_PARTS = {"query": "q_proj", "key": "k_proj", "value": "v_proj", "out": "out_proj"}
BART_OR_MARIAN: dict[str, Source] = {
    "encoder.embedding.weight": by_token(ENCODER),
    **bart_layers("encoder"),
    "decoder.embedding.weight": by_token(DECODER),
    **bart_layers("decoder"),
    **{
        name: source
        for ours, theirs in CROSS_PARTS.items()
        for name, source in with_bias(
            f"decoder.stack.{{}}.cross.{ours}", f"decoder.layers.{{}}.encoder_attn.{theirs}"
        ).items()
    },
    **with_bias("decoder.stack.{}.around_cross.norm", "decoder.layers.{}.encoder_attn_layer_norm"),
    "decoder.out.weight": by_token(OUTPUT),
    "decoder.out.bias": output_bias(LOGITS),
}
BART: Table = {
    **BART_OR_MARIAN,
    **{
        f"{side}.positions.table.weight": places(f"{side}.embed_positions.weight", first=2)
        for side in ("encoder", "decoder")
    },
    **with_bias("encoder.embedding_norm", "encoder.layernorm_embedding"),
    **with_bias("decoder.embedding_norm", "decoder.layernorm_embedding"),
}


def interleaved(name: str, source: Source) -> Source:
    """The source of one tensor of Marian, with the dimensions of the residual stream in regard's order.

    Marian's positions have all sines before all cosines, and regard's have them in turn. So every matrix that reads or
    writes the residual stream is reordered: no result changes but by rounding.
    """

    def order(size: int) -> Tensor:
        return torch.cat([torch.arange(0, size, 2), torch.arange(1, size, 2)]).argsort()

    writes = ".out." in name and ".stack." in name
    if writes or ".norm." in name:
        return changed(source, lambda tensor: tensor[order(len(tensor))])
    if name.endswith(".weight"):  # its columns read the stream
        return changed(source, lambda tensor: tensor[:, order(tensor.shape[1])])
    return source


MARIAN: Table = {name: interleaved(name, source) for name, source in BART_OR_MARIAN.items()}


def without_bias(ours: str, *theirs: str) -> dict[str, Source]:
    """The lines of a table for a layer of T5, which has no bias."""
    names = [f"{name}.weight" for name in theirs]
    return {f"{ours}.weight": same(*names), f"{ours}.bias": zeros(*names)}


def t5_layers(side: str, feed: int) -> dict[str, Source]:
    """The lines of a table for a stack of T5; its feed-forward layer is the sub-layer of number `feed`."""
    ours, theirs = f"{side}.stack.{{}}", f"{side}.block.{{}}.layer"
    bias = f"{side}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"  # all layers share it
    return {
        **without_bias(f"{ours}.attention.all", *(f"{theirs}.0.SelfAttention.{part}" for part in "qkv")),
        **without_bias(f"{ours}.attention.out", f"{theirs}.0.SelfAttention.o"),
        f"{ours}.around_attention.norm.weight": same(f"{theirs}.0.layer_norm.weight"),
        **without_bias(f"{ours}.feed.inner", f"{theirs}.{feed}.DenseReluDense.wi"),
        **without_bias(f"{ours}.feed.out", f"{theirs}.{feed}.DenseReluDense.wo"),
        f"{ours}.around_feed.norm.weight": same(f"{theirs}.{feed}.layer_norm.weight"),
        f"{side}.positions.weight.weight": same(bias),
        f"{side}.top.norm.weight": same(f"{side}.final_layer_norm.weight"),
    }


T5: Table = {
    "encoder.embedding.weight": by_token(ENCODER),
    **t5_layers("encoder", 1),
    "decoder.embedding.weight": by_token(DECODER),
    **t5_layers("decoder", 2),
    **{
        name: source
        for ours, theirs in {"query": "q", "key": "k", "value": "v", "out": "o"}.items()
        for name, source in without_bias(
            f"decoder.stack.{{}}.cross.{ours}", f"decoder.block.{{}}.layer.1.EncDecAttention.{theirs}"
        ).items()
    },
    "decoder.stack.{}.around_cross.norm.weight": same("decoder.block.{}.layer.1.layer_norm.weight"),
    "decoder.out.weight": by_token(OUTPUT),
    "decoder.out.bias": output_bias(LOGITS),
}


# ---- tensors that a folder stores once for several uses, or not at all


def completed(folder: ModelFolder, stored: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors with embeddings and output matrix under their own names, and a bias of the output layer."""
    tensors = dict(stored)
    shared = tensors.pop(SHARED, None)
    for name in (ENCODER, DECODER):
        if shared is not None:
            tensors.setdefault(name, shared)
    if DECODER in tensors and folder.is_tied():
        tensors.setdefault(OUTPUT, tensors[DECODER])
    if OUTPUT in tensors:
        tensors[LOGITS] = tensors[LOGITS].flatten() if LOGITS in tensors else torch.zeros(len(tensors[OUTPUT]))
    return tensors


def completed_t5(folder: ModelFolder, stored: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors, with both inputs of a gated feed-forward layer in one, and the scale of a tied output in it."""
    tensors = completed(folder, stored)
    for name in [name for name in tensors if name.endswith(".wi_0.weight")]:
        gate, values = name, name.replace(".wi_0.", ".wi_1.")
        if values in tensors:
            tensors[name.replace(".wi_0.", ".wi.")] = torch.cat([tensors.pop(gate), tensors.pop(values)])
    if OUTPUT in tensors and folder.setting("scale_decoder_outputs", bool, folder.is_tied()):  # older: tied alone
        tensors[OUTPUT] = tensors[OUTPUT] * folder.setting("d_model", int) ** -0.5
    return tensors


# ---- settings and vocabularies


class Size(NamedTuple):
    """The size of an encoder or decoder."""

    layers: int
    heads: int
    inner_dim: int


def model_section(
    sizes: Mapping[str, Size], *, dim: int, dropout: float, attention_dropout: float, inner_dropout: float, score: str
) -> dict[str, Any]:
    """The parts of a model section that Marian, BART and T5 share; `sizes` are those of encoder and decoder."""
    sides: dict[str, Any] = {}
    for side, (layers, heads, inner_dim) in sizes.items():
        sites = ["self_attention"] if side == "encoder" else ["self_attention", "cross_attention"]
        sides[side] = {
            "kind": "transformer",
            "dim": dim,
            "layers": layers,
            "inner_dim": inner_dim,
            "dropout": dropout,
            "inner_dropout": inner_dropout,
            **{site: {"heads": heads} for site in sites},
        }
    return {**sides, "attention": {"score": score, "dropout": attention_dropout}}


def bart_model(folder: ModelFolder) -> dict[str, Any]:
    """The model section for BART, and that of Marian but for positions and the norm of embeddings."""

    def size(side: str) -> Size:
        return Size(*(folder.setting(f"{side}_{count}", int) for count in ("layers", "attention_heads", "ffn_dim")))

    section = model_section(
        {side: size(side) for side in ("encoder", "decoder")},
        dim=folder.setting("d_model", int),
        dropout=folder.setting("dropout", float, 0.1),
        attention_dropout=folder.setting("attention_dropout", float, 0.0),
        inner_dropout=folder.setting("activation_dropout", float, 0.0),
        score="scaled_dot",
    )
    return section | {
        "norm": "post",
        "activation": activation_of(folder, folder.setting("activation_function", str, "gelu")),
        "positions": "learned",
        "longest": folder.setting("max_position_embeddings", int, 1024),
        "embedding_norm": True,
        "embedding_scaled": folder.setting("scale_embedding", bool, False),
    }


def marian_model(folder: ModelFolder) -> dict[str, Any]:
    """The model section for Marian."""
    return bart_model(folder) | {"positions": "sinusoidal", "embedding_norm": False}


def t5_model(folder: ModelFolder) -> dict[str, Any]:
    """The model section for T5 and T5 1.1."""
    dim, heads = folder.setting("d_model", int), folder.setting("num_heads", int)
    wide, buckets = heads * folder.setting("d_kv", int), (Relative.buckets, Relative.farthest)
    if wide != dim:
        raise DataError(
            f"{folder.path / CONFIG}: {heads} heads of width {wide // heads} have {wide} dimensions, and regard needs "
            f"as many as d_model, {dim}"
        )
    found = tuple(
        folder.setting(f"relative_attention_{name}", int, value)
        for name, value in zip(("num_buckets", "max_distance"), buckets, strict=True)
    )
    if found != buckets:
        raise DataError(
            f"{folder.path / CONFIG}: relative_attention has {found[0]} buckets up to distance {found[1]}, and regard "
            f"needs {buckets[0]} up to {buckets[1]}"
        )
    kind, layers = folder.setting("feed_forward_proj", str, "relu"), folder.setting("num_layers", int)
    if kind not in ("relu", "gated-gelu"):
        raise DataError(f"{folder.path / CONFIG}: feed_forward_proj is {shown(kind)}, not relu or gated-gelu")
    inner_dim, dropout = folder.setting("d_ff", int), folder.setting("dropout_rate", float, 0.1)
    section = model_section(
        {
            "encoder": Size(layers, heads, inner_dim),
            "decoder": Size(folder.setting("num_decoder_layers", int, layers), heads, inner_dim),
        },
        dim=dim,
        dropout=dropout,
        attention_dropout=dropout,
        inner_dropout=dropout,
        score="dot",
    )
    return section | {
        "norm": "pre",
        "norm_kind": "rms",
        "norm_eps": folder.setting("layer_norm_epsilon", float, 1e-6),
        "activation": {"relu": "relu", "gated-gelu": "gated_gelu"}[kind],
        "positions": "relative",
        "embedding_scaled": False,
    }


def bart_vocabularies(folder: ModelFolder) -> dict[str, Vocabulary]:
    """The vocabularies of BART: sources are between <s> and </s>; a target begins with </s> and <s>."""
    start, first = folder.setting("decoder_start_token_id", int, 2), folder.setting("bos_token_id", int, 0)
    target = folder.tokenizer(begin=False, start=start, prefix=first if first != start else None)
    return {SOURCE: Vocabulary.of(folder.tokenizer(begin=True)), TARGET: Vocabulary.of(target)}


def t5_vocabularies(folder: ModelFolder) -> dict[str, Vocabulary]:
    """The vocabularies of T5, whose targets begin with the padding token."""
    target = folder.tokenizer(begin=False, start=folder.setting("decoder_start_token_id", int, 0))
    return {SOURCE: Vocabulary.of(folder.tokenizer(begin=False)), TARGET: Vocabulary.of(target)}


SINUSOIDS = (r"(en|de)coder\.embed_positions\.weight",)
UNUSED = (r"decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight",)  # in old folders
SEQ2SEQ_FAMILIES: dict[str, Family] = {
    "marian": Family("translate", marian_model, MARIAN, marian_vocabularies, "model.", SINUSOIDS, complete=completed),
    "bart": Family("translate", bart_model, BART, bart_vocabularies, "model.", (), complete=completed),
    "t5": Family("translate", t5_model, T5, t5_vocabularies, "", UNUSED, complete=completed_t5),
}
