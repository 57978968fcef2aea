"""The interface, asked in this process: it answers as the predictor does, and refuses in sentences."""

import asyncio
import json
import re
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from media import png, wav
from servers import GOLDEN, HOURS, TABLE, TASKS, VALUES, golden, inputs_of

from regard.data.corpora.shapes import render as render_shapes
from regard.data.corpora.tones import render as render_tones
from regard.errors import MissingExtraError, RecipeError
from regard.predict import Predictor, load
from regard.serve import app
from regard.serve.address import Address, check_address, check_packages
from regard.serve.batcher import Job
from regard.serve.limits import Bounds, RefusedError
from regard.serve.questions import options_of, question_of

PICTURE = "shapes:red-circle-8-8-6,blue-square-40-8-7"
RECORDING = "tones:7:C4-E4-G4"
SERIES = {"name": "s", "values": VALUES, "frequency": "hour", "start": HOURS[0]}


def close(one: Any, other: Any) -> bool:
    """Whether two contents are equal, numbers up to rounding: batch-mates may change the last bits of scores."""
    if isinstance(one, float) or isinstance(other, float):
        return one == pytest.approx(other, abs=1e-4, rel=1e-4)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(close(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(close, one, other))
    return one == other


# the answers


@pytest.mark.parametrize("name", TASKS)
def test_every_task_answers_as_its_predictor_does(local, name: str) -> None:
    server, texts = local(name), inputs_of(name)
    response = server.predict(run=name, inputs=texts, maps=True)
    assert response.status_code == 200, response.text
    expected = [prediction.to_dict() for prediction in load(golden(name)).predict(texts)]
    answers = response.json()
    assert answers["run"] == name
    assert close(answers["predictions"], json.loads(json.dumps(expected)))


@pytest.mark.parametrize(
    "settings",
    [
        {"beam": 3, "n_best": 2},
        {"n_best": 3, "search": {"temperature": 0.8, "top_k": 5}, "seed": 5},
        {"all_maps": True},
        {"search": {"length_penalty": 0.6, "max_extra": 4}},
    ],
    ids=str,
)
def test_settings_are_those_of_predict(local, settings: dict[str, Any]) -> None:
    texts, predictor = inputs_of("transformer")[:3], load(golden("transformer"))
    answers = local("transformer").predict(inputs=texts, **settings).json()["predictions"]
    for answer, expected in zip(answers, predictor.predict(texts, **settings), strict=True):
        maps = answer.pop("maps", None)
        assert close(answer, json.loads(json.dumps(expected.to_dict(maps=False))))
        if settings.get("all_maps"):
            for content, attention in zip(maps, expected.maps, strict=True):
                assert (content["site"], content["layer"], content["head"]) == attention.place
                assert np.allclose(content["attention"], attention.weights, atol=1e-4)


def test_requests_that_come_together_are_answered_together(local) -> None:
    texts = inputs_of("bahdanau") * 4
    server = local("bahdanau", bounds=Bounds(window=0.5, batch=len(texts)))

    async def ask() -> list[Any]:
        async with server.client() as client:
            questions = [client.post("/v1/predict", json={"inputs": [text]}) for text in texts]
            return await asyncio.gather(*questions)

    answers = [response.json()["predictions"][0] for response in asyncio.run(ask())]
    expected = load(golden("bahdanau")).predict(texts)
    assert close(answers, [prediction.to_dict(maps=False) for prediction in expected])
    assert server.metric("regard_batch_inputs_count") == 1
    assert server.metric("regard_batch_inputs_sum") == len(texts)


def test_several_runs_are_chosen_by_name(local) -> None:
    server = local("classify", "luong")
    assert [run["name"] for run in server.request("GET", "/v1/runs").json()["runs"]] == ["classify", "luong"]
    for name in ("classify", "luong"):
        (text, *_) = inputs_of(name)
        answer = server.predict(run=name, inputs=[text]).json()["predictions"][0]
        assert answer["text"] == load(golden(name)).predict([text])[0].text
    missing = server.predict(inputs=["x"])
    assert (missing.status_code, missing.json()["error"]) == (422, "run is missing; choose from classify, luong")
    wrong = server.predict(run="luongg", inputs=["x"])
    assert wrong.status_code == 404
    assert "did you mean 'luong'?" in wrong.json()["error"]


def test_the_runs_are_described(local) -> None:
    (text, series) = local("transformer", "forecast").request("GET", "/v1/runs").json()["runs"]
    assert (text["task"], text["input"], text["streams"], text["uploads"]) == ("translate", "text", True, [])
    assert text["attention"] == [
        {"site": "decoder.cross_attention", "layers": 1, "heads": 2},
        {"site": "decoder.self_attention", "layers": 1, "heads": 2},
        {"site": "encoder.self_attention", "layers": 1, "heads": 2},
    ]
    assert text["search"]["beam"] == 1
    assert (series["input"], series["streams"], series["uploads"]) == ("series", False, ["text/csv"])


def test_the_data_of_the_viewer_are_sent(local) -> None:
    (text, *_) = inputs_of("transformer")
    server = local("transformer", "window")
    view = server.predict(run="transformer", inputs=[text], view=True, all_maps=True, n_best=2).json()["predictions"][
        0
    ]["view"]
    assert view["choices"] == ["Output", "Site", "Layer", "Head"]
    assert view["name"] == "transformer"
    assert server.predict(run="window", inputs=["a"], view=True).json()["predictions"][0]["view"] is None


def test_a_view_has_all_maps_but_they_are_not_sent_beside_it(local) -> None:
    """Also of a text whose maps are too large to be sent as they are, and at the end of a stream."""
    server, text = local("transformer"), ("Glark Lem near 75 flumped keks . " * 50)[:1_600]
    assert "at most 1,000,000" in server.predict(inputs=[text], all_maps=True).json()["error"]
    streamed = server.request("POST", "/v1/stream", json={"inputs": [text], "view": True}).text
    done = json.loads(re.search(r"^event: done\ndata: (.*)$", streamed, re.M)[1])
    for answer in (server.predict(inputs=[text], view=True).json(), done):
        (prediction,) = answer["predictions"]
        assert prediction["text"]
        assert not {"maps", "attention", "note"} & set(prediction)
        assert {path[0] for path in (own["path"] for own in prediction["view"]["maps"])} == {
            "decoder.cross_attention",
            "decoder.self_attention",
            "encoder.self_attention",
        }
        assert len(json.dumps(prediction)) < 8_000_000


def test_a_view_whose_maps_are_too_many_has_the_map_of_the_output_and_says_so(local) -> None:
    (text, *_) = inputs_of("transformer")
    server = local("transformer", bounds=Bounds(window=0.0, recorded=4_000))
    whole = server.predict(inputs=[text[:10]], view=True).json()["predictions"][0]
    assert "note" not in whole
    assert len(whole["view"]["choices"]) == 3
    (prediction,) = server.predict(inputs=[text], view=True).json()["predictions"]
    assert prediction["note"].startswith("The text is long, so that only the map of the output is shown")
    assert [own["name"] for own in prediction["view"]["maps"]] == ["tokens", "words"]
    assert "choices" not in prediction["view"]
    assert prediction["text"] == server.predict(inputs=[text]).json()["predictions"][0]["text"]
    for settings in ({"all_maps": True}, {"interventions": ["erase 1"]}):
        refused = server.predict(inputs=[text], **settings)
        assert refused.status_code == 413
        sentence = "all maps of the request may have [0-9,]+ attention weights, at most 4,000"
        assert re.search(sentence, refused.json()["error"])


def test_how_far_a_map_may_be_trusted_is_told_with_it(local) -> None:
    predictor = load(golden("bahdanau"))
    predictor.trust = "trust the map in part"
    server = local(run=lambda: predictor)
    (text, *_) = inputs_of("bahdanau")
    assert server.request("GET", "/v1/runs").json()["runs"][0]["trust"] == predictor.trust
    assert server.predict(inputs=[text], view=True).json()["predictions"][0]["view"]["honesty"] == predictor.trust


def test_maps_of_a_changed_model_do_not_have_the_sentence_of_the_unchanged_one(local) -> None:
    predictor = load(golden("transformer"))
    predictor.trust = "trust the map in part"
    (text, *_) = inputs_of("transformer")
    content = {"inputs": [text], "interventions": ["permute seed=3"], "maps": True, "all_maps": True, "view": True}
    answer = local(run=lambda: predictor).predict(**content).json()["predictions"][0]
    changed = "not measured: the model was changed by permute seed=3"
    assert answer["trust"] == changed
    assert {own["trust"] for own in answer["maps"]} == {changed}
    assert answer["intervened"]["before"]["trust"] == "trust the map in part"
    before, after = (panel["honesty"] for panel in answer["view"]["panels"])
    assert before.endswith("trust the map in part")
    assert after == changed


# interventions


@pytest.mark.parametrize("change", ["erase 2", "silence decoder.cross_attention", "force row=1 column=2", "swap 1 2"])
def test_interventions_are_those_of_the_predictor(local, change: str) -> None:
    (text, *_) = inputs_of("transformer")
    content = {"inputs": [text], "interventions": [change], "maps": True, "view": True}
    answer = local("transformer").predict(**content).json()["predictions"][0]
    expected = load(golden("transformer")).intervene(text, [change])
    assert answer["text"] == expected.after.text
    assert answer["intervened"]["before"]["text"] == expected.before.text
    assert answer["intervened"]["marked"] == expected.marked
    assert answer["intervened"]["changed"] is expected.changed
    assert close(answer["intervened"]["diff"], expected.to_dict()["diff"])
    assert [panel["name"] for panel in answer["view"]["panels"]] == ["before", "after"]


def test_after_interventions_the_model_is_as_before(local) -> None:
    (text, *_) = inputs_of("transformer")
    server = local("transformer")
    before = server.predict(inputs=[text], maps=True).json()
    server.predict(inputs=[text], interventions=["erase 1"])
    server.predict(inputs=[text], interventions=["force row=1 column=900"])
    assert server.predict(inputs=[text], maps=True).json() == before


@pytest.mark.parametrize(
    ("content", "status", "sentence"),
    [
        ({"inputs": ["a"], "interventions": ["explode 3"]}, 422, "unknown intervention"),
        ({"inputs": ["a"], "interventions": ["erase 900"]}, 422, "there is no position 900"),
        ({"inputs": ["a"], "interventions": "erase 3"}, 422, "give a list of texts"),
        ({"inputs": ["a"], "interventions": ["erase 1"] * 17}, 413, "17 interventions, at most 16"),
        ({"inputs": ["a"], "interventions": ["erase " + "x" * 5000]}, 413, "an intervention has 5,006 characters"),
        (
            {"inputs": ["a"], "interventions": ["feed " + "x" * 5000]},
            413,
            "an intervention has 5,005 characters, at most 2,000",
        ),
        (
            {"inputs": ["a"], "beam": 50, "interventions": ["feed " + "x" * 1000]},
            413,
            "1,001 characters x 50 beams or outputs, at most 32,000",
        ),
        ({"inputs": ["a", "b"], "interventions": ["erase 1"]}, 422, "one input and one output"),
        ({"inputs": ["a"], "n_best": 2, "interventions": ["erase 1"]}, 422, "one input and one output"),
    ],
)
def test_interventions_that_cannot_be_are_refused(local, content: dict[str, Any], status: int, sentence: str) -> None:
    response = local("transformer").predict(**content)
    assert response.status_code == status
    assert sentence in response.json()["error"]


# streams


def events(text: str) -> list[tuple[str, Any]]:
    """The events of a stream."""
    return [(name, json.loads(data)) for name, data in re.findall(r"event: (\w+)\ndata: (.*)\n\n", text)]


@pytest.mark.parametrize("name", ["bahdanau", "luong", "gnmt", "coverage", "transformer", "lines", "window"])
@pytest.mark.parametrize("search", [{}, {"temperature": 0.7}], ids=["greedy", "sampled"])
def test_a_stream_tells_each_token_with_its_row(local, name: str, search: dict[str, Any]) -> None:
    (text, *_) = inputs_of(name)
    content = {"inputs": [text], "maps": True, "search": search, "seed": 3}
    response = local(name).request("POST", "/v1/stream", json=content)
    assert response.headers["content-type"].startswith("text/event-stream")
    *told, (last, answer) = events(response.text)
    expected = load(golden(name)).predict([text], search={**search, "beam": 1}, seed=3)[0]
    assert last == "done"
    assert close(answer["predictions"][0], json.loads(json.dumps(expected.to_dict())))
    assert {kind for kind, _ in told} == {"token"}
    tokens = [token["token"] for _, token in told]
    assert tokens == list(expected.tokens[: len(tokens)])
    assert len(expected.tokens) - len(tokens) == (not expected.finished or len(tokens) < len(expected.tokens))
    if expected.map is not None:
        rows = [token["attention"] for _, token in told]
        assert np.allclose(rows, expected.map.weights[: len(rows)], atol=1e-6)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ({"inputs": ["a", "b"]}, "a stream has one input, not 2"),
        ({"inputs": ["a"], "beam": 2}, "a beam of 1"),
        ({"inputs": ["a"], "n_best": 2}, "a stream has one output"),
    ],
)
def test_what_cannot_be_streamed_is_refused(local, content: dict[str, Any], sentence: str) -> None:
    response = local("luong").request("POST", "/v1/stream", json=content)
    assert response.status_code == 422
    assert sentence in response.json()["error"]


