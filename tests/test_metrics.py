"""Every metric equals an independent implementation of its definition."""

import math
import time
from collections.abc import Sequence
from functools import cache

import pytest
import sacrebleu
from hypothesis import given
from hypothesis import strategies as st

from regard.errors import NotFiniteError
from regard.metrics import (
    COUNTS,
    INSTEAD,
    METRICS,
    MULTI_REFERENCE,
    Cost,
    Outcome,
    bleu,
    bleu_tokenised,
    character_errors,
    chrf,
    companions,
    counter,
    exact_match,
    example_scorer,
    perplexity,
    phoneme_errors,
    phoneme_errors_unstressed,
    word_error_share,
    word_error_share_unstressed,
    word_errors,
)
from regard.tasks import Transduce

OUTPUTS = ["the cat sat on the mat", "a dog", "", "seven pairs of shoes stood there"]
REFERENCES = ["the cat sat on a mat", "a dog", "nothing", "seven pairs of shoes were there"]

words = st.text("abc é", max_size=6)
paired = st.lists(st.tuples(words, words), min_size=1, max_size=5)
several = st.lists(st.tuples(words, st.lists(words, min_size=1, max_size=3)), min_size=1, max_size=5)


def references_of(name: str, texts: list[str]) -> list[str] | list[list[str]]:
    """References in the form that the metric takes: some metrics take several for each output."""
    return [[text] for text in texts] if name in MULTI_REFERENCE else texts


def distance(output: Sequence[str], reference: Sequence[str]) -> int:
    """The Levenshtein distance by its recursive definition."""

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


@pytest.mark.parametrize("metric", [name for name in COUNTS if name != "masked_accuracy"])
@given(pairs=paired)
def test_a_metric_is_the_ratio_of_the_summed_counts(metric: str, pairs: list[tuple[str, str]]) -> None:
    outcomes = [Outcome("", (reference,), output, 0.0) for output, reference in pairs]
    numerators, denominators = zip(*map(counter(metric, outcomes), outcomes), strict=True)
    outputs, references = map(list, zip(*pairs, strict=True))
    measured = METRICS[metric](outputs, references_of(metric, references)).value
    assert measured == pytest.approx(sum(numerators) / max(1, sum(denominators)))
    assert example_scorer(metric, outcomes)(outcomes[0]) == pytest.approx(
        METRICS[INSTEAD.get(metric, metric)](outputs[:1], references_of(metric, references[:1])).value
    )


@given(paired)
def test_exact_match_is_the_share_of_equal_texts(pairs: list[tuple[str, str]]) -> None:
    outputs, references = zip(*pairs, strict=True)
    equal = [output for output, reference in pairs if output == reference]
    assert exact_match(outputs, references).value == len(equal) / len(pairs)


def test_exact_match_compares_case_and_space() -> None:
    assert exact_match(["a", "A", "a ", "b"], ["a", "a", "a", "a"]).value == 0.25


@given(paired)
def test_character_errors_are_levenshtein_distances(pairs: list[tuple[str, str]]) -> None:
    outputs, references = zip(*pairs, strict=True)
    edits = sum(distance(output, reference) for output, reference in pairs)
    characters = sum(len(reference) for reference in references)
    assert character_errors(outputs, references).value == edits / (characters or 1)


def test_character_errors_of_known_texts() -> None:
    assert character_errors(["kitten"], ["sitting"]).value == 3 / 7
    assert character_errors(["", "abc"], ["ab", "abc"]).value == 2 / 5


@given(paired)
def test_word_errors_are_levenshtein_distances_of_words(pairs: list[tuple[str, str]]) -> None:
    outputs, references = zip(*pairs, strict=True)
    edits = sum(distance(output.split(), reference.split()) for output, reference in pairs)
    assert word_errors(outputs, references).value == edits / (sum(len(text.split()) for text in references) or 1)


