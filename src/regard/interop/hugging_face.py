"""Export to Hugging Face: a folder that `transformers` loads, with the class whose equations are the model's own.

Pre-norm with sinusoidal positions is Pegasus, pre-norm with learned positions Blenderbot, post-norm with sinusoidal
positions Marian. Pegasus and Marian have all sines before all cosines. So the dimensions of the residual stream are put
in that order, in every matrix: no result changes but by rounding.
"""

import contextlib
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor

from regard.data.tokenizers import Character, SentencePiece, Tokenizer
from regard.errors import MissingExtraError
from regard.interop import transformer
from regard.interop.transformer import Affine, Heads, Layer
from regard.predict import Predictor
from regard.recipe import Decoder, Encoder, Recipe
from regard.tasks import Transduce
from regard.types import BEGIN, END, PAD, SPECIALS, UNKNOWN

NAME = "Hugging Face"
# (norm, positions) -> (model type, class)
CLASSES = {
    ("pre", "sinusoidal"): ("pegasus", "PegasusForConditionalGeneration"),
    ("pre", "learned"): ("blenderbot", "BlenderbotForConditionalGeneration"),
    ("post", "sinusoidal"): ("marian", "MarianMTModel"),
}
NEVER = -1e9  # the bias of rows that only fill the output matrix up to the size of a larger source vocabulary
TARGET_TOKENIZER = "target_tokenizer.json"
# White space as Python's str.split has it, for a class of a regular expression.
SPACES = "".join(f"\\x{{{number:x}}}" for number in range(0x3001) if chr(number).isspace())


def check(recipe: Recipe) -> None:
    """Raise RecipeError if no class of transformers expresses the model of a recipe."""
    transformer.check(recipe, NAME, tuple(CLASSES))


def files(predictor: Predictor, precision: str = "float32") -> dict[str, bytes]:
    """The files of a folder that `transformers` loads."""
    task, model = transformer.parts(predictor)
    assert task.source is not None
    sizes = task.source.size, task.target.size
    tensors = dict(_tensors(transformer.weights(model), max(sizes), predictor.task.recipe))
    return {
        "config.json": _json(_config(predictor.task.recipe, max(sizes))),
        "generation_config.json": _json(_generation(task)),
        "model.safetensors": save(tensors, metadata={"format": "pt"}),
        **_tokenizers(task),
    }


def _json(content: object) -> bytes:
    return json.dumps(content, indent=1, ensure_ascii=False).encode() + b"\n"


def _config(recipe: Recipe, size: int) -> dict[str, Any]:
    """The content of config.json."""
    model = recipe.model
    kind, name = CLASSES[model.norm, model.positions]
    sides: dict[str, Encoder | Decoder] = {"encoder": model.encoder, "decoder": model.decoder}
    layers = {f"{side}_layers": settings.layers for side, settings in sides.items()}
    widths = {f"{side}_ffn_dim": settings.inner_dim or 4 * settings.dim for side, settings in sides.items()}
    heads = {
        f"{side}_attention_heads": settings.self_attention.of(model.attention).heads for side, settings in sides.items()
    }
    own = {"share_encoder_decoder_embeddings": False, "decoder_vocab_size": size} if kind == "marian" else {}
    return {
        "architectures": [name],
        "model_type": kind,
        "d_model": model.encoder.dim,
        **layers,
        **widths,
        **heads,
        "activation_function": {"gelu_tanh": "gelu_pytorch_tanh"}.get(model.activation, model.activation),
        "dropout": model.encoder.dropout,
        "attention_dropout": model.attention.dropout,
        "activation_dropout": model.encoder.inner_dropout,
        "max_position_embeddings": model.longest,
        "scale_embedding": model.embedding_scaled,
        "tie_word_embeddings": False,
        "vocab_size": size,
        "is_encoder_decoder": True,
        **_special_ids(),
        "forced_eos_token_id": None,
        "dtype": "float32",
        **own,
    }


def _special_ids() -> dict[str, int]:
    return {"pad_token_id": PAD, "bos_token_id": BEGIN, "eos_token_id": END, "decoder_start_token_id": BEGIN}