# uploads


def upload(server: Any, content: bytes, kind: str, query: str = "") -> Any:
    return server.request("POST", f"/v1/predict?{query}", content=content, headers={"content-type": kind})


def test_a_picture_is_uploaded(local, pictures: Predictor) -> None:
    from regard.data.corpora.shapes import render

    server, content = local(shapes=lambda: pictures), png(render(PICTURE))
    for kind in ("image/png", "application/octet-stream"):
        response = upload(server, content, kind, "maps=true&beam=2")
        assert response.status_code == 200, response.text
        (answer,) = response.json()["predictions"]
        expected = pictures.predict([PICTURE], beam=2)[0].to_dict()
        assert answer.pop("source") == "<picture 64x64>"
        assert close(answer, json.loads(json.dumps({key: expected[key] for key in expected if key != "source"})))
    described = server.predict(inputs=[PICTURE], beam=2).json()["predictions"][0]
    assert described["text"] == expected["text"]


def test_a_recording_is_uploaded(local, recordings: Predictor) -> None:
    samples, rate = render_tones(RECORDING)
    response = upload(local(tones=lambda: recordings), wav(samples, rate), "audio/wav", "maps=1")
    assert response.status_code == 200, response.text
    (answer,) = response.json()["predictions"]
    assert answer["layout"]["kind"] == "frames"
    assert answer["tokens"] == list(recordings.predict([RECORDING])[0].tokens)


