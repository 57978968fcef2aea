"""Imports Hugging Face models: each family has a table from the names of regard's tensors to those of the folder."""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from safetensors.torch import save as save_tensors
from torch import Tensor, nn

from regard import models
from regard import recipe as recipes
from regard.device import only_shapes
from regard.errors import DataError, pick, shown
from regard.interop.hugging_face_folder import CONFIG, ModelFolder
from regard.interop.hugging_face_seq2seq import SEQ2SEQ_FAMILIES
from regard.interop.hugging_face_weights import (
    NEVER,
    Family,
    Source,
    Table,
    Vocabulary,
    activation_of,
    by_token,
    output_bias,
    places,
    row_of,
    turned_with_bias,
    with_bias,
)
from regard.recipe import Recipe
from regard.sources.text import SOURCE, TARGET
from regard.storage import METRICS, MODEL, RECIPE, Run
from regard.tasks import AnyTask, task_class

SEED = 1  # of weights that a folder does not have
MOST_NAMED = 3  # tensors that a message names


def encoder_layers(
    layer: str, attention: tuple[str, str, str, str], norms: tuple[str, str], inner: str, out: str
) -> Table:
    """The lines of a table for the layers of a post-norm encoder; all names are relative to `layer`."""
    query, key, value, output = (f"{layer}.{name}" for name in attention)
    return {
        **with_bias("encoder.stack.{}.attention.all", query, key, value),
        **with_bias("encoder.stack.{}.attention.out", output),
        **with_bias("encoder.stack.{}.around_attention.norm", f"{layer}.{norms[0]}"),
        **with_bias("encoder.stack.{}.feed.inner", f"{layer}.{inner}"),
        **with_bias("encoder.stack.{}.feed.out", f"{layer}.{out}"),
        **with_bias("encoder.stack.{}.around_feed.norm", f"{layer}.{norms[1]}"),
    }


def output_layer(weight: str, bias: str) -> Table:
    """The lines of a table for the output layer of an encoder: a bias, and a matrix if it is not the embedding."""
    return {"bias": by_token(bias, NEVER), "out.weight": by_token(weight), "out.bias": by_token(bias, NEVER)}


BERT_LAYERS = encoder_layers(
    "encoder.layer.{}",
    ("attention.self.query", "attention.self.key", "attention.self.value", "attention.output.dense"),
    ("attention.output.LayerNorm", "output.LayerNorm"),
    "intermediate.dense",
    "output.dense",
)
WORDS = "embeddings.word_embeddings.weight"
EMBEDDED = {
    "encoder.embedding.weight": by_token(WORDS),
    **with_bias("encoder.embedding_norm", "embeddings.LayerNorm"),
}
POSITIONS, KINDS = "embeddings.position_embeddings.weight", "embeddings.token_type_embeddings.weight"
BERT: Table = {
    **EMBEDDED,
    "encoder.positions.table.weight": places(POSITIONS, kind=KINDS),
    **BERT_LAYERS,
    "mask": row_of(WORDS, "[MASK]"),
    **with_bias("inner", "cls.predictions.transform.dense"),
    **with_bias("norm", "cls.predictions.transform.LayerNorm"),
    **output_layer("cls.predictions.decoder.weight", "cls.predictions.bias"),
}
ROBERTA: Table = {
    **EMBEDDED,
    "encoder.positions.table.weight": places(POSITIONS, first=2, kind=KINDS),  # padding has 1, and the first token 2
    **BERT_LAYERS,
    "mask": row_of(WORDS, "<mask>"),
    **with_bias("inner", "lm_head.dense"),
    **with_bias("norm", "lm_head.layer_norm"),
    **output_layer("lm_head.decoder.weight", "lm_head.bias"),
}
DISTILBERT: Table = {
    **EMBEDDED,
    "encoder.positions.table.weight": places(POSITIONS),
    **encoder_layers(
        "transformer.layer.{}",
        ("attention.q_lin", "attention.k_lin", "attention.v_lin", "attention.out_lin"),
        ("sa_layer_norm", "output_layer_norm"),
        "ffn.lin1",
        "ffn.lin2",
    ),
    "mask": row_of(WORDS, "[MASK]"),
    **with_bias("inner", "vocab_transform"),
    **with_bias("norm", "vocab_layer_norm"),
    **output_layer("vocab_projector.weight", "vocab_projector.bias"),
}


