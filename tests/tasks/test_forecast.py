"""Forecasting: how series are cut and drawn, covariates and categories, errors, runs, and the command line."""

import csv
import io
import itertools
import json
import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

import regard
from commands import printed, shared_commands
from regard import recipe as recipes
from regard import storage
from regard.analysis import lags as lags_analysis
from regard.data.frequency import Frequency
from regard.data.series import Series
from regard.data.windows import Panel, Standard, WindowShape
from regard.errors import CorruptError, DataError, RecipeError, StoppedError
from regard.models.baselines import BASELINES
from regard.recipe import Recipe
from regard.storage import Run
from regard.tasks.forecast import FILE, LEVELS, Forecasting, Learned, cut, example_of, parse_lags, series_of
from regard.training import check, resume, train
from regard.training.engine import eager
from regard.training.session import OPTIMIZER

HOUR = Frequency("hour")
START = np.datetime64("2024-03-01T00:00:00")
HORIZON, CONTEXT, STEPS, PATHS = 4, 6, 50, 9


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def tiny(*overrides: str) -> Recipe:
    sizes = ["model.decoder.order=luong", "model.decoder.dim=10", "model.attention.score=scaled_dot"]
    windows = [f"forecast.horizon={HORIZON}", f"forecast.context={CONTEXT}", "forecast.lags=1,3"]
    data = ["name=tiny", "task=forecast", "metric=crps", f"forecast.samples={PATHS}", "train.device=cpu"]
    settings = ["train.updates=6", "train.validate=3", "train.batch_tokens=200", "train.learning_rate=0.01"]
    return recipes.parse("", "tiny", [*sizes, *windows, *data, *settings, "forecast.likelihood=gaussian", *overrides])


def a_series(name: str = "a", steps: int = STEPS, scale: float = 1.0, **fields: object) -> Series:
    values = scale * (3 + np.sin(np.arange(steps) / 2) + 0.1 * np.cos(7 * np.arange(steps)))
    return Series(name, values, HOUR, START, **fields)  # type: ignore[arg-type]