def test_series_are_uploaded_as_csv_or_given_as_objects(local, forecasts: Predictor) -> None:
    server = local(series=lambda: forecasts)
    response = upload(server, TABLE.encode(), "text/csv", "maps=true")
    assert response.status_code == 200, response.text
    (by_table,) = response.json()["predictions"]
    assert server.predict(inputs=[SERIES], maps=True).json()["predictions"] == [by_table]
    assert by_table["times"][0].startswith("2020-01-08 00:00")
    assert len(by_table["paths"]) == 11
    assert set(by_table["quantiles"]) == {"0.05", "0.1", "0.25", "0.5", "0.75", "0.9", "0.95"}


@pytest.mark.parametrize(
    "given",
    [{}, {"values": []}, {"values": ["x"]}, {"values": [1.0], "frequency": "x"}, {"value": [1]}, {"name": "\ud800"}],
)
def test_an_object_that_is_no_series_gets_a_sentence(local, forecasts: Predictor, given: dict[str, Any]) -> None:
    body = json.dumps({"inputs": [given]}).encode()
    server = local(series=lambda: forecasts)
    response = server.request("POST", "/v1/predict", content=body, headers={"content-type": "application/json"})
    assert response.status_code == 422, response.text


HOSTILE_UPLOADS = [
    (b"", "image/png", 422, "not a picture"),
    (b"\x89PNG\r\n\x1a\n" + b"\0" * 100, "image/png", 422, "not a whole PNG"),
    (b"RIFF\xff\xff\xff\xffWAVE", "image/png", 422, "not a picture"),
    (b"x" * 200, "text/html", 415, "the content type is 'text/html'"),
    (b"x" * 200, "audio/wav", 415, "reads a picture; send application/json or image/"),
    (b"x" * 200, "", 415, "the content type is ''"),
]


