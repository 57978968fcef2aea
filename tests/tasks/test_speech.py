"""Speech as a source: its fronts, features, run file and speed perturbation."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

import regard
from regard import recipe as recipes
from regard.data.corpora.tones import NOTES, render, tones
from regard.data.features import MelSettings, change_speed, log_mel, resample
from regard.errors import CorruptError, DataError, RecipeError
from regard.maps import Frames
from regard.recipe import Recipe
from regard.recipe import Speech as Settings
from regard.sources import Speech
from regard.sources.speech import FILE, FRONTS, Scale
from regard.storage import Run
from regard.tasks import Transduce
from regard.types import Example

SMALL = (
    *("data.size=20", "model.embedding=6", "model.encoder.dim=8", "model.decoder.dim=8", "model.attention.dim=6"),
    *("speech.bands=12", "speech.width=8", "train.device=cpu", "train.threads=1", "train.batch_tokens=200"),
    *("search.max_ratio=0", "search.max_extra=3", "train.validate_examples=2"),
)


def small(*keys: str) -> Recipe:
    return recipes.load("tones", [*SMALL, *keys])


def features(frames: int, bands: int = 12) -> Tensor:
    return torch.randn(frames, bands, generator=torch.Generator().manual_seed(frames)).half()


def source(**settings: object) -> Speech:
    whole = replace(Settings(bands=12, width=8), **settings)
    return Speech(whole, recipes.Limits(), Scale(8000, torch.zeros(12), torch.ones(12)))


# the fronts; their laws are in tests/laws/test_source_laws.py


@pytest.mark.parametrize("name", FRONTS)
def test_the_vectors_of_padding_are_zero(name: str) -> None:
    speech = source(front=name, layers=2)
    batch = speech.collate([features(frames) for frames in (5, 1, 23)])
    vectors, mask, layout = speech.front(recipes.Model()).embed(batch)
    assert mask.sum(1).tolist() == [2, 1, 6]
    assert torch.equal(vectors.any(-1), mask)
    assert layout == Frames(speech.seconds)


@pytest.mark.parametrize("name", FRONTS)
def test_a_position_comes_from_the_frames_of_its_time(name: str) -> None:
    speech = source(front=name, layers=2)
    front = speech.front(recipes.Model()).double()
    batch = speech.collate([features(32)])
    changed = batch.features.clone()
    changed[0, 20] += 1  # the frame at 0.2 seconds, in position 5
    moved = (front.embed(replace(batch, features=changed)).vectors - front.embed(batch).vectors)[0].abs().sum(-1)
    assert speech.labels(features(32))[int(moved.argmax())] == "0.20"
    if name == "convolution":
        assert moved.nonzero().flatten().tolist() == [5]


def test_a_batch_is_as_long_as_its_longest_recording() -> None:
    speech = source(layers=2)
    batch = speech.collate([features(9), features(20)])
    assert batch.features.shape == (2, 20, 12)
    assert batch.lengths.tolist() == [9, 20]
    assert batch.mask.sum(1).tolist() == [3, 5]
    assert batch.features.dtype == torch.half


@pytest.mark.parametrize("hop", [0.001, 0.0025, 0.01, 0.1])
@pytest.mark.parametrize("layers", [1, 5])
def test_the_labels_of_positions_are_different_times(hop: float, layers: int) -> None:
    speech = source(hop=hop, layers=layers)
    labels = speech.labels(features(1000))
    assert len(set(labels)) == len(labels) == speech.size(features(1000))
    assert float(labels[-1]) == pytest.approx((len(labels) - 1) * speech.seconds, abs=0.005)


def test_masks_are_drawn_in_training_only_and_by_the_state_of_the_generator() -> None:
    speech = source(time_masks=2, band_masks=1, band_width=6)
    front, batch = speech.front(recipes.Model()), speech.collate([features(60), features(44)])
    state, masked = torch.get_rng_state(), front.embed(batch).vectors
    torch.set_rng_state(state)
    assert torch.equal(front.embed(batch).vectors, masked)
    assert not torch.equal(front.embed(batch).vectors, masked)
    front.eval()
    assert torch.equal(front.embed(batch).vectors, front.embed(batch).vectors)


# features


def test_features_are_those_of_the_training_data_normalised() -> None:
    splits = tones(1, 30)
    recipe = small("speech.rate=0")
    speech = Speech.fit(recipe, [example.source for example in splits.train])
    items = speech.encode_all([example.source for example in splits.train])
    together = torch.cat([item.float() for item in items])
    assert together.mean(0).abs().max() < 0.01
    assert (together.std(0) - 1).abs().max() < 0.01
    samples, rate = render(splits.train[0].source)
    mel = MelSettings.for_rate(rate, 12, recipe.speech.window, recipe.speech.hop)
    expected = (log_mel(samples, mel) - speech.scale.mean) / speech.scale.deviation
    assert torch.allclose(items[0].float(), expected, atol=0.01)


def test_centred_features_do_not_depend_on_the_level_of_each_band() -> None:
    sources = [example.source for example in tones(1, 30).train]
    speech = Speech.fit(small("speech.centre=true"), sources)
    item = speech.encode(sources[0]).float()
    mel = MelSettings.for_rate(speech.scale.rate, 12, speech.settings.window, speech.settings.hop)
    features = log_mel(render(sources[0]).samples, mel)
    expected = (features - features.mean(0) - speech.scale.mean) / speech.scale.deviation
    assert torch.allclose(item, expected, atol=0.01)
    assert speech.scale.mean.abs().max() < 1e-4  # nothing is left of it over all recordings


def test_a_recording_of_another_rate_is_resampled_to_that_of_the_run(tmp_path: Path) -> None:
    samples, rate = render("tones:7:C4-E4-G4")
    write_wave(tmp_path / "wide.wav", resample(samples, rate, 16_000), 16_000)
    write_wave(tmp_path / "plain.wav", samples, rate)
    speech = Speech.fit(small(), ["tones:7:C4-E4-G4"])
    plain, wide = (speech.encode(str(tmp_path / name)).float() for name in ("plain.wav", "wide.wav"))
    assert plain.shape == wide.shape
    assert (plain - wide)[:, :8].abs().mean() < 0.1  # the upper bands are near the limit of the resampling
    assert speech.labels(plain.half())[:3] == ("0.00", "0.04", "0.08")


def write_wave(path: Path, samples: Tensor, rate: int) -> None:
    import wave

    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes((samples.clamp(-1, 1) * 32_767).short().numpy().tobytes())


def test_a_varied_recording_is_played_faster_and_only_training_has_them() -> None:
    speech = Speech.fit(small(), ["tones:7:C4-E4-G4"])
    samples, _ = render("tones:7:C4-E4-G4")
    recipe = small("speech.speed=0.1", "data.size=4")
    plain, slower, faster = Speech.variants(recipe, "tones:7:C4-E4-G4")
    assert (plain, slower, faster) == (
        *("tones:7:C4-E4-G4", "speed:0.900:tones:7:C4-E4-G4"),
        "speed:1.100:tones:7:C4-E4-G4",
    )
    expected = log_mel(change_speed(samples, 1.1), speech.mel)
    assert torch.equal(speech.encode(faster), ((expected - speech.scale.mean) / speech.scale.deviation).half())
    examples, without = Transduce.examples(recipe), Transduce.examples(small("data.size=4"))
    assert len(examples.train) == 12
    assert [example.source for example in examples.train[::3]] == [example.source for example in without.train]
    assert [example.target for example in examples.train[1::3]] == [example.target for example in without.train]
    assert all(example.source.startswith("speed:0.900:tones:") for example in examples.train[1::3])
    assert examples.dev == without.dev


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (["speech.front=pyramids"], "unknown front 'pyramids'.*did you mean 'pyramid'"),
        (["speech.front=pyramid", "speech.width=10"], "its width 10 must be 4, 8"),
        (["speech.rate=500"], "speech.rate is 0, or at least 1,000, not 500"),
        (["speech.bands=0"], "speech.bands in the overrides is at least 1"),
        (["speech.speed=0.9"], "speech.speed in the overrides is at least 0.0 and at most 0.5"),
        (["tokens.source=word"], "tokens.source is for source = text, not speech"),
    ],
)
def test_settings_that_do_not_fit_are_refused(keys: list[str], message: str, tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=message):
        regard.train(small(*keys), runs=tmp_path, quiet=True)


def test_keys_of_speech_are_refused_for_texts(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"speech\.bands is a key of source = speech, not of text; leave it out"):
        regard.train("dates", "speech.bands=40", runs=tmp_path, quiet=True)


# runs


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return regard.train(small("train.updates=2", "train.validate=2"), runs=tmp_path_factory.mktemp("runs"), quiet=True)


def test_a_run_stores_rate_and_scale_and_loads_without_the_data(run: Run) -> None:
    stored = json.loads(run.read(FILE))
    assert stored["rate"] == 8000
    assert len(stored["mean"]) == len(stored["deviation"]) == 12
    predictor = regard.load(run)
    answer, blank = predictor.predict(["tones:7:C4-E4-G4", " "])
    assert blank.text == ""
    assert answer.map is not None
    assert answer.map.layout == Frames(0.04)
    assert answer.map.columns[:3] == ("0.00", "0.04", "0.08")
    assert answer.to_dict()["layout"] == {"kind": "frames", "seconds": 0.04}
    assert "attention_on_end" not in run.metrics()[0]  # a recording has no END


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: content[: len(content) // 2],
        lambda content: b"[1, 2]",
        lambda content: content.replace(b'"rate": 8000', b'"rate": true'),
        lambda content: content.replace(b'"rate": 8000', b'"rate": 7'),
        lambda content: json.dumps(json.loads(content) | {"mean": [0.0]}).encode(),
        lambda content: json.dumps(json.loads(content) | {"deviation": [0.0] * 12}).encode(),
        lambda content: json.dumps(json.loads(content) | {"mean": [float("nan")] * 12}).encode(),
        lambda content: json.dumps(json.loads(content) | {"mean": ["0"] * 12}).encode(),
    ],
)
def test_a_damaged_scale_gets_a_sentence(run: Run, damage: Callable[[bytes], bytes]) -> None:
    content = damage(run.read(FILE))
    with pytest.raises(CorruptError, match=r"speech\.json of the run is damaged \(.*restore it from a copy"):
        Speech.restore(run.recipe(), lambda name: content)


def test_training_from_a_run_takes_its_scale(run: Run, tmp_path: Path) -> None:
    keys = (f"train.start_from={run.path}", "train.updates=1", "train.seed=5")
    again = regard.train(small(*keys), runs=tmp_path, quiet=True)
    assert again.read(FILE) == run.read(FILE)
    with pytest.raises(RecipeError, match=r"has another number of mel bands than 9; choose speech\.bands=12"):
        regard.train(small(*keys, "speech.bands=9"), runs=tmp_path, quiet=True)


def test_hostile_sources_are_refused_by_name(run: Run, tmp_path: Path) -> None:
    (tmp_path / "text.wav").write_bytes(b"no recording")
    (tmp_path / "empty.wav").write_bytes(b"")
    predictor = regard.load(run)
    for name in ("text.wav", "empty.wav", "missing.wav", "."):
        with pytest.raises(DataError, match=str(tmp_path)):
            predictor.predict([str(tmp_path / name)])
    with pytest.raises(DataError, match="is no melody"):
        predictor.predict(["tones:7:H9"])


@pytest.mark.slow
def test_melodies_are_learned_with_the_times_of_their_notes(tmp_path: Path) -> None:
    from statistics import median

    from regard.analysis.times import token_times
    from regard.data.corpora.tones import note_times

    predictor = regard.load(regard.train("tones", "train.device=cpu", runs=tmp_path, quiet=True))
    scored = predictor.score(tones(1, 1).test)
    assert scored.measured.value <= 0.02
    errors = []
    for example, answer in zip(scored.asked, scored.answers, strict=True):
        if answer.text == example.target and answer.map is not None:
            for (note, seconds), times in zip(token_times(answer.map), note_times(example.source), strict=True):
                assert note in NOTES
                errors.append(abs(seconds - times.onset))
    assert median(errors) <= 0.04


def test_examples_from_python_are_recordings(tmp_path: Path) -> None:
    write_wave(tmp_path / "a.wav", *render("tones:7:C4-E4-G4"))
    pairs = [(str(tmp_path / "a.wav"), "C4 E4 G4"), ("tones:8:D4-F4", "D4 F4"), ("tones:9:A4", "A4")]
    recipe = small("data.corpus=", "train.updates=1")
    trained = regard.train(recipe, pairs=pairs, runs=tmp_path, quiet=True)
    assert regard.load(trained).predict([pairs[0][0]])[0].map is not None
    assert Example(*pairs[0]).source == str(tmp_path / "a.wav")
