"""The folder of a Hugging Face model: its configuration, weights and tokenizer, read without running any of its code.

A folder may come from anybody: sizes are bounded, and weights are read from safetensors alone.
"""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as parse_tensors
from torch import Tensor

from regard import device as devices
from regard.data.tokenizers import HuggingFace
from regard.errors import CorruptError, DataError, shown
from regard.storage import files
from regard.storage.runs import parse_json
from regard.types import BEGIN

CONFIG, WEIGHTS, TOKENIZER = "config.json", "model.safetensors", "tokenizer.json"
INDEX = "model.safetensors.index.json"  # of weights in several files
PICKLED = "pytorch_model.bin"
NAMED = ("tokenizer_config.json", "special_tokens_map.json")  # where special tokens are named; the last one wins
# The names of special tokens for PAD, UNKNOWN, BEGIN and END, in the order in which they are looked for.
ROLES = (("pad_token",), ("unk_token",), ("cls_token", "bos_token"), ("sep_token", "eos_token"))
LARGEST_CONFIG = 1 << 20  # bytes


@dataclass(frozen=True)
class ModelFolder:
    """A folder with config.json, safetensors and tokenizer.json."""

    path: Path

    @cached_property
    def config(self) -> dict[str, Any]:
        """The configuration of the model."""
        content = self.read(CONFIG, LARGEST_CONFIG)
        if content is None:
            there = self.path.is_dir()
            why = f"no {CONFIG}; --from names another toolkit" if there else "there is no such folder"
            raise DataError(f"{self.path} is no folder of a Hugging Face model: {why}")
        return parse_json(content, dict, self.path / CONFIG)

    def setting(self, name: str, kind: type[Any], default: Any = None) -> Any:
        """A value of the configuration, of that type; `default` if it is not there, unless that is None."""
        value = self.config.get(name)
        value = default if value is None else value
        if type(value) is int and kind is float:
            value = float(value)
        if type(value) is not kind:
            raise DataError(f"{self.path / CONFIG}: {name} is {shown(value)}, and should be of type {kind.__name__}")
        return value

    def is_tied(self) -> bool:
        """Whether the embedding matrix is also the output matrix; configurations that do not say so are tied."""
        return self.config.get("tie_word_embeddings") is not False

    def read(self, name: str, most: int = files.LARGEST_FILE) -> bytes | None:
        """The content of a file of at most `most` bytes; None if it is not there. Links are followed."""
        try:
            return files.read((self.path / name).resolve(), most)
        except (FileNotFoundError, NotADirectoryError):
            return None

    def tensors(self) -> dict[str, Tensor]:
        """All tensors of the model, in float32."""
        most = devices.memory(torch.device("cpu"))
        names = [WEIGHTS]
        if (self.path / INDEX).is_file():
            listed = parse_json(self.read(INDEX) or b"", dict, self.path / INDEX).get("weight_map")
            if not isinstance(listed, dict) or not all(isinstance(name, str) for name in listed.values()):
                raise CorruptError(f"{self.path / INDEX} is damaged: it lists no files")
            names = sorted(set(listed.values()))
            if any(Path(name).name != name for name in names):
                raise CorruptError(f"{self.path / INDEX} names files outside of its folder")
        tensors: dict[str, Tensor] = {}
        for name in names:
            content = self.read(name, most)
            if content is None:
                how = f"; {PICKLED} is a pickle, which regard does not read: convert it to safetensors first"
                pickled = (self.path / PICKLED).is_file()
                raise DataError(f"{self.path} has no {name}{how if pickled else ''}")
            try:
                tensors |= parse_tensors(content)
            except (SafetensorError, ArithmeticError, LookupError, RuntimeError, TypeError, ValueError) as error:
                raise CorruptError(f"{self.path / name} holds no tensors: {shown(str(error))}") from error
        return {name: tensor.float() if tensor.is_floating_point() else tensor for name, tensor in tensors.items()}

    def tokenizer(self, *, begin: bool, start: int | None = None, prefix: int | None = None) -> HuggingFace:
        """The tokenizer; with `begin`, an encoder reads BEGIN before a text.

        For texts that a decoder writes, `start` is the row of BEGIN, and `prefix` that of a token that comes first.
        """
        content = self.read(TOKENIZER)
        if content is None:
            raise DataError(
                f"{self.path} has no {TOKENIZER}; make it with the package transformers: "
                "AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)"
            )
        named: dict[str, str] = {}
        for name in NAMED:
            stored = self.read(name, files.LARGEST_FILE)
            for role, token in parse_json(stored, dict, self.path / name).items() if stored is not None else ():
                text = token.get("content") if isinstance(token, dict) else token
                if isinstance(text, str):
                    named[role] = text
        specials = [next((named[role] for role in choices if role in named), None) for choices in ROLES]
        parsed = parse_json(content, dict, self.path / TOKENIZER)
        if start is not None:
            specials[BEGIN] = self._added(parsed, start)
        return HuggingFace(
            parsed, specials, begin=begin, prefix=None if prefix is None else self._added(parsed, prefix)
        )

    def _added(self, tokenizer: dict[str, Any], row: int) -> str:
        """The special token of that row, by the content of a tokenizer.json."""
        for added in tokenizer.get("added_tokens") or []:
            if isinstance(added, dict) and added.get("id") == row and isinstance(added.get("content"), str):
                return str(added["content"])
        raise DataError(f"{self.path / TOKENIZER} has no special token {row}, which {CONFIG} names")
