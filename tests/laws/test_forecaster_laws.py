"""Laws of every forecaster: steps, batches, gaps, the future, recording and units change nothing that they must not.

Over recurrent decoders with and without attention to their history, Transformers, and all likelihoods.
"""

from dataclasses import replace
from typing import NamedTuple

import pytest
import torch
from small import (
    DIFFERENTIABLE,
    SCOPES_WITHOUT_PAST,
    VARIANTS,
    Case,
    Stack,
    Variant,
    draw_weights,
    gradients,
    leaves,
    make_recipe,
    near,
    same,
    sums_to_one,
    transformer,
)
from torch import Tensor

from regard.attention import POSITIONS, SCORES
from regard.attention.record import record
from regard.data.windows import SCALINGS, Windows, WindowShape
from regard.layers.recurrence import CELLS
from regard.models import sites
from regard.models.forecaster import Forecaster, build
from regard.models.likelihoods import FLOOR, LIKELIHOODS, uniform_numbers
from regard.recipe import Forecast

BATCH, CONTEXT, HORIZON, FEATURES, PATHS = 3, 7, 5, 4, 6
LAGS = (1, 3)
SHAPE = WindowShape(CONTEXT, HORIZON, LAGS)
BEFORE = SHAPE.before
DOT = Variant("scaled_dot")
ENTRIES = 8  # of the one column of categories
JUNK = (float("nan"), float("inf"), -1e30)


REAL = [name for name, entry in LIKELIHOODS.items() if entry.is_real]


class Setting(NamedTuple):
    """A forecaster: its decoder, as the case of another model, its likelihood, and whether it copies lagged values."""

    case: Case
    likelihood: str = "gaussian"
    mixes_lags: bool = False

    def __str__(self) -> str:
        positions = "" if self.case.decoder == "transformer" else f"-{self.case.stack.positions}"
        return f"{self.case}{positions}-{self.likelihood}{'-mixing' * self.mixes_lags}"

    def attends(self) -> bool:
        """Whether its decoder has attention."""
        return self.case.decoder == "transformer" or self.case.order == "luong"


def luong(positions: str = "none", variant: Variant = DOT, cell: str = "lstm") -> Case:
    """An LSTM with attention to its own states."""
    return Case("luong", cell, variant=variant, stack=Stack(positions))


def of_self_attention(variant: Variant) -> bool:
    """Whether a forecaster can have this variant: its attention runs all steps at once, with gradients."""
    return variant.normalizer in DIFFERENTIABLE and variant.scope in SCOPES_WITHOUT_PAST


SETTINGS = list(
    dict.fromkeys(
        [
            *(Setting(Case("none", cell, layers)) for cell in CELLS for layers in (1, 2)),
            *(Setting(luong(cell=cell)) for cell in CELLS),
            *(Setting(luong(positions)) for positions in POSITIONS),
            *(Setting(luong(variant=variant)) for variant in VARIANTS if of_self_attention(variant)),
            *(Setting(transformer(positions)) for positions in POSITIONS),
            *(Setting(transformer(variant=Variant(score, heads=2), layers=1)) for score in SCORES),
            *(
                Setting(transformer("alibi", "post", Variant("scaled_dot", scope=scope, heads=4)))
                for scope in SCOPES_WITHOUT_PAST
            ),
            *(
                Setting(case, likelihood)
                for case in (Case("none", "lstm"), luong("rotary"), transformer("rotary"))
                for likelihood in LIKELIHOODS
            ),
            *(
                Setting(case, likelihood, mixes_lags=True)
                for case in (Case("none", "lstm"), luong("rotary"), transformer("rotary"))
                for likelihood in REAL
            ),
        ]
    )
)
every_forecaster = pytest.mark.parametrize("setting", SETTINGS, ids=str)
every_attending_forecaster = pytest.mark.parametrize(
    "setting", [setting for setting in SETTINGS if setting.attends()], ids=str
)
# One of each kind, for laws that need no more.
KINDS = [Case("none", "lstm"), Case("none", "gru", 2), luong("rotary"), transformer("sinusoidal")]
every_kind = pytest.mark.parametrize("case", KINDS, ids=str)
EVERY_MIXTURE = [*((name, False) for name in LIKELIHOODS), *((name, True) for name in REAL)]


