"""Export to CTranslate2, a fast engine for Transformers: float32, or with int8 weights."""

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from regard.errors import MissingExtraError
from regard.interop import transformer
from regard.interop.transformer import Affine, Heads, Layer, Stack
from regard.predict import Predictor
from regard.recipe import Recipe
from regard.tasks import Transduce
from regard.types import BEGIN, END, PAD, SPECIALS, UNKNOWN

NAME = "CTranslate2"
FITTING = tuple((norm, positions) for norm in ("pre", "post") for positions in ("sinusoidal", "learned"))
TYPES = ("float32", "int8")


def check(recipe: Recipe) -> None:
    """Raise RecipeError if CTranslate2 cannot express the model of a recipe."""
    transformer.check(recipe, NAME, FITTING)


def files(predictor: Predictor, precision: str = "float32") -> dict[str, bytes]:
    """The files of a CTranslate2 model."""
    try:
        from ctranslate2 import specs
    except ImportError:
        raise MissingExtraError("ctranslate2", "export", "an export to CTranslate2") from None
    task, model = transformer.parts(predictor)
    settings, weights = predictor.task.recipe.model, transformer.weights(model)
    names = {"relu": "RELU", "gelu": "GELU", "gelu_tanh": "GELUTanh", "swish": "SWISH"}
    activation = getattr(specs.Activation, names[settings.activation])
    sizes = {"pre_norm": settings.norm == "pre", "activation": activation}
    heads = [settings.encoder.self_attention.of(settings.attention).heads]
    heads.append(settings.decoder.self_attention.of(settings.attention).heads)
    spec = specs.TransformerSpec(
        specs.TransformerEncoderSpec(settings.encoder.layers, heads[0], **sizes),
        specs.TransformerDecoderSpec(settings.decoder.layers, heads[1], **sizes),
    )
    _set_stack(spec.encoder, spec.encoder.embeddings[0], weights.encoder, scaled=settings.embedding_scaled)
    _set_stack(spec.decoder, spec.decoder.embeddings, weights.decoder, scaled=settings.embedding_scaled)
    _set(spec.decoder.projection, weights.out)
    spec.config.bos_token, spec.config.eos_token, spec.config.unk_token = (
        SPECIALS[special] for special in (BEGIN, END, UNKNOWN)
    )
    spec.config.decoder_start_token = SPECIALS[BEGIN]
    assert task.source is not None
    framed = task.source.framed([UNKNOWN])
    spec.config.add_source_bos, spec.config.add_source_eos = framed[0] == BEGIN, framed[-1] == END
    for register, tokenizer in (
        (spec.register_source_vocabulary, task.source),
        (spec.register_target_vocabulary, task.target),
    ):
        register([tokenizer.piece(token) for token in range(tokenizer.size)])
    spec.validate()
    spec.optimize(quantization=None if precision == "float32" else precision)
    with tempfile.TemporaryDirectory() as folder:  # its own writer wants a folder
        spec.save(folder)
        return {path.name: path.read_bytes() for path in sorted(Path(folder).iterdir())}


def _set_stack(spec: Any, embeddings: Any, stack: Stack, *, scaled: bool) -> None:
    """Set the weights of an encoder or a decoder; `scaled` if its embeddings are."""
    embeddings.weight = stack.embedding.numpy()
    spec.scale_embeddings = scaled
    spec.position_encodings.encodings = stack.positions.numpy()
    if stack.norm is not None:
        spec.layer_norm.gamma, spec.layer_norm.beta = stack.norm.weight.numpy(), stack.norm.bias.numpy()
    for own, layer in zip(spec.layer, stack.layers, strict=True):
        _set_layer(own, layer)


def _set_layer(spec: Any, layer: Layer) -> None:
    _set_heads(spec.self_attention, layer.attention, ("query", "key", "value"))
    if layer.cross is not None:
        _set_heads(spec.attention, layer.cross, ("query",), ("key", "value"))
    _set(spec.ffn.linear_0, layer.inner)
    _set(spec.ffn.linear_1, layer.outer)
    _set_norm(spec.ffn.layer_norm, layer.norm)


def _set_heads(spec: Any, heads: Heads, *groups: Sequence[str]) -> None:
    """Set an attention; the matrices of a group are joined in one."""
    for linear, group in zip(spec.linear, groups, strict=False):
        own = [getattr(heads, name) for name in group]
        linear.weight = np.concatenate([part.weight.numpy() for part in own])
        linear.bias = np.concatenate([part.bias.numpy() for part in own])
    _set(spec.linear[-1], heads.out)
    _set_norm(spec.layer_norm, heads.norm)


def _set(linear: Any, affine: Affine) -> None:
    linear.weight, linear.bias = affine.weight.numpy(), affine.bias.numpy()


def _set_norm(norm: Any, affine: Affine) -> None:
    norm.gamma, norm.beta = affine.weight.numpy(), affine.bias.numpy()


class Translator:
    """A folder of files, loaded by CTranslate2, that translates encoded sources."""

    def __init__(self, folder: Path, task: Transduce, threads: int = 1, precision: str = "default") -> None:
        import ctranslate2

        self.task = task
        self.engine = ctranslate2.Translator(
            str(folder), device="cpu", intra_threads=threads, inter_threads=1, compute_type=precision
        )
        self.ids = {task.target.piece(token): token for token in range(task.target.size)}

    def translate(self, sources: Sequence[Sequence[int]], beam: int, limits: Sequence[int]) -> list[list[int]]:
        """The tokens of the best hypothesis of each source, without a length penalty."""
        assert self.task.source is not None
        pieces = [[self.task.source.piece(token) for token in source] for source in sources]
        results = self.engine.translate_batch(
            pieces,
            beam_size=beam,
            length_penalty=0,
            max_decoding_length=max(limits),
            min_decoding_length=0,
            max_input_length=0,
            suppress_sequences=[[SPECIALS[PAD]], [SPECIALS[BEGIN]]],
        )
        return [[self.ids[piece] for piece in result.hypotheses[0]] for result in results]
