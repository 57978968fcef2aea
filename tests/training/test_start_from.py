"""train.start_from: a new run starts with the tokenizers and with all fitting weights of another run."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor

import regard
from regard import models, storage
from regard import recipe as recipes
from regard.errors import CorruptError, DataError, RecipeError
from regard.recipe import Recipe
from regard.storage import Run
from regard.tasks import TASKS, task_of
from regard.training import loop, preview, resume, train
from regard.types import Vocabulary
from small_recipes import RECIPES

NO_LEARNING = "train.learning_rate=0"  # updates change nothing, so a run keeps its first weights
TOKENS = ("source.tokens", "target.tokens")


@pytest.fixture(scope="module", autouse=True)
def small_dev_set(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A small dev set: that of the corpus would take most of the time of these tests."""
    folder = tmp_path_factory.mktemp("data")
    words = ("abc", "bcde", "cdefg", "fedcba", "hgfedcb", "xyzxyzxyz")
    (folder / "dev.tsv").write_text("".join(f"{word}\t{word[::-1]}\n" for word in words), encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REGARD_DATA", str(folder))
        yield


def tiny(*overrides: str) -> Recipe:
    sizes = ["model.embedding=8", "model.encoder.dim=12", "model.decoder.dim=10", "model.attention.dim=6"]
    data = ["name=tiny", "data.corpus=reverse", "data.size=60", "data.dev=dev.tsv", "train.device=cpu"]
    settings = ["train.updates=4", "train.validate=2", "train.batch_tokens=100", "train.ema=0.5"]
    search = ["search.max_ratio=0", "search.max_extra=3"]
    return recipes.parse("", "tiny", [*sizes, *data, *settings, *search, *overrides])


@pytest.fixture(scope="module")
def origin(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return train(tiny(), runs=tmp_path_factory.mktemp("origin"), quiet=True)


@pytest.fixture
def pairs(tmp_path: Path) -> Path:
    """Other data, with fewer letters."""
    path = tmp_path / "pairs.tsv"
    path.write_text("ab\tba\nabc\tcba\nb\tb\nca\tac\n", encoding="utf-8")
    return path


def weights(run: Run) -> dict[str, Tensor]:
    return load_tensors(run.read(storage.MODEL))


def contents(run: Run) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()}


def test_a_run_starts_with_the_weights_and_tokenizers_of_the_other(
    origin: Run, pairs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = train(tiny(), f"train.start_from={origin.path}", f"data.train={pairs}", NO_LEARNING, runs=tmp_path)
    assert run.read(storage.MODEL) == origin.read(storage.MODEL)
    assert [run.read(name) for name in TOKENS] == [origin.read(name) for name in TOKENS]
    count = len(weights(origin))
    assert f"taken from {origin.path}: {count} of the model's {count} tensors\n" in capsys.readouterr().err
    answers = [regard.load(trained).predict(["abc"])[0] for trained in (run, origin)]
    assert (answers[0].text, answers[0].score) == (answers[1].text, answers[1].score)


def test_training_changes_the_new_run_but_not_the_origin(origin: Run, tmp_path: Path) -> None:
    before = contents(origin)
    run = train(tiny(), f"train.start_from={origin.path}", "train.learning_rate=0.01", runs=tmp_path, quiet=True)
    assert run.read(storage.MODEL) != origin.read(storage.MODEL)
    assert contents(origin) == before


def test_a_run_that_starts_from_the_latest_stores_which_one_that_was(origin: Run, tmp_path: Path) -> None:
    latest = origin.path.with_name("latest")
    run = train(tiny(), f"train.start_from={latest}", NO_LEARNING, "name=other", runs=origin.path.parent, quiet=True)
    assert run.recipe().train.start_from == str(origin.path)
    assert Run.open(latest).path == run.path
    assert run.started_from(origin)


def test_tensors_that_do_not_fit_are_initialised_as_usual(
    origin: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    changes = ["model.decoder.dim=14", NO_LEARNING]
    run = train(tiny(), f"train.start_from={origin.path}", *changes, runs=tmp_path)
    fresh = train(tiny(), *changes, runs=tmp_path, quiet=True)
    old, new, without_start = weights(origin), weights(run), weights(fresh)
    taken = {name for name in new if name in old and old[name].shape == new[name].shape}
    assert {name.partition(".")[0] for name in taken} == {"encoder", "decoder"}
    assert 0 < len(taken) < len(new)
    for name, tensor in new.items():
        assert torch.equal(tensor, old[name] if name in taken else without_start[name])
    assert f"{len(taken)} of the model's {len(new)} tensors" in capsys.readouterr().err


def test_a_dry_run_says_what_is_taken_and_warns_if_that_is_little(
    origin: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    start = f"train.start_from={origin.path}"
    count, warning = len(weights(origin)), "warning: most of the model begins with new weights; if that is not meant, "
    preview(tiny(), start)
    printed = capsys.readouterr().err
    assert f"taken from {origin.path}: {count} of the model's {count} tensors\n" in printed
    assert warning not in printed
    preview(tiny(), start, "model.encoder.dim=20", "model.decoder.dim=14")
    printed = capsys.readouterr().err
    assert f"taken from {origin.path}: " in printed
    assert f"{warning}make [model] more like that of {origin.path / 'recipe.toml'}\n" in printed


def test_a_new_vocabulary_is_suggested_if_much_is_unknown(
    origin: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "greek.tsv").write_text("αβγ\tγβα\nab\tba\nβα\tαβ\nc\tc\n", encoding="utf-8")
    start = f"train.start_from={origin.path}"
    data = f"data.train={tmp_path}/greek.tsv", f"data.dev={tmp_path}/greek.tsv"
    preview(tiny(), start, *data)
    how = f"in the vocabulary of {origin.path}; train.new_vocabulary=true makes one from this data\n"
    assert f"% of the dev tokens unknown {how}" in capsys.readouterr().err
    for others in ([start], [start, *data, "train.new_vocabulary=true"], data):
        preview(tiny(), *others)
        assert "train.new_vocabulary=true makes" not in capsys.readouterr().err


def test_a_run_without_fitting_tensors_is_refused_and_nothing_is_written(origin: Run, tmp_path: Path) -> None:
    other = Run(shutil.copytree(origin.path, tmp_path / "other"))
    half = {name: weight.half() for name, weight in load_tensors(origin.read(storage.MODEL)).items()}  # of another type
    other.replace(storage.MODEL, save_tensors({"heart": torch.zeros(7), **half}))
    with pytest.raises(RecipeError, match=r"train.start_from: no tensor of .*other has the name and shape"):
        train(tiny(), f"train.start_from={other.path}", runs=tmp_path / "runs", quiet=True)
    assert not (tmp_path / "runs").exists()


@pytest.fixture
def other_letters(tmp_path: Path) -> Path:
    """Other data, with fewer letters, and with some that the origin does not have."""
    path = tmp_path / "other.tsv"
    path.write_text("aé\téa\nabc\tcba\nb\tb\ncaü\tüac\n", encoding="utf-8")
    return path


def test_rows_of_tokens_in_both_vocabularies_are_taken_and_the_others_start_anew(
    origin: Run, other_letters: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    changes = [f"data.train={other_letters}", NO_LEARNING]
    start = [f"train.start_from={origin.path}", "train.new_vocabulary=true"]
    run = train(tiny(), *changes, *start, runs=tmp_path)
    fresh = train(tiny(), *changes, runs=tmp_path, quiet=True)
    assert [run.read(name) for name in TOKENS] == [fresh.read(name) for name in TOKENS]
    old, new, without_start = weights(origin), weights(run), weights(fresh)
    stored, own = (task_of(each).vocabularies() for each in (origin, run))
    assert own.keys() == stored.keys() == {name for name in new if old[name].shape != new[name].shape}
    for name, tensor in new.items():
        if name not in own:
            assert torch.equal(tensor, old[name])
            continue
        entries = stored[name].entries
        assert {"a", "b", "c", "é", "ü"} <= set(own[name].entries)
        for row, entry in zip(range(len(tensor)), own[name].entries, strict=True):
            expected = old[name][entries.index(entry)] if entry in entries else without_start[name][row]
            assert torch.equal(tensor[row], expected)
    printed = f"taken from {origin.path}: {len(new) - len(own)} of the model's {len(new)} tensors; of {len(own)} more, "
    assert f"{printed}the rows of 7 of 9 tokens that are in both\n" in capsys.readouterr().err


def test_a_new_vocabulary_may_be_of_another_kind(origin: Run, other_letters: Path, tmp_path: Path) -> None:
    changes = [f"data.train={other_letters}", "tokens.source=word", "train.new_vocabulary=true", "train.updates=1"]
    run = train(
        tiny(f"train.start_from={origin.path}"), *changes, NO_LEARNING, "train.ema=0", runs=tmp_path, quiet=True
    )
    name = "encoder.embedding.weight"
    assert torch.equal(weights(run)[name][:4], weights(origin)[name][:4])  # the special tokens


def test_a_new_vocabulary_needs_a_run_to_start_from(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"^train.new_vocabulary is for train.start_from=RUN, which is not set"):
        train(tiny("train.new_vocabulary=true"), runs=tmp_path / "runs", quiet=True)


@pytest.mark.parametrize("task", TASKS)
def test_every_tensor_with_a_row_for_each_token_has_its_vocabulary(task: str) -> None:
    recipe = recipes.load(RECIPES[task], ["data.size=30"])
    examples = TASKS[task].examples(recipe).train
    few, many = (TASKS[task].learn(recipe, part) for part in (examples[:20], examples))
    shapes = [{name: tensor.shape for name, tensor in models.weights(each.build()).items()} for each in (few, many)]
    for each, own in zip((few, many), shapes, strict=True):
        sizes = {name: len(vocabulary.entries) for name, vocabulary in each.vocabularies().items() if name in own}
        assert sizes == {name: own[name][0] for name in sizes}
    assert {name for name in shapes[0] if shapes[0][name] != shapes[1][name]} <= few.vocabularies().keys()


def test_rows_are_shared_by_entries_of_the_same_kind_alone() -> None:
    own, stored = Vocabulary("labels", ("b", "c", "a")), Vocabulary("labels", ("a", "b"))
    assert models.SharedRows.of(own, stored) == models.SharedRows([0, 2], [1, 0], (3, 2))
    assert models.SharedRows.of(own, Vocabulary("tokens", ("a", "b"))).own == []


@pytest.mark.parametrize("side", ["source", "target"])
def test_a_tokenizer_of_another_kind_is_refused(origin: Run, tmp_path: Path, side: str) -> None:
    with pytest.raises(RecipeError, match=rf"{side}.tokens is a tokenizer of kind 'character', not 'word'"):
        train(tiny(), f"train.start_from={origin.path}", f"tokens.{side}=word", runs=tmp_path / "runs", quiet=True)
    assert not (tmp_path / "runs").exists()


def test_two_vocabularies_are_refused_if_tokens_are_shared(origin: Run, tmp_path: Path) -> None:
    other = Run(shutil.copytree(origin.path, tmp_path / "other"))
    other.replace("target.tokens", b'{"kind": "character", "tokens": ["z"]}')
    with pytest.raises(RecipeError, match=r"tokens.shared is true, but .*other has two vocabularies"):
        train(tiny(), f"train.start_from={other.path}", "tokens.shared=true", runs=tmp_path / "runs", quiet=True)


def test_a_shared_vocabulary_is_shared_again(pairs: Path, tmp_path: Path) -> None:
    first = train(tiny("tokens.shared=true", "train.updates=1"), runs=tmp_path, quiet=True)
    again = train(first.recipe(), f"train.start_from={first.path}", f"data.train={pairs}", runs=tmp_path, quiet=True)
    assert [again.read(name) for name in TOKENS] == [first.read(TOKENS[0])] * 2


def test_a_missing_run_is_an_error_before_any_data_is_read(
    origin: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    missing = origin.path.with_name("tinny")
    with pytest.raises(DataError, match=r"tinny is not there; did you mean '.*tiny'\?"):
        train(tiny(f"train.start_from={missing}", "data.train=nowhere.tsv"), runs=tmp_path / "runs", quiet=True)
    assert not (tmp_path / "runs").exists()


class Killed(BaseException):
    """An exception that no code of regard catches."""


def train_until_killed(at: int, recipe: Recipe, runs: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Train until just before the n-th checkpoint is saved; returns the unfinished run."""
    saved: list[int] = []
    real = Run.save

    def save(self: Run, update: int, *content: Any) -> None:
        saved.append(update)
        if len(saved) == at:
            raise Killed
        real(self, update, *content)

    with monkeypatch.context() as patch:
        patch.setattr(Run, "save", save)
        with pytest.raises(Killed):
            train(recipe, runs=runs, quiet=True)
    return Run.open(runs / "tiny")


@pytest.mark.parametrize("at", [1, 2, 3])
def test_a_killed_run_resumes_to_exactly_the_same_weights(
    origin: Run, other_letters: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    other = Run(shutil.copytree(origin.path, tmp_path / "other"))
    recipe = tiny(f"train.start_from={other.path}", "train.learning_rate=0.01", "model.encoder.dropout=0.2")
    if at < 3:  # before and after the first checkpoint
        recipe = recipes.override(recipe, "train.new_vocabulary=true")
        recipe = recipes.override(recipe, f"data.train={other_letters}")
    uninterrupted = train(recipe, runs=tmp_path / "whole", quiet=True)
    run = train_until_killed(at, recipe, tmp_path / "runs", monkeypatch)
    if at > 1:
        shutil.rmtree(other.path)  # the first checkpoint has all weights
    assert resume(run, quiet=True).read(storage.MODEL) == uninterrupted.read(storage.MODEL)


@pytest.mark.parametrize("at", [1, 2])
def test_tied_embeddings_are_stored_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int) -> None:
    recipe = tiny("tokens.shared=true", "model.tied=true", "model.embedding=10", "train.average=2")
    uninterrupted = train(recipe, runs=tmp_path / "whole", quiet=True)
    model = regard.load(uninterrupted).model
    assert model.encoder.embedding.weight is model.decoder.embedding.weight
    assert len(weights(uninterrupted)) < len(model.state_dict())
    run = train_until_killed(at, recipe, tmp_path / "runs", monkeypatch)
    assert resume(run, quiet=True).read(storage.MODEL) == uninterrupted.read(storage.MODEL)
    again = train(
        recipe, f"train.start_from={uninterrupted.path}", NO_LEARNING, "train.ema=0", runs=tmp_path, quiet=True
    )
    assert again.read(storage.MODEL) == uninterrupted.read(storage.MODEL)


def test_a_run_without_weights_is_an_error_that_says_how_to_resume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(*_: object) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(loop, "validate", die)
        with pytest.raises(Killed):
            train(tiny(), runs=tmp_path, quiet=True)
    run = Run.open(tmp_path / "tiny")
    how = rf"{run.path} is not complete: .* go on with: regard train --resume {run.path}$"
    with pytest.raises(CorruptError, match=how):
        regard.load(run)
    with pytest.raises(CorruptError, match=how):
        train(tiny(), f"train.start_from={run.path}", runs=tmp_path / "runs", quiet=True)
    assert not (tmp_path / "runs").exists()