def test_giant_lines_are_compared_in_seconds() -> None:
    """Words of which almost all are different, too: their places would take much memory if all were kept."""
    size, shift = 100_000, 30_000
    numbers = list(map(str, range(size + shift)))
    start = time.process_time()
    assert word_errors([" ".join(numbers[shift:])], [" ".join(numbers[:size])]).value == 2 * shift / size
    assert character_errors(["ab" * (size // 2)], ["ba" * (size // 2)]).value == 2 / size
    assert time.process_time() - start < 20


def test_word_errors_of_known_texts() -> None:
    measured = word_errors(["the cat  sat", "", "a a a"], ["the dog sat down", "no", "a"])
    assert measured.value == (2 + 1 + 2) / (4 + 1 + 1)
    assert measured.signature == "word_errors|n:3|words:6|case:mixed|tok:space"


@given(several)
def test_phoneme_errors_are_those_of_the_closest_reference(cases: list[tuple[str, list[str]]]) -> None:
    outputs, references = zip(*cases, strict=True)
    edits = phonemes = 0
    for output, texts in cases:
        distances = [(distance(output.split(), text.split()), len(text.split())) for text in texts]
        fewest = min(edit for edit, _ in distances)
        edits += fewest
        phonemes += min(length for edit, length in distances if edit == fewest)
    measured = phoneme_errors(outputs, references)
    assert measured.value == edits / (phonemes or 1)
    assert measured == phoneme_errors(outputs, [texts[::-1] for texts in references])  # their order does not matter


@given(several)
def test_the_closest_of_several_references_counts(cases: list[tuple[str, list[str]]]) -> None:
    outputs, references = zip(*cases, strict=True)
    equal = [output for output, texts in cases if output in texts]
    assert exact_match(outputs, references).value == len(equal) / len(cases)
    for metric, split in ((character_errors, list), (word_errors, str.split)):
        closest = [
            min((distance(split(output), split(text)), len(split(text))) for text in texts) for output, texts in cases
        ]
        edits, length = (sum(column) for column in zip(*closest, strict=True))
        measured = metric(outputs, references)
        assert measured.value == edits / (length or 1)
        assert ("|refs:closest|" in measured.signature) == any(len(texts) > 1 for texts in references)
    for output, texts in cases:
        outcome = Outcome("", tuple(texts), output, 0.0)
        assert example_scorer("exact_match", [outcome])(outcome) == (output in texts)


@pytest.mark.parametrize("metric", ["bleu", "bleu_tokenised", "chrf"])
def test_sacrebleu_gets_all_references_also_if_their_numbers_differ(metric: str) -> None:
    several = [[text, "another one", OUTPUTS[0]] for text in REFERENCES]
    streams = [list(texts) for texts in zip(*several, strict=True)]
    official = {"bleu": sacrebleu.BLEU(), "bleu_tokenised": sacrebleu.BLEU(tokenize="none", force=True)}
    scorer = official.get(metric, sacrebleu.CHRF())
    assert METRICS[metric](OUTPUTS, several).value == scorer.corpus_score(OUTPUTS, streams).score
    fewer = [texts[: 1 + number] for number, texts in enumerate(several)]
    assert METRICS[metric](OUTPUTS, fewer).value <= METRICS[metric](OUTPUTS, several).value


@given(several)
def test_word_error_share_and_phoneme_errors_with_several_references(cases: list[tuple[str, list[str]]]) -> None:
    outputs, references = zip(*cases, strict=True)
    wrong = [output for output, texts in cases if output.split() not in [text.split() for text in texts]]
    assert word_error_share(outputs, references).value == len(wrong) / len(cases)
    with_output = [[*texts, output] for output, texts in cases]
    assert word_error_share(outputs, with_output).value == phoneme_errors(outputs, with_output).value == 0
    first = [texts[0] for texts in references]
    assert phoneme_errors(outputs, [[text] for text in first]).value == word_errors(outputs, first).value


def test_phoneme_metrics_of_known_words_with_and_without_stress() -> None:
    outputs = ["T AH0 M EY1 T OW2", "R EH1 D", "B AH0"]
    references = [["T AH0 M AA1 T OW2", "T AH0 M EY1 T OW0"], ["R IY1 D", "R EH1 D"], ["B AH1 T S"]]
    assert phoneme_errors(outputs, references).value == (1 + 0 + 3) / (6 + 3 + 4)
    assert word_error_share(outputs, references).value == 2 / 3
    assert phoneme_errors_unstressed(outputs, references).value == (0 + 0 + 2) / (6 + 3 + 4)
    assert word_error_share_unstressed(outputs, references).value == 1 / 3
    assert phoneme_errors(outputs, references).signature == (
        "phoneme_errors|n:3|refs:closest|phonemes:13|stress digits kept"
    )
    assert word_error_share_unstressed(outputs, references).signature == (
        "word_error_share_unstressed|n:3|refs:closest|stress digits removed"
    )


def test_bleu_equals_sacrebleu() -> None:
    expected = sacrebleu.corpus_bleu(OUTPUTS, [REFERENCES])
    assert 0 < expected.score < 100
    assert bleu(OUTPUTS, REFERENCES).value == expected.score


def test_chrf_equals_sacrebleu() -> None:
    expected = sacrebleu.corpus_chrf(OUTPUTS, [REFERENCES])
    assert 0 < expected.score < 100
    assert chrf(OUTPUTS, REFERENCES).value == expected.score


@pytest.mark.parametrize("name", Transduce.metrics)
def test_every_score_has_a_signature(name: str) -> None:
    signature = METRICS[name](OUTPUTS, references_of(name, REFERENCES)).signature
    assert signature.startswith(f"{name}|n:4|")
    assert "\n" not in signature


@pytest.mark.parametrize(
    ("measure", "parts"),
    [
        (bleu, ["nrefs:1", "case:mixed", "eff:no", "tok:13a", "smooth:exp"]),
        (bleu_tokenised, ["nrefs:1", "case:mixed", "eff:no", "tok:none", "smooth:exp"]),
        (chrf, ["nrefs:1", "case:mixed", "eff:yes", "nc:6", "nw:0", "space:no"]),
    ],
)
def test_the_signature_includes_all_of_sacrebleu(measure: object, parts: list[str]) -> None:
    name, count, *details = measure(OUTPUTS, REFERENCES).signature.split("|")
    assert (name, count) == (measure.__name__, "n:4")
    assert details == [*parts, f"version:{sacrebleu.__version__}"]


def test_tokenised_bleu_does_not_split_words() -> None:
    """The tokenizer 13a would split `(x).` into four tokens; in tokenised text it is one."""
    output, reference = ["a (x). b c d e"], ["a (y). b c d e"]
    assert bleu_tokenised(output, reference).value != bleu(output, reference).value
    assert (
        bleu_tokenised(output, reference).value
        == sacrebleu.corpus_bleu(output, [reference], tokenize="none", force=True).score
    )


LOWER_IS_BETTER = {"phoneme_errors", *companions("phoneme_errors"), "character_errors", "word_errors"}
HIGHEST = {"bleu": 100.0, "bleu_tokenised": 100.0, "chrf": 100.0, "cider_d": 6.875}  # others: 1
# For CIDEr-D, 10 for each n-gram length that a text has: 1-4, 1-2, 1 and 1-4 of four.


@pytest.mark.parametrize("name", Transduce.metrics)
def test_a_perfect_output_has_the_best_score(name: str) -> None:
    perfect = 0.0 if name in LOWER_IS_BETTER else HIGHEST.get(name, 1.0)
    measured = METRICS[name](REFERENCES, references_of(name, REFERENCES))
    assert measured.value == pytest.approx(perfect, abs=1e-9)


@pytest.mark.parametrize("name", ["exact_match", "character_errors", "word_errors", *MULTI_REFERENCE])
def test_a_missing_output_is_an_error(name: str) -> None:
    with pytest.raises(ValueError, match="zip"):
        METRICS[name](OUTPUTS[:-1], references_of(name, REFERENCES))


def test_a_perplexity_that_no_number_holds_is_refused() -> None:
    how = "tokenizer:word"
    assert perplexity(Cost(1, 2, 9, 0, 2 * 709.0), how).value > 1e307
    for nats in (2 * 710.0, math.inf):
        with pytest.raises(NotFiniteError, match="the perplexity is too large for a number: the mean loss"):
            perplexity(Cost(1, 2, 9, 0, nats), how)
