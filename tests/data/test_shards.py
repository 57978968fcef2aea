"""Pairs that are read block by block give the same bits as in memory; a store is resumed, checked, rebuilt."""

import gzip
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from importlib import metadata
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

import regard
from regard import recipe as recipes
from regard import storage
from regard.data import encoding, files, shards
from regard.data.encoding import Encoder, encoded_by
from regard.data.shards import Shards
from regard.data.store import StoredExamples
from regard.data.tokenizers import Tokenizer, Word
from regard.errors import DataError, RecipeError, StorageError
from regard.recipe import Recipe
from regard.tasks import task_class
from regard.tasks.core import Encoded, Examples, count_shared
from regard.tasks.transduce import Transduce

ALPHABET = ["ab", "cde", "fü", "日本", "x", "a", "\N{MATHEMATICAL FRAKTUR CAPITAL A}", "  y"]
STORED = "data.store_from=0"
TWO = "data.train={0}/part0.tsv.gz,{0}/part[12].tsv.gz"  # two corpora, of the files of a folder
SETTINGS = pytest.mark.parametrize("settings", [(), (TWO, "data.temperature=5")], ids=["one corpus", "temperature"])


def lines(count: int, seed: int) -> list[str]:
    """Lines of pairs, some blank, some with \\r, some twice."""
    generator = random.Random(seed)
    made = []
    for _ in range(count):
        source = " ".join(generator.choices(ALPHABET, k=generator.randint(1, 9)))
        made.append(f"{source}\t{source[::-1]}")
    return [*made, "", " \t ", "a\t", made[0], made[1] + "\r"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with three shards, small blocks, and a cache of its own."""
    monkeypatch.setattr(shards, "SIZE", 2048)
    monkeypatch.setattr(files, "PIECE", 512)
    monkeypatch.setattr(shards, "FRESH", 0)
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    for number in range(3):
        text = "\n".join(lines(120, number)).encode()
        mark = b"\xef\xbb\xbf" if number == 1 else b""
        (tmp_path / f"part{number}.tsv.gz").write_bytes(gzip.compress(mark + text))
    return tmp_path


def recipe_for(folder: Path, *overrides: str) -> Recipe:
    names = f"data.train={folder}/part*.tsv.gz"
    tokens = ("tokens.source=sentencepiece", "tokens.target=word", "tokens.size=80")
    small = ("model.embedding=8", "model.encoder.dim=8", "model.decoder.dim=8", "model.attention.dim=8")
    settings = ("train.updates=6", "train.validate=2", "train.batch_tokens=300", "train.device=cpu")
    return recipes.load("dates", ["data.corpus=", "data.test=", names, *tokens, *small, *settings, *overrides])


def prepare(recipe: Recipe) -> tuple[Examples, Transduce, Encoded]:
    kind = task_class(recipe.task)
    kind.check(recipe)
    examples = kind.examples(recipe)
    task = kind.learn(recipe, examples.train)
    assert isinstance(task, Transduce)
    return examples, task, task.within_length(task.encode(examples.train))


def orders(task: Transduce, data: Encoded) -> list[list[int]]:
    """The examples that are drawn in three epochs; none for one corpus, which is not drawn from."""
    mixture = task.mixture(data)
    return [mixture.draw(epoch).tolist() for epoch in range(3)] if mixture else []


def assert_same(one: tuple[Examples, Transduce, Encoded], other: tuple[Examples, Transduce, Encoded]) -> None:
    for left, right in ((one[0].train, other[0].train), (one[0].dev, other[0].dev)):
        assert [*left] == [*right]
    assert one[0].notes == other[0].notes
    assert one[0].digest() == other[0].digest()
    assert one[1].files() == other[1].files()
    assert [*one[2].sources] == [*other[2].sources]
    assert [*one[2].targets] == [*other[2].targets]
    assert np.array_equal(one[2].lengths(), other[2].lengths())
    assert [example.origin for example in one[2].examples] == [example.origin for example in other[2].examples]
    assert orders(*one[1:]) == orders(*other[1:])


@pytest.mark.parametrize("workers", [0, 2])
def test_the_store_has_the_same_bits_as_memory(folder: Path, monkeypatch: pytest.MonkeyPatch, workers: int) -> None:
    monkeypatch.setattr(encoding, "cores", lambda: workers)
    stored = prepare(recipe_for(folder, STORED))
    assert isinstance(stored[0].train, Shards)
    assert stored[0].train.scan.blocks > 6
    assert_same(prepare(recipe_for(folder)), stored)
    assert_same(prepare(recipe_for(folder, STORED)), stored)  # from the cache


def test_no_indices_give_no_examples(folder: Path) -> None:
    for recipe in (recipe_for(folder), recipe_for(folder, STORED)):
        train = prepare(recipe)[0].train
        for taken in (train.take([]), train.take(np.array([], np.int32)), train[:0], train.take([]).take([])):
            assert isinstance(taken, StoredExamples)
            assert [*taken] == []
            assert len(taken) == 0


def test_a_cluster_gives_the_same_bits_and_messages(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def cluster(setup: Sequence[bytes], requests: Iterable[Sequence[bytes]]) -> Iterator[list[bytes]]:
        while group := [*islice(requests, 3)]:
            yield from map(Encoder.of_setup(setup).reply, group)

    expected = prepare(recipe_for(folder))
    monkeypatch.setattr(encoding, "Worker", None)  # none is started
    with encoded_by(cluster):
        assert_same(expected, prepare(recipe_for(folder, STORED)))
        (folder / "x.tsv").write_text("d\te\n" * 999 + "a\tb\tc\n")
        with pytest.raises(DataError, match=r"x\.tsv:1000: 3 fields, expected two"):
            prepare(recipe_for(folder, STORED, f"data.train={folder}/x.tsv"))


@pytest.mark.parametrize(
    "overrides",
    [
        ("data.max_length=5",),
        ("tokens.sample=50",),
        ("tokens.source=word", "tokens.shared=true"),
        ("tokens.source=word", "tokens.shared=true", "tokens.sample=70"),
        ("tokens.target=character",),
    ],
)
def test_settings_mean_the_same_with_the_store(folder: Path, overrides: tuple[str, ...]) -> None:
    assert_same(prepare(recipe_for(folder, *overrides)), prepare(recipe_for(folder, STORED, *overrides)))


def test_dev_files_and_their_pairs_in_train_are_the_same(folder: Path) -> None:
    (folder / "dev.tsv").write_text("\n".join([*lines(30, 9), *lines(120, 2)[:4]]))
    given = f"data.dev={folder}/dev.tsv"
    memory, stored = prepare(recipe_for(folder, given)), prepare(recipe_for(folder, STORED, given))
    assert any("are in train, too" in note for note in stored[0].notes)
    assert_same(memory, stored)


def test_pairs_of_other_files_are_found_in_train(folder: Path) -> None:
    memory, stored = prepare(recipe_for(folder))[0], prepare(recipe_for(folder, STORED))[0]
    asked = [*memory.train[::7], *memory.train[:3], *memory.dev[:5], replace(memory.train[0], target="other")]
    count = count_shared(memory.train, asked)
    assert 0 < count < len(asked)
    assert count_shared(stored.train, asked) == count


def test_parallel_texts_are_the_same(folder: Path) -> None:
    for number in range(2):
        pairs = [line.rstrip("\r").split("\t") for line in lines(150, number) if line.count("\t") == 1]
        for side, ending in enumerate(("en", "fr")):
            (folder / f"text{number}.{ending}").write_text("\n".join(pair[side] for pair in pairs))
    names = f"data.train={folder}/text*.en,{folder}/text*.fr"
    assert_same(prepare(recipe_for(folder, names)), prepare(recipe_for(folder, STORED, names)))


def test_patterns_are_read_in_the_order_of_names(folder: Path) -> None:
    named = ",".join(f"{folder}/part{number}.tsv.gz" for number in range(3))
    pattern, names = prepare(recipe_for(folder)), prepare(recipe_for(folder, f"data.train={named}"))
    assert [*pattern[0].train] == [*names[0].train]
    assert pattern[0].digest() == names[0].digest()


# killed, damaged, changed

KILLED = """
import os, signal, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import regard
from regard.data import files, shards
from regard.storage import arrays, files as written
from test_shards import prepare, recipe_for
shards.SIZE, files.PIECE, shards.FRESH = 2048, 512, 0
left, write_all = int(sys.argv[3]), written.write_all
def write(handle, content):
    global left
    left -= 1
    if not left:
        write_all(handle, content[: len(content) // 2])
        os.kill(os.getpid(), signal.SIGKILL)
    write_all(handle, content)
written.write_all = write
prepare(recipe_for(Path(sys.argv[2]), "data.store_from=0", *sys.argv[4:]))
"""


@SETTINGS
def test_a_killed_preparation_goes_on(folder: Path, settings: tuple[str, ...]) -> None:
    """At random writes to the cache, of which half is done; blocks that are done are not encoded again."""
    settings = tuple(setting.format(folder) for setting in settings)
    for number in range(3):
        (folder / f"part{number}.tsv.gz").write_bytes(gzip.compress("\n".join(lines(700, number)).encode()))
    expected = prepare(recipe_for(folder, *settings))
    generator, reached = random.Random(1), []
    for _ in range(4):
        arguments = [str(Path(__file__).parent), str(folder), str(generator.randint(4, 30)), *settings]
        command = [sys.executable, "-c", KILLED, *arguments]
        assert subprocess.run(command, check=False, env=os.environ).returncode == -signal.SIGKILL
        journals = [*(folder / "cache" / "tokens").glob("*/journal")]
        reached += [journal.read_bytes().count(b"\n") for journal in journals]
    assert reached == sorted(reached)
    assert reached[-1] > 1
    assert_same(expected, prepare(recipe_for(folder, STORED, *settings)))
    assert bool(orders(*expected[1:])) == bool(settings)


def store_files(folder: Path) -> list[Path]:
    return sorted(path for path in (folder / "cache").rglob("*") if path.is_file() and "checksums" not in path.parts)


def test_every_damaged_file_is_found_and_made_again(folder: Path) -> None:
    expected = prepare(recipe_for(folder, STORED))
    paths = store_files(folder)
    assert {path.name for path in paths} >= {"journal", "source.ids", "target.lengths"}
    for path in paths:
        whole = path.read_bytes()
        for damaged in (
            whole[:-1],
            whole[: len(whole) // 2] + bytes([whole[len(whole) // 2] ^ 1]) + whole[len(whole) // 2 + 1 :],
        ):
            path.write_bytes(damaged)
            assert_same(expected, prepare(recipe_for(folder, STORED)))
            assert path.read_bytes() == whole


def test_a_message_says_that_a_store_is_made_again(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    prepare(recipe_for(folder, STORED))
    (ids,) = (folder / "cache" / "tokens").glob("*/source.ids")
    ids.write_bytes(ids.read_bytes()[:-2])
    for count in (1, 0):  # once made again, it is not damaged
        regard.train(recipe_for(folder, STORED), runs=folder / "runs")
        errors = capfd.readouterr().err
        message = f"the token store {ids.parent} is damaged (a checksum differs); it is made again"
        assert errors.count(message) == errors.count("is damaged") == count
    assert not list((folder / "cache").rglob("*.partial"))


def test_a_store_that_another_process_removes_is_made_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected, encode_all, removed = prepare(recipe_for(folder)), Shards._build, []

    def removing(*arguments: object) -> object:
        built = encode_all(*arguments)  # type: ignore[arg-type]
        if len(removed) < most:
            removed.append(arguments[1])
            arguments[1].remove()  # type: ignore[attr-defined]
        return built

    monkeypatch.setattr(Shards, "_build", removing)
    most = 1
    assert_same(expected, prepare(recipe_for(folder, STORED)))
    assert len(removed) == 1
    removed[0].remove()
    most = 10
    with pytest.raises(StorageError, match="was damaged or removed each time it was made; check the disk, and that no"):
        prepare(recipe_for(folder, STORED))


def test_processes_that_start_together_scan_the_files_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads stand for processes: a lock is of the open file."""
    scan, scans = shards._scan, []

    def slow(*arguments: object) -> object:
        scans.append(arguments)
        time.sleep(0.3)
        return scan(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(shards, "_scan", slow)
    monkeypatch.setattr(encoding, "cores", lambda: 1)
    recipe = recipe_for(folder, STORED)
    with ThreadPoolExecutor() as pool:
        jobs = [pool.submit(task_class(recipe.task).examples, recipe) for _ in range(3)]
        first, *others = [[*job.result().train] for job in jobs]
    assert len(scans) == 1
    assert others == [first, first]


def test_ids_of_another_version_of_tokenizers_are_not_used(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from wordpieces import build  # here, because processes that tests start import this file alone

    examples = prepare(recipe_for(folder, STORED))[0].train
    assert isinstance(examples, Shards)
    pieces = build("hugging_face", ALPHABET, 20)
    version = metadata.version

    def stores(kinds: Sequence[tuple[str, Tokenizer]]) -> int:
        examples.encode(kinds)
        return len([*(folder / "cache" / "tokens").iterdir()])

    word = Word.build(ALPHABET, 20)
    before = stores([("word", word), ("word", word)]), stores([("hugging_face", pieces), ("word", word)])
    monkeypatch.setattr(shards.metadata, "version", lambda name: "0" if name == "tokenizers" else version(name))
    assert stores([("word", word), ("word", word)]) == before[1]
    assert stores([("hugging_face", pieces), ("word", word)]) == before[1] + 1


def test_a_changed_file_is_read_again_even_with_the_same_size_and_time(folder: Path) -> None:
    name = folder / "plain.tsv"
    name.write_text("\n".join(lines(80, 5)))
    recipe, status = recipe_for(folder, STORED, f"data.train={name}"), name.stat()
    before = prepare(recipe)[0].digest()
    name.write_text(name.read_text().replace("cde", "edc"))
    os.utime(name, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert name.stat().st_size == status.st_size
    after = prepare(recipe)
    assert after[0].digest() != before
    assert_same(prepare(recipe_for(folder, f"data.train={name}")), after)


def test_a_file_that_changes_while_the_checksum_of_another_is_computed_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = folder / "first.tsv", folder / "second.tsv"
    for path in (first, second):
        path.write_text("\n".join(lines(80, 5)))
    compute = shards._compute_digest

    def change(name: str) -> bytes:
        if name == str(second):
            first.write_text(first.read_text().replace("cde", "edc"))
        return compute(name)

    monkeypatch.setattr(shards, "_compute_digest", change)
    with pytest.raises(DataError, match=f"^{re.escape(str(first))} changed while it was read; wait until"):
        prepare(recipe_for(folder, STORED, f'data.train=["{first}", "{second}"]'))


def test_an_unchanged_file_is_read_from_the_cache_alone(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = recipe_for(folder, STORED)
    expected = prepare(recipe)
    digest, rows = expected[0].digest(), [*expected[2].sources]

    def refuse(*_: object) -> None:
        raise AssertionError("a file was read")

    monkeypatch.setattr(files, "content", refuse)
    monkeypatch.setattr(files, "opened", refuse)
    monkeypatch.setattr("regard.tasks.transduce._media_hint", lambda _: "")
    again = prepare(recipe)
    assert again[0].digest() == digest
    assert [*again[2].sources] == rows


def test_nothing_is_written_by_a_preview(folder: Path) -> None:
    with storage.reading_only():
        stored = prepare(recipe_for(folder, STORED))
        assert_same(prepare(recipe_for(folder)), stored)
    assert not [path for path in (folder / "cache").rglob("*") if path.is_file()]


@SETTINGS
def test_a_run_that_is_killed_ends_with_the_bits_of_one_in_memory(folder: Path, settings: tuple[str, ...]) -> None:
    settings = tuple(setting.format(folder) for setting in settings)
    whole = regard.train(recipe_for(folder, *settings), runs=folder / "runs")
    script = """
import os, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import regard
from regard.data import files, shards
from test_shards import recipe_for
shards.SIZE, files.PIECE, shards.FRESH = 2048, 512, 0
class Kill(regard.Callback):
    def on_update(self, updated):
        if updated.update == 5:
            os.kill(os.getpid(), 9)
folder = Path(sys.argv[2])
recipe = recipe_for(folder, "data.store_from=0", "name=killed", *sys.argv[3:])
regard.train(recipe, runs=folder / "runs", callbacks=[Kill()])
"""
    command = [sys.executable, "-c", script, str(Path(__file__).parent), str(folder), *settings]
    assert subprocess.run(command, check=False, env=os.environ).returncode == -signal.SIGKILL
    killed = regard.resume(folder / "runs" / "killed")
    assert killed.read("model.safetensors") == whole.read("model.safetensors")
    assert killed.read("data.json") == whole.read("data.json")


# bad input


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a\tb\nc\n" + "d\te\n" * 999, r"x\.tsv:2: one field, expected two: source<TAB>target"),
        ("d\te\n" * 999 + "a\tb\tc\n", r"x\.tsv:1000: 3 fields, expected two"),
        ("d\te\n" * 999 + "\udcff\tb\n", r"x\.tsv:1000:1: not valid UTF-8 \(byte 0xff\)"),
        ("\n\t\n\ta\n", r"x\.tsv: no pair is left, because all 3 have a blank source or target"),
        ("", r"x\.tsv is empty; give a file with at least one line"),
        ("a\tb", "no dev part can be split off 1 pairs; give at least two, or a dev file"),
    ],
)
def test_bad_input_has_the_same_message_as_in_memory(folder: Path, content: str, message: str) -> None:
    (folder / "x.tsv").write_bytes(content.encode("utf-8", "surrogateescape"))
    told = []
    for store in ("data.store_from=100000", STORED):
        with pytest.raises(DataError, match=message) as error:
            prepare(recipe_for(folder, store, f"data.train={folder}/x.tsv"))
        told.append(str(error.value))
    assert told[0] == told[1]


@pytest.mark.parametrize("size", [1, 2000])
def test_parallel_texts_of_other_lengths_have_the_same_message(folder: Path, size: int) -> None:
    (folder / "x.en").write_text("a b c\n" * 1000)
    (folder / "x.fr").write_text("a b c\n" * size)
    for store in ("data.store_from=100000", STORED):
        with pytest.raises(DataError, match=f"x.en has 1,000 lines, .*x.fr {size:,}; they must be parallel"):
            prepare(recipe_for(folder, store, f"data.train={folder}/x.en,{folder}/x.fr"))


def test_limits_hold_for_the_store(folder: Path) -> None:
    for limit in ("data.limits.lines=100", "data.limits.line_bytes=20", "data.limits.file_bytes=3000"):
        told = []
        for store in ("data.store_from=100000", STORED):
            with pytest.raises(DataError, match=limit.partition("=")[0]) as error:
                prepare(recipe_for(folder, store, limit))
            told.append(str(error.value))
        assert told[0].split(";")[1] == told[1].split(";")[1]


def test_a_pattern_without_a_match_is_refused(folder: Path) -> None:
    with pytest.raises(DataError, match=r"no file matches .*none\*\.tsv; looked for"):
        regard.train(recipe_for(folder, f"data.train={folder}/none*.tsv"), runs=folder / "runs")


def test_a_file_with_the_name_of_a_pattern_is_taken(folder: Path) -> None:
    (folder / "[1].tsv").write_text("\n".join(lines(40, 3)))
    examples, _, _ = prepare(recipe_for(folder, f"data.train={folder}/[1].tsv"))
    assert examples.train[0].origin.startswith(f"{folder}/[1].tsv:")


# several corpora


@pytest.mark.parametrize("store", ["data.store_from=100000", STORED])
def test_weights_set_the_share_of_each_corpus_in_every_epoch(folder: Path, store: str) -> None:
    recipe = recipe_for(folder, store, TWO.format(folder), "data.weights=3,1")
    _, task, data = prepare(recipe)
    mixture = task.mixture(data)
    assert mixture is not None
    first = sum(example.origin.startswith(f"{folder}/part0") for example in data.examples)
    drawn = [mixture.draw(epoch) for epoch in range(8)]
    for indices in drawn:
        assert len(indices) == len(data.examples)
        assert abs((indices < first).mean() - 0.75) < 1 / len(indices)
    for size, chosen in (
        (first, lambda one: one[one < first]),
        (len(data.examples) - first, lambda one: one[one >= first]),
    ):
        counts = np.unique(np.concatenate([*map(chosen, drawn)]), return_counts=True)[1]
        assert len(counts) == size
        assert counts.max() - counts.min() <= 1  # all are drawn equally often
    assert np.array_equal(task.mixture(data).draw(5), drawn[5])  # a pure function


def test_the_order_with_weights_is_the_same_with_the_store(folder: Path) -> None:
    overrides = (TWO.format(folder), "data.temperature=5")
    whole = regard.train(recipe_for(folder, *overrides), runs=folder / "runs")
    stored = regard.train(recipe_for(folder, *overrides, STORED), runs=folder / "runs")
    assert whole.read("model.safetensors") == stored.read("model.safetensors")
    plain = regard.train(recipe_for(folder, TWO.format(folder)), runs=folder / "runs")
    assert plain.read("model.safetensors") != stored.read("model.safetensors")


def test_temperature_flattens_the_sizes(folder: Path) -> None:
    _, task, data = prepare(recipe_for(folder, TWO.format(folder), "data.temperature=2"))
    counts = task.mixture(data).counts
    first = sum(example.origin.startswith(f"{folder}/part0") for example in data.examples)
    sizes = (first, len(data.examples) - first)
    assert counts[0] / counts[1] == pytest.approx((sizes[0] / sizes[1]) ** 0.5, rel=0.02)
    assert prepare(recipe_for(folder, TWO.format(folder)))[1].mixture(data) is None


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("data.weights=1,2,3",), "data.weights has 3 numbers, and data.train names 2 corpora; give a weight for each"),
        (("data.weights=1,2", "data.temperature=2"), "both set the shares of corpora; leave one of them out"),
        (("data.weights=1,0",), "data.weights in .* is a number above 0 or a list of such numbers"),
        (("data.weights=1,x",), "data.weights in .* is a number above 0 or a list of such numbers"),
        (("data.train=", "data.corpus=dates", "data.temperature=2"), "data.temperature is for several TSV files"),
    ],
)
def test_weights_that_do_not_fit_are_refused(folder: Path, overrides: tuple[str, ...], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        regard.train(recipe_for(folder, TWO.format(folder), *overrides), runs=folder / "runs")


def test_a_corpus_without_pairs_cannot_be_drawn_from(folder: Path) -> None:
    (folder / "long.tsv").write_text("x y z " * 20 + "\ta\n")
    names = f"data.train={folder}/part0.tsv.gz,{folder}/long.tsv"
    dev = f"data.dev={folder}/part1.tsv.gz"
    with pytest.raises(DataError, match=r"long\.tsv: no pair is left to draw"):
        regard.train(recipe_for(folder, names, dev, "data.weights=1,1", "data.max_length=50"), runs=folder / "runs")


MEMORY = """
import sys, tracemalloc
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import regard
from regard.data import encoding, shards
from test_shards import prepare, recipe_for
shards.SIZE, encoding.cores = 1 << 16, lambda: 1
folder = Path(sys.argv[2])
prepare(recipe_for(folder, f"data.train={folder}/small.tsv", *sys.argv[3:]))  # imports what is needed
tracemalloc.start()
prepared = prepare(recipe_for(folder, f"data.train={folder}/large.tsv", *sys.argv[3:]))
print(tracemalloc.get_traced_memory()[1])
"""


def test_the_memory_of_a_preparation_is_bounded(folder: Path) -> None:
    """It is a part of the size of the text, and in-memory data need more than the whole of it."""
    words, generator = [letter * 400 for letter in "abcdefgh"], random.Random(1)
    made = [f"{number} {' '.join(generator.choices(words, k=4))}\tx\n" for number in range(25_000)]
    (folder / "large.tsv").write_text("".join(made))
    (folder / "small.tsv").write_text("".join(made[:200]))
    settings, needed = ("tokens.source=word", "tokens.sample=100", f"data.dev={folder}/small.tsv"), {}
    for store in (STORED, f"data.store_from={10**9}"):
        command = [sys.executable, "-c", MEMORY, str(Path(__file__).parent), str(folder), *settings, store]
        result = subprocess.run(command, check=True, env=os.environ, stdout=subprocess.PIPE)
        needed[store] = int(result.stdout)
    stored, in_memory = needed.values()
    size = (folder / "large.tsv").stat().st_size
    assert stored < size / 8 < size < in_memory