@pytest.mark.parametrize(("content", "kind", "status", "sentence"), HOSTILE_UPLOADS)
def test_hostile_uploads_are_refused(
    local, pictures: Predictor, content: bytes, kind: str, status: int, sentence: str
) -> None:
    response = upload(local(shapes=lambda: pictures), content, kind)
    assert response.status_code == status
    assert sentence in response.json()["error"]


def test_media_beyond_their_caps_are_refused(local, pictures: Predictor, recordings: Predictor) -> None:
    bounds = Bounds(pixels=10_000, seconds=1, upload_bytes=100_000, values=50)
    server = local("forecast", shapes=lambda: pictures, tones=lambda: recordings, bounds=bounds)
    bomb = png(np.zeros((2000, 2000, 3), np.uint8))
    long = wav(torch.zeros(9_000), 8_000)
    table = "time,value\n" + "".join(f"2020-01-{step // 24 + 1:02}T{step % 24:02}:00,1\n" for step in range(60))
    for content, kind, run, sentence in (
        (bomb, "image/png", "shapes", "has more than 10,000 pixels"),
        (long, "audio/wav", "tones", "takes more than 1 seconds"),
        (b"\0" * 100_001, "image/png", "shapes", "100001 bytes, at most 100,000 bytes"),
        (table.encode(), "text/csv", "forecast", "60 values, at most 50"),
    ):
        response = upload(server, content, kind, f"run={run}")
        assert response.status_code in (413, 422), response.text
        assert sentence in response.json()["error"]


@pytest.mark.parametrize(
    "name",
    ["/etc/passwd", "../../../etc/passwd", "file:///etc/passwd", "runs/a.png", "speed:1.1:/etc/passwd", "x.tar/y"],
)
def test_no_input_is_ever_the_name_of_a_file(local, pictures: Predictor, recordings: Predictor, name: str) -> None:
    server = local("forecast", shapes=lambda: pictures, tones=lambda: recordings)
    for run in ("shapes", "tones", "forecast"):
        described = {"shapes": PICTURE, "tones": RECORDING}.get(run, "")
        fed = server.predict(run=run, inputs=[described], interventions=[f'feed "{name}"']) if described else None
        for response in (server.predict(run=run, inputs=[name]), fed):
            if response is None:
                continue
            assert response.status_code == 422
            sentence = "reads one (picture|recording|series) at a time: send its content"
            assert re.search(sentence, response.json()["error"])


# refusals


@pytest.mark.parametrize(
    ("content", "status", "sentence"),
    [
        ({"inputs": ["x" * 50_000]}, 413, "input 1 has 50,000 characters, at most 2,000; split the text"),
        ({"inputs": ["x" * 1000] * 40}, 413, "40,000 characters x 1 beams or outputs, at most 32,000 in all"),
        ({"inputs": ["x" * 1000], "beam": 50}, 413, "1,000 characters x 50 beams"),
        ({"inputs": ["a"] * 65}, 413, "65 inputs, at most 64"),
        ({"inputs": [3]}, 422, "input 1 is 3; give a text"),
        ({"inputs": ["\ud800"]}, 422, "\\ud800 without its other half"),
        ({"inputs": ["a"], "beam": 10**6}, 422, "beam is 1000000; give a whole number from 1 to 50"),
        ({"inputs": ["a"], "search": {"temperature": -1}}, 422, "search.temperature"),
        ({"inputs": ["a"], "search": {"temperature": 1e9}}, 422, "at most 1,000"),
        ({"inputs": ["a"], "search": {"top_k": 3}}, 422, "search.top_k is for sampling"),
        ({"inputs": ["a"], "run": "../luong"}, 404, "unknown run"),
    ],
)
def test_hostile_questions_are_refused(local, content: dict[str, Any], status: int, sentence: str) -> None:
    body = json.dumps(content).encode()
    server = local("luong")
    response = server.request("POST", "/v1/predict", content=body, headers={"content-type": "application/json"})
    assert response.status_code == status, response.text
    assert sentence in response.json()["error"]
    assert set(response.json()) == {"error"}


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        # 50 outputs of up to 10 x 455 + 1,000 tokens for 456 source tokens
        (
            {"inputs": ["zqxjkvw" * 91], "beam": 50, "n_best": 50, "search": {"max_ratio": 10, "max_extra": 1000}},
            "may have 127,[0-9,]+ attention weights, at most 12,000,000",
        ),
        (
            {
                "run": "bahdanau",
                "inputs": ["zqxjkvw" * 9] * 60,
                "beam": 8,
                "search": {"max_extra": 1000, "max_ratio": 10},
            },
            "at most 12,000,000",
        ),
        ({"inputs": ["zqxjkvw" * 280], "all_maps": True}, "have 3,[0-9,]+ weights, at most 1,000,000"),
        ({"inputs": ["zqxjkvw" * 280], "all_maps": True, "search": {"max_ratio": 3}}, "at most 20,000,000"),
        (
            {"inputs": ["zqxjkvw" * 280], "interventions": ["erase 1"], "search": {"max_ratio": 3}},
            "at most 20,000,000",
        ),
        (
            {"inputs": ["a"], "interventions": ["feed " + "zqxjkvw" * 280], "search": {"max_ratio": 3}},
            "all maps of the request may have .* at most 20,000,000",
        ),
        (
            {
                "inputs": ["a"],
                "interventions": ["feed " + "zqxjkvw" * 90],
                "beam": 50,
                "search": {"max_ratio": 10, "max_extra": 1000},
            },
            "the beams or outputs of the search may have .* at most 12,000,000",
        ),
        (
            {
                "inputs": ["a"],
                "interventions": ["feed " + "zqxjkvw" * 280],
                "all_maps": True,
                "search": {"max_ratio": 0.5},
            },
            "the maps of the answer have 3,[0-9,]+ weights, at most 1,000,000",
        ),
    ],
)
def test_maps_that_take_too_much_memory_are_refused_before_any_work(local, settings, sentence: str) -> None:
    server = local("transformer", "bahdanau")
    response = server.predict(**{"run": "transformer"} | settings)
    assert response.status_code == 413
    assert re.search(sentence, response.json()["error"]), response.text
    assert server.metric("regard_batch_inputs_count") == 0


