"""Crafted sentencepiece models, which are messages of protocol buffers."""

import itertools
import random
import struct
from collections.abc import Iterator
from typing import Any

PIECES, TRAINER, NORMALIZER, SELF_TEST, DENORMALIZER = 1, 2, 3, 4, 5  # fields of a model
VARINT, FIXED64, LENGTH, FIXED32 = 0, 1, 2, 5  # wire types
Message = list[tuple[int, int, Any]]  # field, wire type and value


def varint(content: bytes, start: int) -> tuple[int, int]:
    """The number that starts there, and the place after it."""
    value = shift = 0
    while True:
        byte = content[start]
        value, shift, start = value | (byte & 127) << shift, shift + 7, start + 1
        if byte < 128:
            return value, start


def to_varint(value: int) -> bytes:
    parts = []
    while value > 127:
        parts.append(value & 127 | 128)
        value >>= 7
    return bytes([*parts, value])


def parse_message(content: bytes) -> Message:
    message: Message = []
    place = 0
    while place < len(content):
        key, place = varint(content, place)
        if key & 7 == VARINT:
            value, place = varint(content, place)
            message.append((key >> 3, VARINT, value))
            continue
        size, place = {FIXED32: (4, place), FIXED64: (8, place)}.get(key & 7) or varint(content, place)
        message.append((key >> 3, key & 7, content[place : place + size]))
        place += size
    return message


def to_bytes(message: Message) -> bytes:
    content = b""
    for field, kind, value in message:
        content += to_varint(field << 3 | kind)
        content += to_varint(value) if kind == VARINT else (to_varint(len(value)) if kind == LENGTH else b"") + value
    return content


def piece(text: bytes, score: float = 0.0, kind: int = 1) -> tuple[int, int, bytes]:
    """A piece of a model; kinds are 1 normal, 2 unknown, 3 control, 4 user-defined, 5 unused, 6 byte."""
    return PIECES, LENGTH, to_bytes([(1, LENGTH, text), (2, FIXED32, struct.pack("<f", score)), (3, VARINT, kind)])


def sentencepieces(content: bytes) -> Iterator[tuple[str, bytes]]:
    """Crafted sentencepiece models, most with the right number of pieces."""
    model = parse_message(content)
    pieces = [field for field in model if field[0] == PIECES]
    rest = [field for field in model if field[0] != PIECES]
    last = len(pieces) - 1
    texts = {
        "empty": b"", "not UTF-8": b"\xff\xfe", "cut UTF-8": b"\xe2\x96", "surrogate": b"\xed\xa0\x80", "NUL": b"\0",
        "space": b" ", "only the sign for a space": "▁".encode(), "long": b"a" * 10**6, "letter": b"a",
        "unknown": b"<unk>", "end": b"</s>", "byte": b"<0x41>", "wrong byte": b"<0xZZ>",
    }  # fmt: skip
    for (title, text), kind in itertools.product(texts.items(), (0, 1, 2, 3, 4, 5, 6, 7, 2**31)):
        yield f"a piece: {title}, kind {kind}", to_bytes([*pieces[:-1], piece(text, kind=kind), *rest])
    for score in (float("nan"), float("inf"), -float("inf"), 3e38, -3e38):
        scored = [piece({key: value for key, _, value in parse_message(old)}[1], score) for *_, old in pieces[4:]]
        yield f"all scores {score}", to_bytes([*pieces[:4], *scored, *rest])
    for index, kind in itertools.product(range(4), (1, 3, 4, 6)):
        special = {key: value for key, _, value in parse_message(pieces[index][2])}[1]
        changed = [*pieces[:index], piece(special, kind=kind), *pieces[index + 1 :]]
        yield f"special piece {index} of kind {kind}", to_bytes([*changed, *rest])
    yield "no piece", to_bytes(rest)
    yield "pieces alone", to_bytes(pieces)
    yield "one less", to_bytes([*pieces[:last], *rest])
    yield "one twice", to_bytes([*pieces[:last], pieces[4], *rest])
    yield "turned", to_bytes([*pieces[:4], *pieces[:3:-1], *rest])
    yield "many pieces", to_bytes([*pieces, *(piece(f"x{index}".encode()) for index in range(20_000)), *rest])
    yield "twice", content + content
    for field in (TRAINER, NORMALIZER, DENORMALIZER, SELF_TEST):
        for title, value in {"empty": b"", "random": random.Random(field).randbytes(60), "long": b"\n" * 10**6}.items():
            others = [old for old in model if old[0] != field]
            yield f"field {field} {title}", to_bytes([*others, (field, LENGTH, value)])
    yield from settings_of(model, TRAINER)
    yield from settings_of(model, NORMALIZER)


def settings_of(model: Message, place: int) -> Iterator[tuple[str, bytes]]:
    """Models with other settings of the trainer (model type, ids, flags) or of the normalizer (table, flags)."""
    (old,) = [parse_message(value) for field, _, value in model if field == place]
    others = [field for field in model if field[0] != place]
    numbers = (0, 1, 2, 3, 4, 2**31 - 1, 2**31, 2**64 - 1)
    fields = (3, 4, 24, 25, 35, 40, 41, 42, 43, 44, 48, 49) if place == TRAINER else (3, 4, 5)
    changes: list[tuple[int, int, Any]] = [(field, VARINT, value) for field in fields for value in numbers]
    generator = random.Random(place)
    tables = (
        b"",
        b"\0" * 8,
        b"\4\0\0\0\0\0\0\0",
        b"\xff" * 64,
        struct.pack("<I", 1024) + generator.randbytes(1024 + 64),
    )
    tables += tuple(struct.pack("<I", 256) + generator.randbytes(256) + b"a\0b\0" for _ in range(12))
    if place == NORMALIZER:
        changes += [(2, LENGTH, table) for table in tables]
    else:
        changes += [(field, LENGTH, text) for field in (44, 45, 46, 47, 48) for text in (b"", b"\xff", b"x" * 10**5)]
    for field, kind, value in changes:
        message = [*(setting for setting in old if setting[0] != field), (field, kind, value)]
        yield f"field {place}.{field} = {value!r:.20}", to_bytes([*others, (place, LENGTH, to_bytes(message))])
