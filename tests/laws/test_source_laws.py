"""Laws of sources: every source with each of its fronts, before every kind of encoder and decoder.

The setups are made from the tables of fronts, fits and grid positions, so that a new entry is held to the laws. A new
source fails `test_the_setups_have_every_entry_of_every_table` until it has an entry in `KINDS`.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from itertools import cycle, product
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from small import Case, draw_weights, gradients, leaves, make_recipe, near, same, transformer
from torch import Tensor
from torch.nn.functional import pad

import regard
from published import random_weights
from regard import catalogue, storage
from regard import recipe as recipes
from regard.attention.record import Recording, record
from regard.data.pictures import FITS
from regard.decoders import DECODERS
from regard.encoders import ENCODERS
from regard.errors import CallbackError
from regard.maps import TEXT
from regard.models import Seq2Seq
from regard.models.seq2seq import assemble
from regard.recipe import Recipe
from regard.search import beam
from regard.sources import SOURCES, AnySource, PictureBatch, SpeechBatch, picture, picture_front, speech
from regard.sources.picture_front import GRID_POSITIONS, FeatureBatch
from regard.storage import Run
from regard.training import resume
from regard.training.callbacks import Updated
from regard.training.session import OPTIMIZER
from regard.types import BEGIN, END, PAD, Batch, Padded, Step

TOKENS, VOCABULARY = 6, 11
HIDDEN = 2  # positions at the end of a batch that the laws of padding hide
LIMITS = (5, 2, 3)  # tokens of each output of a search

Keys = tuple[str, ...]


class Kind(NamedTuple):
    """A source: what its setups have in common, and in what they differ."""

    sizes: Keys
    setups: list[Keys]
    inputs: list[Any]  # of different lengths or shapes
    pairs: list[tuple[str, str]]  # to learn from: names of inputs, and targets


# The setups of a front by a key that only fronts of its sort have; a front of another sort has one setup.
PICTURE_SETUPS = {
    "blocks": [
        ("picture.size=26", "picture.channels=5", *own)
        for own in ((), ("picture.kernel=4",), ("picture.squeeze_excite=true",))
    ],
    "frozen": [("picture.size=70", f"picture.frozen={frozen}") for frozen in ("true", "false")],
}


def picture_setups() -> list[Keys]:
    """All setups of every front; fits and kinds of grid positions take turns."""
    turns = zip(cycle(FITS), cycle(GRID_POSITIONS))
    setups: list[Keys] = []
    for name, front in picture_front.FRONTS.items():
        own = next((setups for key, setups in PICTURE_SETUPS.items() if key in front.own_keys), [()])
        for keys, (fit, positions) in zip(own, turns, strict=False):
            setups.append((f"picture.front={name}", *keys, f"picture.fit={fit}", f"picture.positions={positions}"))
    return setups


def pixels(height: int, width: int) -> Any:
    return torch.randint(0, 256, (3, height, width), generator=torch.Generator().manual_seed(width), dtype=torch.uint8)


KINDS = {
    "text": Kind((), [()], ["abcdef", "fa", "cebd"], [("abcdef", "fed"), ("cab", "bac"), ("fa", "af"), ("eb", "be")]),
    "picture": Kind(
        (),
        picture_setups(),
        [pixels(40, 31), pixels(64, 90), pixels(33, 34)],
        [(f"shapes:red-circle-{8 + 9 * place}-20-6", f"{place} a circle") for place in range(4)],
    ),
    "speech": Kind(  # in training, with SpecAugment and speed perturbation
        (
            *("speech.bands=13", "speech.width=8", "speech.band_masks=1", "speech.band_width=5"),
            *("speech.time_masks=1", "speech.time_width=4", "speech.speed=0.1"),
        ),
        [
            (f"speech.front={name}", f"speech.layers={layers}", f"speech.hop={hop}")
            for name, (layers, hop) in product(speech.FRONTS, ((1, 0.04), (3, 0.02)))
        ],
        ["tones:7:C4-E4-G4", "tones:8:D4", "tones:9:A4-C5"],
        [("tones:7:C4-E4-G4", "C4 E4"), ("tones:8:D4", "D4"), ("tones:9:A4-C5", "A4 C5"), ("tones:5:G4", "G4")],
    ),
}


class Setup(NamedTuple):
    """A source, as the keys of a recipe describe it."""

    source: str
    keys: Keys

    def __str__(self) -> str:
        return "-".join([self.source, *(key.partition(".")[2] for key in self.keys)])

    def recipe(self, *keys: str) -> Recipe:
        return recipes.parse("", "a test", [f"source={self.source}", *KINDS[self.source].sizes, *self.keys, *keys])


SETUPS = [Setup(source, keys) for source, kind in KINDS.items() for keys in kind.setups]
CASES = [  # every kind of encoder and decoder; one decoder does not attend
    Case("bahdanau", encoder="none"),
    Case("none", "lstm"),
    Case("luong", layers=2, encoder="gnmt"),
    transformer("alibi", layers=1),
]
every_setup = pytest.mark.parametrize("setup", SETUPS, ids=str)
every_case = pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.encoder}-{case.decoder}-{case.order}")


@pytest.fixture(autouse=True)
def weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """Random weights in place of the published ones, whose packages need not be installed."""
    monkeypatch.setattr(picture, "published_weights", random_weights)


@cache
def encoded(setup: Setup) -> tuple[AnySource, list[Any]]:
    """The source of a setup, and its items: the encoded inputs."""
    kind = KINDS[setup.source]
    source = SOURCES[setup.source].fit(setup.recipe(), [name for name, _ in kind.pairs])
    return source, [source.encode(name) for name in names(source, kind)]


def names(source: AnySource, kind: Kind) -> list[str]:
    return [value if isinstance(value, str) else source.accept(value, "an input") for value in kind.inputs]


def make_model(setup: Setup, case: Case, *, dtype: torch.dtype = torch.float64, dropout: float = 0.0) -> Seq2Seq:
    """A model of the setup's source in eval mode; if the source is a sequence, with a CTC layer."""
    source, _ = encoded(setup)
    recipe = make_recipe(case, dropout=dropout)
    front = source.front(recipe)
    model = assemble(recipe, front, target_size=VOCABULARY, ctc=source.is_sequence)
    draw_weights(model.decoder, 0.4)  # so that predictions are varied
    return model.to(dtype).eval()