def _generation(task: Transduce) -> dict[str, Any]:
    """The content of generation_config.json; the length penalty of transformers is another formula (docs/export.md)."""
    search, model = task.recipe.search, task.recipe.model
    return {
        **_special_ids(),
        "num_beams": search.beam,
        "length_penalty": search.length_penalty,
        "no_repeat_ngram_size": search.no_repeat,
        "max_length": model.longest,
        "suppress_tokens": [PAD, BEGIN],
        "early_stopping": False,
        "do_sample": False,
    }


# ---- weights


def _tensors(weights: transformer.Weights, size: int, recipe: Recipe) -> Iterator[tuple[str, Tensor]]:
    """The tensors of a model by the names of transformers."""
    model = recipe.model
    dim, learned = model.encoder.dim, model.positions == "learned"
    order = torch.arange(dim) if learned else torch.cat([torch.arange(0, dim, 2), torch.arange(1, dim, 2)])
    for side, stack in (("encoder", weights.encoder), ("decoder", weights.decoder)):
        yield f"model.{side}.embed_tokens.weight", _filled(stack.embedding[:, order], size)
        yield f"model.{side}.embed_positions.weight", stack.positions[:, order].contiguous()
        for number, layer in enumerate(stack.layers):
            yield from _layer_tensors(f"model.{side}.layers.{number}", layer, order)
        if stack.norm is not None:
            yield from _norm(f"model.{side}.layer_norm", stack.norm, order)
    if model.norm == "pre":
        yield "model.shared.weight", _filled(weights.encoder.embedding[:, order], size)  # not used, but expected
    yield "lm_head.weight", _filled(weights.out.weight[:, order], size)
    yield "final_logits_bias", _filled(weights.out.bias.unsqueeze(1), size, NEVER).squeeze(1).unsqueeze(0)


def _layer_tensors(name: str, layer: Layer, order: Tensor) -> Iterator[tuple[str, Tensor]]:
    yield from _heads(f"{name}.self_attn", layer.attention, order)
    if layer.cross is not None:
        yield from _heads(f"{name}.encoder_attn", layer.cross, order)
    yield f"{name}.fc1.weight", layer.inner.weight[:, order].contiguous()
    yield f"{name}.fc1.bias", layer.inner.bias
    yield f"{name}.fc2.weight", layer.outer.weight[order].contiguous()
    yield f"{name}.fc2.bias", layer.outer.bias[order].contiguous()
    yield from _norm(f"{name}.final_layer_norm", layer.norm, order)


def _heads(name: str, heads: Heads, order: Tensor) -> Iterator[tuple[str, Tensor]]:
    for short, part in (("q", heads.query), ("k", heads.key), ("v", heads.value)):
        yield f"{name}.{short}_proj.weight", part.weight[:, order].contiguous()
        yield f"{name}.{short}_proj.bias", part.bias
    yield f"{name}.out_proj.weight", heads.out.weight[order].contiguous()
    yield f"{name}.out_proj.bias", heads.out.bias[order].contiguous()
    yield from _norm(f"{name}_layer_norm", heads.norm, order)


def _norm(name: str, norm: Affine, order: Tensor) -> Iterator[tuple[str, Tensor]]:
    yield f"{name}.weight", norm.weight[order].contiguous()
    yield f"{name}.bias", norm.bias[order].contiguous()


def _filled(rows: Tensor, size: int, value: float = 0.0) -> Tensor:
    """A table with more rows, so that source and target vocabularies have one size."""
    more = rows.new_full((size - len(rows), *rows.shape[1:]), value)
    return torch.cat([rows, more]).contiguous()


# ---- tokenizers


