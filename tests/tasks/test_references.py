"""Several captions of one picture: each trains, and all of them are references of one prediction."""

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

import regard
from regard import recipe as recipes
from regard.analysis import mistakes
from regard.data.corpora import shapes
from regard.errors import DataError, RecipeError
from regard.metrics import METRICS
from regard.recipe import Recipe, Search
from regard.tasks import Transduce
from regard.training import validation
from regard.types import Example, Prediction

SMALL = (
    *("picture.channels=3", "picture.blocks=4", "model.embedding=12", "train.device=cpu", "model.attention.heads=1"),
    *("model.encoder.kind=none", "model.encoder.dim=12", "model.decoder.kind=recurrent", "model.decoder.dim=12"),
    *("model.attention.dim=12", "train.updates=4", "train.validate=2", "train.batch_tokens=640", "train.warmup=0"),
    *("data.normalize=captions", "metric=bleu_4", "search.beam=3", "search.max_ratio=0", "search.max_extra=9"),
)
SCENES = [example.source for example in shapes(seed=1, size=30).train]


def make_recipe(file: Path, *keys: str) -> Recipe:
    return recipes.load("shapes", [*SMALL, f"data.train={file}", *keys])


def write(path: Path, scenes: Sequence[str], captions: int = 3) -> Path:
    lines = [f"{scene}\t{number}\tA Scene , number {number} !" for scene in scenes for number in range(captions)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


class Fixed(Transduce):
    """Gives the same answer to every picture, and counts what it was asked."""

    asked: list[str]

    def answer(  # type: ignore[override]
        self, model: object, texts: Sequence[str], settings: Search, n_best: int = 1, seed: int = 0, **_: bool
    ) -> list[Prediction]:
        self.asked = list(texts)
        return [Prediction(text, "a scene number 2", -1.0, (), None) for text in texts]


def make_fixed(file: Path, *keys: str) -> tuple[Fixed, Sequence[Example]]:
    recipe = make_recipe(file, *keys)
    examples = Transduce.reader(recipe)(recipe.data.train).examples
    made = Transduce.learn(recipe, examples)
    return Fixed(recipe, made.inputs, made.target), examples


@pytest.mark.parametrize("metric", Transduce.metrics)
def test_every_metric_compares_one_prediction_with_all_captions_of_a_picture(tmp_path: Path, metric: str) -> None:
    task, examples = make_fixed(write(tmp_path / "train.tsv", SCENES[:4]))
    assert len(examples) == 12
    scored = task.measure(torch.nn.Module(), examples, metric, task.recipe.search)
    assert task.asked == SCENES[:4]
    assert [outcome.references for outcome in scored.outcomes] == [
        ("a scene number 0", "a scene number 1", "a scene number 2")
    ] * 4
    best = METRICS[metric](["a scene number 2"], [["a scene number 2"]]).value
    assert scored.measured.value == pytest.approx(best) or metric == "cider_d"
    assert f"{metric}|n:4|" in scored.measured.signature
    assert not mistakes.find(task, scored).wrong


def test_wrong_captions_are_listed_with_all_references(tmp_path: Path) -> None:
    task, examples = make_fixed(write(tmp_path / "train.tsv", SCENES[:2], captions=2))
    scored = task.measure(torch.nn.Module(), examples, "bleu_4", task.recipe.search)
    rows = list(mistakes.find(task, scored).rows())
    assert rows[1][1:3] == ("a scene number 0 ||| a scene number 1", "a scene number 2")


def test_a_text_that_is_there_twice_counts_twice(tmp_path: Path) -> None:
    file = tmp_path / "train.tsv"
    file.write_text("x\ta\nx\tb\n", encoding="utf-8")
    recipe = recipes.load("copy", [f"data.train={file}"])
    examples = Transduce.reader(recipe)(recipe.data.train).examples
    made = Transduce.learn(recipe, examples)
    task = Fixed(recipe, made.inputs, made.target)
    task.measure(torch.nn.Module(), examples, "exact_match", recipe.search)
    assert task.asked == ["x", "x"]


def test_a_validation_predicts_pictures_and_is_not_cut_within_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write(tmp_path / "train.tsv", SCENES[:20])
    task, examples = make_fixed(file, "train.validate_examples=7")
    part = validation.part_of(task, examples)
    assert (len(part), len({example.source for example in part})) == (21, 7)
    monkeypatch.setattr(validation, "CHARACTERS", 3 * len("a scene number 0") + 5)
    part = validation.part_of(task, examples)
    assert (len(part), len({example.source for example in part})) == (9, 3)


def test_no_picture_is_in_train_and_in_the_dev_part_that_is_split_off(tmp_path: Path) -> None:
    recipe = make_recipe(write(tmp_path / "train.tsv", SCENES))
    found = Transduce.examples(recipe)
    sources = [{example.source for example in part} for part in (found.train, found.dev)]
    assert len(sources[1]) == 3
    assert len(found.dev) == 9
    assert not sources[0] & sources[1]


def test_captions_train_and_score_and_the_best_is_by_all_references(tmp_path: Path) -> None:
    file = write(tmp_path / "train.tsv", SCENES)
    keys = ("train.best_by=metric", "model.decoder.gated_context=true", "model.decoder.cell=lstm", "train.ema=0.5")
    recipe = make_recipe(file, *keys, f"data.test={file}", "train.doubly_stochastic=1", "train.validate_examples=2")
    run = regard.train(recipe, runs=tmp_path, quiet=True)
    assert "bleu_4|n:3|refs:3|" in run.metrics()[-1]["signature"]
    predictor = regard.load(run, "cpu")
    scored = predictor.score(predictor.task.examples(recipe).test[:6])
    assert len(scored.answers) == 2
    assert set(scored.others) == {"bleu_1", "bleu_2", "bleu_3", "cider_d", "rouge_l"}


def test_pictures_are_looked_for_in_data_pictures_first(tmp_path: Path) -> None:
    folder = tmp_path / "pictures"
    folder.mkdir()
    (folder / "a.jpg").write_bytes(b"")
    file = tmp_path / "captions.tsv"
    file.write_text("a.jpg\t0\tA cat\nb.jpg\t0\tA dog\n", encoding="utf-8")
    recipe = make_recipe(file, f"data.pictures={folder}")
    loaded = Transduce.reader(recipe)(recipe.data.train)
    assert loaded.examples[0].source == f"{folder}/a.jpg"
    assert [example.target for example in loaded.examples] == ["a cat", "a dog"]


def test_a_caption_without_words_is_left_out(tmp_path: Path) -> None:
    file = tmp_path / "captions.tsv"
    file.write_text(f"{SCENES[0]}\t0\tA cat\n{SCENES[0]}\t1\t .\n", encoding="utf-8")
    recipe = make_recipe(file)
    loaded = Transduce.reader(recipe)(recipe.data.train)
    assert (len(loaded.examples), loaded.dropped) == (1, 1)
    file.write_text(f"{SCENES[0]}\t0\t!\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"no target is left by data.normalize = captions"):
        Transduce.reader(recipe)(recipe.data.train)


def test_places_that_are_missing_and_texts_with_pictures_are_refused(tmp_path: Path) -> None:
    file = write(tmp_path / "train.tsv", SCENES[:2])
    with pytest.raises(DataError, match=r"data.pictures names nowhere, which is not there"):
        Transduce.examples(make_recipe(file, "data.pictures=nowhere"))
    with pytest.raises(DataError, match=r"cannot find nowhere.tar"):
        Transduce.examples(make_recipe(file, "data.pictures=nowhere.tar"))
    with pytest.raises(RecipeError, match=r"data.pictures is for sources that are files, not source = text"):
        Transduce.check(recipes.load("dates", ["data.pictures=x"]))
    with pytest.raises(RecipeError, match=r"unknown normalization 'caption'; choose from none, captions"):
        Transduce.check(make_recipe(file, "data.normalize=caption"))