def make_batch(setup: Setup, rows: slice = slice(None)) -> Batch:
    source, items = encoded(setup)
    ids = torch.randint(4, VOCABULARY, (len(items), TOKENS), generator=torch.Generator().manual_seed(1))
    ids[:, 0], ids[:, -1] = BEGIN, END
    target = Padded(ids[rows], torch.ones_like(ids[rows], dtype=torch.bool))
    return Batch(source.collate(items[rows]), target, torch.arange(len(items))[rows])


# Padding: a batch with more positions, of which those that are hidden have any content


def widen_text(batch: Padded, positions: int, junk: float) -> Padded:
    mask = pad(batch.mask, (0, positions))
    return Padded(pad(batch.ids, (0, positions)).masked_fill(~mask, 5 if junk else PAD), mask)


def widen_pictures(batch: PictureBatch, positions: int, junk: float) -> PictureBatch:
    """The pixels are those of whole pictures, and several cells may see one: none of them is padding."""
    return PictureBatch(batch.pixels, pad(batch.mask, (0, positions)))


def widen_features(batch: FeatureBatch, positions: int, junk: float) -> FeatureBatch:
    mask = pad(batch.mask, (0, positions))
    return FeatureBatch(pad(batch.features, (0, 0, 0, positions)).masked_fill(~mask[..., None], junk), mask)


