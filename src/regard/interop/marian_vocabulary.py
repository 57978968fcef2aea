"""The vocabularies of Marian models: source.spm, target.spm and vocab.json become sentencepiece models of regard.

Marian numbers pieces by vocab.json, which may hold pieces of both languages. A run's target has all of them: those that
target.spm does not know are unused pieces, which the model may write, but no text is encoded in them.
"""

from collections.abc import Mapping
from typing import Any, cast

from regard.data.tokenizers import SentencePiece
from regard.errors import CorruptError, DataError, MissingExtraError, shown
from regard.interop.hugging_face_folder import CONFIG, ModelFolder
from regard.interop.hugging_face_weights import Vocabulary
from regard.sources.text import SOURCE, TARGET
from regard.storage.runs import parse_json
from regard.types import PAD, SPECIALS, UNKNOWN

VOCABULARY, TARGET_VOCABULARY = "vocab.json", "target_vocab.json"


def marian_vocabularies(folder: ModelFolder) -> dict[str, Vocabulary]:
    """The vocabularies of a Marian folder, by the files of a run."""
    rows = _rows(folder, VOCABULARY)
    assert rows is not None
    target_rows = _rows(folder, TARGET_VOCABULARY) or rows
    source = _vocabulary(folder, "source.spm", rows, all_rows=False)
    return {SOURCE: source, TARGET: _vocabulary(folder, "target.spm", target_rows, all_rows=True)}


def _rows(folder: ModelFolder, name: str) -> dict[str, int] | None:
    """The row of each piece; None if there is no separate file for targets."""
    content = folder.read(name)
    if content is None:
        if name == VOCABULARY:
            raise DataError(f"{folder.path} has no {VOCABULARY}, which a Marian model needs")
        return None
    rows = parse_json(content, dict, folder.path / name)
    if codes := [text for text in rows if text.startswith(">>") and text.endswith("<<")]:
        what = f"{folder.path / name} has the language code {shown(codes[0])}"
        raise DataError(f"{what}: regard imports Marian models of one pair of languages")
    if not all(type(row) is int and row >= 0 for row in rows.values()):
        raise CorruptError(f"{folder.path / name} is damaged: a row is not a number")
    return rows


def _vocabulary(folder: ModelFolder, name: str, rows: Mapping[str, int], *, all_rows: bool) -> Vocabulary:
    """The vocabulary of a .spm file; with `all_rows`, it has every piece of `rows`."""
    try:
        import sentencepiece.sentencepiece_model_pb2 as protobuf
    except ImportError as missing:  # sentencepiece needs protobuf only for this
        raise MissingExtraError("protobuf", "hf", "the vocabulary of a Marian model") from missing
    content, messages = folder.read(name), cast(Any, protobuf)  # it has no types
    if content is None:
        raise DataError(f"{folder.path} has no {name}, which a Marian model needs")
    model = messages.ModelProto()
    try:
        model.ParseFromString(content)
    except Exception as error:  # protobuf's own class differs between its versions
        raise CorruptError(f"{folder.path / name} is no sentencepiece model: {shown(str(error))}") from error
    kinds = messages.ModelProto.SentencePiece
    known = [piece for piece in model.pieces if kinds.Type.Name(piece.type) not in ("CONTROL", "UNKNOWN")]
    texts = {piece.piece for piece in known}
    special = {text: kinds.UNKNOWN if text == SPECIALS[UNKNOWN] else kinds.CONTROL for text in SPECIALS}
    pieces = [*(kinds(piece=text, type=kind) for text, kind in special.items()), *known]
    if all_rows:
        pieces += [kinds(piece=text, type=kinds.UNUSED) for text in rows if text not in texts and text not in SPECIALS]
    del model.pieces[:]
    model.pieces.extend(pieces)
    tokenizer = SentencePiece.adopt(model.SerializeToString(deterministic=True))
    start = folder.setting("decoder_start_token_id", int, folder.setting("pad_token_id", int))
    own = [rows.get(SPECIALS[PAD]), rows.get(SPECIALS[UNKNOWN]), start, folder.setting("eos_token_id", int)]
    if own[PAD] is None or own[UNKNOWN] is None:
        raise DataError(f"{folder.path / CONFIG}: the vocabulary has no <pad> or no <unk>, which a Marian model needs")
    # sentencepiece knows pieces that the model does not: they are encoded as UNKNOWN
    ids = (rows.get(piece.piece) for piece in pieces[len(SPECIALS) :])
    return Vocabulary("sentencepiece", tokenizer, (*own, *ids), rows.get)
