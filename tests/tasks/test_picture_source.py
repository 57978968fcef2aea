"""Pictures as a source: they train, are stored, resume and predict as text does, with maps over the cells of a grid."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from test_keys import keys_of, read_by

import regard
from regard import recipe as recipes
from regard.analysis.forced import force
from regard.analysis.grounding import grounding
from regard.attention.record import record
from regard.data.corpora import reverse, shapes
from regard.data.corpora.shapes import render
from regard.data.store import Shared
from regard.encoders import DirectEncoder
from regard.errors import DataError, RecipeError
from regard.maps import Grid
from regard.recipe import Recipe
from regard.sources import Picture, PictureBatch, TokenEmbedding, picture
from regard.sources.picture import Decoded
from regard.sources.picture_front import GRID_POSITIONS
from regard.storage import Run
from regard.tasks import TASKS, Transduce
from regard.types import Batch, Example, Padded

SMALL = (
    *("data.size=96", "picture.channels=3", "picture.blocks=3", "model.embedding=12", "train.device=cpu"),
    *("model.encoder.dim=12", "model.decoder.dim=12", "model.attention.dim=12", "train.updates=12", "train.validate=6"),
    *("model.attention.heads=2", "train.batch_tokens=640", "train.validate_examples=4"),
)
SCENES = [example.source for example in shapes(seed=1, size=5).train]


def make_recipe(*keys: str) -> Recipe:
    return recipes.load("shapes", [*SMALL, *keys])


def make_batch(task: Transduce, count: int = 5) -> Batch:
    return task.collate(task.encode(shapes(seed=1, size=count).train), range(count))


def make_task(*keys: str) -> Transduce:
    recipe = make_recipe(*keys)
    Transduce.check(recipe)
    return Transduce.learn(recipe, shapes(seed=1, size=96).train)


# The front; its laws are in tests/laws/test_source_laws.py


@pytest.mark.parametrize(("fit", "shape"), [("crop", (200, 200, 3)), ("pad", (200, 200, 3)), ("stretch", (80, 200, 3))])
def test_a_map_is_drawn_on_the_pixels_that_the_grid_covers(fit: str, shape: tuple[int, ...], tmp_path: Path) -> None:
    path = tmp_path / "wide.png"
    Image.fromarray(np.full((80, 200, 3), 90, np.uint8)).save(path)
    recipe = make_recipe(f"picture.fit={fit}")
    view = Picture(recipe.picture, recipe.data.limits).view(str(path))
    assert tuple(view.pixels.shape) == shape


def test_all_maps_of_a_picture_are_drawn_on_it() -> None:
    task = make_task()
    source = "shapes:red-circle-8-8-6,blue-square-40-8-7"
    [prediction] = task.answer(task.build(), [source], task.recipe.search, all_maps=True)
    assert prediction.maps is not None
    drawn_on = prediction.maps.pick("decoder.cross_attention").view
    assert drawn_on is not None
    assert torch.equal(drawn_on().pixels, task.inputs.view(source).pixels)


def test_names_that_are_kept_meanwhile_do_not_shift_the_others() -> None:
    pictures = Decoded(["a", "b", "c", "d"], lambda names: (torch.full((3, 2, 2), ord(name)) for name in names))
    first, second = iter(pictures), iter(pictures)
    next(second)
    assert [int(next(first)[0, 0, 0]) for _ in range(2)] == [ord("a"), ord("b")]
    assert [int(image[0, 0, 0]) for image in second] == [ord(name) for name in "bcd"]
    assert [int(pictures.item(index)[0, 0, 0]) for index in range(4)] == [ord(name) for name in "abcd"]


def test_a_cell_sees_its_own_pixels_only() -> None:
    task = make_task()
    front, batch = task.inputs.front(task.recipe.model), make_batch(task).source
    before = front.embed(batch).vectors
    pixels = batch.pixels.clone()
    pixels[:, :, 8:16, 24:32] = 255 - pixels[:, :, 8:16, 24:32]  # row 1, column 3 of 8 x 8 cells
    changed = (front.embed(replace(batch, pixels=pixels)).vectors != before).any(-1)
    assert changed.nonzero()[:, 1].tolist() == [8 + 3] * 5


@pytest.mark.parametrize("positions", GRID_POSITIONS)
def test_positions_tell_cells_apart_unless_there_are_none(positions: str) -> None:
    task = make_task(f"picture.positions={positions}")
    front = task.inputs.front(task.recipe.model)
    grey = PictureBatch(torch.full((1, 3, 64, 64), 128, dtype=torch.uint8), torch.ones(1, 64, dtype=torch.bool))
    vectors = front.embed(grey).vectors[0]
    different = torch.unique(vectors.detach().round(decimals=4), dim=0)
    assert len(different) == (1 if positions == "none" else 64)


def test_the_gates_of_each_block_are_recorded() -> None:
    task = make_task("picture.squeeze_excite=true")
    model, batch = task.build().eval(), make_batch(task)
    with record(model) as recorded:
        model(batch)
    gates = {name: weights for name, weights in recorded.weights.items() if name.endswith("gates")}
    assert [gate.shape for gate in gates.values()] == [(5, 1, 3), (5, 1, 6), (5, 1, 12)]
    assert all(((gate > 0) & (gate < 1)).all() for gate in gates.values())


# The encoder without layers


def test_without_an_encoder_the_memory_has_the_vectors_and_their_mean() -> None:
    torch.manual_seed(1)
    words = TokenEmbedding(9, 6)
    source = Padded(torch.tensor([[4, 5, 3], [6, 3, 0]]), torch.tensor([[True, True, True], [True, True, False]]))
    memory = DirectEncoder(words, dim=6)(source)
    vectors = words(source.ids)
    assert torch.equal(memory.states[0], vectors[0])
    assert torch.equal(memory.states[1], vectors[1].masked_fill(torch.tensor([[False], [False], [True]]), 0.0))
    torch.testing.assert_close(memory.summary.hidden[:, 0], torch.stack([vectors[0].mean(0), vectors[1, :2].mean(0)]))
    assert memory.summary.cell is None
    projected = DirectEncoder(words, dim=4)(source)
    assert projected.states.shape == (2, 3, 4)
    assert projected.summary.hidden.shape == (2, 1, 4)


# Training


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return regard.train(make_recipe(), runs=tmp_path_factory.mktemp("runs"), quiet=True)


def test_a_trained_run_is_loaded_and_predicts_with_maps_over_the_grid(run: Run) -> None:
    predictor = regard.load(Run.open(run.path))
    answer, blank = predictor.predict([SCENES[0], " "], all_maps=True)
    assert blank.text == ""
    assert answer.map is not None
    assert answer.map.layout == Grid(8, 8)
    assert answer.map.columns[:2] == ("1,1", "1,2")
    assert answer.map.columns[-1] == "8,8"
    assert answer.to_dict()["layout"] == {"kind": "grid", "height": 8, "width": 8}
    (forced,) = force(predictor, [Example(SCENES[0], "a red circle")])
    assert forced.map is not None
    assert forced.map.weights.shape == (4, 64)
    first, last = run.metrics()[0], run.metrics()[1]
    assert last["dev_loss"] < first["dev_loss"]


def test_arrays_tensors_and_images_are_inputs_as_files_are(run: Run, tmp_path: Path) -> None:
    images = pytest.importorskip("PIL.Image")
    predictor = regard.load(run, device="cpu")
    pixels, other = (render(scene) for scene in SCENES[:2])
    images.fromarray(pixels).save(tmp_path / "it.png")
    [expected] = predictor.predict([SCENES[0]])
    tensor = torch.from_numpy(pixels).permute(2, 0, 1)
    for value in (pixels, pixels / 255, tensor, tensor / 255, images.fromarray(pixels), tmp_path / "it.png"):
        [prediction] = predictor.predict([value], all_maps=True)
        assert (prediction.text, prediction.score, prediction.map) == (expected.text, expected.score, expected.map)
        name = str(tmp_path / "it.png") if isinstance(value, Path) else "<picture 64x64>"
        assert (str(prediction.source), prediction.to_dict()["source"]) == (name, name)
    # of two pictures with the same label, each is read
    alone = [force(predictor, [(value, "a red circle")])[0].score for value in (pixels, other)]
    both = [forced.score for forced in force(predictor, [(value, "a red circle") for value in (pixels, other)])]
    assert both == pytest.approx(alone, abs=1e-5)
    assert abs(alone[0] - alone[1]) > 1e-4
    with pytest.raises(
        RecipeError, match=r"^predict takes a list of inputs, not one ndarray; write predict\(\[input\]\)"
    ):
        predictor.predict(pixels)
    with pytest.raises(DataError, match=r"^input 2 has numbers of the type int64"):
        predictor.predict([pixels, pixels.astype(int)])


def test_the_share_of_right_cells_is_measured(run: Run, tmp_path: Path) -> None:
    predictor, test = regard.load(run), shapes(seed=1, size=0).test[:30]
    measured = grounding(predictor, test)
    assert measured.words == sum(example.target.count("of") + example.target.count("above") + 1 for example in test)
    assert 0 <= measured.share <= 1
    assert 0.05 < measured.chance < 0.3
    text = regard.train("reverse", "train.updates=1", "data.size=50", runs=tmp_path, quiet=True)
    with pytest.raises(DataError, match="this run has no attention to the cells of a picture"):
        grounding(regard.load(text), reverse(seed=1, size=2).train)


# Files


Write = Callable[[str, str], None]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with pictures of scenes, and a TSV and a CSV file that name them relative to themselves."""
    image = pytest.importorskip("PIL.Image")
    (tmp_path / "set/images").mkdir(parents=True)
    lines = []
    for number, example in enumerate(shapes(seed=1, size=24).train):
        scene = np.pad(render(example.source), ((0, 0), (number, 10), (0, 0)), mode="edge")  # not square
        image.fromarray(scene).save(tmp_path / f"set/images/{number}.png")
        lines += [f"images/{number}.png\t{caption}\n" for caption in (example.target, "some shapes")]
    (tmp_path / "set/train.tsv").write_text("".join(lines), encoding="utf-8")
    table = "picture,caption\n" + "".join(line.replace("\t", ",") for line in lines)
    (tmp_path / "set/train.csv").write_text(table, encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize(
    "keys", [("data.train=set/train.tsv",), ("data.train=set/train.csv", "data.columns=picture,caption")]
)
def test_names_of_pictures_are_relative_to_the_file_that_names_them(
    keys: tuple[str, ...], folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REGARD_DATA", str(folder))
    recipe = make_recipe("train.updates=2", "train.validate=2", "data.corpus=", *keys)
    examples = TASKS["translate"].examples(recipe)
    assert {Path(example.source).parent for example in examples.train} == {Path("set/images")}
    predictor = regard.load(regard.train(recipe, runs=tmp_path / "runs", quiet=True))
    by_name, by_path = predictor.predict(["set/images/3.png", str(folder / "set/images/3.png")])
    assert (by_name.text, by_name.score) == (by_path.text, by_path.score)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda file: file.unlink(), r"cannot find .*7\.png"),
        (lambda file: file.write_bytes(b"GIF89a"), r"7\.png is not a whole GIF picture"),
        (lambda file: file.write_bytes(file.read_bytes()[:200]), r"7\.png is not a whole PNG picture"),
        (lambda file: file.write_text("a text"), r"7\.png is not a picture: it is a text; give"),
    ],
)
def test_a_picture_that_cannot_be_read_stops_training_before_the_first_update(
    damage: Callable[[Path], Any], message: str, folder: Path, tmp_path: Path
) -> None:
    damage(folder / "set/images/7.png")
    recipe = make_recipe("data.corpus=", f"data.train={folder}/set/train.tsv")
    with pytest.raises(DataError, match=message):
        regard.train(recipe, runs=tmp_path / "runs", quiet=True)


