"""Every finished run has its model card as README.md, and a run that goes on gets it anew."""

import re
from pathlib import Path

import pytest

import regard
from regard import recipe as recipes
from regard.storage import CARD, MANIFEST, Run
from regard.storage.runs import Manifest
from regard.tasks import task_of
from regard.training import card, resume, train

SIZES = ["model.embedding=4", "model.encoder.dim=6", "model.decoder.dim=6", "model.attention.dim=4"]
SHORT = ["data.size=40", "train.updates=2", "train.validate=1", "train.batch_tokens=200", "train.device=cpu"]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """A finished run of two updates."""
    return train(recipes.load("reverse", [*SIZES, *SHORT, "train.threads=1"]), runs=tmp_path, quiet=True)


def test_a_finished_run_has_its_card(run: Run) -> None:
    text = run.read(CARD).decode()
    assert text == card.write(run, task_of(run), run.metrics())
    parameters = sum(parameter.numel() for parameter in regard.load(run).model.parameters())
    assert f"with {parameters:,} parameters" in text
    assert f"{run.recipe().metric}, on all of the dev data" in text
    assert run.metrics()[-1]["signature"] in text


@pytest.mark.parametrize(
    ("name", "task", "parts"),
    [
        (
            "reverse",
            "`translate` from text",
            "encoder: recurrent, [^;]*; decoder: recurrent, order [^;]*; attention: .*",
        ),
        ("sentences", "`language_model` from text", "decoder: transformer, [^;]*; attention: score scaled_dot, .*"),
        ("clues", "`masked_lm` from text", "encoder: transformer, [^;]*; attention: score scaled_dot, .*"),
        (
            "waves",
            "`forecast` from series",
            "decoder: recurrent, [^;]*; attention: by location, to the values at the lags",
        ),
    ],
)
def test_the_card_names_the_parts_that_the_model_has(tmp_path: Path, name: str, task: str, parts: str) -> None:
    recipe = recipes.load(name, ["train.updates=1", "train.validate=1", "train.validate_examples=2", "train.threads=1"])
    made = train(recipe, runs=tmp_path, quiet=True)
    purpose = made.read(CARD).decode().split("\n\n")[1:3]
    assert purpose[0].startswith(f"A model for the task {task}, with ")
    assert re.fullmatch(f"Parts: {parts}\\.", purpose[1]), purpose[1]


def test_a_run_that_goes_on_gets_its_card_anew(run: Run) -> None:
    before = run.read(CARD)
    resume(run, "train.updates=3", quiet=True)
    assert run.read(CARD) != before
    assert "3 updates at most" in run.read(CARD).decode()


def unlist_card(run: Run) -> None:
    """Make the manifest that of a run without a card."""
    manifest = run.manifest()
    listed = {name: digests for name, digests in manifest.files.items() if name != CARD}
    (run.path / MANIFEST).write_bytes(Manifest(manifest.run, listed).to_json())


def test_a_run_of_an_older_version_gets_its_card_when_it_is_prolonged(run: Run) -> None:
    unlist_card(run)
    (run.path / CARD).unlink()
    assert regard.load(run).predict(["abc"])
    resume(run, quiet=True)
    assert not (run.path / CARD).exists()
    resume(run, "train.updates=3", quiet=True)
    assert "3 updates at most" in run.read(CARD).decode()


@pytest.mark.parametrize("listed", [True, False])
def test_a_text_of_somebody_else_is_left_alone(run: Run, *, listed: bool) -> None:
    if not listed:
        unlist_card(run)
    (run.path / CARD).write_text("my own notes")
    assert resume(run, "train.updates=3", quiet=True).finished()
    assert (run.path / CARD).read_text() == "my own notes"
    (run.path / CARD).unlink()
    (run.path / CARD).mkdir()
    assert resume(run, "train.updates=4", quiet=True).finished()
    assert (run.path / CARD).is_dir()
