"""Imports Hugging Face models: each family has a table from the names of regard's tensors to those of the folder."""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from safetensors.torch import save as save_tensors
from torch import Tensor, nn

from regard import models
from regard import recipe as recipes
from regard.data.tokenizers import HuggingFace
from regard.device import only_shapes
from regard.errors import DataError, pick, shown
from regard.interop.hugging_face_folder import CONFIG, ModelFolder
from regard.recipe import Recipe
from regard.sources.text import SOURCE
from regard.storage import METRICS, MODEL, RECIPE, Run
from regard.tasks import AnyTask, task_class
from regard.types import BEGIN, END, SPECIALS

NEVER = -1e4  # the bias of a token that is never predicted
SEED = 1  # of weights that a folder does not have
MOST_NAMED = 3  # tensors that a message names
ACTIVATIONS = {"gelu": "gelu", "relu": "relu", "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh"}


class Source(NamedTuple):
    """The tensors of a folder that a tensor of regard is made of, and how."""

    names: tuple[str, ...]
    make: Callable[[Sequence[Tensor], HuggingFace], Tensor]


def same(*names: str) -> Source:
    """One tensor as it is; several below each other, such as the projections to queries, keys and values."""
    return Source(names, lambda tensors, tokenizer: torch.cat([*tensors]))


def turned(name: str) -> Source:
    """The transpose of a matrix: GPT-2 stores the matrices of its linear layers with the inputs as rows."""
    return Source((name,), lambda tensors, tokenizer: tensors[0].T)


def by_token(name: str, missing: float = 0.0) -> Source:
    """A tensor with a row for each token, in the order of regard's ids; `missing` fills those of missing tokens."""

    def make(tensors: Sequence[Tensor], tokenizer: HuggingFace) -> Tensor:
        rows = torch.tensor([-1 if row is None else _checked(row, name, tensors[0]) for row in tokenizer.rows])
        return tensors[0][rows].where((rows >= 0).view(-1, *[1] * (tensors[0].ndim - 1)), missing)

    return Source((name,), make)


def never_written(name: str) -> Source:
    """The bias of an output layer for a model that has none: it keeps special tokens from being predicted.

    That is so for tokens that the model does not have, and for BEGIN if it is the same token as END. `name` is a tensor
    with a row for each token.
    """

    def make(tensors: Sequence[Tensor], tokenizer: HuggingFace) -> Tensor:
        bias = torch.zeros(len(tokenizer.rows))
        bias[[token for token in range(len(SPECIALS)) if tokenizer.rows[token] is None]] = NEVER
        bias[BEGIN] = NEVER if tokenizer.rows[BEGIN] == tokenizer.rows[END] else bias[BEGIN]
        return bias

    return Source((name,), make)


def places(name: str, *, first: int = 0, kind: str = "") -> Source:
    """A table of positions from row `first` on; the vector of the first kind of text (`kind`) is added to each row.

    BERT adds it to every token. regard has no kinds of texts, so it becomes part of the positions.
    """
    names = (name, kind) if kind else (name,)
    return Source(names, lambda tensors, tokenizer: sum((table[0] for table in tensors[1:]), tensors[0][first:]))


def row_of(name: str, token: str) -> Source:
    """The row of one token in a tensor with a row for each token."""

    def make(tensors: Sequence[Tensor], tokenizer: HuggingFace) -> Tensor:
        row = tokenizer.row(token)
        if row is None:
            raise DataError(f"the tokenizer has no token {token}, which a masked language model needs")
        return tensors[0][_checked(row, name, tensors[0])]

    return Source((name,), make)


def _checked(row: int, name: str, tensor: Tensor) -> int:
    """A row of a tensor; DataError if the tensor has too few."""
    if row >= len(tensor):
        raise DataError(f"{name} has {len(tensor):,} rows, but the tokenizer has the token {row:,}")
    return row


Table = Mapping[str, Source]  # by the name of regard's tensor; {} stands for the number of a layer


def with_bias(regard: str, *names: str) -> dict[str, Source]:
    """The lines of a table for the weight and the bias of a layer, or of several that regard stores as one."""
    return {f"{regard}.{part}": same(*(f"{name}.{part}" for name in names)) for part in ("weight", "bias")}


def turned_with_bias(regard: str, name: str) -> dict[str, Source]:
    """The lines of a table for the weight and the bias of a layer of GPT-2."""
    return {f"{regard}.weight": turned(f"{name}.weight"), f"{regard}.bias": same(f"{name}.bias")}


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