def widen_speech(batch: SpeechBatch, positions: int, junk: float) -> SpeechBatch:
    frames = positions * (batch.features.shape[1] // batch.mask.shape[1])
    features = pad(batch.features, (0, 0, 0, frames))
    hidden = torch.arange(features.shape[1]) >= batch.lengths[:, None]
    return SpeechBatch(features.masked_fill(hidden[..., None], junk), batch.lengths, pad(batch.mask, (0, positions)))


WIDEN: dict[type, Callable[[Any, int, float], Any]] = {
    Padded: widen_text,
    PictureBatch: widen_pictures,
    FeatureBatch: widen_features,
    SpeechBatch: widen_speech,
}


def widen(source: Any, positions: int, junk: float = 0.0) -> Any:
    """The batch of a source with more positions, none of them real; `junk` is in the place of all padding."""
    return WIDEN[type(source)](source, positions, junk)


def forward_and_backward(model: Seq2Seq, batch: Batch) -> tuple[Step, dict[str, Tensor | None]]:
    """The step and the gradients of a batch, with those of the CTC loss if there is one."""
    model.zero_grad()
    torch.manual_seed(6)
    step = model(batch)
    loss = step.logits.logsumexp(-1).sum()
    if model.ctc is not None:
        loss = loss + model.ctc.loss(step.memory, batch.target)
    loss.backward()
    return step, gradients(model)


def steps_agree(actual: Step, expected: Step, row: slice = slice(None)) -> None:
    """Assert that predictions, states and maps are those of the expected rows, whose sources may have more padding."""
    width = actual.memory.mask.shape[1]
    near(actual.logits, expected.logits[row])
    near(actual.memory.states, expected.memory.states[row, :width], 1e-12)
    assert (actual.attention is None) == (expected.attention is None)
    if actual.attention is not None:
        near(actual.attention, expected.attention[row, :, :width])
        assert not expected.attention[row, :, width:].any()


# Laws


def test_the_setups_have_every_entry_of_every_table() -> None:
    """The tables of sources are those whose key is in the section of a source."""
    assert KINDS.keys() == SOURCES.keys()
    assert {type(make_batch(setup).source) for setup in SETUPS} == WIDEN.keys()
    chosen = {key for setup in SETUPS for key in setup.keys}
    tables = [table for table in catalogue.tables().values() if table.key.partition(".")[0] in SOURCES]
    assert {table.key for table in tables} >= {"picture.front", "picture.fit", "picture.positions", "speech.front"}
    for table in tables:
        assert {f"{table.key}={name}" for name in table.entries} <= chosen
    assert {case.encoder for case in CASES} == ENCODERS.keys()
    assert {case.decoder for case in CASES} == DECODERS.keys()
    assert {case.attends() for case in CASES} == {True, False}


@every_setup
def test_inputs_are_encoded_as_each_alone(setup: Setup) -> None:
    source, items = encoded(setup)
    own = names(source, KINDS[setup.source])
    for together in (source.encode_all(own), source.encode_inputs(own)):
        for item, expected in zip(together, items, strict=True):
            same(torch.as_tensor(item), torch.as_tensor(expected))


@every_setup
def test_rows_and_positions_are_kept(setup: Setup) -> None:
    source, items = encoded(setup)
    batch = source.collate(items)
    sizes, width = [source.size(item) for item in items], batch.mask.shape[1]
    assert batch.mask.tolist() == [[place < size for place in range(width)] for size in sizes]
    assert [len(source.labels(item)) for item in items] == sizes
    narrow = batch.crop(width - HIDDEN)
    same(narrow.mask, batch.mask[:, :-HIDDEN])
    index = torch.tensor([2, 0, 2, 1])
    for mine, own in zip(leaves(batch.select(index)), leaves(batch), strict=True):
        same(mine, own[index])
    pairs = [(batch.crop(width + 5), batch), (widen(narrow, HIDDEN).crop(width - HIDDEN), narrow)]
    pairs.append((batch.to(torch.device("cpu")), batch))
    for actual, expected in pairs:
        for mine, own in zip(leaves(actual), leaves(expected), strict=True):
            same(mine, own)
    assert all(tensor.is_meta for tensor in leaves(batch.to(torch.device("meta"))))


@every_case
@every_setup
def test_stepping_retells_forward(setup: Setup, case: Case) -> None:
    model, batch = make_model(setup, case), make_batch(setup)
    whole = model(batch)
    assert (whole.attention is not None) == case.attends()
    prepared = model.decoder.prepare(model.read(batch.source))
    state = model.decoder.start(prepared)
    for place in range(TOKENS - 1):
        step = model.decoder.step(batch.target.ids[:, place : place + 1], state, prepared)
        near(step.logits[:, 0], whole.logits[:, place])
        if whole.attention is not None:
            near(step.attention[:, 0], whole.attention[:, place])
        state = step.state


@every_case
@every_setup
def test_batch_mates_change_nothing(setup: Setup, case: Case) -> None:
    model, batch = make_model(setup, case), make_batch(setup)
    with torch.no_grad():
        together = model(batch)
        for row in (slice(place, place + 1) for place in range(len(batch.target.ids))):
            alone = make_batch(setup, row)
            assert alone.source.mask.all()
            steps_agree(model(alone), together, row)


@every_case
@every_setup
def test_padding_and_junk_in_it_change_nothing(setup: Setup, case: Case) -> None:
    """Neither outputs nor gradients, which reach every parameter of the front."""
    model, batch = make_model(setup, case), make_batch(setup)
    width = batch.source.mask.shape[1] - HIDDEN
    narrow = replace(batch, source=batch.source.crop(width))
    step, expected = forward_and_backward(model, narrow)
    front = [gradient for name, gradient in expected.items() if name.startswith("encoder.embedding.")]
    assert front
    assert all(gradient is not None and gradient.any() for gradient in front)
    for junk in (0.0,) if isinstance(narrow.source, PictureBatch) else (0.0, torch.nan, torch.inf):
        wide = replace(batch, source=widen(narrow.source, HIDDEN, junk))
        assert wide.source.mask.shape[1] == width + HIDDEN
        padded, actual = forward_and_backward(model, wide)
        steps_agree(step, padded)
        for name, gradient in expected.items():
            near(actual[name], gradient)


@every_case
@every_setup
def test_recording_changes_no_bit(setup: Setup, case: Case) -> None:
    """Not of outputs and gradients in training, with dropout and SpecAugment, nor of decoded tokens."""
    model, batch = make_model(setup, case, dtype=torch.float32, dropout=0.3), make_batch(setup)

    def search() -> list[tuple[list[int], float, Any]]:
        hypotheses = beam(model.decoder, model.read(batch.source), width=2, limits=LIMITS)
        return [(best.tokens, best.score, None if best.map is None else best.map.tolist()) for best, *_ in hypotheses]

    step, expected = forward_and_backward(model.train(), batch)
    with record(model) as whole:
        recorded, _ = forward_and_backward(model, batch)
    assert whole.weights
    assert whole.layout == recorded.memory.layout
    for name, site in whole.sites.items():
        layout = TEXT if site.name == "decoder.self_attention" else whole.layout
        assert whole.map(name).layout == layout
    for settings in subsets(case, whole):
        with record(model.train(), **settings) as recording:
            recorded, actual = forward_and_backward(model, batch)
        assert recording.weights
        same(recorded.logits, step.logits)
        same(recorded.memory.states, step.memory.states)
        assert actual.keys() == expected.keys()
        for name, gradient in expected.items():
            same(actual[name], gradient)
    model.eval()
    with torch.no_grad():
        found = search()
        for settings in subsets(case, whole):
            with record(model, **settings):
                assert search() == found


ROWS = [0, 2]


def subsets(case: Case, whole: Recording) -> list[dict[str, Any]]:
    """Recording everything, some rows and heads, some layers, and some rows and heads of these."""
    heads = [2] if case.has_transformer() else [1]
    gates = {name.rpartition(".")[0] for name in whole.calls if ".rnn." in name}  # modules that are LSTMs
    layers = [*sorted(gates), *whole.sites][::2]
    return [{}, {"heads": heads, "rows": ROWS}, {"layers": layers}, {"layers": layers, "heads": heads, "rows": ROWS}]


@every_case
@every_setup
def test_a_recorded_part_is_that_of_the_whole_recording(setup: Setup, case: Case) -> None:
    """In a training step and in a search; in float64, as products of other sizes are rounded otherwise."""
    model, batch = make_model(setup, case, dropout=0.3), make_batch(setup)

    def train_once() -> None:
        forward_and_backward(model.train(), batch)

    def search() -> None:
        with torch.no_grad():
            beam(model.eval().decoder, model.read(batch.source), width=2, limits=LIMITS)

    for run in (train_once, search):
        with record(model) as whole:
            run()
        for settings in subsets(case, whole)[1:]:
            with record(model, **settings) as part:
                run()
            chosen = settings.get("layers", [""])
            assert set(part.weights) == {name for name in whole.weights if name.startswith(tuple(chosen))}
            for name, weights in part.weights.items():
                expected = whole.weights[name]
                if "rows" in settings:
                    rows = [row for row in ROWS if row < expected.shape[-2]]
                    assert part.row_numbers(name) == tuple(rows)
                    expected = expected[..., rows, :]
                if "heads" in settings and name in part.sites and case.has_transformer():
                    expected = expected[..., [1], :, :]
                near(weights, expected, 1e-12)


class Stop(regard.Callback):
    """Stops a training after its third update."""

    def on_update(self, event: Updated) -> None:
        assert event.update < 3


def outcome(run: Run) -> tuple[bytes, ...]:
    """The last weights of a run, and those, the optimizer and the generators of its last checkpoint."""
    [last] = run.own_checkpoints()
    return run.read(storage.MODEL), last.read(storage.MODEL), last.read(OPTIMIZER)


@every_setup
def test_a_stopped_training_ends_with_the_same_bits(setup: Setup, tmp_path: Path) -> None:
    pairs, ctc = KINDS[setup.source].pairs, 0.3 if SOURCES[setup.source].is_sequence else 0.0
    data = {"pairs": pairs[:3], "dev": pairs[3:], "quiet": True}
    recipe = setup.recipe(
        *("model.embedding=12", "model.encoder.dim=12", "model.decoder.dim=10", "model.attention.dim=6"),
        *("model.encoder.dropout=0.1", "train.updates=5", "train.validate=2", "train.batch_tokens=20"),
        *("train.device=cpu", "tokens.target=word", "search.max_ratio=0", "search.max_extra=2", "name=it"),
        *("train.keep=last", f"train.ctc={ctc}"),
    )
    whole = regard.train(recipe, runs=tmp_path / "whole", **data)
    with pytest.raises(CallbackError):
        regard.train(recipe, runs=tmp_path / "stopped", callbacks=[Stop()], **data)
    [stopped] = (tmp_path / "stopped").glob("it")
    assert (stopped / storage.CHECKPOINTS / "00000003").exists()
    assert outcome(resume(stopped, **data)) == outcome(whole)
