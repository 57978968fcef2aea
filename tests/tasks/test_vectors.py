"""Sentence vectors: of length one, the same in any company, and near where sentences are alike."""

from pathlib import Path

import pytest
import torch

import regard
from regard import Predictor
from regard import recipe as recipes
from regard.analysis.vectors import near, vectors
from regard.data.batching import pad
from regard.data.corpora import moods
from regard.errors import DataError, RecipeError
from regard.types import END

SIZES = ["model.embedding=8", "model.encoder.dim=12", "model.attention.dim=6", "train.device=cpu", "name=small"]
SHORT = ["train.updates=60", "train.validate=60", "train.batch_tokens=600", "data.size=2000"]
KINDS = {
    "classifier": [],
    "cls": ["classify.pooling=cls", "model.encoder.kind=transformer"],
    "translation": ["task=translate", "metric=exact_match", "tokens.target=word", "model.decoder.dim=10"],
}
TEXTS = ["the soup was bad", "our guide was not rude", "", "zebra", "the film was dull , not funny"]


@pytest.fixture(scope="module", params=KINDS)
def predictor(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Predictor:
    settings = recipes.load("moods", [*SIZES, *SHORT, *KINDS[request.param]])
    return regard.load(regard.train(settings, runs=tmp_path_factory.mktemp("runs"), quiet=True))


def test_vectors_are_as_long_as_one_but_for_blank_texts(predictor: Predictor) -> None:
    found = vectors(predictor, TEXTS)
    assert found.shape == (len(TEXTS), 12)
    assert found.norm(dim=-1).tolist() == pytest.approx([1, 1, 0, 1, 1], abs=1e-6)
    assert vectors(predictor, []).shape == (0, 12)


def test_company_changes_no_vector(predictor: Predictor) -> None:
    together = vectors(predictor, TEXTS)
    alone = torch.cat([vectors(predictor, [text]) for text in TEXTS])
    torch.testing.assert_close(together, alone, rtol=0.0, atol=1e-6)


def test_the_nearest_comes_first_and_a_text_is_nearest_to_itself(predictor: Predictor) -> None:
    found = near(predictor, TEXTS[1], TEXTS, count=3)
    assert (found[0].place, found[0].text) == (1, TEXTS[1])
    assert found[0].cosine == pytest.approx(1.0, abs=1e-5)
    assert [each.cosine for each in found] == sorted((each.cosine for each in found), reverse=True)
    assert len(found) == 3
    everything = near(predictor, TEXTS[1], TEXTS, count=50)
    assert sorted(each.place for each in everything) == [0, 1, 3, 4]  # a blank line is near nothing


@pytest.mark.parametrize("blank", ["", " \t"])
def test_nothing_is_near_a_blank_text(predictor: Predictor, blank: str) -> None:
    with pytest.raises(DataError, match="nothing is near a text that is blank or over 5,000 tokens"):
        near(predictor, blank, TEXTS)


@pytest.mark.slow
def test_a_classifier_finds_sentences_of_the_same_mood(tmp_path: Path) -> None:
    settings = recipes.load("moods", ["train.device=cpu"])
    predictor = regard.load(regard.train(settings, runs=tmp_path, quiet=True))
    dev = moods(1, 1).dev
    for example in dev[:4]:
        found = near(predictor, example.source, [each.source for each in dev], count=20)
        assert sum(dev[each.place].target == example.target for each in found) >= 19


def test_the_vector_of_a_translation_is_the_mean_of_its_states(tmp_path: Path) -> None:
    settings = recipes.load("moods", [*SIZES, *SHORT, *KINDS["translation"], "train.updates=1"])
    predictor = regard.load(regard.train(settings, runs=tmp_path, quiet=True))
    with torch.no_grad():
        memory = predictor.model.encoder(pad([[*predictor.task.source.encode(TEXTS[0]), END]]))
    mean = memory.states[0].mean(0)
    torch.testing.assert_close(vectors(predictor, TEXTS[:1])[0], mean / mean.norm())


def test_a_run_that_reads_no_sentences_is_refused(predictor: Predictor) -> None:
    blind = Predictor(predictor.run, predictor.task, torch.nn.Linear(2, 3))
    with pytest.raises(RecipeError, match=r"a run of the task '\w+', which has no sentence encoder"):
        vectors(blind, TEXTS)


@pytest.mark.parametrize(
    ("recipe", "given"), [("clues", True), ("facts", True), ("parts", False), ("sentences", False)]
)
def test_these_tasks_give_vectors_and_those_are_refused(recipe: str, given: bool, tmp_path: Path) -> None:
    """What docs/reading.md says."""
    changes = ["train.updates=1", "train.validate=1", "train.batch_tokens=300", "data.size=300", "train.device=cpu"]
    predictor = regard.load(regard.train(recipe, *changes, runs=tmp_path, quiet=True))
    if given:
        assert vectors(predictor, ["laura knows"]).norm().item() == pytest.approx(1.0, abs=1e-5)
    else:
        with pytest.raises(RecipeError, match=r"which has no sentence encoder; use a run of translate, classify"):
            vectors(predictor, ["laura knows"])