@pytest.mark.parametrize(
    "settings",
    [
        {"inputs": ["14 juillet 1989", "4 March 2026"], "beam": 5, "maps": True},
        {"inputs": ["14 juillet 1989"], "beam": 50, "n_best": 50, "all_maps": True, "view": True},
        {"inputs": ["14 juillet 1989"] * 64, "beam": 5, "view": True, "search": {"max_ratio": 10, "max_extra": 50}},
        {"inputs": ["x y z " * 333]},
        {"inputs": ["x y z " * 150], "beam": 10, "maps": True},
        {"inputs": ["x y z " * 60], "interventions": ["feed " + "a b c " * 60]},
        {"inputs": ["zqxjkvw" * 140], "interventions": ['feed "a"'], "all_maps": True},
    ],
)
def test_ordinary_questions_are_within_the_bounds(local, settings: dict[str, Any]) -> None:
    server = local("transformer")
    options = options_of(settings, Bounds())
    question_of(server.lanes["transformer"].predictor, settings["inputs"], options, Bounds())


def recorded_of(server: Any, **content: Any) -> int:
    """The weights of all recordings that a question holds at once."""
    (lane,) = server.lanes.values()
    options, inputs = options_of(content, Bounds()), content["inputs"]
    return question_of(lane.predictor, inputs, options, Bounds()).weights.recorded


@pytest.mark.parametrize(("name", "recordings"), [("transformer", 4), ("luong", 4), ("classify", 2), ("answer", 2)])
def test_an_intervention_counts_all_the_recordings_that_it_holds(
    local, monkeypatch: pytest.MonkeyPatch, name: str, recordings: int
) -> None:
    """Those before and after it, and if outputs can be forced, that of the output before with and without it."""
    server, (text, *_) = local(name), inputs_of(name)
    (lane,) = server.lanes.values()
    held: list[int] = []
    answer, force = lane.predictor.task.answer, getattr(lane.predictor.task, "force", None)

    def note(work: Any) -> Any:
        def noted(*arguments: Any, **settings: Any) -> Any:
            predictions = work(*arguments, **settings)
            held.extend(one.maps is not None for one in predictions)
            return predictions

        return noted

    monkeypatch.setattr(lane.predictor.task, "answer", note(answer), raising=False)
    if force is not None:
        monkeypatch.setattr(lane.predictor.task, "force", note(force))
    assert server.predict(inputs=[text], interventions=["erase 1"]).status_code == 200
    assert sum(held) == recordings
    once = recorded_of(server, inputs=[text], all_maps=True)
    assert recorded_of(server, inputs=[text], interventions=["erase 1"]) == recordings * once


def test_a_source_that_is_fed_counts_in_half_of_the_recordings(local) -> None:
    server, (text, other, *_) = local("transformer"), inputs_of("transformer")
    once = sum(recorded_of(server, inputs=[one], all_maps=True) for one in (text, other))
    assert recorded_of(server, inputs=[text], interventions=[f'feed "{other}"']) == 2 * once


def test_interventions_whose_recordings_are_too_large_together_are_refused(local) -> None:
    server, (text, *_) = local("transformer"), inputs_of("transformer")
    once = recorded_of(server, inputs=[text], all_maps=True)
    bounds = Bounds(recorded=3 * once)
    options = options_of({"inputs": [text], "interventions": ["erase 1"]}, bounds)
    with pytest.raises(RefusedError, match=f"may have {4 * once:,} attention weights, at most {3 * once:,}"):
        question_of(server.lanes["transformer"].predictor, [text], options, bounds)


def test_uploads_count_by_their_positions(local, pictures: Predictor, recordings: Predictor) -> None:
    cells, rows = pictures.task.inputs.cells, 3
    bounds = Bounds(window=0.0, work=cells * rows - 1)
    server = local(shapes=lambda: pictures, tones=lambda: recordings, bounds=bounds)
    content = png(render_shapes(PICTURE))
    response = upload(server, content, "image/png", f"run=shapes&beam={rows}")
    assert response.status_code == 413
    assert response.json()["error"].startswith(f"the request asks for {cells} positions x 3 beams or outputs, at most")
    assert upload(server, content, "image/png", "run=shapes").status_code == 200
    positions = len(recordings.task.positions(RECORDING))
    response = server.predict(run="tones", inputs=[RECORDING], beam=50)
    assert response.status_code == 413
    assert f"{positions} positions x 50 beams" in response.json()["error"]
    assert server.metric("regard_batch_inputs_count") == 1


def test_maps_that_are_too_large_to_send_are_refused(local) -> None:
    server = local("bahdanau", bounds=Bounds(cells=10, window=0.0))
    (text, *_) = inputs_of("bahdanau")
    response = server.predict(inputs=[text], maps=True)
    assert response.status_code == 413
    assert re.search("the maps of the answer have [0-9]+ weights, at most 10", response.json()["error"])
    assert server.predict(inputs=[text]).status_code == 200


