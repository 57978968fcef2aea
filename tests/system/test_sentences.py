"""Labels, vectors and neighbours of sentences, through the command line."""

import json
import math
from pathlib import Path

import pytest
from test_cli import refused

from conftest import Command

TINY = (
    *("name=small", "model.embedding=8", "model.encoder.dim=12", "model.attention.dim=6", "train.device=cpu"),
    *("train.updates=4", "train.validate=2", "train.batch_tokens=100", "classify.header=true"),
)
TEXTS = ["the soup was bad", "", "our guide was not rude", "zebra"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, regard: Command) -> Path:
    """The folder in which a small classifier was trained on a TSV file with a header."""
    folder = tmp_path_factory.mktemp("sentences")
    labelled = [f"the soup was {word} {number}\t{word}" for number in range(20) for word in ("bad", "fine")]
    (folder / "pairs.tsv").write_text("\n".join(["sentence\tlabel", *labelled]) + "\n", encoding="utf-8")
    (folder / "texts.txt").write_text("".join(f"{text}\n" for text in TEXTS), encoding="utf-8")
    result = regard("train", "moods", "data.train=pairs.tsv", *TINY, folder=folder)
    assert result.code == 0, result.error
    assert "2 labels: " in result.error
    return folder


def test_a_header_is_skipped_in_scoring_too(folder: Path, regard: Command) -> None:
    result = regard("score", "runs/small", "pairs.tsv", "--json", folder=folder)
    assert result.code == 0, result.error
    assert json.loads(result.lines[0])["signature"] == "accuracy|n:40"


def test_labels_come_with_alternatives_and_the_map(folder: Path, regard: Command) -> None:
    result = regard("predict", "runs/small", "--text", TEXTS[0], "--n-best", 2, "--json", "--maps", folder=folder)
    prediction = json.loads(result.lines[0])
    assert {prediction["text"], prediction["alternatives"][0]["text"]} == {"bad", "fine"}
    assert prediction["source_tokens"] == [*TEXTS[0].split(), "</s>"]
    assert len(prediction["attention"]) == 1
    probability = f"{math.exp(prediction['score']):.2f}"
    look = regard("look", "runs/small", TEXTS[0], folder=folder).lines[0]
    assert look == f"{prediction['text']}  (probability {probability})"


def test_vectors_are_printed_one_per_line(folder: Path, regard: Command) -> None:
    plain = regard("vectors", "runs/small", "texts.txt", folder=folder).lines
    numbers = [[float(number) for number in line.split("\t")] for line in plain]
    lengths = [math.hypot(*row) for row in numbers]
    assert lengths == pytest.approx([1, 0, 1, 1], abs=1e-4)
    as_json = regard("vectors", "runs/small", "--json", stdin="\n".join(TEXTS).encode(), folder=folder)
    entries = [json.loads(line) for line in as_json.lines]
    assert [entry["text"] for entry in entries] == TEXTS
    for entry, row in zip(entries, numbers, strict=True):
        assert entry["vector"] == pytest.approx(row, abs=1e-5)


def test_the_nearest_lines_come_with_cosine_and_number(folder: Path, regard: Command) -> None:
    plain = regard("near", "runs/small", "texts.txt", "--text", TEXTS[2], "--count", 2, folder=folder).lines
    assert plain[0] == f"1.0000\t3\t{TEXTS[2]}"
    assert len(plain) == 2
    as_json = regard("near", "runs/small", "texts.txt", "--text", TEXTS[2], "--json", folder=folder).lines
    assert next(json.loads(line)["line"] for line in as_json) == 3
    assert len(as_json) == 3  # the blank line is left out


def test_a_blank_text_is_refused(folder: Path, regard: Command) -> None:
    result = regard("near", "runs/small", "texts.txt", "--text", " ", folder=folder)
    assert refused(result).startswith("nothing is near a text that is blank")


def test_tokens_that_the_vocabulary_does_not_hold_are_named(folder: Path, regard: Command) -> None:
    result = regard("near", "runs/small", "texts.txt", "--text", "the zebra was a zebra", folder=folder)
    assert result.code == 0
    assert result.error.splitlines() == [
        "regard: the vocabulary does not hold these tokens of --text: zebra, a",
        "regard: the vocabulary does not hold all tokens of 2 of 4 lines",
    ]
    (folder / "known.txt").write_text("the soup was fine\n", encoding="utf-8")
    assert regard("near", "runs/small", "known.txt", "--text", TEXTS[0], folder=folder).error == ""
