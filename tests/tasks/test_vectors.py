"""Sentence vectors: unit length, independent of the batch, and close for similar sentences."""

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


def test_vectors_have_unit_length_and_those_of_blank_texts_are_zero(predictor: Predictor) -> None:
    embedded = vectors(predictor, TEXTS)
    assert embedded.shape == (len(TEXTS), 12)
    assert embedded.norm(dim=-1).tolist() == pytest.approx([1, 1, 0, 1, 1], abs=1e-6)
    assert vectors(predictor, []).shape == (0, 12)


def test_other_texts_of_a_batch_change_no_vector(predictor: Predictor) -> None:
    together = vectors(predictor, TEXTS)
    alone = torch.cat([vectors(predictor, [text]) for text in TEXTS])
    torch.testing.assert_close(together, alone, rtol=0.0, atol=1e-6)


def test_the_nearest_comes_first_and_a_text_is_nearest_to_itself(predictor: Predictor) -> None:
    nearest = near(predictor, TEXTS[1], TEXTS, count=3)
    assert (nearest[0].place, nearest[0].text) == (1, TEXTS[1])
    assert nearest[0].cosine == pytest.approx(1.0, abs=1e-5)
    assert [neighbour.cosine for neighbour in nearest] == sorted(
        (neighbour.cosine for neighbour in nearest), reverse=True
    )
    assert len(nearest) == 3
    everything = near(predictor, TEXTS[1], TEXTS, count=50)
    assert sorted(neighbour.place for neighbour in everything) == [0, 1, 3, 4]  # the blank text is left out


@pytest.mark.parametrize("blank", ["", " \t"])
def test_a_blank_query_is_refused(predictor: Predictor, blank: str) -> None:
    with pytest.raises(DataError, match="nothing is near a text that is blank or over 5,000 tokens"):
        near(predictor, blank, TEXTS)


@pytest.mark.slow
def test_a_classifier_finds_sentences_of_the_same_mood(tmp_path: Path) -> None:
    settings = recipes.load("moods", ["train.device=cpu"])
    predictor = regard.load(regard.train(settings, runs=tmp_path, quiet=True))
    dev = moods(1, 1).dev
    for example in dev[:4]:
        nearest = near(predictor, example.source, [other.source for other in dev], count=20)
        assert sum(dev[neighbour.place].target == example.target for neighbour in nearest) >= 19


def test_the_vector_of_a_translation_is_the_mean_of_its_states(tmp_path: Path) -> None:
    settings = recipes.load("moods", [*SIZES, *SHORT, *KINDS["translation"], "train.updates=1"])
    predictor = regard.load(regard.train(settings, runs=tmp_path, quiet=True))
    with torch.no_grad():
        memory = predictor.model.encoder(pad([[*predictor.task.source.encode(TEXTS[0]), END]]))
    mean = memory.states[0].mean(0)
    torch.testing.assert_close(vectors(predictor, TEXTS[:1])[0], mean / mean.norm())


def test_a_run_without_a_sentence_encoder_is_refused(predictor: Predictor) -> None:
    without_encoder = Predictor(predictor.run, predictor.task, torch.nn.Linear(2, 3))
    with pytest.raises(RecipeError, match=r"\(task = \w+, source = text\) has no sentence encoder"):
        vectors(without_encoder, TEXTS)


@pytest.mark.parametrize(
    ("recipe", "has_vectors"), [("clues", True), ("facts", True), ("parts", False), ("sentences", False)]
)
def test_vectors_of_other_tasks_are_given_or_refused(recipe: str, has_vectors: bool, tmp_path: Path) -> None:
    """The tasks are those that docs/reading.md lists."""
    changes = ["train.updates=1", "train.validate=1", "train.batch_tokens=300", "data.size=300", "train.device=cpu"]
    predictor = regard.load(regard.train(recipe, *changes, runs=tmp_path, quiet=True))
    if has_vectors:
        assert vectors(predictor, ["laura knows"]).norm().item() == pytest.approx(1.0, abs=1e-5)
    else:
        with pytest.raises(RecipeError, match=r"has no sentence encoder; use a run of translate from text"):
            vectors(predictor, ["laura knows"])