@pytest.mark.parametrize(
    "path", ["/../etc/passwd", "/page/../../x", "/%2e%2e/%2e%2e/etc/passwd", "/v1/", "/index.html", "/x" * 500]
)
def test_other_paths_do_not_exist(local, path: str) -> None:
    response = local("classify").request("GET", path)
    assert (response.status_code, response.json()["error"]) == (404, "there is no such endpoint; /docs has all")


def test_another_method_gets_a_sentence(local) -> None:
    response = local("classify").request("GET", "/v1/predict")
    assert (response.status_code, response.json()["error"]) == (405, "this endpoint takes another method; see /docs")


def test_an_unexpected_error_gets_a_sentence_and_no_traceback(local) -> None:
    predictor = load(golden("classify"))
    predictor.task.answer = None  # type: ignore[method-assign]
    response = local(broken=lambda: predictor).predict(inputs=["a"])
    assert response.status_code == 500
    assert response.json() == {"error": "the server met an unexpected error; its log has the details"}


def test_a_late_answer_is_refused(local) -> None:
    predictor, may = load(golden("classify")), threading.Event()
    answer = predictor.task.answer

    def wait(*arguments: Any, **settings: Any) -> Any:
        may.wait(20)
        return answer(*arguments, **settings)

    predictor.task.answer = wait  # type: ignore[method-assign]
    response = local(slow=lambda: predictor).predict(inputs=["a"], timeout=0.05)
    may.set()
    assert response.status_code == 504
    assert response.json()["error"] == "there was no answer within 0.05 seconds; ask for less at a time"


def test_a_request_that_was_not_begun_in_time_is_told_when_to_come_back(local) -> None:
    predictor, may = load(golden("classify")), threading.Event()
    answer = predictor.task.answer

    def wait(*arguments: Any, **settings: Any) -> Any:
        may.wait(20)
        return answer(*arguments, **settings)

    predictor.task.answer = wait  # type: ignore[method-assign]
    server = local(slow=lambda: predictor, bounds=Bounds(batch=1, window=0.0))
    first = threading.Thread(target=server.predict, kwargs={"inputs": ["a"]})
    first.start()
    while not server.lanes["slow"]._running:
        time.sleep(0.001)
    response = server.predict(inputs=["a"], timeout=0.1)
    may.set()
    first.join(20)
    assert response.status_code == 503
    assert response.headers["retry-after"] == "1"
    assert re.search("overloaded: the request waited for 0.[0-9] of its 0.1 seconds", response.json()["error"])


def test_beyond_the_deadline_of_an_overloaded_server_there_is_no_504(local) -> None:
    """Each answer takes 0.3 seconds, so that most of 12 requests cannot be answered within 1.5."""
    predictor = load(golden("classify"))
    answer = predictor.task.answer

    def slow(*arguments: Any, **settings: Any) -> Any:
        time.sleep(0.3)
        return answer(*arguments, **settings)

    predictor.task.answer = slow  # type: ignore[method-assign]
    server = local(slow=lambda: predictor, bounds=Bounds(batch=1, window=0.0, deadline=1.5, queue=9))

    async def ask_all() -> list[Any]:
        async with server.client() as client:
            return await asyncio.gather(*(client.post("/v1/predict", json={"inputs": ["a"]}) for _ in range(12)))

    responses = asyncio.run(ask_all())
    assert {response.status_code for response in responses} == {200, 429, 503}
    assert all((response.status_code == 200) != ("retry-after" in response.headers) for response in responses)


def test_the_time_in_which_a_body_arrives_counts(local) -> None:
    async def body() -> AsyncIterator[bytes]:
        yield b'{"inputs": ["a"],'
        await asyncio.sleep(0.1)
        yield b' "timeout": 0.05}'

    server = local("classify")
    for path in ("/v1/predict", "/v1/stream"):
        run = local("luong") if path == "/v1/stream" else server
        response = run.request("POST", path, content=body(), headers={"content-type": "application/json"})
        assert response.status_code == 504
        assert "took all of its 0.05 seconds to arrive and to be decoded" in response.json()["error"]
    assert server.metric("regard_batch_inputs_count") == 0


