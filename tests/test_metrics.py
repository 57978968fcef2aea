"""Scores against references, each against an independent telling of it."""

from functools import cache

import pytest
import sacrebleu
from hypothesis import given
from hypothesis import strategies as st

from regard.metrics import METRICS, bleu, character_errors, chrf, exact_match
from regard.tasks import Translate

OUTPUTS = ["the cat sat on the mat", "a dog", "", "seven pairs of shoes stood there"]
REFERENCES = ["the cat sat on a mat", "a dog", "nothing", "seven pairs of shoes were there"]

words = st.text("abc é", max_size=6)
paired = st.lists(st.tuples(words, words), min_size=1, max_size=5)


def distance(output: str, reference: str) -> int:
    """Levenshtein's recursion, as in the books."""

    @cache
    def edits(left: int, right: int) -> int:
        if left == 0 or right == 0:
            return left + right
        return min(
            edits(left - 1, right) + 1,
            edits(left, right - 1) + 1,
            edits(left - 1, right - 1) + (output[left - 1] != reference[right - 1]),
        )

    return edits(len(output), len(reference))


@given(paired)
def test_exact_match_is_the_share_of_equals(pairs: list[tuple[str, str]]) -> None:
    outputs, references = zip(*pairs, strict=True)
    equal = [output for output, reference in pairs if output == reference]
    assert exact_match(outputs, references).value == len(equal) / len(pairs)


def test_exact_match_keeps_case_and_space() -> None:
    assert exact_match(["a", "A", "a ", "b"], ["a", "a", "a", "a"]).value == 0.25


@given(paired)
def test_character_errors_are_levenshteins(pairs: list[tuple[str, str]]) -> None:
    outputs, references = zip(*pairs, strict=True)
    edits = sum(distance(output, reference) for output, reference in pairs)
    characters = sum(len(reference) for reference in references)
    assert character_errors(outputs, references).value == edits / (characters or 1)


def test_character_errors_by_hand() -> None:
    assert character_errors(["kitten"], ["sitting"]).value == 3 / 7
    assert character_errors(["", "abc"], ["ab", "abc"]).value == 2 / 5


def test_bleu_is_sacrebleus() -> None:
    theirs = sacrebleu.corpus_bleu(OUTPUTS, [REFERENCES])
    assert 0 < theirs.score < 100
    assert bleu(OUTPUTS, REFERENCES).value == theirs.score


def test_chrf_is_sacrebleus() -> None:
    theirs = sacrebleu.corpus_chrf(OUTPUTS, [REFERENCES])
    assert 0 < theirs.score < 100
    assert chrf(OUTPUTS, REFERENCES).value == theirs.score


@pytest.mark.parametrize("name", Translate.metrics)
def test_every_score_carries_a_signature(name: str) -> None:
    signature = METRICS[name](OUTPUTS, REFERENCES).signature
    assert signature.startswith(f"{name}|n:4|")
    assert "\n" not in signature


@pytest.mark.parametrize(("measure", "parts"), [(bleu, ["tok:13a", "smooth:exp"]), (chrf, ["nc:6", "nw:0"])])
def test_sacrebleus_signature_is_whole(measure: object, parts: list[str]) -> None:
    signature = measure(OUTPUTS, REFERENCES).signature
    for part in [*parts, f"version:{sacrebleu.__version__}"]:
        assert part in signature.split("|")


@pytest.mark.parametrize("name", Translate.metrics)
def test_a_perfect_output_is_perfect(name: str) -> None:
    perfect = {"exact_match": 1.0, "character_errors": 0.0, "bleu": 100.0, "bleu_tokenised": 100.0, "chrf": 100.0}[name]
    assert METRICS[name](REFERENCES, REFERENCES).value == pytest.approx(perfect, abs=1e-9)


@pytest.mark.parametrize("name", ["exact_match", "character_errors"])
def test_a_missing_output_is_not_overlooked(name: str) -> None:
    with pytest.raises(ValueError, match="zip"):
        METRICS[name](OUTPUTS[:-1], REFERENCES)