BERT_LAYERS = encoder_layers(
    "encoder.layer.{}",
    ("attention.self.query", "attention.self.key", "attention.self.value", "attention.output.dense"),
    ("attention.output.LayerNorm", "output.LayerNorm"),
    "intermediate.dense",
    "output.dense",
)
EMBEDDED = {
    "encoder.embedding.weight": by_token("embeddings.word_embeddings.weight"),
    **with_bias("encoder.embedding_norm", "embeddings.LayerNorm"),
}
POSITIONS, KINDS = "embeddings.position_embeddings.weight", "embeddings.token_type_embeddings.weight"
BERT: Table = {
    **EMBEDDED,
    "encoder.positions.table.weight": places(POSITIONS, kind=KINDS),
    **BERT_LAYERS,
    "mask": row_of("embeddings.word_embeddings.weight", "[MASK]"),
    **with_bias("inner", "cls.predictions.transform.dense"),
    **with_bias("norm", "cls.predictions.transform.LayerNorm"),
    "bias": by_token("cls.predictions.bias", NEVER),
}
ROBERTA: Table = {
    **EMBEDDED,
    "encoder.positions.table.weight": places(POSITIONS, first=2, kind=KINDS),  # padding has 1, and the first token 2
    **BERT_LAYERS,
    "mask": row_of("embeddings.word_embeddings.weight", "<mask>"),
    **with_bias("inner", "lm_head.dense"),
    **with_bias("norm", "lm_head.layer_norm"),
    "bias": by_token("lm_head.bias", NEVER),
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
    "mask": row_of("embeddings.word_embeddings.weight", "[MASK]"),
    **with_bias("inner", "vocab_transform"),
    **with_bias("norm", "vocab_layer_norm"),
    "bias": by_token("vocab_projector.bias", NEVER),
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
    "decoder.out.weight": by_token("wte.weight"),
    "decoder.out.bias": never_written("wte.weight"),
}


@dataclass(frozen=True)
class Family:
    """A family of models: its task in regard, the model section of its recipe, and its table of tensors."""

    task: str
    model: Callable[[ModelFolder], dict[str, Any]]
    table: Table
    prefix: str  # of the tensors of the base model, if the folder has an output layer besides
    left_out: tuple[str, ...]  # patterns of tensors that regard does not need
    head: tuple[str, ...]  # regard's tensors that a folder without an output layer does not have
    begin: bool  # whether an encoder reads BEGIN before a text


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
        "activation": pick(ACTIVATIONS, activation, f"activation of {folder.path / CONFIG}"),
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
        "activation": pick(ACTIVATIONS, activation, f"activation of {folder.path / CONFIG}"),
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
# A pooler, the sentence pair task of BERT, output matrices that are the embedding, and buffers.
NOT_NEEDED = (r"pooler\..*", r"cls\.seq_relationship\..*", r".*position_ids", r".*token_type_ids")
TIED_OUTPUTS = (r"cls\.predictions\.decoder\..*", r"lm_head\.decoder\..*", r"vocab_projector\.weight")
CAUSAL = (r"h\.\d+\.attn\.(masked_)?bias", r"lm_head\.weight")  # causal masks, and the embedding once more
FAMILIES: dict[str, Family] = {
    "bert": Family("masked_lm", bert_model, BERT, "bert.", (*NOT_NEEDED, *TIED_OUTPUTS), OUTPUT_LAYER, True),
    "roberta": Family("masked_lm", bert_model, ROBERTA, "roberta.", (*NOT_NEEDED, *TIED_OUTPUTS), OUTPUT_LAYER, True),
    "distilbert": Family(
        "masked_lm", distilbert_model, DISTILBERT, "distilbert.", (*NOT_NEEDED, *TIED_OUTPUTS), OUTPUT_LAYER, True
    ),
    "gpt2": Family("language_model", gpt2_model, GPT2, "transformer.", CAUSAL, (), False),
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
    tokenizer = folder.tokenizer(begin=family.begin)
    recipe = _recipe(folder, family, name)
    task = task_class(family.task).restore(recipe, {SOURCE: tokenizer.to_bytes()}.__getitem__)
    with only_shapes():
        shapes = models.weights(task.build())
    stored = _without_prefix(folder.tensors(), family.prefix)
    weights, notes = _convert(folder, family, tokenizer, shapes, stored)
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


def _recipe(folder: ModelFolder, family: Family, name: str) -> Recipe:
    """The recipe of an imported run: task, tokenizer and model; its data are not known."""
    model = family.model(folder)
    values = {"name": name, "task": family.task, "metric": "perplexity", "tokens": {"source": HuggingFace.kind}}
    return recipes.fill(Recipe(), values | {"model": model}, str(folder.path / CONFIG), "")


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
    tokenizer: HuggingFace,
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
        weights[name] = source.make([stored[needed] for needed in source.names], tokenizer).contiguous()
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
