"""Following a search: each word is reported with its row, nothing changes, and what follows or checks may end it."""

import json
from concurrent.futures import CancelledError
from pathlib import Path

import pytest
import torch

from regard.predict import Predictor, load
from regard.search import checking, following
from regard.search.hypotheses import Beams

GOLDEN = Path(__file__).parent.parent / "golden/runs"
TEXTS = ["Glark Lem near 75 flumped keks .", "Bum Komp ."]


@pytest.fixture(scope="module", params=["translate_bahdanau", "translate_transformer"])
def predictor(request: pytest.FixtureRequest) -> Predictor:
    return load(GOLDEN / request.param / "finished")


@pytest.mark.parametrize("search", [{}, {"temperature": 0.7}], ids=["greedy", "sampled"])
def test_the_followed_words_are_those_of_the_output(predictor: Predictor, search: dict[str, float]) -> None:
    text = TEXTS[0]
    expected = predictor.predict([text], search=search, seed=3)[0]
    words, rows = [], []

    def tell(beams: Beams) -> None:
        assert beams.maps is not None
        words.append(int(beams.tokens[0, -1]))
        rows.append(beams.maps[0, -1].clone())

    with following(tell):
        followed = predictor.predict([text], search=search, seed=3)[0]
    assert followed == expected
    tokenizer = predictor.task.output_tokens
    assert tokenizer is not None
    assert [tokenizer.piece(word) for word in words] == list(expected.tokens)
    assert expected.map is not None
    assert torch.equal(torch.stack(rows), expected.map.weights)


def test_following_a_beam_changes_no_bit(predictor: Predictor) -> None:
    expected = predictor.predict(TEXTS, beam=3, n_best=2)
    steps = []
    with following(lambda beams: steps.append(len(beams.tokens))):
        assert predictor.predict(TEXTS, beam=3, n_best=2) == expected
    assert steps
    assert set(steps) <= {3, 6}


@pytest.mark.parametrize("search", [{}, {"temperature": 0.7}], ids=["greedy", "sampled"])
def test_whoever_follows_may_end_the_search(predictor: Predictor, search: dict[str, float]) -> None:
    def stop(beams: Beams) -> None:
        raise CancelledError

    with following(stop), pytest.raises(CancelledError):
        predictor.predict(TEXTS, search=search)
    calls = len(predictor.predict(TEXTS, search=search))  # after the block, nobody follows
    assert calls == 2


@pytest.mark.parametrize("search", [{}, {"temperature": 0.7}], ids=["greedy", "sampled"])
def test_a_check_ends_the_search(predictor: Predictor, search: dict[str, float]) -> None:
    steps = []

    def stop() -> None:
        steps.append(1)
        if len(steps) == 2:
            raise CancelledError

    with checking(stop), pytest.raises(CancelledError):
        predictor.predict(TEXTS[:1], search=search)
    assert len(steps) == 2
    assert len(predictor.predict(TEXTS[:1], search=search)) == 1


def test_a_check_is_called_at_each_step_of_a_forecast_and_changes_nothing() -> None:
    run, steps = load(GOLDEN / "forecast" / "finished"), []
    answers = json.loads((GOLDEN / "forecast" / "expected.json").read_text(encoding="utf-8"))["answers"]
    texts = [answers[0]["source"]]
    expected = run.predict(texts)
    with checking(lambda: steps.append(1)):
        assert run.predict(texts) == expected
    assert len(steps) == run.task.shape.horizon
