"""Training on pairs that are given in Python: the data is digested like that of files, and needed again to resume."""

from pathlib import Path
from typing import Any

import pytest

import regard
from regard import recipe as recipes
from regard import storage
from regard.data.records import DEV, PAIRS
from regard.errors import CallbackError, DataError, RecipeError
from regard.recipe import Recipe
from regard.storage import Run
from regard.training import loop
from regard.training.callbacks import Updated

WORDS = ["abc", "bcde", "cdefg", "fedcba", "hgfedcb", "xyz", "zyx", "yy", "ab", "ba"]
ROWS = [(word, word[::-1]) for word in WORDS]


def tiny(*overrides: str) -> Recipe:
    sizes = ["model.embedding=8", "model.encoder.dim=12", "model.decoder.dim=10", "model.attention.dim=6"]
    settings = ["train.updates=4", "train.validate=2", "train.batch_tokens=100", "train.device=cpu", "name=tiny"]
    return recipes.load("reverse", [*sizes, *settings, "search.max_ratio=0", "search.max_extra=3", *overrides])


class Killed(BaseException):
    """An exception that no code of regard catches."""


def kill_at_update(update: int, monkeypatch: pytest.MonkeyPatch, **given: Any) -> Run:
    """Train until the checkpoint of an update is to be saved; returns the unfinished run."""
    real = Run.save

    def save(self: Run, at: int, *content: Any) -> None:
        real(self, at, *content)
        if at == update:
            raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(Run, "save", save)
        with pytest.raises(Killed):
            regard.train(tiny("data.size=30"), quiet=True, **given)
    return Run.open(given["runs"] / "tiny")


def test_pairs_train_as_a_file_of_them_does(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "pairs.tsv"
    file.write_text("".join(f"{source}\t{target}\n" for source, target in ROWS), encoding="utf-8")
    of_file = regard.train(tiny(f"data.train={file}", "data.corpus="), runs=tmp_path, quiet=True)
    of_pairs = regard.train(tiny(), runs=tmp_path, pairs=[*ROWS, ("", "blank")])
    assert of_pairs.read(storage.MODEL) == of_file.read(storage.MODEL)
    assert of_pairs.read(storage.DATA) == of_file.read(storage.DATA)
    data = of_pairs.recipe().data
    assert (data.corpus, data.train, data.dev, data.test) == ("", (PAIRS,), (), ())
    printed = capsys.readouterr().err
    assert "pairs given in Python: 1 pair with an empty side dropped\n" in printed
    assert "no data.dev given: 1 pair split off for it\n" in printed
    frame = {"id": range(10), "from": [row[0] for row in ROWS], "to": [row[1] for row in ROWS]}
    again = regard.train(tiny(), "data.columns=from,to", pairs=frame, dev=ROWS[:2], runs=tmp_path, quiet=True)
    assert again.recipe().data.dev == (DEV,)
    assert '"examples": 10' in again.read(storage.DATA).decode()
    with pytest.raises(DataError, match=r"^the pairs given in Python are not stored in the run; write them to a file"):
        regard.load(of_pairs).task.examples(of_pairs.recipe())


def test_a_training_on_very_few_pairs_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    regard.train(tiny("train.updates=1"), runs=tmp_path, pairs=ROWS[:1], dev=ROWS[1:2])
    printed = capsys.readouterr().err
    assert "1 pair to learn from, 1 dev pair\n" in printed
    assert "warning: only 1 pair to learn from; the model will hardly answer others\n" in printed
    regard.train(tiny("train.updates=1"), runs=tmp_path, pairs=ROWS, dev=ROWS[1:2])
    assert "warning" not in capsys.readouterr().err


class Failing(regard.Callback):
    """Fails at the first update."""

    def on_update(self, event: Updated) -> None:
        raise ValueError("no such luck")


@pytest.mark.parametrize(("dev", "given"), [(None, "pairs=..."), (ROWS[:3], "pairs=..., dev=...")])
def test_an_error_of_a_run_on_pairs_says_how_to_resume_it_in_python(tmp_path: Path, dev: Any, given: str) -> None:
    with pytest.raises(CallbackError) as failed:
        regard.train(tiny(), pairs=ROWS, dev=dev, runs=tmp_path, quiet=True, callbacks=[Failing()])
    call = f"regard.resume({str(tmp_path / 'tiny')!r}, {given})"
    assert str(failed.value).endswith(f"; 1 updates are saved; go on with: {call}")
    assert regard.resume(tmp_path / "tiny", pairs=ROWS, dev=dev, quiet=True).finished()


def test_a_run_on_pairs_resumes_exactly_with_the_same_pairs_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dev = ROWS[:3]
    whole = regard.train(tiny(), pairs=ROWS, dev=dev, runs=tmp_path / "whole", quiet=True)
    run = kill_at_update(2, monkeypatch, pairs=ROWS, dev=dev, runs=tmp_path / "runs")
    with pytest.raises(DataError) as missing:
        loop.resume(run, quiet=True)
    how = f"in Python: regard.resume({str(run.path)!r}, pairs=..., dev=...)"
    assert str(missing.value) == f"the run {run.path} does not store its {PAIRS}; give the same again, {how}"
    with pytest.raises(DataError, match=rf"does not store its {DEV}; "):
        regard.resume(run, pairs=ROWS, quiet=True)
    with pytest.raises(DataError, match=rf"the data of .* has changed since its training began: {PAIRS}, {DEV}\. "):
        regard.resume(run, pairs=ROWS[1:], dev=dev, quiet=True)
    assert regard.resume(run, pairs=ROWS, dev=dev, quiet=True).read(storage.MODEL) == whole.read(storage.MODEL)
    assert regard.resume(run, quiet=True) == run  # finished already: nothing is needed


@pytest.mark.parametrize(
    ("overrides", "given", "message"),
    [
        (["data.train=x.tsv"], {"pairs": ROWS}, r"^examples are given as pairs or dev, and as a key of data, too"),
        (["data.corpus=copy"], {"pairs": ROWS}, r"^examples are given as pairs or dev, and as a key of data, too"),
        (
            ["data.dev=x.tsv"],
            {"pairs": ROWS, "dev": ROWS},
            r"^examples are given as pairs or dev, and as a key of data",
        ),
        ([], {"dev": ROWS}, r"^dev is for a training on pairs; give pairs, too, or data.dev=FILE$"),
        (
            [],
            {"pairs": [("a", "b", "c")]},
            r"^pairs given in Python:1: \('a', 'b', 'c'\), expected \(source, target\)$",
        ),
        ([], {"pairs": ROWS[:1]}, r"^no dev part can be split off 1 pairs"),
    ],
)
def test_what_cannot_be_meant_is_refused_and_nothing_is_written(
    tmp_path: Path, overrides: list[str], given: dict[str, Any], message: str
) -> None:
    with pytest.raises((RecipeError, DataError), match=message):
        regard.train(tiny(), *overrides, runs=tmp_path / "runs", quiet=True, **given)
    assert not (tmp_path / "runs").exists()


def test_pairs_are_refused_for_a_run_without_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = kill_at_update(2, monkeypatch, runs=tmp_path)
    with pytest.raises(RecipeError, match=rf"was not trained on {PAIRS}; leave them out$"):
        regard.resume(run, pairs=ROWS, quiet=True)