def make_forecaster(setting: Setting, weights: float = 0.4) -> Forecaster:
    """A forecaster in float64, with weights that make its outputs varied."""
    settings = Forecast(likelihood=setting.likelihood, lag_mixture=setting.mixes_lags)
    model = build(make_recipe(setting.case), settings, SHAPE, features=FEATURES, categories=(ENTRIES,)).double()
    draw_weights(model, weights)
    return model.eval()


def make_windows(likelihood: str = "gaussian", rows: int = BATCH) -> Windows:
    """Windows in float64 with gaps; the last is of a series that begins within the context."""
    size = BEFORE + SHAPE.steps
    values = 3 * torch.randn(rows, size, dtype=torch.float64)
    if likelihood == "negative_binomial":
        values = values.abs().round()
    elif likelihood == "lognormal":
        values = values.exp()
    observed = torch.ones(rows, size, dtype=torch.bool)
    observed[0, BEFORE + 2 : BEFORE + 4] = False
    observed[1, [1, BEFORE + CONTEXT - 1, BEFORE + CONTEXT + 2]] = False
    observed[-1, : BEFORE + 3] = False
    return windows_of(values, observed)


def windows_of(values: Tensor, observed: Tensor, scaling: str = "mean") -> Windows:
    rows, context = len(values), SHAPE.context_places
    values = torch.where(observed, values, 0.0)
    location, scale = SCALINGS[scaling](values[:, context], observed[:, context])
    generator = torch.Generator().manual_seed(5)
    return Windows(
        values,
        observed,
        torch.randn(rows, SHAPE.steps, FEATURES, dtype=torch.float64, generator=generator),
        torch.randint(0, ENTRIES + 1, (rows, 1), generator=generator),
        location,
        scale,
        observed[:, BEFORE:],
        torch.arange(rows),
    )


def make_uniforms(model: Forecaster, keys: range | list[int] = range(BATCH), paths: int = PATHS) -> Tensor:
    return uniform_numbers(11, keys, (paths, HORIZON, model.likelihood.uniforms)).double()


def trained_once(model: Forecaster, windows: Windows) -> dict[str, Tensor | None]:
    """The gradients of the sum of all log-probabilities."""
    model.zero_grad(set_to_none=True)
    model.log_prob(windows).sum().backward()
    return gradients(model)


# Steps


@every_forecaster
@pytest.mark.parametrize("sizes", [(1,) * SHAPE.steps, (4, 1, 2, 5)], ids=["steps", "parts"])
def test_stepping_retells_the_forward_pass(setting: Setting, sizes: tuple[int, ...]) -> None:
    model, windows = make_forecaster(setting), make_windows(setting.likelihood)
    scaled = torch.where(windows.observed, (windows.values - windows.location[:, None]) / windows.scale[:, None], 0.0)
    state, parts, first = model.decoder.start(BATCH), [], 0
    for size in sizes:
        vectors = model.vectors(scaled, windows, model.static(windows), first, size)
        visible = windows.observed[:, BEFORE + first - 1 : BEFORE + first - 1 + size]
        states, state = model.decoder(vectors, visible, state)
        parts.append(model.parameters_of(states, scaled, windows.observed, first))
        first += size
    near(torch.cat(parts, dim=1), model(windows))


@every_forecaster
def test_a_sample_path_is_drawn_from_the_forward_pass_over_itself(setting: Setting) -> None:
    model, windows = make_forecaster(setting), make_windows(setting.likelihood)
    uniforms = make_uniforms(model)
    before = [tensor.clone() for tensor in leaves(windows)]
    paths = model.sample(windows, uniforms)
    assert paths.shape == (BATCH, PATHS, HORIZON)
    assert all(map(torch.equal, leaves(windows), before))
    for path in range(PATHS):
        values, observed = windows.values.clone(), windows.observed.clone()
        values[:, BEFORE + CONTEXT :], observed[:, BEFORE + CONTEXT :] = paths[:, path], True
        raw = model(replace(windows, values=values, observed=observed))[:, CONTEXT:]
        drawn = model.likelihood.draw(raw, windows.scale.unsqueeze(1), uniforms[:, path])
        torch.testing.assert_close(drawn + windows.location.unsqueeze(1), paths[:, path], rtol=1e-9, atol=1e-9)