def _tokenizers(task: Transduce) -> dict[str, bytes]:
    """The files of the tokenizer that `AutoTokenizer` loads: of the source, and for MarianTokenizer of the target."""
    source, target = task.source, task.target
    assert source is not None
    names: dict[str, Any] = {
        f"{name}_token": SPECIALS[number] for name, number in (("pad", PAD), ("unk", UNKNOWN), ("eos", END))
    }
    names["split_special_tokens"] = True  # "</s>" in a text is a text
    shared = source.to_bytes() == target.to_bytes()
    if isinstance(source, SentencePiece) and isinstance(target, SentencePiece):
        settings: dict[str, Any] = {
            "tokenizer_class": "MarianTokenizer",
            "separate_vocabs": not shared,
            "source_lang": "source",
        }
        settings |= {"target_lang": "target"}
        vocabularies = {"vocab.json": _vocabulary(source)}
        if not shared:
            vocabularies["target_vocab.json"] = _vocabulary(target)
        pieces = {"source.spm": source.to_bytes(), "target.spm": target.to_bytes()}
        return {"tokenizer_config.json": _json(settings | names), **vocabularies, **pieces}
    settings = {"tokenizer_class": "PreTrainedTokenizerFast"} | names
    written = {"tokenizer_config.json": _json(settings), "tokenizer.json": _fast(source)}
    return written if shared else written | {TARGET_TOKENIZER: _fast(target)}


def _vocabulary(tokenizer: Tokenizer) -> bytes:
    return _json({tokenizer.piece(token): token for token in range(tokenizer.size)})


def _fast(tokenizer: Tokenizer) -> bytes:
    """A tokenizer as the package `tokenizers` stores it; it adds BEGIN and END as the tokenizer does."""
    try:
        from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, processors
        from tokenizers import Tokenizer as Fast
    except ImportError:
        raise MissingExtraError("tokenizers", "hf", "an export to Hugging Face") from None
    ids = {tokenizer.piece(token): token for token in range(tokenizer.size)}
    fast = Fast(models.WordLevel(ids, unk_token=SPECIALS[UNKNOWN]))
    if isinstance(tokenizer, Character):
        fast.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
        fast.decoder = decoders.Fuse()
    else:
        special = "|".join(map(re.escape, SPECIALS))
        alone = Regex(f"(?<![^{SPACES}])(?:{special})(?![^{SPACES}])")
        fast.normalizer = normalizers.Replace(alone, SPECIALS[UNKNOWN])  # the vocabulary has them, but not as words
        fast.pre_tokenizer = pre_tokenizers.Split(Regex(f"[{SPACES}]+"), "removed")
    framed = tokenizer.framed([UNKNOWN])
    added = {SPECIALS[token]: token for token in (framed[0], framed[-1]) if token != UNKNOWN}
    template = " ".join("$A" if token == UNKNOWN else SPECIALS[token] for token in framed)
    fast.post_processor = processors.TemplateProcessing(single=template, special_tokens=[*added.items()])
    return str(fast.to_str(pretty=False)).encode()


class Translator:
    """A folder of files, loaded by `transformers`, that translates encoded sources."""

    def __init__(self, folder: Path, task: Transduce) -> None:
        try:
            from transformers import AutoModelForSeq2SeqLM, AutoTokenizer
        except ImportError:
            raise MissingExtraError("transformers", "hf", "the parity check of an export to Hugging Face") from None
        self.task = task
        with _quiet():
            self.model = AutoModelForSeq2SeqLM.from_pretrained(folder, local_files_only=True).eval()
            self.tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)

    def encoded_otherwise(self, texts: Sequence[str]) -> list[str]:
        """The texts that the written tokenizer does not encode as an encoder of the run reads them."""
        source = self.task.source
        assert source is not None
        with _quiet():
            return [text for text in texts if self.tokenizer(text)["input_ids"] != source.framed(source.encode(text))]

    def translate(self, sources: Sequence[Sequence[int]], beam: int, limits: Sequence[int]) -> list[list[int]]:
        """The tokens of the best hypothesis of each source, without a length penalty."""
        batch = self.task.inputs.collate([list(source) for source in sources])
        with torch.inference_mode(), _quiet():
            written = self.model.generate(
                input_ids=batch.ids,
                attention_mask=batch.mask.long(),
                num_beams=beam,
                length_penalty=0.0,
                no_repeat_ngram_size=0,
                max_new_tokens=max(limits),
                max_length=None,
            )
        return [_until_end(row[1:].tolist()) for row in written]


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """In the block, transformers writes errors only, and draws no progress bars."""
    from transformers.utils import logging as messages

    logging: Any = messages  # some of its functions have no types
    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


def _until_end(tokens: list[int]) -> list[int]:
    return tokens[: tokens.index(END)] if END in tokens else tokens