GPT2: Table = {
    "decoder.embedding.weight": by_token("wte.weight"),
    "decoder.positions.table.weight": places("wpe.weight"),
    **turned_with_bias("decoder.stack.{}.attention.all", "h.{}.attn.c_attn"),
    **turned_with_bias("decoder.stack.{}.attention.out", "h.{}.attn.c_proj"),
    **with_bias("decoder.stack.{}.around_attention.norm", "h.{}.ln_1"),
    **turned_with_bias("decoder.stack.{}.feed.inner", "h.{}.mlp.c_fc"),
    **turned_with_bias("decoder.stack.{}.feed.out", "h.{}.mlp.c_proj"),
    **with_bias("decoder.stack.{}.around_feed.norm", "h.{}.ln_2"),
    **with_bias("decoder.top.norm", "ln_f"),
    "decoder.out.weight": by_token("lm_head.weight"),
    "decoder.out.bias": output_bias("lm_head.bias"),
}


def bert_model(folder: ModelFolder) -> dict[str, Any]:
    """The model section for BERT, MiniLM and RoBERTa."""
    if folder.setting("position_embedding_type", str, "absolute") != "absolute":
        raise DataError(f"{folder.path / CONFIG}: position_embedding_type is not absolute, which regard needs")
    if folder.setting("is_decoder", bool, False):
        raise DataError(f"{folder.path / CONFIG}: is_decoder is true, but regard imports this family as an encoder")
    first = 2 if folder.config.get("model_type") == "roberta" else 0
    return encoder_model(
        folder,
        dim=folder.setting("hidden_size", int),
        layers=folder.setting("num_hidden_layers", int),
        heads=folder.setting("num_attention_heads", int),
        inner_dim=folder.setting("intermediate_size", int),
        dropouts=(
            folder.setting("hidden_dropout_prob", float, 0.1),
            folder.setting("attention_probs_dropout_prob", float, 0.1),
        ),
        activation=folder.setting("hidden_act", str, "gelu"),
        longest=folder.setting("max_position_embeddings", int) - first,
        norm_eps=folder.setting("layer_norm_eps", float, 1e-12),
    )


def distilbert_model(folder: ModelFolder) -> dict[str, Any]:
    """The model section for DistilBERT."""
    return encoder_model(
        folder,
        dim=folder.setting("dim", int),
        layers=folder.setting("n_layers", int),
        heads=folder.setting("n_heads", int),
        inner_dim=folder.setting("hidden_dim", int),
        dropouts=(folder.setting("dropout", float, 0.1), folder.setting("attention_dropout", float, 0.1)),
        activation=folder.setting("activation", str, "gelu"),
        longest=folder.setting("max_position_embeddings", int),
        norm_eps=1e-12,
    )


def gpt2_model(folder: ModelFolder) -> dict[str, Any]:
    """The model section for GPT-2."""
    for key, needed in {"scale_attn_weights": True, "scale_attn_by_inverse_layer_idx": False}.items():
        if folder.setting(key, bool, needed) != needed:
            raise DataError(f"{folder.path / CONFIG}: {key} is {not needed}, which regard has no setting for")
    dim, activation = folder.setting("n_embd", int), folder.setting("activation_function", str, "gelu_new")
    return {
        "norm": "pre",
        "norm_eps": folder.setting("layer_norm_epsilon", float, 1e-5),
        "activation": activation_of(folder, activation),
        "positions": "learned",
        "longest": folder.setting("n_positions", int),
        "embedding_scaled": False,
        "decoder": {
            "kind": "transformer",
            "dim": dim,
            "layers": folder.setting("n_layer", int),
            "inner_dim": folder.config.get("n_inner") or 4 * dim,
            "dropout": folder.setting("resid_pdrop", float, 0.1),
        },
        "attention": {
            "score": "scaled_dot",
            "heads": folder.setting("n_head", int),
            "dropout": folder.setting("attn_pdrop", float, 0.1),
        },
    }


def encoder_model(
    folder: ModelFolder,
    *,
    dim: int,
    layers: int,
    heads: int,
    inner_dim: int,
    dropouts: tuple[float, float],
    activation: str,
    longest: int,
    norm_eps: float,
) -> dict[str, Any]:
    """The model section of a post-norm encoder with learned positions; `dropouts` are of states and of weights."""
    return {
        "tied": True,
        "norm": "post",
        "norm_eps": norm_eps,
        "activation": activation_of(folder, activation),
        "positions": "learned",
        "longest": longest,
        "embedding_norm": True,
        "embedding_scaled": False,
        "encoder": {
            "kind": "transformer",
            "dim": dim,
            "layers": layers,
            "inner_dim": inner_dim,
            "dropout": dropouts[0],
        },
        "attention": {"score": "scaled_dot", "heads": heads, "dropout": dropouts[1]},
    }