# Batches


@every_forecaster
def test_batch_mates_change_nothing(setting: Setting) -> None:
    model, windows = make_forecaster(setting), make_windows(setting.likelihood)
    together = model(windows)
    assert len(together.flatten().unique()) == together.numel()  # all steps and rows differ
    for row in range(BATCH):
        near(model(windows.select(torch.tensor([row])))[0], together[row])


@every_kind
@pytest.mark.parametrize(("likelihood", "mixes_lags"), EVERY_MIXTURE)
def test_neither_batch_mates_nor_other_paths_change_a_path(case: Case, likelihood: str, mixes_lags: bool) -> None:
    model, windows = make_forecaster(Setting(case, likelihood, mixes_lags)), make_windows(likelihood)
    together = model.sample(windows, make_uniforms(model))
    for row, paths in ((1, PATHS), (2, 2), (0, 1)):
        alone = model.sample(windows.select(torch.tensor([row])), make_uniforms(model, [row], paths))
        torch.testing.assert_close(alone[0], together[row, :paths], rtol=1e-9, atol=1e-9)


@every_kind
def test_the_same_uniform_numbers_draw_the_same_path(case: Case) -> None:
    model, windows = make_forecaster(Setting(case)), make_windows()
    paths = model.sample(windows, make_uniforms(model))
    same(model.sample(windows, make_uniforms(model)), paths)
    assert not torch.equal(model.sample(windows, make_uniforms(model, range(3, 6))), paths)


# Gaps


@every_forecaster
@pytest.mark.parametrize("junk", JUNK)
def test_values_behind_gaps_change_neither_outputs_nor_gradients(setting: Setting, junk: float) -> None:
    model, windows = make_forecaster(setting), make_windows(setting.likelihood)
    hidden = replace(windows, values=torch.where(windows.observed, windows.values, junk))
    uniforms = make_uniforms(model)
    same(model(hidden), model(windows))
    same(model.log_prob(hidden), model.log_prob(windows))
    same(model.sample(hidden, uniforms), model.sample(windows, uniforms))
    expected, found = trained_once(model, windows), trained_once(model, hidden)
    assert all(gradient is None or gradient.isfinite().all() for gradient in expected.values())
    for name in expected:
        same(found[name], expected[name])


@pytest.mark.parametrize("scaling", SCALINGS)
def test_values_behind_gaps_change_no_scale(scaling: str) -> None:
    windows = make_windows()
    context = SHAPE.context_places
    values, observed = windows.values[:, context], windows.observed[:, context]
    for junk in JUNK:
        for found, expected in zip(
            SCALINGS[scaling](torch.where(observed, values, junk), observed),
            SCALINGS[scaling](values, observed),
            strict=True,
        ):
            same(found, expected)


@every_kind
def test_a_missing_value_is_another_input_than_an_observed_zero(case: Case) -> None:
    model, windows = make_forecaster(Setting(case)), make_windows()
    seen = windows.observed.clone()
    seen[0, BEFORE + 3] = True
    assert (model(replace(windows, observed=seen)) - model(windows))[0, 4].abs().max() > 1e-6


@every_attending_forecaster
def test_missing_steps_have_no_weight(setting: Setting) -> None:
    model, windows = make_forecaster(setting), make_windows(setting.likelihood)
    read = windows.observed[:, BEFORE - 1 : -1]  # a step reads the value before it
    with record(model) as recording:
        model(windows)
    future = torch.ones(SHAPE.steps, SHAPE.steps).triu(1).bool()
    visible = read[:, None, None] & ~future
    assert len(sites(model)) == setting.case.layers
    for name in sites(model):
        weights = recording.weights[name].reshape(BATCH, -1, SHAPE.steps, SHAPE.steps)
        assert (weights[~visible.expand_as(weights)] == 0).all()
        assert (weights[visible.expand_as(weights)] > 0).any()
        sums, attended = weights.sum(-1), visible.any(-1).expand(weights.shape[:-1])
        assert (sums[~attended] == 0).all()
        if sums_to_one(setting.case.variant):
            near(sums[attended], torch.ones_like(sums[attended]))