@pytest.mark.parametrize("how", ["upload", "description"])
def test_the_time_in_which_an_input_is_decoded_counts(
    local, pictures: Predictor, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    may = threading.Event()

    def wait(*arguments: Any) -> Any:
        may.wait(20)
        return "never used"

    monkeypatch.setattr(app, "accept_upload", wait)
    monkeypatch.setattr(app, "accept_values", wait)
    server = local(shapes=lambda: pictures)

    def ask(timeout: float) -> Any:
        if how == "upload":
            return upload(server, png(render_shapes(PICTURE)), "image/png", f"timeout={timeout}")
        return server.predict(inputs=[PICTURE], timeout=timeout)

    responses = [ask(0.5) for _ in range(3)]  # two of them take both threads, and the third one waits for them
    may.set()
    assert [response.status_code for response in responses] == [504, 504, 503]
    assert responses[2].headers["retry-after"] == "1"
    assert "overloaded: the input was not decoded within 0.5 seconds" in responses[2].json()["error"]
    assert server.metric("regard_batch_inputs_count") == 0


def test_a_deadline_is_counted_from_the_start_of_a_request(
    local, pictures: Predictor, monkeypatch: pytest.MonkeyPatch
) -> None:
    accept, decoding, deadlines = app.accept_upload, [], []

    def note(*arguments: Any) -> Any:
        decoding.append(time.monotonic())
        return accept(*arguments)

    server = local(shapes=lambda: pictures)
    submit = server.lanes["shapes"].submit

    def submit_noted(job: Job) -> None:
        deadlines.append(job.deadline)
        submit(job)

    monkeypatch.setattr(app, "accept_upload", note)
    monkeypatch.setattr(server.lanes["shapes"], "submit", submit_noted)
    assert upload(server, png(render_shapes(PICTURE)), "image/png", "timeout=20").status_code == 200
    assert deadlines[0] - 20 <= decoding[0]


def test_a_forecast_that_nobody_waits_for_ends_at_its_next_step(
    local, forecasts: Predictor, monkeypatch: pytest.MonkeyPatch
) -> None:
    likelihood, begun, steps = forecasts.model.likelihood, threading.Event(), []
    draw = likelihood.draw

    def wait(*arguments: Any) -> Any:
        steps.append(1)
        begun.set()
        end = time.monotonic() + 20
        while not server.lanes["waves"]._running[0].abandoned and time.monotonic() < end:
            time.sleep(0.001)
        return draw(*arguments)

    monkeypatch.setattr(likelihood, "draw", wait)
    server = local(waves=lambda: forecasts)
    assert server.predict(inputs=[SERIES], timeout=1).status_code == 504
    assert begun.is_set()
    end = time.monotonic() + 20
    while not server.metric("regard_dropped_total") and time.monotonic() < end:
        time.sleep(0.005)
    assert server.metric("regard_dropped_total") == 1
    assert len(steps) == 1
    monkeypatch.setattr(likelihood, "draw", draw)
    assert server.predict(inputs=[SERIES]).status_code == 200


def test_a_run_that_is_being_loaded_is_not_ready(local) -> None:
    may = threading.Event()

    def wait() -> Predictor:
        may.wait(20)
        return load(golden("classify"))

    server = local(slow=wait, wait=False)
    assert server.request("GET", "/health").json() == {"status": "ok"}
    for response in (server.request("GET", "/ready"), server.predict(inputs=["a"])):
        assert response.status_code == 503
        assert response.headers["retry-after"] == "1"
    may.set()
    server.wait()
    assert server.request("GET", "/ready").json() == {"status": "ready"}


def test_a_draining_server_answers_what_it_has_and_takes_no_more(local) -> None:
    server = local("classify")
    server.guard.draining = True
    response = server.predict(inputs=["a"])
    assert (response.status_code, response.headers["retry-after"]) == (503, "5")
    assert response.headers["connection"] == "close"
    assert server.request("GET", "/ready").status_code == 503
    assert server.request("GET", "/health").status_code == 200


def test_a_full_queue_gets_429(local) -> None:
    predictor, may, begun = load(golden("classify")), threading.Event(), threading.Event()
    answer = predictor.task.answer

    def wait(*arguments: Any, **settings: Any) -> Any:
        begun.set()
        may.wait(20)
        return answer(*arguments, **settings)

    predictor.task.answer = wait  # type: ignore[method-assign]
    server = local(slow=lambda: predictor, bounds=Bounds(queue=2, window=0.0))

    async def ask() -> list[Any]:
        async with server.client() as client:
            first = asyncio.create_task(client.post("/v1/predict", json={"inputs": ["a"]}))
            await asyncio.to_thread(begun.wait, 10)
            others = [asyncio.create_task(client.post("/v1/predict", json={"inputs": ["a"]})) for _ in range(5)]
            done, _ = await asyncio.wait(others, timeout=10, return_when=asyncio.FIRST_COMPLETED)
            while len(done) < 3:
                await asyncio.sleep(0.01)
                done = {task for task in others if task.done()}
            may.set()
            return [(await task) for task in (first, *others)]

    responses = asyncio.run(ask())
    assert sorted(response.status_code for response in responses) == [200, 200, 200, 429, 429, 429]
    for response in responses:
        if response.status_code == 429:
            assert int(response.headers["retry-after"]) >= 1
            assert response.json()["error"] == "2 inputs are waiting for slow, at most 2; try again later"


# security


def test_the_token_is_needed_and_never_told(local) -> None:
    server, secret = local("classify", token="s3cret-token"), "s3cret-token"
    asked = {"json": {"inputs": ["a"]}}
    for header in (None, "", "Bearer", "Bearer wrong", f"Basic {secret}", f"Bearer {secret}x", "Bearer é"):
        headers = {} if header is None else {"authorization": header.encode("latin-1")}
        for method, path in (("POST", "/v1/predict"), ("GET", "/v1/runs"), ("GET", "/metrics")):
            response = server.request(method, path, headers=headers, **(asked if method == "POST" else {}))
            assert response.status_code == 401
            assert response.headers["www-authenticate"] == "Bearer"
            assert secret not in response.text
    good = {"authorization": f"Bearer {secret}"}
    assert server.request("POST", "/v1/predict", headers=good, **asked).status_code == 200
    assert secret not in server.request("GET", "/metrics", headers=good).text
    for path in ("/health", "/ready", "/", "/docs", "/openapi.json"):
        response = server.request("GET", path)
        assert response.status_code == 200
        assert secret not in response.text


def test_every_response_has_the_security_headers(local) -> None:
    server = local("classify")
    for path in ("/", "/docs", "/health", "/nothing", "/v1/predict"):
        headers = server.request("GET", path).headers
        policy = headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'")
        assert "unsafe" not in policy
        assert "http" not in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["x-frame-options"] == "DENY"
        assert headers["cache-control"] == "no-store"
        assert "server" not in headers
        assert not any(name.startswith("access-control") for name in headers)


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:80", "localhost.evil.example", "", "127.0.0.1.nip.io:8000"]
)
def test_requests_to_other_hosts_are_not_answered(local, host: str) -> None:
    response = local("classify").request("GET", "/v1/runs", headers={"host": host})
    assert response.status_code == 421


