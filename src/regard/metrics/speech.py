"""Metrics of speech: errors of characters, words and phonemes by edit distance."""

import string
from collections.abc import Sequence

from regard.metrics.core import Count, Counts, Measured, ReferenceLists, References, all_of, several, sums
from regard.metrics.edits import edit_distance


def character_errors(outputs: Sequence[str], references: References) -> Measured:
    """Character error rate (CER): character edits per character of the references; lower is better."""
    edits, characters = sums(COUNTS, "character_errors", outputs, references)
    details = f"n:{len(references)}|{several(references)}case:mixed|space:kept"
    return Measured(edits / max(1, characters), f"character_errors|{details}")


def word_errors(outputs: Sequence[str], references: References) -> Measured:
    """Word error rate (WER), as in speech recognition: word edits per word of the references; lower is better."""
    edits, words = sums(COUNTS, "word_errors", outputs, references)
    details = f"n:{len(references)}|{several(references)}words:{words}|case:mixed|tok:space"
    return Measured(edits / max(1, words), f"word_errors|{details}")


def phoneme_errors(outputs: Sequence[str], references: ReferenceLists) -> Measured:
    """Phoneme error rate (PER): phoneme edits per phoneme of the closest reference; lower is better."""
    return _phoneme_errors("phoneme_errors", outputs, references, "kept")


def word_error_share(outputs: Sequence[str], references: ReferenceLists) -> Measured:
    """Share of words whose phonemes equal no reference, the WER of grapheme-to-phoneme papers; lower is better."""
    return _word_error_share("word_error_share", outputs, references, "kept")


def phoneme_errors_unstressed(outputs: Sequence[str], references: ReferenceLists) -> Measured:
    """Phoneme error rate without stress digits on either side: AH0 and AH1 become AH; lower is better."""
    return _phoneme_errors("phoneme_errors_unstressed", outputs, references, "removed")


def word_error_share_unstressed(outputs: Sequence[str], references: ReferenceLists) -> Measured:
    """Share of wrong words, compared without stress digits on either side; lower is better."""
    return _word_error_share("word_error_share_unstressed", outputs, references, "removed")


def _phoneme_errors(name: str, outputs: Sequence[str], references: ReferenceLists, stress: str) -> Measured:
    edits, phonemes = sums(COUNTS, name, outputs, references)
    details = f"n:{len(outputs)}|refs:closest|phonemes:{phonemes}|stress digits {stress}"
    return Measured(edits / max(1, phonemes), f"{name}|{details}")


def _word_error_share(name: str, outputs: Sequence[str], references: ReferenceLists, stress: str) -> Measured:
    wrong, words = sums(COUNTS, name, outputs, references)
    return Measured(wrong / words, f"{name}|n:{len(outputs)}|refs:closest|stress digits {stress}")


def _character_edits(output: str, references: str | Sequence[str]) -> Counts:
    """The edits to the closest reference; of equals the shortest, which gives the higher error rate."""
    return min((edit_distance(output, reference), len(reference)) for reference in all_of(references))


def _word_edits(output: str, references: str | Sequence[str]) -> Counts:
    """The edits to the closest reference; of equals the shortest, which gives the higher error rate."""
    expected = [reference.split() for reference in all_of(references)]
    return min((edit_distance(output.split(), words), len(words)) for words in expected)


def _unequal(output: str, references: Sequence[str]) -> Counts:
    return int(output.split() not in [reference.split() for reference in references]), 1


def _without_stress(count: Count) -> Count:
    return lambda output, references: count(_unstressed(output), [_unstressed(text) for text in references])


def _unstressed(text: str) -> str:
    return " ".join(phoneme.rstrip(string.digits) for phoneme in text.split())


COUNTS: dict[str, Count] = {
    "character_errors": _character_edits,
    "word_errors": _word_edits,
    "phoneme_errors": _word_edits,
    "word_error_share": _unequal,
    "phoneme_errors_unstressed": _without_stress(_word_edits),
    "word_error_share_unstressed": _without_stress(_unequal),
}