# The future


@every_forecaster
def test_no_log_probability_depends_on_later_values(setting: Setting) -> None:
    model, windows = make_forecaster(setting), make_windows(setting.likelihood)
    expected = model.log_prob(windows)
    for step in (0, 3, CONTEXT - 1, CONTEXT, CONTEXT + 2):
        later = slice(BEFORE + step + 1, None)
        values, observed = windows.values.clone(), windows.observed.clone()
        values[:, later] = values[:, later] * 2 + 3
        observed[1, later] = ~observed[1, later]
        changed = model.log_prob(replace(windows, values=values, observed=observed))
        near(changed[:, : step + 1], expected[:, : step + 1])
        assert not torch.equal(changed[:, step + 1 :], expected[:, step + 1 :])


@every_forecaster
def test_no_forecast_depends_on_what_came_then(setting: Setting) -> None:
    model, windows = make_forecaster(setting), make_windows(setting.likelihood)
    uniforms, horizon = make_uniforms(model), slice(BEFORE + CONTEXT, None)
    expected = model.sample(windows, uniforms)
    values, observed = windows.values.clone(), windows.observed.clone()
    values[:, horizon], observed[:, horizon] = float("nan"), False
    same(model.sample(replace(windows, values=values, observed=observed), uniforms), expected)
    values[:, horizon], observed[:, horizon] = 1e6, True
    same(model.sample(replace(windows, values=values, observed=observed), uniforms), expected)


# Recording


@every_attending_forecaster
def test_recording_changes_no_bit(setting: Setting) -> None:
    model, windows = make_forecaster(setting), make_windows(setting.likelihood)
    outputs, paths = model(windows), model.sample(windows, make_uniforms(model))
    expected = trained_once(model, windows)
    names, heads, rows = [*sites(model)], [setting.case.variant.heads], range(1, SHAPE.steps, 2)
    for settings in ({}, {"heads": heads, "rows": rows}, {"layers": names[-1:]}):
        with record(model, **settings) as recording:
            same(model(windows), outputs)
            same(model.sample(windows, make_uniforms(model)), paths)
            found = trained_once(model, windows)
        for name in expected:
            same(found[name], expected[name])
        assert set(recording.sites) == set(settings.get("layers", names))


@every_attending_forecaster
def test_a_recorded_part_is_that_of_the_whole_recording(setting: Setting) -> None:
    model, windows = make_forecaster(setting), make_windows(setting.likelihood)
    head, rows = setting.case.variant.heads, range(1, SHAPE.steps, 2)
    with record(model) as whole, record(model, layers=[*sites(model)][-1:], heads=[head], rows=rows) as part:
        model(windows)
    [(name, weights)] = part.weights.items()
    assert part.row_numbers(name) == tuple(rows)
    expected = whole.weights[name][..., rows, :]
    has_heads = setting.case.decoder == "transformer" or head > 1
    near(weights, expected[..., [head - 1], :, :] if has_heads else expected, 1e-12)


# Units


@every_kind
@pytest.mark.parametrize("likelihood", REAL)
@pytest.mark.parametrize("mixes_lags", [False, True])
@pytest.mark.parametrize("scaling", SCALINGS)
def test_a_series_in_another_unit_has_its_forecasts_in_that_unit(
    case: Case, likelihood: str, mixes_lags: bool, scaling: str
) -> None:
    """The unit reaches the network as the logarithm of the scale alone: without this input, forecasts are in units."""
    model, windows = make_forecaster(Setting(case, likelihood, mixes_lags)), make_windows()
    decoder = model.decoder
    inputs = decoder.enter.weight if case.decoder == "transformer" else decoder.recurrence.rnn.weight_ih_l0
    with torch.no_grad():
        inputs[:, len(LAGS) + 1 + FEATURES] = 0.0
    uniforms = make_uniforms(model)
    expected = model.sample(windows_of(windows.values, windows.observed, scaling), uniforms)
    for unit in (1e-4, 7.0, 1e6):
        changed = model.sample(windows_of(unit * windows.values, windows.observed, scaling), uniforms)
        torch.testing.assert_close(changed, unit * expected, rtol=1e-8, atol=0.0)