def write_long(path: Path, series: list[Series], known: str = "", category: str = "") -> str:
    """Write a long file; rows without a value go on with the known covariates."""
    header = ["series", "time", "value", *([known] if known else []), *([category] if category else [])]
    rows = [header]
    for one in series:
        for step, label in enumerate(one.labels(len(one.known))):
            value = "" if step >= len(one) or np.isnan(one.values[step]) else repr(float(one.values[step]))
            rows.append([one.name, label, value, *map(repr, one.known[step].tolist()), *one.categories])
    with open(path, "w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows(rows)
    return str(path)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A file with three series, one with a gap."""
    gap = a_series("gap", scale=5)
    gap.values[20:23] = np.nan
    return write_long(tmp_path_factory.mktemp("series") / "some.csv", [a_series("a"), a_series("b", 70, 20), gap])


@pytest.fixture(scope="module")
def run(file: str, tmp_path_factory: pytest.TempPathFactory) -> Run:
    return train(tiny(f"data.train={file}"), runs=tmp_path_factory.mktemp("runs"), quiet=True)


def lengths(examples: list[regard.types.Example]) -> list[tuple[str, int]]:
    return [(example.source, len(series_of(example))) for example in examples]


# Parts of series


def test_windows_roll_and_training_sees_none_of_their_values(file: str) -> None:
    examples = Forecasting.examples(tiny(f"data.train={file}", "forecast.windows=3", "forecast.stride=2"))
    assert lengths(examples.test)[:3] == [("a", 46), ("a", 48), ("a", 50)]
    assert lengths(examples.dev) == [("a", 42), ("b", 62), ("gap", 42)]
    assert lengths(examples.train) == [("a", 38), ("b", 58), ("gap", 38)]
    whole = series_of(examples.test[2])
    for part in (*examples.train[:1], *examples.dev[:1], *examples.test[:2]):
        assert series_of(part) == whole.upto(len(series_of(part)))
    assert any("3 missing values, which are masked" in note for note in examples.notes)


def test_the_future_of_a_file_changes_nothing_before_it(tmp_path: Path) -> None:
    series = a_series()
    parts = []
    for last in (1.0, 900.0):
        series.values[-HORIZON:] = last
        parts.append(Forecasting.examples(tiny(f"data.train={write_long(tmp_path / 'x.csv', [series])}")))
    for one, other in ((parts[0].train, parts[1].train), (parts[0].dev, parts[1].dev)):
        assert one == other
    assert parts[0].test != parts[1].test
    one, other = (series_of(part.test[0]).upto(STEPS - HORIZON) for part in parts)
    assert one == other


def test_a_test_file_continues_the_training_file(tmp_path: Path) -> None:
    rows = [
        ",".join([name, *(str(number % 7 + 1) for number in range(count))]) for name, count in (("A", 30), ("B", 40))
    ]
    header = ",".join(f"V{number}" for number in range(1, 42))
    (tmp_path / "train.csv").write_text("\n".join([header, *rows]) + "\n", encoding="utf-8")
    (tmp_path / "test.csv").write_text("V1,V2,V3,V4,V5,V6\nB,1,2,3,4,5\nA,9,8,7,6\n", encoding="utf-8")
    names = [f"data.{part}={tmp_path / part}.csv" for part in ("train", "test")]
    examples = Forecasting.examples(tiny(*names, "forecast.format=m4", "forecast.frequency=hour", "forecast.stride=1"))
    assert lengths(examples.train) == [("A", 26), ("B", 36)]
    assert lengths(examples.dev) == [("A", 30), ("B", 40)]
    assert lengths(examples.test) == [("A", 34), ("B", 44), ("B", 45)]
    assert series_of(examples.test[0]).values[-4:].tolist() == [9, 8, 7, 6]


def test_short_series_are_left_out_with_a_note(tmp_path: Path) -> None:
    name = write_long(tmp_path / "x.csv", [a_series("long"), a_series("short", 3 * HORIZON)])
    examples = Forecasting.examples(tiny(f"data.train={name}"))
    assert lengths(examples.train) == [("long", STEPS - 2 * HORIZON)]
    assert lengths(examples.test) == [("long", STEPS), ("short", 3 * HORIZON)]
    assert examples.notes == ["1 of 2 series are too short to learn from; they are left out"]
    name = write_long(tmp_path / "y.csv", [a_series("short", 3 * HORIZON)])
    with pytest.raises(DataError, match=r"^every series is too short: .* one needs about 10 values; lower forecast"):
        Forecasting.examples(tiny(f"data.train={name}"))


@pytest.mark.parametrize("steps", [*range(1, 3 * HORIZON), STEPS])
def test_parts_of_any_length_are_in_order(steps: int) -> None:
    train_part, dev, test = cut(a_series(steps=steps), None, tiny("forecast.windows=2").forecast)
    assert [len(one) for one in test] == [end for end in (steps - HORIZON, steps) if end > HORIZON]
    if train_part is not None:
        assert HORIZON < len(train_part) == len(dev[0]) - HORIZON == len(test[0]) - 2 * HORIZON


# Windows


def a_panel(*series: Series) -> Panel:
    none = Standard((), ())
    shape = WindowShape(CONTEXT, HORIZON, (1, 3))
    return Panel.of(
        series, [len(one) for one in series], shape, torch.zeros(len(series), 0, dtype=torch.long), none, none
    )


def test_windows_are_drawn_by_the_seed_alone() -> None:
    panel = a_panel(a_series("a", 300), a_series("b", 200, 9.0))
    first, again, other = (panel.drawn(seed, weighted=True) for seed in (1, 1, 2))
    assert torch.equal(first.rows, again.rows)
    assert torch.equal(first.ends, again.ends)
    assert not torch.equal(first.ends, other.ends)
    assert ((first.ends >= CONTEXT) & (first.ends + HORIZON <= panel.lengths[first.rows])).all()


def test_large_series_are_drawn_more_often_if_weighted() -> None:
    panel = a_panel(a_series("small", 2000), a_series("large", 2000, 3.0))
    shares = [panel.drawn(1, weighted=weighted).rows.double().mean().item() for weighted in (False, True)]
    assert shares == [pytest.approx(1 / 2, abs=0.03), pytest.approx(3 / 4, abs=0.03)]


def test_gaps_are_not_counted_and_short_series_begin_with_gaps() -> None:
    gap = a_series("gap", 12)
    gap.values[[4, 9]] = np.nan
    panel = a_panel(gap, a_series("short", 6)).drawn(1, weighted=False)
    windows = panel.collate(range(len(panel.rows)))
    assert not windows.values[~windows.observed].any()
    assert torch.equal(windows.counted, windows.observed[:, 3:])
    short = windows.select(torch.nonzero(windows.examples == 1)[:, 0])
    assert (~short.observed[:, : 3 + CONTEXT - 2]).all()
    assert (windows.scale > 0).all()


@pytest.mark.parametrize("likelihood", ["negative_binomial", "student_t"])
def test_a_constant_zero_is_forecast(likelihood: str, tmp_path: Path) -> None:
    zero = Series("zero", np.zeros(30), HOUR, START)
    counts = Series("counts", np.arange(40.0) % 5, HOUR, START)
    name = write_long(tmp_path / "x.csv", [zero, counts])
    run = train(tiny(f"data.train={name}", f"forecast.likelihood={likelihood}"), runs=tmp_path, quiet=True)
    (forecast,) = regard.load(run, device="cpu").predict([zero])
    assert np.isfinite(forecast.mean).all()


# Covariates and categories


def test_a_known_covariate_is_used(tmp_path: Path) -> None:
    """The series is noise that only the covariate tells."""
    generator = np.random.default_rng(3)
    series = []
    for name in "abcd":
        signs = generator.choice([-1.0, 1.0], (90 + HORIZON, 1))
        series.append(Series(name, 5 + 2 * signs[:90, 0], HOUR, START, known=signs))
    name = write_long(tmp_path / "x.csv", series, known="sign")
    keys = (f"data.train={name}", "forecast.known=sign", "train.updates=150", "train.validate=150")
    run = train(tiny(*keys, "train.learning_rate=0.03"), runs=tmp_path, quiet=True)
    predictor = regard.load(run, device="cpu")
    (forecast,) = predictor.predict(series[:1])
    assert np.abs(np.array(forecast.mean) - (5 + 2 * series[0].known[90:, 0])).max() < 1
    with pytest.raises(
        DataError, match=r"known covariates of series 'a' end 0 steps after its last value, but 4 steps"
    ):
        predictor.predict([Series("a", series[0].values, HOUR, START, known=series[0].known[:90])])
    with pytest.raises(DataError, match=r"0 known covariates, but this run learned with 1"):
        predictor.predict([a_series()])
    out = printed(tmp_path, "predict", run.path, name)
    assert len(out.splitlines()) == 1 + 4 * HORIZON


def test_past_covariates_of_the_horizon_are_not_read() -> None:
    past = np.arange(float(STEPS))[:, None] - 20
    shape = WindowShape(CONTEXT, HORIZON, (1, 3))
    standard = Standard((0.0,), (1.0,))
    panels = []
    for future in (0.0, 1e6):
        changed = past.copy()
        changed[30:] = future
        series = [a_series(past=changed)]
        panels.append(
            Panel.of(series, [30], shape, torch.zeros(1, 0, dtype=torch.long), Standard((), ()), standard).collate([0])
        )
    assert torch.equal(panels[0].features, panels[1].features)
    read = panels[0].features[0, :, -1]
    assert (
        read[: CONTEXT + 1].tolist() == past[30 - CONTEXT - 1 : 30, 0].tolist()
    )  # a step reads that of the one before
    assert not read[CONTEXT + 1 :].any()


def test_names_and_categories_are_embedded_and_others_are_unknown(tmp_path: Path) -> None:
    series = [a_series(name, categories=(kind,)) for name, kind in (("a", "x"), ("b", "y"), ("c", "x"))]
    name = write_long(tmp_path / "x.csv", series, category="kind")
    recipe = tiny(f"data.train={name}", "forecast.by_series=true", "forecast.categories=kind")
    task = Forecasting.learn(recipe, Forecasting.examples(recipe).train)
    others = [*series, a_series("new", categories=("z",))]
    panel = task._panel(others, [STEPS] * 4)
    assert panel.categories.tolist() == [[1, 1], [2, 2], [3, 1], [0, 0]]
    tables = task.build().categories
    assert [len(table.weight) for table in tables] == [4, 3]
    assert not tables[0].weight[0].any()
    assert Learned.from_bytes(task.files()[FILE]) == task.learned
    with pytest.raises(DataError, match="0 categories, but this run learned with 1"):
        task._panel([a_series()], [STEPS])


def test_series_given_in_python_must_have_the_same_columns() -> None:
    with pytest.raises(DataError, match="series 'b', value 1: 1 categories, but 'a' has 0"):
        train(tiny(), pairs=[a_series("a"), a_series("b", categories=("x",))], quiet=True)


# Errors


def test_impossible_values_are_named_with_their_line(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text(
        "series,time,value\n" + "".join(f"a,{step},{-2 if step == 7 else step}\n" for step in range(40)), "utf-8"
    )
    with pytest.raises(DataError) as refused:
        Forecasting.examples(tiny(f"data.train={tmp_path}/x.csv", "forecast.likelihood=negative_binomial"))
    assert str(refused.value) == (
        f"{tmp_path}/x.csv:9: -2 where only counts (whole numbers from 0 on) are possible with forecast.likelihood = "
        "negative_binomial; choose another"
    )


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("data.columns=a,b", "data.columns names the columns of series, time and value, three in all, not a, b"),
        (
            "forecast.lags=0,3",
            "forecast.lags is calendar, or numbers from 1 to 10,000 such as 1,24,168 or 1-24, not '0,3'",
        ),
        (
            "forecast.lags=soon",
            "forecast.lags is calendar, or numbers from 1 to 10,000 such as 1,24,168 or 1-24, not 'soon'",
        ),
        ("forecast.lags=10001", "forecast.lags is calendar, or numbers from 1 to 10,000"),
        ("forecast.start=yesterday", "forecast.start is a time such as 1990-01-01, not 'yesterday'"),
        ("forecast.frequency=hours ago", "unknown frequency 'hours ago'"),
        ("forecast.scaling=men", "unknown scaling 'men'.*did you mean 'mean'"),
        ("forecast.likelihood=gausian", "unknown likelihood 'gausian'.*did you mean 'gaussian'"),
        ("forecast.format=wied", "unknown format of series 'wied'"),
        ("model.decoder.order=bahdanau", "unknown order of a forecaster 'bahdanau'"),
        ("model.decoder.kind=none", "unknown decoder of a forecaster 'none'"),
    ],
)
def test_a_wrong_setting_is_refused_before_data_are_read(key: str, message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        check(tiny("data.corpus=waves", key))


def test_counts_cannot_be_centred() -> None:
    with pytest.raises(RecipeError, match=r"^forecast.scaling = standard subtracts the mean, but .* choose forecast"):
        check(tiny("data.corpus=waves", "forecast.scaling=standard", "forecast.likelihood=negative_binomial"))


def test_counts_are_no_mixture_of_lagged_values() -> None:
    with pytest.raises(RecipeError, match=r"^forecast.lag_mixture adds values to .* choose gaussian or student_t$"):
        check(tiny("data.corpus=waves", "forecast.lag_mixture=true", "forecast.likelihood=negative_binomial"))


def test_lags_are_sorted_and_the_last_value_is_always_read() -> None:
    assert parse_lags("24, 3,3") == (1, 3, 24)
    assert parse_lags("1") == (1,)
    assert parse_lags("2-4,7") == (1, 2, 3, 4, 7)


@pytest.mark.parametrize(
    "text", ["", "a", "0", "5-3", "-3", "1-2-3", "1-10001", "1-999999999999", "1,,2", "1,20000", "7,5-3"]
)
def test_lags_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(RecipeError, match=r"^forecast.lags is calendar, or numbers from 1 to 10,000 such as .* not "):
        parse_lags(text)


def test_the_map_of_the_lag_mixture_has_the_weight_of_each_value_that_is_copied() -> None:
    recipe = tiny("data.corpus=waves", "model.decoder.order=none", "forecast.lags=1,3,9", "forecast.lag_mixture=true")
    whole = [a_series("long", 60), a_series("short", 5)]  # the second is shorter than the largest lag
    task = Forecasting.learn(recipe, [example_of(whole[0])])
    model = task.build()
    assert model.mix is not None
    mixed: list[torch.Tensor] = []
    with model.mix.register_forward_hook(lambda module, inputs, attended: mixed.append(attended.context)):
        forecasts = [*task.forecasts(model, whole, all_maps=True)]
    windows = task._panel(whole, [len(one) for one in whole]).collate(range(2))
    for row, forecast in enumerate(forecasts):
        attention = forecast.map
        assert attention is not None
        assert attention.place is not None
        assert forecast.paths is not None
        assert str(attention.place) == "forecast.lag_mixture, layer 1, head 1"
        first = max(0, len(whole[row]) - 9)
        assert attention.rows == forecast.times
        assert attention.columns == whole[row].labels(len(whole[row]) + HORIZON - 1)[first:]
        assert len(forecast.view().times) > len(attention.columns)  # they are all under the drawn series
        read = np.concatenate([whole[row].values, forecast.paths.median(0).values[:-1].numpy()])[first:]
        scaled = (torch.from_numpy(read).float() - windows.location[row]) / windows.scale[row]
        torch.testing.assert_close(attention.weights @ scaled, mixed[-1][row, CONTEXT:], rtol=1e-4, atol=1e-5)
        assert (attention.weights.sum(-1) > 0).all()


def test_a_value_that_is_too_large_for_float32_is_refused(run: Run) -> None:
    series = a_series()
    series.values[7] = 1e200
    with pytest.raises(
        DataError, match=r"series 'a', value 8: 1e\+200 is too large to compute with; give values up to"
    ):
        regard.load(run, device="cpu").predict([series])


@pytest.mark.parametrize(
    "change",
    [
        {"frequency": "fortnightly moons"},
        {"lags": []},
        {"lags": [0]},
        {"lags": [10**9]},
        {"season": 0},
        {"features": 99},
        {"known": {"mean": [1.0], "deviation": []}},
        {"past": {"mean": [float("nan")], "deviation": [1.0]}},
        {"past": {}},
        {"categories": 7},
        {"season": 1e999},
    ],
    ids=str,
)
def test_a_damaged_file_of_a_run_is_named(run: Run, change: dict[str, object]) -> None:
    stored = json.loads(run.read(FILE))
    with pytest.raises(CorruptError, match=r"^series.json is damaged \(.*\); train the run again$"):
        Learned.from_bytes(json.dumps(stored | change).encode())


@pytest.mark.parametrize("content", [b"", b"[]", b"null", b'{"frequency": 3}', b"[" * 100_000, b"\xff"])
def test_a_file_that_is_no_object_is_damaged(content: bytes) -> None:
    with pytest.raises(CorruptError, match=r"^series.json is damaged"):
        Learned.from_bytes(content)


# Runs


def outcome(run: Run) -> tuple[object, ...]:
    [last] = run.own_checkpoints()
    losses = [entry["dev_loss"] for entry in run.metrics() if "dev_loss" in entry]
    return run.read(storage.MODEL), last.read(OPTIMIZER), run.read(FILE), losses


@pytest.mark.parametrize("update", [2, 4])
def test_a_stopped_run_resumes_to_the_same_bits(
    run: Run, file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, update: int
) -> None:
    real, calls = eager.learn_once, []

    def learn_once(*arguments: object) -> None:
        real(*arguments)
        calls.append(1)
        if len(calls) == update:
            raise StoppedError(2)

    with monkeypatch.context() as patch:
        patch.setattr(eager, "learn_once", learn_once)
        with pytest.raises(StoppedError):
            train(tiny(f"data.train={file}"), runs=tmp_path, quiet=True)
    assert outcome(resume(tmp_path / "tiny", quiet=True)) == outcome(run)


def test_a_prolonged_run_is_that_of_a_longer_recipe(file: str, tmp_path: Path) -> None:
    recipe = tiny(f"data.train={file}")
    longer = train(recipe, "train.updates=9", "name=longer", runs=tmp_path, quiet=True)
    short = train(recipe, runs=tmp_path, quiet=True)
    assert outcome(resume(short, "train.updates=9", quiet=True)) == outcome(longer)


def test_a_run_starts_from_another(run: Run, file: str, tmp_path: Path) -> None:
    keys = (f"train.start_from={run.path}", "train.learning_rate=0")
    second = train(tiny(f"data.train={file}"), *keys, runs=tmp_path, quiet=True)
    assert second.read(FILE) == run.read(FILE)
    series = [a_series("new")]
    first, again = (regard.load(one, device="cpu").predict(series)[0] for one in (run, second))
    assert torch.equal(first.paths, again.paths)


# Forecasts in Python


def test_a_forecast_has_paths_quantiles_and_a_map(run: Run) -> None:
    predictor = regard.load(run, device="cpu")
    series = a_series("some")
    (forecast,) = predictor.predict([series], all_maps=True)
    assert forecast.paths.shape == (PATHS, HORIZON)
    assert forecast.times == series.labels(STEPS + HORIZON)[STEPS:]
    levels = [forecast.quantile(level) for level in LEVELS]
    assert all(
        low <= high for lower, higher in itertools.pairwise(levels) for low, high in zip(lower, higher, strict=True)
    )
    assert forecast.map.weights.shape == (HORIZON, CONTEXT + HORIZON)
    assert forecast.map.columns[-1] == forecast.times[-2]
    torch.testing.assert_close(forecast.map.weights.sum(-1), torch.ones(HORIZON))
    assert math.isfinite(forecast.score)
    assert json.loads(json.dumps(forecast.to_dict()))["quantiles"].keys() == {f"{level:g}" for level in LEVELS}


def test_the_seed_and_the_name_choose_the_random_numbers(run: Run) -> None:
    predictor = regard.load(run, device="cpu")
    one, other = a_series("one"), a_series("other", scale=7)
    (alone,) = predictor.predict([one], seed=3)
    among = predictor.predict([other, one, other], seed=3)
    torch.testing.assert_close(among[1].paths, alone.paths, rtol=1e-5, atol=1e-5)
    assert not torch.allclose(predictor.predict([one], seed=4)[0].paths, alone.paths)
    assert not torch.allclose(predictor.predict([a_series("two")], seed=3)[0].paths, alone.paths)


def test_values_series_and_names_are_inputs(run: Run) -> None:
    predictor = regard.load(run, device="cpu")
    values = a_series().values
    array, listed, series = predictor.predict([values, values.tolist(), a_series("series")])
    torch.testing.assert_close(array.paths, listed.paths)
    assert series.paths.shape == array.paths.shape  # with times, and so another calendar
    assert array.times == tuple(map(str, range(STEPS, STEPS + HORIZON)))
    (named,) = predictor.predict(["b"])
    assert named.observed == tuple(a_series("b", 70, 20).values[-HORIZON:].tolist())
    assert len(named.series) == 70 - HORIZON


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("gapp", "there is no series 'gapp' in the data of this run; did you mean 'gap'"),
        ({"a": [1.0, 2.0], "b": [3.0, 4.0]}, "has 2 series; give them one by one"),
        (np.zeros((3, 2)), r"values of shape \(3, 2\); give one or more in a row"),
        ([1.0, "x"], "'x', which is no number"),
        (
            Series("d", np.ones(30), Frequency("day"), START),
            "its steps are of one day, but this run learned from steps",
        ),
        (7.5, "is 7.5; give its values, such as a list of numbers"),
    ],
    ids=["name", "dict", "matrix", "text", "frequency", "number"],
)
def test_a_wrong_input_gets_a_sentence(run: Run, value: object, message: str) -> None:
    with pytest.raises(DataError, match=message):
        regard.load(run, device="cpu").predict([value])


def test_columns_given_in_python_are_series(tmp_path: Path) -> None:
    series = [a_series("a"), a_series("b", scale=3)]
    frame = {
        "series": [one.name for one in series for _ in one.values],
        "time": np.concatenate([one.times() for one in series]),
        "value": np.concatenate([one.values for one in series]),
    }
    run = train(tiny(), pairs=frame, runs=tmp_path, quiet=True)
    recipe = tiny(f"data.train={write_long(tmp_path / 'x.csv', series)}")
    again = train(recipe, "name=other", runs=tmp_path, quiet=True)
    assert run.read(storage.MODEL) == again.read(storage.MODEL)


# Command line


def test_predict_writes_a_table_or_json(run: Run, file: str, tmp_path: Path) -> None:
    rows = list(csv.reader(io.StringIO(printed(tmp_path, "predict", run.path, file))))
    assert rows[0] == ["series", "time", "mean", *(f"{level:g}" for level in LEVELS)]
    assert [row[0] for row in rows[1:]] == ["a"] * HORIZON + ["b"] * HORIZON + ["gap"] * HORIZON
    assert rows[1][1] == a_series().label(STEPS)
    objects = [json.loads(line) for line in printed(tmp_path, "predict", run.path, file, "--json").splitlines()]
    assert [len(one["paths"]) for one in objects] == [PATHS] * 3
    assert [f"{number:.6g}" for number in objects[0]["quantiles"]["0.5"]] == [row[6] for row in rows[1 : 1 + HORIZON]]


def test_predict_needs_a_file_of_the_same_frequency(run: Run, tmp_path: Path) -> None:
    name = write_long(tmp_path / "x.csv", [Series("a", np.ones(30), Frequency("day"), START)])
    result = shared_commands()("predict", run.path, name, folder=tmp_path)
    result.assert_behaved()
    assert "x.csv:2: the values of 'a' are at least 24 steps apart, but this run learned from" in result.error
    assert result.out == b""  # no header either
    result = shared_commands()("predict", run.path, folder=tmp_path)
    assert "this run forecasts series: give a CSV file" in result.error


def test_a_short_file_with_gaps_is_read_with_the_frequency_of_the_run(run: Run, tmp_path: Path) -> None:
    """Its own times are two hours apart, three, and one: or there is only one of them."""
    few = a_series("few", 8)
    few.values[[1, 3, 4]] = np.nan
    once = a_series("once", 1)
    for series in (few, once):
        name = write_long(tmp_path / "x.csv", [series])
        expected = regard.load(run, device="cpu").predict([series])[0]
        rows = list(csv.reader(io.StringIO(printed(tmp_path, "predict", run.path, name))))
        assert [row[1] for row in rows[1:]] == list(expected.times)
        assert [row[2] for row in rows[1:]] == [f"{value:.6g}" for value in expected.mean]


def test_score_has_baselines_and_scores_the_last_windows(run: Run, file: str, tmp_path: Path) -> None:
    own = json.loads(printed(tmp_path, "score", run.path, "--json"))
    assert set(own["baselines"]) == set(BASELINES)
    assert {*Forecasting.metrics} <= own.keys()
    other = json.loads(printed(tmp_path, "score", run.path, file, "--json"))
    assert other == own  # both are the ends of the same series
    text = printed(tmp_path, "score", run.path)
    assert f"crps {own['crps']:.4f}" in text
    assert "seasonal_naive" in text


# Analysis


def test_lags_of_an_untrained_model_are_compared_with_the_truth(tmp_path: Path) -> None:
    recipe = tiny("data.corpus=waves", "data.size=20", "forecast.context=30", "train.updates=1", "train.validate=1")
    predictor = regard.load(train(recipe, runs=tmp_path, quiet=True), device="cpu")
    examples = Forecasting.examples(recipe).test[:10]
    found = lags_analysis.lags(predictor, examples)
    assert found.steps == HORIZON * 9  # but for the level-shifted series
    assert set(found.by_lag) == {1, 5, 7, 11, 13, 24}
    assert 0 <= found.share <= 1
    excess = lags_analysis.excess(predictor, examples)
    assert excess.true_crps < excess.crps
    assert 0 <= excess.coverage <= 1
