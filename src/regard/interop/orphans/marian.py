"""Marian: Transformers, whose npz files have their settings as YAML among the weights."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regard.errors import DataError, shown
from regard.interop.orphans import restricted, runs
from regard.interop.orphans.options import Options, parse_yaml, read_yaml
from regard.interop.orphans.runs import Affine, LayerNames, Tensors, Vocabulary, projections
from regard.storage import Run

TOOLKIT = "Marian"
SETTINGS = "special:model.yml"  # the array that has the settings
DECODER = "decoder.yml"  # the end of the name of the file that names model and vocabularies
OUT = "decoder_ff_logit_out"
PROJECTIONS = ("_Wq", "_Wk", "_Wv", "_Wo")
UNKNOWN, END = "<unk>", "</s>"  # there are no others: the decoder begins with a vector of zeros
LONGEST = 1024  # positions of a sinusoidal table
NORM_EPS = 1e-9
ACTIVATIONS = ("swish", "relu", "gelu")  # the first is the default
GELU = 1.702  # Marian's gelu is x sigmoid(GELU x), not the exact one
NORMS = {  # regard's, by the steps before and after a sub-layer: d dropout, a add, n norm
    ("", "dan"): "post",
    ("", "an"): "post",
    ("d", "dan"): "post",
    ("n", "da"): "pre",
    ("n", "a"): "pre",
    ("nd", "da"): "pre",
}
# What a model must have; the first value is the default. Marian's options are texts, and lists of them.
ALLOWED: dict[str, tuple[object, ...]] = {
    "transformer-decoder-autoreg": ("self-attention",),
    "transformer-ffn-depth": ("2",),
    "transformer-decoder-dim-ffn": ("0",),
    "transformer-decoder-ffn-depth": ("0", "2"),
    "transformer-no-projection": ("false",),
    "transformer-no-affine": ("false",),
    "transformer-postprocess-emb": ("d", ""),
    "transformer-tied-layers": ([],),
    "transformer-rnn-projection": ("false",),
    "lemma-dim-emb": ("0",),
    "factors-combine": ("sum",),
    "ulr": ("false",),
    "output-omit-bias": ("false",),
}


def _names(side: str, number: int) -> LayerNames:
    """The names of the parts of a layer, which is counted from 1."""
    start = f"{side}_l{number}"
    norms, cross = (f"{start}_self_Wo_ln", f"{start}_ffn_ffn_ln"), f"{start}_context"
    names = LayerNames(
        projections(f"{start}_self", *PROJECTIONS), norms[0], f"{start}_ffn_W1", f"{start}_ffn_W2", norms[1]
    )
    if side == "decoder":
        names = names._replace(cross=projections(cross, *PROJECTIONS), around_cross=f"{cross}_Wo_ln")
    return names


def load(path: Path, name: str, parent: Path) -> Run:
    """The run of a Marian model: a folder with *.decoder.yml, or decoder.yml, which names npz file and vocabularies."""
    folder, files = _files(path)
    arrays = restricted.load_npz(files[0])
    state = Tensors(files[0], {key: array for key, array in arrays.items() if not key.startswith("special:")})
    if SETTINGS not in arrays:
        raise DataError(f"{files[0]} is no model of {TOOLKIT}: it has no {SETTINGS}")
    content = bytes(arrays[SETTINGS].to(torch.uint8).tolist()).rstrip(b"\0").decode("utf-8", "replace")
    options = Options(files[0], TOOLKIT, parse_yaml(content, files[0], TOOLKIT, texts=True))
    settings, tensors = _transformer(options, state)
    source, target = (_vocabulary(folder / file.name) for file in files[1:])
    own = {side: "Wemb" if "Wemb" in state else f"{side}_Wemb" for side in ("encoder", "decoder")}
    embedding, out = state[own["decoder"]], state.first(f"{OUT}_W")
    tensors["encoder.embedding.weight"] = source.rows(state[own["encoder"]])
    tensors["decoder.embedding.weight"] = target.rows(embedding)
    tensors["decoder.out.weight"] = target.rows(embedding if out is None else out.T)
    tensors["decoder.out.bias"] = target.bias(state[f"{OUT}_b"].flatten())
    state.check_read()
    return runs.make(parent, name, settings, (source, target), tensors)


def _files(path: Path) -> tuple[Path, tuple[Path, Path, Path]]:
    """The folder of a model, and the names of its npz file and of both vocabularies."""
    folder = path if path.is_dir() else path.parent
    known = [path] if path.suffix == ".yml" else sorted(folder.glob(f"*{DECODER}"))
    if path.suffix == ".npz":
        known = [file for file in known if file.name in (f"{path.name}.{DECODER}", DECODER)]
    if len(known) != 1:
        raise DataError(f"{path} has {len(known)} files *{DECODER} of {TOOLKIT}; name the right one")
    options = Options(known[0], TOOLKIT, read_yaml(known[0], TOOLKIT, texts=True))
    models, vocabularies = (options.texts(key) for key in ("models", "vocabs"))
    if len(models) != 1 or len(vocabularies) != 2:
        raise DataError(f"{known[0]}: regard reads one model with two vocabularies")
    model = path if path.suffix == ".npz" else folder / Path(models[0]).name
    return folder, (model, Path(vocabularies[0]), Path(vocabularies[1]))


def _vocabulary(path: Path) -> Vocabulary:
    """The words of a vocabulary: a YAML file of words and numbers, or a model of sentencepiece, of which the pieces."""
    if path.suffix == ".spm":
        from sentencepiece import SentencePieceProcessor

        try:
            processor = SentencePieceProcessor(model_file=str(path))
            words = [processor.id_to_piece(number) for number in range(processor.get_piece_size())]
        except (OSError, RuntimeError, ValueError) as error:
            raise DataError(f"{path} cannot be read: {shown(str(error))}") from error
        return Vocabulary(path, words, (None, UNKNOWN, None, END))
    numbers = read_yaml(path, TOOLKIT, texts=True)
    if not isinstance(numbers, Mapping) or not all(
        isinstance(word, str) and isinstance(number, str) for word, number in numbers.items()
    ):
        raise DataError(f"{path} is no vocabulary of {TOOLKIT}: it has not a word and a number in each line")
    words = sorted(numbers, key=lambda word: int(numbers[word]) if numbers[word].isdecimal() else -1)
    if [numbers[word] for word in words] != [str(number) for number in range(len(words))]:
        raise DataError(f"{path} is no vocabulary of {TOOLKIT}: its numbers are not 0, 1, 2, ...")
    return Vocabulary(path, words, (None, UNKNOWN, None, END))


def _transformer(options: Options, state: Tensors) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The settings and the tensors of the layers of a Transformer."""
    options.only("type", "transformer")
    for key, allowed in ALLOWED.items():
        options.only(key, *allowed)
    steps = tuple(
        options.get(f"transformer-{key}process", str, default) for key, default in (("pre", ""), ("post", "dan"))
    )
    if steps not in NORMS:
        known = ", ".join(f"{before!r} with {after!r}" for before, after in NORMS)
        raise DataError(f"{options.path}: regard has no counterpart of {TOOLKIT}'s steps {steps}, only of {known}")
    norm = NORMS[steps]
    options.only("transformer-postprocess-top", *(("n",) if norm == "pre" else ("",)))
    options.only("transformer-ffn-activation", *ACTIVATIONS)
    activation = options.get("transformer-ffn-activation", str, ACTIVATIONS[0])
    dim = _number(options, "dim-emb")

    def linear(name: str) -> Affine:
        start, _, part = name.rpartition("_W")
        return Affine(state[name].T, state[f"{start}_b{part}"].flatten())

    def normal(name: str, end: str = "_pre" if norm == "pre" else "") -> Affine:
        return Affine(state[f"{name}_scale{end}"].flatten(), state[f"{name}_bias{end}"].flatten())

    learned = options.get("transformer-train-positions", str, "false") == "true"
    embedding = "Wemb" if "Wemb" in state else "decoder_Wemb"
    table = state["Wpos"] if learned else runs.sinusoids(state.width(embedding), LONGEST)
    tensors: dict[str, Tensor] = {}
    sizes: dict[str, dict[str, Any]] = {}
    for side in ("encoder", "decoder"):
        layers = _number(options, f"{side[:3]}-depth")
        sizes[side] = {"dim": dim, "inner_dim": _number(options, "transformer-dim-ffn"), "layers": layers}
        for number in range(layers):
            name = f"{side}.stack.{number}"
            tensors |= runs.layer(name, _names(side, number + 1), linear, normal)
            if activation == "gelu":
                tensors |= _gelu_by_swish(name, tensors)
        if norm == "pre":
            tensors |= normal(f"{side}_top_ln", "").named(f"{side}.top.norm")
        tensors[f"{side}.positions.table.weight"] = table
    settings = runs.sides(sizes["encoder"], sizes["decoder"]) | {
        "model.norm": norm,
        "model.norm_eps": NORM_EPS,
        "model.activation": "swish" if activation == "gelu" else activation,
        "model.positions": "learned",
        "model.longest": len(table),
        "model.embedding_scaled": not learned,
        "model.attention.heads": _number(options, "transformer-heads"),
    }
    return settings, tensors


def _gelu_by_swish(layer: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The feed-forward matrices with which `swish` computes Marian's gelu:  x sigmoid(c x) = swish(c x) / c."""
    inner, bias, out = (f"{layer}.feed.{name}" for name in ("inner.weight", "inner.bias", "out.weight"))
    return {inner: tensors[inner] * GELU, bias: tensors[bias] * GELU, out: tensors[out] / GELU}


def _number(options: Options, key: str) -> int:
    """A whole number, which Marian's settings have as a text."""
    text = options.get(key, str)
    if not text.isdecimal():
        raise DataError(f"{options.path}: {TOOLKIT}'s setting {key} is no whole number")
    return int(text)