def test_standard_scaling_moves_forecasts_with_the_level() -> None:
    model, windows = make_forecaster(Setting(luong("rotary"))), make_windows()
    with torch.no_grad():  # neither reads the scale nor the level
        model.decoder.recurrence.rnn.weight_ih_l0[:, len(LAGS) + 1 + FEATURES :][:, :2] = 0.0
    uniforms = make_uniforms(model)
    expected = model.sample(windows_of(windows.values, windows.observed, "standard"), uniforms)
    changed = model.sample(windows_of(windows.values + 50.0, windows.observed, "standard"), uniforms)
    torch.testing.assert_close(changed, expected + 50.0, rtol=1e-8, atol=1e-8)


# The mixture of lagged values


@every_kind
@pytest.mark.parametrize("likelihood", REAL)
def test_a_location_is_counted_from_the_mixture_of_lagged_values(case: Case, likelihood: str) -> None:
    mixing, windows = make_forecaster(Setting(case, likelihood, mixes_lags=True)), make_windows()
    plain = make_forecaster(Setting(case, likelihood))
    plain.load_state_dict({name: value for name, value in mixing.state_dict().items() if not name.startswith("mix.")})
    states: list[Tensor] = []
    with mixing.out.register_forward_pre_hook(lambda module, inputs: states.append(inputs[0])):
        found = mixing(windows)
    raw, logits = plain(windows), mixing.mix.out(states[0])
    scaled = (windows.values - windows.location[:, None]) / windows.scale[:, None]
    for row in range(BATCH):
        for step in range(SHAPE.steps):
            places = [BEFORE + step - lag for lag in LAGS]
            kept = [number for number, place in enumerate(places) if windows.observed[row, place]]
            exponents = logits[row, step].exp()
            total = exponents[kept].sum() + exponents[len(LAGS)]  # the last: to copy nothing
            centre = sum(exponents[number] / total * scaled[row, places[number]] for number in kept)
            deviation = torch.nn.functional.softplus(raw[row, step, 1]) + FLOOR
            near(found[row, step, 0], centre + deviation * raw[row, step, 0])
    same(found[..., 1:], raw[..., 1:])


@every_kind
def test_the_weights_of_lagged_values_are_recorded_and_no_bit_changes(case: Case) -> None:
    model, windows = make_forecaster(Setting(case, mixes_lags=True)), make_windows()
    outputs, expected = model(windows), trained_once(model, windows)
    with record(model, layers=["mix"]) as recording:
        same(model(windows), outputs)
        weights = recording.weights["mix"]
        found = trained_once(model, windows)
    for name in expected:
        same(found[name], expected[name])
    assert weights.shape == (BATCH, SHAPE.steps, len(LAGS))
    observed = windows.observed.unfold(1, BEFORE, 1)[:, : SHAPE.steps, [BEFORE - lag for lag in LAGS]]
    assert ((weights > 0) == observed).all()
    assert (weights.sum(-1) < 1).all()  # a part copies nothing


# Learning


@every_kind
@pytest.mark.parametrize(("likelihood", "mixes_lags"), EVERY_MIXTURE)
def test_every_likelihood_learns(case: Case, likelihood: str, mixes_lags: bool) -> None:
    setting = Setting(case, likelihood, mixes_lags)
    model, windows = make_forecaster(setting, weights=0.1), make_windows(likelihood, rows=17)
    assert all(gradient is not None for gradient in trained_once(model, windows).values())
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    losses = []
    for _ in range(20):
        optimizer.zero_grad()
        loss = -model.log_prob(windows).sum() / windows.counted.sum()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] - 0.1