@pytest.mark.parametrize(
    ("listening", "host", "status"),
    [
        ("127.0.0.1", "LOCALHOST:8000", 200),
        ("127.0.0.1", "127.0.0.1:8000", 200),
        ("127.0.0.1", "[::1]", 200),
        ("127.0.0.1", "127.0.0.2:8000", 421),
        ("127.0.0.2", "127.0.0.2:8000", 200),
        ("127.0.0.2", "127.0.0.2", 200),
        ("127.0.0.2", "127.0.0.3:8000", 421),
        ("127.0.0.2", "evil.example:8000", 421),
        ("LocalHost", "localhost:8000", 200),
        ("::1", "[::1]:8000", 200),
        ("0.0.0.0", "example.org", 200),  # for other machines: with a token
    ],
)
def test_a_local_server_answers_by_its_own_names(local, listening: str, host: str, status: int) -> None:
    server = local("classify", host=listening, token="abc")
    headers = {"host": host, "authorization": "Bearer abc"}
    assert server.request("GET", "/v1/runs", headers=headers).status_code == status
    same = server.request("GET", "/v1/runs", headers={**headers, "origin": f"http://{host.lower()}"})
    assert same.status_code == status


def test_requests_from_pages_of_other_sites_are_not_answered(local) -> None:
    server = local("classify")
    for origin, status in (("http://evil.example", 403), ("null", 403), ("http://localhost", 200)):
        assert server.request("GET", "/v1/runs", headers={"origin": origin}).status_code == status


@pytest.mark.parametrize(
    ("address", "is_good"),
    [
        (Address(), True),
        (Address("localhost"), True),
        (Address("::1"), True),
        (Address("127.8.9.1"), True),
        (Address("0.0.0.0"), False),
        (Address("::"), False),
        (Address("example.org"), False),
        (Address("0.0.0.0", token="abc"), True),
        (Address(token="a b"), False),
        (Address(token="ä"), False),
        (Address(token="a\nb"), False),
    ],
)
def test_an_address_that_others_reach_needs_a_token(address: Address, is_good: bool) -> None:
    if is_good:
        check_address(address)
        return
    with pytest.raises(RecipeError, match="token") as error:
        check_address(address)
    assert not address.token or address.token not in str(error.value)


def test_a_client_that_does_not_read_is_not_waited_for_for_ever(local) -> None:
    server = local("classify", bounds=Bounds(deadline=0.05))

    async def never(message: Any) -> None:
        await asyncio.sleep(60)

    async def ask() -> None:
        scope = {"type": "http", "method": "GET", "path": "/", "headers": [(b"host", b"localhost")]}
        rest = {"http_version": "1.1", "raw_path": b"/", "query_string": b"", "scheme": "http", "root_path": ""}
        await asyncio.wait_for(server.guard(scope | rest, never, never), 10)

    asyncio.run(ask())
    assert server.guard.in_flight == 0


@pytest.mark.parametrize("module", ["fastapi", "uvicorn", "prometheus_client"])
def test_a_missing_package_gets_a_sentence(monkeypatch: pytest.MonkeyPatch, module: str) -> None:
    monkeypatch.setattr("regard.serve.address.find_spec", lambda name: None if name == module else object())
    sentence = (
        rf"regard serve needs the package {module.replace('_', '.')}; install it with: pip install 'regard\[serve\]'"
    )
    with pytest.raises(MissingExtraError, match=sentence):
        check_packages()


# documentation


def test_the_interface_is_described(local) -> None:
    server = local("classify")
    document = server.request("GET", "/openapi.json").json()
    assert document["openapi"].startswith("3.")
    assert set(document["paths"]) == {"/v1/predict", "/v1/stream", "/v1/runs", "/health", "/ready", "/metrics"}
    schema = document["paths"]["/v1/predict"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    from regard.serve.questions import KEYS, SEARCH_KEYS

    assert set(schema["properties"]) == set(KEYS)
    assert schema["properties"]["beam"].items() >= {"type": "integer", "minimum": 1, "maximum": 50}.items()
    search = schema["properties"]["search"]["properties"]
    assert set(search) == set(SEARCH_KEYS)
    whole = {name: (key["minimum"], key["maximum"]) for name, key in search.items() if key["type"] == "integer"}
    expected = {"no_repeat": (0, 1000), "top_k": (0, 10_000_000), "max_extra": (1, 1000), "max_answer": (1, 100_000)}
    assert whole == expected
    assert (search["max_ratio"]["type"], search["max_ratio"]["maximum"]) == ("number", 10)
    page = server.request("GET", "/docs").text
    for path in document["paths"]:
        assert path in page
    assert "<script" not in page
    assert not re.search(r"(src|href)=.https?:", page)


def test_the_docs_have_every_bound_and_every_endpoint() -> None:
    text = (Path(__file__).parent.parent.parent / "docs/serve.md").read_text("utf-8")
    for name, value in vars(Bounds()).items():
        assert re.search(rf"^\| `{name}` \| {re.escape(f'{value:,}')} \|", text, re.M), name
    for path in ("/v1/predict", "/v1/stream", "/v1/runs", "/health", "/ready", "/metrics", "/openapi.json", "/docs"):
        assert f"`{path}`" in text or f" {path}`" in text


def test_golden_runs_are_all_served() -> None:
    assert {path.name for path in GOLDEN.iterdir()} == set(TASKS.values())