def test_a_picture_with_several_captions_is_decoded_once_and_some_stay_in_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source, names = Picture(make_recipe().picture, make_recipe().data.limits), [*SCENES, *SCENES]
    calls: list[str] = []

    def decode(wanted: Sequence[str]) -> Iterator[torch.Tensor]:
        calls.extend(wanted)
        return map(source.encode, wanted)

    decoded = Shared.of(names, lambda distinct: Decoded(distinct, decode))
    for _ in range(2):
        assert all(torch.equal(*pair) for pair in zip(decoded, map(source.encode, names), strict=True))
        assert all(torch.equal(*pair) for pair in zip(decoded.distinct, map(source.encode, SCENES), strict=True))
    assert calls == SCENES
    monkeypatch.setattr(picture, "KEPT_BYTES", 2 * 3 * 64 * 64)
    few = Decoded(SCENES, decode)
    for _ in range(2):
        assert [torch.equal(*pair) for pair in zip(few, map(source.encode, SCENES), strict=True)] == [True] * 5
    assert torch.equal(few[3], source.encode(SCENES[3]))
    assert list(few.kept) == SCENES[:2]
    assert calls == [*SCENES, *SCENES, *SCENES[2:], SCENES[3]]


# Settings


def test_keys_of_pictures_are_refused_for_text_and_all_are_read_for_pictures() -> None:
    recipe = recipes.load("reverse", ["picture.size=32"])
    with pytest.raises(RecipeError, match=r"picture\.size is a key of source = picture, not of text; leave it out"):
        TASKS["translate"].check_keys(recipe)
    with pytest.raises(RecipeError, match=r"tokens\.source is for source = text, not picture"):
        make_task("tokens.source=word")
    own = {key for key in keys_of(Recipe()) if key.startswith("picture.")}
    assert own <= read_by("translate", *picture_keys())


def picture_keys() -> list[str]:
    """What makes another recipe of the same task one of pictures."""
    return ["source=picture", "data.corpus=shapes", "tokens.target=word", "model.encoder.kind=none"]


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("picture.fit=squeeze", r"unknown fit 'squeeze'; choose from crop, pad"),
        (
            "picture.front=resnet",
            r"unknown front 'resnet'; choose from convolution, efficientnet_lite0, ",
        ),
        (
            "picture.frozen=false",
            r"picture\.frozen is for picture\.front = efficientnet_lite0 or efficientnet_lite2, not con",
        ),
        ("picture.front=efficientnet_lite0", r"picture\.channels is for picture\.front = convolution, not"),
        ("picture.positions=rotary", r"unknown kind of grid positions 'rotary'; choose from none, sinusoidal, learned"),
        ("picture.kernel=3", r"picture\.kernel is an even number"),
        ("picture.blocks=7", r"7 blocks leave nothing of 64 x 64 pixels; lower picture\.blocks"),
        ("picture.size=128", r"the grid of a picture has 16 x 16 = 256 cells, more than data\.max_length; raise"),
    ],
)
def test_unusable_settings_are_refused_before_data_is_read(key: str, message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        Transduce.check(make_recipe(key))
