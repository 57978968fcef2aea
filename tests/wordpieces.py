"""Small tokenizers of the package `tokenizers`, for tests: WordPiece of words and characters, byte-level BPE."""

import json
from typing import Any

from regard.data.tokenizers import TOKENIZERS, HuggingFace, Tokenizer

BERT_SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def wordpiece(texts: list[str]) -> dict[str, Any]:
    """The content of a tokenizer.json: the words of the texts, and their characters; special tokens are not first."""
    words = sorted({word for text in texts for word in text.split()})
    characters = sorted(set("".join(words)))
    tokens = list(
        dict.fromkeys(["[PAD]", *characters, *BERT_SPECIALS, *words[::2], *(f"##{letter}" for letter in characters)])
    )
    return {
        "version": "1.0",
        "added_tokens": [
            {"id": tokens.index(token), "content": token, "special": True, "normalized": False}
            | dict.fromkeys(("single_word", "lstrip", "rstrip"), False)
            for token in BERT_SPECIALS
        ],
        "normalizer": None,
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "post_processor": None,
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": False},
        "model": {
            "type": "WordPiece",
            "unk_token": "[UNK]",
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100,
            "vocab": {token: index for index, token in enumerate(tokens)},
        },
    }


def byte_level(merges: list[tuple[str, str]], specials: list[str]) -> dict[str, Any]:
    """The content of a tokenizer.json of byte-level BPE with these merges; special tokens come first."""
    from tokenizers import pre_tokenizers

    tokens = [*specials, *sorted(pre_tokenizers.ByteLevel.alphabet()), *("".join(pair) for pair in merges)]
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0",
        "added_tokens": [
            {"id": index, "content": token, "special": True, "normalized": False}
            | dict.fromkeys(("single_word", "lstrip", "rstrip"), False)
            for index, token in enumerate(specials)
        ],
        "normalizer": None,
        "pre_tokenizer": level,
        "post_processor": None,
        "decoder": level,
        "model": {
            "type": "BPE",
            "vocab": {token: index for index, token in enumerate(tokens)},
            "merges": [list(pair) for pair in merges],
        },
    }


def build(kind: str, texts: list[str], size: int) -> Tokenizer:
    """A tokenizer of any kind: one that cannot be learned is made of the texts' words and characters."""
    if kind == HuggingFace.kind:
        return HuggingFace(json.loads(json.dumps(wordpiece(texts))), BERT_SPECIALS[:4], begin=True)
    return TOKENIZERS[kind].build(texts, size)
