"""The first minute with regard, in full: `regard demo` learns, is examined, and its map looks right."""

import json
import re

import pytest

import regard
from conftest import Command
from regard.predict import Predictor
from regard.tasks import Transduce
from regard.types import Example

LANGUAGES = ("en", "de", "ja")
EACH = 40  # dates of a language whose maps are looked at
BEAMS = (2, 4, 8)
DATES = 300  # that are answered with each of them


@pytest.fixture(scope="module")
def demo(script: Command, tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    """What the last line of `regard demo --json` tells."""
    folder = tmp_path_factory.mktemp("demo")
    said = script("demo", "--json", folder=folder, timeout=900, threads=1)  # quick on a busy machine too
    assert said.code == 0, said.error
    assert "Traceback" not in said.error
    told = json.loads(said.lines[-1])
    assert {"exact_match", "train_seconds", "run"} <= told.keys()
    assert told["run"] == "runs/dates"
    return told | {"run": folder / told["run"]}


@pytest.fixture(scope="module")
def predictor(demo: dict[str, object]) -> Predictor:
    return regard.load(demo["run"])


@pytest.fixture(scope="module")
def unseen(predictor: Predictor) -> list[Example]:
    return Transduce.examples(predictor.run.recipe()).test


def test_it_reads_unseen_days(demo: dict[str, object]) -> None:
    assert demo["examples"] >= 1000
    assert demo["exact_match"] >= 0.99
    languages = demo["exact_match_by_language"]
    assert len(languages) >= 12
    assert min(languages.values()) >= 0.97, languages


def test_it_learns_in_a_fixed_number_of_updates(demo: dict[str, object]) -> None:
    from regard import recipe as recipes
    from regard.storage import Run

    run = Run.open(demo["run"])
    *_, last, scored = run.metrics()
    assert last["update"] == recipes.load("dates").train.updates
    assert demo["train_seconds"] == scored["train_seconds"]


def test_it_draws_the_map(demo: dict[str, object]) -> None:
    assert (demo["run"] / "map.svg").read_bytes().startswith(b"<svg ")
    assert (demo["run"] / "map.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("part", ["year", "day"])
def test_the_map_looks_right(predictor: Predictor, unseen: list[Example], language: str, part: str) -> None:
    """Rows that write the year look at the source's year, rows that write the day at its day.

    A column more on either side counts too, since recurrent states tell of their neighbours.
    """
    test = [example for example in unseen if example.group == language]
    rows = slice(0, 4) if part == "year" else slice(8, 10)
    chosen: list[tuple[str, int]] = []  # a source, and where in it the part stands
    for example in test:
        digits = example.target[rows]
        places = [found.start() for found in re.finditer(rf"(?<!\d){digits}(?!\d)", example.source)]
        if len(places) == 1 and not digits.startswith("0"):  # not `5` for `05`, nor `10` for day and month
            chosen.append((example.source, places[0]))
    chosen = chosen[:EACH]
    masses, uniform = [], []
    for (_, place), seen in zip(chosen, predictor.predict([source for source, _ in chosen]), strict=True):
        assert seen.map is not None
        inside = seen.map.weights[rows, max(0, place - 1) : place + (rows.stop - rows.start) + 1]
        masses.append(inside.sum(dim=-1).mean().item())
        uniform.append(inside.shape[-1] / len(seen.map.columns))
    assert len(masses) == EACH
    mass, even = sum(masses) / EACH, sum(uniform) / EACH
    print(f"{language} {part}: {mass:.3f} of the weight where it belongs; evenly spread it were {even:.3f}")
    assert mass > 0.5
    assert mass > even + 0.3


def test_a_wider_beam_is_as_good_as_greedy_search(predictor: Predictor, unseen: list[Example]) -> None:
    """A model that is sure of itself: all beams but the first hold junk that ends early."""
    asked = unseen[:: len(unseen) // DATES][:DATES]
    texts = [example.source for example in asked]
    greedy, *wider = (predictor.predict(texts, beam=beam) for beam in (1, *BEAMS))

    def right(answers: list[regard.Prediction]) -> int:
        return sum(answer.text == example.target for answer, example in zip(answers, asked, strict=True))

    assert right(greedy) > 0.95 * DATES
    for answers in wider:
        assert right(answers) >= right(greedy)
        pairs = zip(answers, greedy, strict=True)
        assert all(answer.score >= likeliest.score - 1e-4 for answer, likeliest in pairs)