OUTPUT_LAYER = ("mask", "inner.weight", "inner.bias", "norm.weight", "norm.bias", "bias")
# A pooler, the sentence pair task of BERT, and buffers.
NOT_NEEDED = (r"pooler\..*", r"cls\.seq_relationship\..*", r".*position_ids", r".*token_type_ids")
CAUSAL = (r"h\.\d+\.attn\.(masked_)?bias",)  # causal masks


def begun(folder: ModelFolder) -> dict[str, Vocabulary]:
    """The vocabulary of an encoder, whose texts begin with BEGIN."""
    return {SOURCE: Vocabulary.of(folder.tokenizer(begin=True))}


def plain(folder: ModelFolder) -> dict[str, Vocabulary]:
    """The vocabulary of a language model."""
    return {SOURCE: Vocabulary.of(folder.tokenizer(begin=False))}


def with_output_layer(folder: ModelFolder, stored: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of GPT-2, with the embedding as output matrix if they are tied, and zeros for the bias it lacks."""
    tensors = dict(stored)
    if "wte.weight" in tensors and folder.is_tied():
        tensors.setdefault("lm_head.weight", tensors["wte.weight"])
    if "lm_head.weight" in tensors:
        tensors.setdefault("lm_head.bias", torch.zeros(len(tensors["lm_head.weight"])))
    return tensors


def own_output_layer(folder: ModelFolder, stored: Mapping[str, Tensor], table: Table) -> dict[str, Tensor]:
    """The tensors of an encoder, with an output matrix only if it differs from the embedding.

    BERT and RoBERTa name the bias of the output layer twice. If the two differ, the bias beside the matrix is the one
    that is added to the logits.
    """
    tensors = dict(stored)
    [matrix], [bias] = table["out.weight"].names, table["bias"].names
    beside = matrix.replace(".weight", ".bias")
    if beside in tensors:
        tensors[bias] = tensors[beside]
        if beside != bias:
            del tensors[beside]
    if matrix not in tensors and bias in tensors and not folder.is_tied():
        raise DataError(f"{folder.path} has no tensor {matrix}, which its {CONFIG} implies")
    if matrix in tensors and WORDS in tensors and tensors[matrix].equal(tensors[WORDS]):
        del tensors[matrix]
    return tensors


def bert_family(model: Callable[[ModelFolder], dict[str, Any]], table: Table, prefix: str) -> Family:
    """A family of encoders."""
    complete = partial(own_output_layer, table=table)
    [matrix] = table["out.weight"].names
    return Family("masked_lm", model, table, begun, prefix, NOT_NEEDED, OUTPUT_LAYER, complete, untied=matrix)


FAMILIES: dict[str, Family] = {
    "bert": bert_family(bert_model, BERT, "bert."),
    "roberta": bert_family(bert_model, ROBERTA, "roberta."),
    "distilbert": bert_family(distilbert_model, DISTILBERT, "distilbert."),
    "gpt2": Family("language_model", gpt2_model, GPT2, plain, "transformer.", CAUSAL, complete=with_output_layer),
    **SEQ2SEQ_FAMILIES,
}


class Imported(NamedTuple):
    """A model that was read from a folder, and notes about it."""

    task: AnyTask
    model: nn.Module
    notes: list[str]


def read(path: str | Path, name: str = "imported") -> Imported:
    """Read the model of a Hugging Face folder; DataError if it is of no known family, or a tensor is not used."""
    folder = ModelFolder(Path(path))
    kind = folder.setting("model_type", str)
    family = pick(FAMILIES, kind, f"model_type of {folder.path / CONFIG}")
    vocabularies = family.vocabularies(folder)
    section = family.model(folder)
    stored = family.complete(folder, _without_prefix(folder.tensors(), family.prefix))
    if family.untied in stored:
        section["tied"] = False
    recipe = _recipe(folder, family, vocabularies, name, section)
    files = {file: vocabulary.tokenizer.to_bytes() for file, vocabulary in vocabularies.items()}
    task = task_class(family.task).restore(recipe, files.__getitem__)
    with only_shapes():
        shapes = models.weights(task.build())
    weights, notes = _convert(folder, family, vocabularies, shapes, stored)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        model = task.build()
    models.load_weights(model, models.weights(model) | weights)
    return Imported(task, model.eval(), [f"{kind}: {len(weights):,} tensors of {folder.path}", *notes])


def import_folder(path: str | Path, name: str, runs: str | Path = "runs") -> tuple[Run, list[str]]:
    """Store the model of a Hugging Face folder as a new run; returns the run, and notes about it."""
    imported = read(path, name)
    content = {
        RECIPE: recipes.to_toml(imported.task.recipe).encode(),
        **imported.task.files(),
        MODEL: save_tensors(models.weights(imported.model)),
        METRICS: json.dumps({"train_seconds": 0.0}).encode() + b"\n",  # a finished run, trained elsewhere
    }
    return Run.create(Path(runs), name, content), imported.notes


def _recipe(
    folder: ModelFolder, family: Family, vocabularies: Mapping[str, Vocabulary], name: str, model: dict[str, Any]
) -> Recipe:
    """The recipe of an imported run: task, tokenizers and the model section; its data are not known."""
    keys = {SOURCE: "source", TARGET: "target"}
    tokens = {keys[file]: vocabulary.kind for file, vocabulary in vocabularies.items()}
    metric = "bleu" if family.task == "translate" else "perplexity"
    values = {"name": name, "task": family.task, "metric": metric, "tokens": tokens, "model": model}
    return recipes.fill(Recipe(), values, str(folder.path / CONFIG), "")


def _without_prefix(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The tensors without the name of the base model; norms of old folders are called gamma and beta."""
    renamed = {}
    for name, tensor in tensors.items():
        short = name.removeprefix(prefix)
        short = re.sub(r"(LayerNorm|layer_norm)\.gamma$", r"\1.weight", short)
        renamed[re.sub(r"(LayerNorm|layer_norm)\.beta$", r"\1.bias", short)] = tensor
    return renamed


def _convert(
    folder: ModelFolder,
    family: Family,
    vocabularies: Mapping[str, Vocabulary],
    shapes: Mapping[str, Tensor],
    stored: Mapping[str, Tensor],
) -> tuple[dict[str, Float[Tensor, "..."]], list[str]]:
    """The weights of regard's model from those of the folder; every tensor must be used, or be known as not needed."""
    if bad := models.not_finite({name: tensor for name, tensor in stored.items() if tensor.is_floating_point()}):
        raise DataError(f"{folder.path}: the tensor {bad} holds NaN or infinite numbers")
    used: set[str] = set()
    weights: dict[str, Tensor] = {}
    new: list[str] = []
    for name, shape in shapes.items():
        source = _source(family.table, name)
        if missing := [needed for needed in source.names if needed not in stored]:
            if name not in family.head:
                raise DataError(f"{folder.path} has no tensor {missing[0]}, which its {CONFIG} implies")
            new.append(name)
            continue
        used.update(source.names)
        vocabulary = vocabularies[TARGET if name.startswith("decoder.") and TARGET in vocabularies else SOURCE]
        weights[name] = source.make([stored[needed] for needed in source.names], vocabulary).contiguous()
        if weights[name].shape != shape.shape:
            found, expected = list(weights[name].shape), list(shape.shape)
            raise DataError(
                f"{folder.path}: {source.names[0]} makes a tensor of {found}; its {CONFIG} implies {expected}"
            )
    rest = stored.keys() - used
    left = {name for name in rest for pattern in family.left_out if re.fullmatch(pattern, name)}
    if unknown := sorted(rest - left):
        more = f" and {len(unknown) - MOST_NAMED:,} more" if len(unknown) > MOST_NAMED else ""
        named = ", ".join(map(shown, unknown[:MOST_NAMED]))
        raise DataError(f"{folder.path} has tensors that regard has no place for: {named}{more}")
    return weights, [*_notes(sorted(left), new)]


def _notes(left: Sequence[str], new: Sequence[str]) -> Iterator[str]:
    """What to report about tensors that are not needed, and about those that the folder does not have."""
    if left:
        more = ", ..." if len(left) > MOST_NAMED else ""
        yield f"left out, since regard does not need them: {', '.join(left[:MOST_NAMED])}{more}"
    if new:
        yield "the folder has no output layer, so that of the run is new: it is to start from, with train.start_from"


def _source(table: Table, name: str) -> Source:
    """The line of a table for one of regard's tensors."""
    numbers = re.findall(r"(?<=\.)\d+(?=\.)", name)
    source = table[re.sub(r"(?<=\.)\d+(?=\.)", "{}", name)]
    return Source(tuple(needed.format(*numbers) for needed in source.names), source.make)
