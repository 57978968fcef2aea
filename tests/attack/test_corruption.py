"""Damaged and crafted run directories: refused with a sentence, or used with the same bits; never a crash or a hang."""

import functools
import hashlib
import itertools
import json
import os
import random
import shutil
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from common import (
    ALL_KINDS,
    CHECKPOINTS,
    LOCK,
    MANIFEST,
    METRICS,
    MODEL,
    OPTIMIZER,
    STATE,
    WHOLE,
    Example,
    commands,
    example,
    good_checkpoints,
    sample,
    sealed,
    sign,
    snapshot,
    trying,
)
from crafted_pieces import sentencepieces

from commands import Result

Count = Callable[[str, object], None]
KIND = "recurrent"  # the kind that is attacked by every command; the others by those that read most
EVERY_KIND = pytest.mark.parametrize("attack", ALL_KINDS, indirect=True)
PLUGINS, ORIGIN, LABELS, TOKENS = "plugins.json", "origin.json", "labels.json", ".tokens"
NEWEST, OLDER = f"{CHECKPOINTS}/00000004", f"{CHECKPOINTS}/00000002"
TEXT = {"answer": "abc\tabc def", "masked_lm": "abc ___"}  # that is predicted for; abc for the other kinds
COMMANDS: dict[str, Callable[[Path], list[str]]] = {
    "predict": lambda run: ["predict", str(run), "--text", TEXT.get(run.name, "abc"), "--json"],
    "score": lambda run: ["score", str(run)],
    "resume": lambda run: ["train", "--resume", str(run)],
    "doctor": lambda run: ["doctor", str(run)],
}
# Besides resuming, the commands that read metrics.
OF_METRICS: dict[str, Callable[[Path], list[str]]] = {
    "compare": lambda run: ["compare", str(run), "--out", "compared.svg"],
    "prolong": lambda run: ["train", "--resume", str(run), "train.updates=8"],
}
TRAINING = ("resume", "prolong")  # commands that write to the run


def digests(folder: Path) -> dict[str, str]:
    """The SHA-256 of every file in a folder, by path; of plain files only."""
    files = (path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in files
        if path.stat().st_size < 1 << 24
    }


def shuffled(cases: Iterator[Any], count: int) -> list[Any]:
    """About `count` of the cases, drawn at random but the same each time; all of them in `make attack`."""
    cases = list(cases)
    random.Random(len(cases)).shuffle(cases)
    return sample(cases, count)


class Attack:
    """Copies of the finished and the unfinished run, and what commands must do with them after they were changed.

    A run that has begun is the unfinished one without its checkpoints.
    """

    def __init__(self, made: Example, folder: Path) -> None:
        self.made, self.folder, self.number = made, folder, 0
        self.expected: dict[tuple[str, str], bytes] = {}
        for state in ("finished", "unfinished"):
            run = self.copy(state)
            for command in ("predict", "score"):
                result = commands()(*COMMANDS[command](run))
                assert result.code == 0, result.error
                self.expected[state, command] = result.out
            self.discard(run)

    def copy(self, state: str) -> Path:
        self.number += 1
        folder = self.folder / str(self.number)
        if state == "finished":
            return self.made.copy_finished(folder)
        run = self.made.copy_unfinished(folder)
        if state == "begun":
            shutil.rmtree(run / CHECKPOINTS)
        return run

    def discard(self, run: Path) -> None:
        shutil.rmtree(run.parent)

    def run(self, state: str, command: str, run: Path, *, equal: bool = True) -> Result:
        """Run a command on a changed run. It must refuse, or give the result of the run before the change.

        If not `equal`, another result is allowed: what was changed may be valid in itself.
        """
        outside = snapshot(run.parent, without=[run])
        before = snapshot(run) if command not in TRAINING else {}
        result = commands()(*(COMMANDS | OF_METRICS)[command](run))
        result.assert_behaved()
        assert snapshot(run.parent, without=[run]) == outside
        if command not in TRAINING:
            assert snapshot(run) == before  # only training writes
        if result.code == 0 and equal:
            if (state, command) in self.expected:
                assert result.out == self.expected[state, command], result.out
            if command == "resume" and state != "finished":
                self.made.assert_equal(run)
        return result


@functools.cache
def attack_on(kind: str) -> Attack:
    return Attack(example(kind), commands().folder / "attacks" / kind)


@pytest.fixture(scope="module")
def attack(request: pytest.FixtureRequest) -> Attack:
    return attack_on(getattr(request, "param", KIND))


# ---- every file of a run: flipped, cut, swapped, deleted, replaced


def flip(path: Path, share: float, bit: int) -> None:
    content = bytearray(path.read_bytes())
    if content:
        content[int(share * (len(content) - 1))] ^= 1 << bit
        path.write_bytes(content)


def cut(path: Path, share: float) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: min(int(share * len(content)), max(0, len(content) - 2))])  # more than a newline


def swap(path: Path) -> None:
    """Swap the contents of a file and of the next one in its folder."""
    files = sorted(other for other in path.parent.iterdir() if other.is_file() and other.name != LOCK)
    other = files[(files.index(path) + 1) % len(files)] if path in files else files[0]
    own, others = path.read_bytes(), other.read_bytes()
    path.write_bytes(others)
    other.write_bytes(own)


def replaced(make: Callable[[Path], None]) -> Callable[[Path], None]:
    """A change that puts something else in the place of a file; the file is moved out of the run."""

    def change(path: Path) -> None:
        path.rename(outside(path))
        make(path)

    return change


def outside(path: Path) -> Path:
    run = next(parent for parent in path.parents if parent.name in ALL_KINDS)
    return run.parent / "outside"


def fill_folder(path: Path) -> None:
    path.mkdir()
    (path / "precious").write_bytes(b"precious")


def make_huge(path: Path) -> None:
    path.touch()
    os.truncate(path, 3 << 30)  # sparse: it takes no space on the disk


CHANGES: dict[str, Callable[[Path], None]] = {
    **{f"bit {bit} flipped at {share}": lambda path, s=share, b=bit: flip(path, s, b)
       for share in (0.0, 0.02, 0.3, 0.5, 0.77, 1.0) for bit in (0, 6)},
    **{f"cut at {share}": lambda path, s=share: cut(path, s) for share in (0.0, 0.5, 1.0)},
    "grown by a line": lambda path: path.write_bytes(path.read_bytes() + b"{}\n"),
    "grown by NUL bytes": lambda path: path.write_bytes(path.read_bytes() + bytes(100)),
    "swapped": swap,
    "deleted": lambda path: path.unlink(),
    "a link to the same content": replaced(lambda path: path.symlink_to(outside(path))),
    "a link to nothing": replaced(lambda path: path.symlink_to("nothing")),
    "a link to /dev/zero": replaced(lambda path: path.symlink_to("/dev/zero")),
    "a FIFO": replaced(lambda path: os.mkfifo(path)),
    "an empty folder": replaced(lambda path: path.mkdir()),
    "a folder with a file": replaced(fill_folder),
    "huge": replaced(make_huge),
}  # fmt: skip


FEW_FLIPS = ("bit 6 flipped at 0.02", "bit 0 flipped at 0.77")


def files_of(run: Path) -> list[str]:
    return sorted(path.relative_to(run).as_posix() for path in run.rglob("*") if path.is_file())


def uses(made: Example, name: str, state: str) -> list[str]:
    """The commands that a changed file of a run is tried with; for other kinds than KIND only the one that reads most.

    Of these, files that have the same form in runs of every kind are left out.
    """
    is_read_in_training_alone = name.startswith((CHECKPOINTS, LOCK, METRICS))
    if made.kind == KIND:
        return ["resume"] if is_read_in_training_alone else list(COMMANDS)
    if name.startswith(OLDER) or name.endswith((LOCK, METRICS, STATE, "data.json", "environment.json")):
        return []
    return ["predict"] if state == "finished" else ["resume"]


def places_of(made: Example) -> Iterator[tuple[str, str, str]]:
    """State of the run, file, and command to try the file with after it was changed."""
    for state, run in {"finished": made.finished, "unfinished": made.unfinished}.items():
        for name in files_of(run):
            for command in uses(made, name, state):
                yield state, name, command
    if made.kind == "continued":
        yield "begun", ORIGIN, "resume"  # it is read as long as there is no checkpoint


def damage_cases(made: Example) -> Iterator[tuple[str, str, str, str]]:
    for state, name, command in places_of(made):
        for change in CHANGES:
            if made.kind == KIND or change in FEW_FLIPS or "flipped" not in change:
                yield state, name, change, command


def assert_kept(before: Mapping[str, str], changed: str, run: Path, result: Result) -> None:
    """What was damaged is still in the run, perhaps under another name; if the run was refused, all else too."""
    after = set(digests(run).values())
    if not changed.startswith((LOCK, OLDER)) and not (changed == METRICS and result.code == 0):
        assert changed not in before or before[changed] in after, "it was deleted"
    if result.code:
        lost = {name for name, digest in before.items() if digest not in after}
        assert not lost - {LOCK, METRICS, MANIFEST}, f"{lost} were deleted"


@EVERY_KIND
def test_every_file_flipped_cut_swapped_deleted_or_replaced(attack: Attack, record_property: Count) -> None:
    with trying("damaged files", record_property) as tried:
        for state, name, change, command in shuffled(damage_cases(attack.made), 10):
            with tried(state, name, change, command):
                run = attack.copy(state)
                CHANGES[change](run / name)
                before = digests(run)
                result = attack.run(state, command, run)
                assert_kept(before, name, run, result)
                attack.discard(run)


@pytest.mark.parametrize("name", [MODEL, OPTIMIZER, STATE, MANIFEST])
def test_a_damaged_newest_checkpoint_is_named_and_set_aside(attack: Attack, name: str) -> None:
    run = attack.copy("unfinished")
    flip(run / NEWEST / name, 0.5, 1)
    damaged = (run / NEWEST / name).read_bytes()
    result = attack.run("unfinished", "resume", run)
    assert result.code == 0, result.error
    assert f"{NEWEST}" in result.error
    assert "set aside" in result.error
    assert any(path.read_bytes() == damaged for path in (run / CHECKPOINTS).rglob(name))


@pytest.mark.parametrize("attack", ["continued"], indirect=True)
def test_a_damaged_record_of_the_origin_is_refused_also_if_there_is_a_checkpoint(attack: Attack) -> None:
    run = attack.copy("unfinished")
    flip(run / ORIGIN, 0.5, 0)
    result = attack.run("unfinished", "resume", run)
    assert result.code == 5, result.error
    assert f"{ORIGIN} is damaged" in result.error


def test_every_flipped_bit_of_the_metrics_of_an_unfinished_run_is_noticed(
    attack: Attack, record_property: Count
) -> None:
    size = (attack.made.unfinished / METRICS).stat().st_size
    places = sample([(index, bit) for index in range(0, size, 3) for bit in (0, 3, 6)], 14)
    with trying("bits flipped in metrics", record_property) as tried:
        for index, bit in places:
            with tried(index, bit):
                run = attack.copy("unfinished")
                content = bytearray((run / METRICS).read_bytes())
                content[index] ^= 1 << bit
                (run / METRICS).write_bytes(content)
                result = attack.run("unfinished", "resume", run)
                assert result.code in (0, 5), result.error
                assert result.code == 0 or METRICS in result.error
                attack.discard(run)


# ---- crafted JSON, with a manifest that fits

DEEP = 100_000
TEXTS: dict[str, bytes] = {
    "empty": b"",
    "a newline": b"\n",
    "not UTF-8": b'{"a": "\xff\xfe"}',
    "a byte order mark": b'\xef\xbb\xbf{"a": 1}',
    "UTF-16": '{"a": 1}'.encode("utf-16"),
    "NUL bytes": bytes(300),
    "nested lists": b"[" * DEEP + b"]" * DEEP,
    "nested lists without end": b"[" * DEEP,
    "nested objects": b'{"a":' * DEEP + b"1" + b"}" * DEEP,
    "null": b"null",
    "true": b"true",
    "a number": b"7",
    "a number of 5,000 digits": b"7" * 5000,
    "a number of 5,000 digits in a list": b"[" + b"7" * 5000 + b"]",
    "NaN": b"NaN",
    "a text": b'"text"',
    "lone surrogates": b'["\\ud800", "\\udfff"]',
    "an empty list": b"[]",
    "an empty object": b"{}",
    "a list of nulls": b"[null, null]",
    "a list of many empty objects": b"[" + b"{}," * 23_000 + b"{}]",
    "an object of lists": b'{"a": [], "b": [1]}',
    "TOML": b"a = 1\n[b]\nc = 2\n",
    "control characters": b'{"\\u001b[2J": "\\u0000\\u202e"}',
}


def manifests(manifest: dict[str, Any]) -> Iterator[tuple[str, bytes]]:
    """Crafted manifests; if they hold a digest of their own, it fits."""
    yield from TEXTS.items()
    for name, wrong in {
        "null": None,
        "true": True,
        "text": "1",
        "list": [1],
        "2": 2,
        "0": 0,
        "-1": -1,
        "1.0": 1.0,
    }.items():
        yield f"format {name}", sealed(manifest | {"format": wrong})
    yield (
        "a format of 5,000 digits",
        json.dumps(manifest | {"format": 0}).encode().replace(b'"format": 0', b'"format": ' + b"1" * 5000),
    )
    for name, wrong in {"null": None, "list": [], "text": "files", "number": 7, "nothing": {}}.items():
        yield f"files {name}", sealed(manifest | {"files": wrong})
    some = next(iter(manifest["files"]))
    digest = manifest["files"][some][0]
    for name, wrong in {
        "null": None, "text": digest, "number": 7, "no digest": [], "nulls": [None], "numbers": [7],
        "nested": [[digest]], "objects": [{}], "short": [digest[:-1]], "capitals": [digest.upper()],
        "a wrong one": ["0" * 64], "ten thousand": ["0" * 64] * 10_000, "true": [True],
    }.items():  # fmt: skip
        yield f"digests {name}", sealed(manifest | {"files": manifest["files"] | {some: wrong}})
    for name in ("../recipe.toml", "/etc/passwd", "", ".", "..", "a/b", "a\0b", "\ud800", "x" * 5000, MANIFEST, LOCK):
        yield f"a file {name!r:.30}", sealed(manifest | {"files": manifest["files"] | {name: [digest]}})
    for name in manifest:
        yield f"without {name}", sealed({key: value for key, value in manifest.items() if key != name})
        for kind, wrong in {"null": None, "number": 7, "list": [], "nested": {"a": {}}, "path": "../../x"}.items():
            if name not in ("format", "files", "sha256"):
                yield f"{name} {kind}", sealed(manifest | {name: wrong})
    for name in list(manifest["files"]):
        files = {key: value for key, value in manifest["files"].items() if key != name}
        yield f"without the file {name}", sealed(manifest | {"files": files})


def manifest_cases(made: Example) -> Iterator[tuple[str, str, str, str, bytes]]:
    places = [("finished", "", command) for command in COMMANDS]
    places += [("unfinished", "", "resume"), ("unfinished", "", "predict"), ("unfinished", NEWEST, "resume")]
    for state, folder, command in places:
        run = made.finished if state == "finished" else made.unfinished
        for name, content in manifests(json.loads((run / folder / MANIFEST).read_bytes())):
            yield state, folder, command, name, content


def test_crafted_manifests(attack: Attack, record_property: Count) -> None:
    with trying("crafted manifests", record_property) as tried:
        for state, folder, command, name, content in shuffled(manifest_cases(attack.made), 40):
            with tried(state, folder, command, name):
                run = attack.copy(state)
                (run / folder / MANIFEST).write_bytes(content)
                # Without the metrics, a finished run is one that has no checkpoint yet: it is trained again.
                attack.run(state, command, run, equal=command != "resume" or state == "unfinished")
                attack.discard(run)


def listed(content: bytes) -> Iterator[tuple[str, bytes]]:
    """Crafted lists of tokens or labels, most with the right number of them."""
    stored = json.loads(content)
    old = stored if isinstance(stored, list) else stored["tokens"]
    lists: dict[str, list[Any]] = {
        "turned": old[::-1], "one less": old[:-1], "one more": [*old, "more"], "the first twice": [old[0], *old[:-1]],
        "none": [], "others": [f"other{index}" for index in range(len(old))],
        "BIO tags": [f"B-{index}" for index in range(len(old))],
        "white space": [" " * (index + 1) for index in range(len(old))], "an empty one": ["", *old[1:]],
        "special ones": ["<pad>", "<unk>", "<s>", "</s>", *old][: len(old)], "a surrogate": ["\ud800", *old[1:]],
        "a long one": ["x" * 10**6, *old[1:]], "escapes": ["\x1b[2J\u202e\n", *old[1:]],
        "a number": [7, *old[1:]], "a null": [None, *old[1:]], "a list": [[old[0]], *old[1:]],
        "a hundred thousand": [str(index) for index in range(10**5)],
    }  # fmt: skip
    for title, items in lists.items():
        yield title, json.dumps(items if isinstance(stored, list) else stored | {"tokens": items}).encode()
    if isinstance(stored, dict):
        for kind in ("word", "character", "sentencepiece", "", None, 7, [], {}):
            if kind != stored["kind"]:
                yield f"kind {kind!r}", json.dumps(stored | {"kind": kind}).encode()


def needed(content: bytes) -> Iterator[tuple[str, bytes]]:
    """Crafted lists of the entries of installed packages that a run needs."""
    stored = json.loads(content)
    (key, package), *_ = stored.items()
    for other in ("", ".", "scores", "scores.", "scores.nothing", "tasks.translate", "a.b.c", "x" * 10**5, "\x1b[2J"):
        yield f"entry {other!r:.20}", json.dumps({other: package}).encode()
        yield f"and the entry {other!r:.20}", json.dumps(stored | {other: package}).encode()
    for field, value in itertools.product(package, ("", None, 7, [], {}, "x" * 10**5, "\x1b[2J\n", "../..", "\ud800")):
        yield f"{field} {value!r:.20}", json.dumps({key: package | {field: value}}).encode()
    for wrong in (None, 7, "text", [], {}, {"package": "x"}, package | {"more": "x"}):
        yield f"package {wrong!r:.20}", json.dumps({key: wrong}).encode()


def begun_with(content: bytes) -> Iterator[tuple[str, bytes]]:
    """Crafted digests of the weights that a run started from."""
    (digest,) = json.loads(content)
    for wrong in (["0" * 64], [digest, digest], [digest.upper()], [[digest]], digest, {digest: digest}, [None], [7]):
        yield f"{wrong!r:.20}", json.dumps(wrong).encode()


def crafted_contents(name: str, content: bytes) -> Iterator[tuple[str, bytes]]:
    """Contents to put in the place of a file that is not of tensors."""
    yield from TEXTS.items()
    if name == PLUGINS:
        yield from needed(content)
    elif name == ORIGIN:
        yield from begun_with(content)
    elif name.endswith(TOKENS) and not content.startswith(b"{"):
        yield from sentencepieces(content)
    elif name.endswith((TOKENS, LABELS)):
        yield from listed(content)


def text_cases(made: Example) -> Iterator[tuple[str, str, str, str, bytes]]:
    for state, name, command in places_of(made):
        if not name.endswith((".safetensors", MANIFEST, LOCK)) and not name.startswith(OLDER):
            run = made.finished if state == "finished" else made.unfinished
            for title, content in crafted_contents(name, (run / name).read_bytes()):
                yield state, name, command, title, content


@EVERY_KIND
def test_crafted_texts_with_a_fitting_manifest(attack: Attack, record_property: Count) -> None:
    with trying("crafted texts of a run", record_property) as tried:
        for state, name, command, title, content in shuffled(text_cases(attack.made), 6):
            with tried(state, name, title, command):
                run = attack.copy(state)
                (run / name).write_bytes(content)
                sign((run / name).parent)
                attack.run(state, command, run, equal=False)
                attack.discard(run)


# ---- crafted metrics

NOT_NUMBERS: dict[str, Any] = {
    "null": None, "text": "1", "escapes": "\x1b[2J\n\u202e", "list": [1.0], "object": {"a": {}}, "true": True,
    "2 ** 63": 1 << 63, "a number of 4,000 digits": 10**3999, "minus 10 ** 400": -(10**400),
}  # fmt: skip
USED = ("update", "dev_loss", "tokens_per_second", "train_seconds")  # numbers that commands compute with


def metrics(content: bytes) -> Iterator[tuple[str, bytes]]:
    """Crafted metrics of the same form; nothing that training writes."""
    entries = [json.loads(line) for line in content.splitlines()]

    def written(place: int, entry: dict[str, Any]) -> bytes:
        lines = (json.dumps(entry if index == place else old) for index, old in enumerate(entries))
        return "".join(f"{line}\n" for line in lines).encode()

    for place in {0, len(entries) - 1}:
        old = entries[place]
        for key, value in old.items():
            wrong = {"number": 7} if isinstance(value, str) else NOT_NUMBERS
            if key in USED:
                wrong = wrong | {"NaN": float("nan"), "infinite": float("inf")}
                yield f"no {key} in line {place}", written(place, {name: old[name] for name in old if name != key})
            for title, other in wrong.items():
                yield f"{key} is {title} in line {place}", written(place, old | {key: other})
        for title, other in NOT_NUMBERS.items():
            yield f"another key is {title} in line {place}", written(place, old | {"dev_more": other})
    for title, update in {"0": 0, "below 0": -1, "a fraction": 1.5}.items():
        yield f"update is {title}", written(0, entries[0] | {"update": update})
    for title, line in TEXTS.items():
        if line not in (b"", b"\n"):
            yield f"a line is {title}", line + b"\n" + content
    yield "the end is before a validation", b'{"train_seconds": 1.0}\n' + content
    yield "only an end", b'{"train_seconds": 1.0}\n'


def metrics_cases(made: Example) -> Iterator[tuple[str, str, str, bytes]]:
    """State of the run, command, and the name and content of its metrics, in its checkpoints too."""
    for state, run in {"finished": made.finished, "unfinished": made.unfinished}.items():
        for title, content in metrics((run / METRICS).read_bytes()):
            for command in ("resume", *OF_METRICS) if state == "finished" else ("resume",):
                yield state, command, title, content


def test_crafted_metrics(attack: Attack, record_property: Count) -> None:
    with trying("crafted metrics", record_property) as tried:
        for state, command, title, content in shuffled(metrics_cases(attack.made), 40):
            with tried(state, command, title):
                run = attack.copy(state)
                for folder in (run, *(run / CHECKPOINTS).iterdir()):
                    (folder / METRICS).write_bytes(content)
                    sign(folder)
                result = attack.run(state, command, run, equal=False)
                assert result.code == 5, (result.code, result.error)
                assert METRICS in result.error
                attack.discard(run)


def test_crafted_metrics_of_the_newest_checkpoint_are_set_aside(attack: Attack) -> None:
    run = attack.copy("unfinished")
    crafted = b'{"update": 2, "dev_loss": "low", "tokens_per_second": 1.0}\n'
    (run / NEWEST / METRICS).write_bytes(crafted)
    sign(run / NEWEST)
    result = attack.run("unfinished", "resume", run)
    assert result.code == 0, result.error
    assert "'dev_loss' is 'low'" in result.error
    assert "set aside" in result.error


# ---- crafted states of a checkpoint


class State(NamedTuple):
    """A crafted state.json; not `equal` if it may be valid, with another result."""

    name: str
    content: bytes
    equal: bool = True


def states(state: dict[str, Any]) -> Iterator[State]:
    for name, content in TEXTS.items():
        yield State(name, content)
    for key, value in state.items():
        yield State(f"without {key}", json.dumps({name: item for name, item in state.items() if name != key}).encode())
        wrong = [None, "1", [1], {}, True, -1, 10**30, float("nan"), float("inf"), -float("inf"), "NaN", 1e308]
        for other in [*wrong, *([0.5] if isinstance(value, int) else [])]:
            if type(other) is type(value) and other == value:
                continue
            yield State(f"{key} = {other!r}", json.dumps(state | {key: other}).encode(), equal=False)
        digits = json.dumps(state | {key: "?"}).encode().replace(b'"?"', b"9" * 5000)
        yield State(f"{key} of 5,000 digits", digits)
    yield State("another key", json.dumps(state | {"more": 1}).encode())
    yield State("another update", json.dumps(state | {"update": state["update"] + 1}).encode())
    yield State("not validated", json.dumps(state | {"validated": 2, "tokens": 0}).encode(), equal=False)
    yield State("validated later", json.dumps(state | {"validated": 400}).encode(), equal=False)
    yield State("metrics beyond their end", json.dumps(state | {"metrics_size": 10**6}).encode())
    yield State("metrics cut in a line", json.dumps(state | {"metrics_size": 11}).encode(), equal=False)


def test_crafted_states(attack: Attack, record_property: Count) -> None:
    state = json.loads((attack.made.unfinished / NEWEST / STATE).read_bytes())
    cases = shuffled(iter([(crafted, both) for crafted in states(state) for both in (False, True)]), 25)
    with trying("crafted states of a checkpoint", record_property) as tried:
        for crafted, both in cases:
            with tried(crafted.name, "both checkpoints" if both else "the newest"):
                run = attack.copy("unfinished")
                for folder in (NEWEST, OLDER) if both else (NEWEST,):
                    (run / folder / STATE).write_bytes(crafted.content)
                    sign(run / folder)
                attack.run("unfinished", "resume", run, equal=crafted.equal)
                attack.discard(run)


# ---- crafted tensors

ELEMENT = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "U8": 1, "BOOL": 1, "F8_E4M3": 1}


class Stored(NamedTuple):
    """A tensor in a safetensors file."""

    dtype: str
    shape: list[int]
    content: bytes


def parse_tensors(content: bytes) -> dict[str, Stored]:
    (length,) = struct.unpack("<Q", content[:8])
    header, data = json.loads(content[8 : 8 + length]), content[8 + length :]
    header.pop("__metadata__", None)
    return {
        name: Stored(entry["dtype"], entry["shape"], data[slice(*entry["data_offsets"])])
        for name, entry in header.items()
    }


def file_of(header: bytes | dict[str, Any], data: bytes, length: int | None = None) -> bytes:
    """A safetensors file of a header and data; `length` is the one that it states."""
    header = header if isinstance(header, bytes) else json.dumps(header).encode()
    header += b" " * (-len(header) % 8)
    return struct.pack("<Q", len(header) if length is None else length) + header + data


def layout(tensors: Mapping[str, Stored]) -> tuple[dict[str, Any], bytes]:
    """The header and the data of tensors."""
    header: dict[str, Any] = {}
    data = b""
    for name, tensor in tensors.items():
        offsets = [len(data), len(data) + len(tensor.content)]
        header[name] = {"dtype": tensor.dtype, "shape": tensor.shape, "data_offsets": offsets}
        data += tensor.content
    return header, data


def zeros(dtype: str, shape: list[int]) -> Stored:
    count = 1
    for size in shape:
        count *= size
    return Stored(dtype, shape, bytes(count * ELEMENT[dtype]))


def headers(tensors: Mapping[str, Stored]) -> Iterator[tuple[str, bytes]]:
    """Files whose header is wrong."""
    header, data = layout(tensors)
    first, second = list(header)[:2]
    whole = file_of(header, data)
    yield "empty", b""
    yield "seven bytes", whole[:7]
    yield "no header", bytes(8)
    yield "only the length", whole[:8]
    for length in (1, 2**31, 2**32 - 1, 2**32, 2**63 - 1, 2**63, 2**64 - 1, 100_000_001, len(whole), len(whole) - 7):
        yield f"length {length}", file_of(header, data, length)
    for name, text in TEXTS.items():
        yield f"header: {name}", file_of(text, data)
    yield "names twice", file_of(json.dumps(header).encode()[:-1] + b", " + json.dumps(header).encode()[1:], data)
    yield "a name of a megabyte", file_of(header | {"x" * 10**6: header[first]}, data)
    yield (
        "many empty tensors",
        file_of(
            header | {f"x{index}": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]} for index in range(50_000)},
            data,
        ),
    )
    yield "bytes at the end", whole + bytes(64)
    yield "bytes missing at the end", whole[:-4]
    for metadata in (None, 7, [], {"a": 1}, {"a": {}}, {"a": "b" * 10**6}, {"\x1b[2J": "\u202e"}):
        yield f"metadata {metadata!r:.20}", file_of(header | {"__metadata__": metadata}, data)
    begin, end = header[second]["data_offsets"]
    for offsets in (
        [-4, end], [begin, -1], [end, begin], [0, end - begin], [begin, end + 4], [begin + 4, end + 4], [begin, begin],
        [begin, 2**63], [2**63, 2**64], [2**64, 2**65], [float(begin), float(end)], [str(begin), str(end)], [begin],
        [begin, end, end], [], None, {}, 7, [len(data), len(data) + end - begin], [True, False],
    ):  # fmt: skip
        yield f"offsets {offsets}", file_of(header | {second: header[second] | {"data_offsets": offsets}}, data)
    for shape in (
        [-1], [2**63], [2**64], [2**40, 2**40], [0, 2**62], [1.5], ["1"], [[1]], None, {}, 7, [1] * 5000, [True],
        [2**31, 2],
    ):  # fmt: skip
        yield f"shape {shape!r:.30}", file_of(header | {second: header[second] | {"shape": shape}}, data)
    for dtype in ("F31", "", None, 7, [], "f32", "F64", "U8", "C64", "F4", "\0"):
        yield f"dtype {dtype!r}", file_of(header | {second: header[second] | {"dtype": dtype}}, data)
    for entry in (None, [], {}, 7, "F32"):
        yield f"an entry {entry!r}", file_of(header | {second: entry}, data)
    for key in header[second]:
        yield (
            f"without {key}",
            file_of(header | {second: {name: value for name, value in header[second].items() if name != key}}, data),
        )


def reshaped(tensors: Mapping[str, Stored], name: str) -> Iterator[tuple[str, bytes]]:
    """Valid files in which one tensor has another shape, dtype or name, or is missing."""
    old = tensors[name]
    shapes = {
        "one element": [1], "no element": [0], "a scalar": [], "flat": [len(old.content) // ELEMENT[old.dtype]],
        "turned": old.shape[::-1], "one more axis": [*old.shape, 1], "an axis before": [1, *old.shape],
        "longer": [*old.shape[:-1], old.shape[-1] + 1] if old.shape else [2], "much longer": [100_000],
        "shorter": [*old.shape[:-1], old.shape[-1] - 1] if old.shape else [0], "nine axes": [1] * 9,
        "empty axes": [0, 5, 0],
    }  # fmt: skip
    for title, shape in shapes.items():
        if shape != old.shape:
            yield f"{name}: {title}", file_of(*layout({**tensors, name: zeros(old.dtype, shape)}))
    for dtype in ELEMENT:
        if dtype != old.dtype:
            yield f"{name}: {dtype}", file_of(*layout({**tensors, name: zeros(dtype, old.shape)}))
    rest = {other: tensor for other, tensor in tensors.items() if other != name}
    yield f"{name}: missing", file_of(*layout(rest))
    for other in ("more", name.upper(), f"{name}.more", "", name.replace("weight", "weights"), "optimizer.x.exp_avg"):
        if other != name:
            yield f"{name}: named {other!r}", file_of(*layout({**rest, other: old}))
            yield f"{name}: and {other!r} too", file_of(*layout({**tensors, other: old}))


GROUPS = (
    *(".exp_avg", ".exp_avg_sq", ".step", "generator.cpu", "average.snapshot.0.", "average.snapshot.1."),
    "average.moving.",
)


def optimizers(tensors: Mapping[str, Stored], groups: Sequence[str]) -> Iterator[tuple[str, bytes]]:
    """Crafted optimizer.safetensors; the largest tensor of each of the given groups is reshaped, too."""
    for group in GROUPS:
        names = [name for name in tensors if name.endswith(group) or name.startswith(group)]
        if not names:
            continue
        if group in groups:
            yield from reshaped(tensors, max(names, key=lambda name: len(tensors[name].content)))
        for title, shape in {"one element": [1], "no element": [0]}.items():
            shrunk = {name: zeros(tensors[name].dtype, shape) for name in names}
            yield f"all of {group}: {title}", file_of(*layout({**tensors, **shrunk}))
        yield f"without {group}", file_of(*layout({name: old for name, old in tensors.items() if name not in names}))
    every = {name: zeros(old.dtype, [1]) for name, old in tensors.items()}
    yield "one element each", file_of(*layout(every))
    yield "no tensor", file_of(*layout({}))
    snapshots = {name: old for name, old in tensors.items() if name.startswith("average.snapshot.0.")}
    if not snapshots:
        return
    more = {
        name.replace("snapshot.0", f"snapshot.{index}"): old
        for index in range(2, 30)
        for name, old in snapshots.items()
    }
    yield "thirty snapshots", file_of(*layout({**tensors, **more}))
    far = {name.replace("snapshot.0", "snapshot.1000000000"): old for name, old in snapshots.items()}
    yield "a snapshot far away", file_of(*layout({**tensors, **far}))


def models(tensors: Mapping[str, Stored], step: int) -> Iterator[tuple[str, bytes]]:
    """Crafted model.safetensors."""
    for name in list(tensors)[::step]:
        yield from reshaped(tensors, name)
    yield "one element each", file_of(*layout({name: zeros(old.dtype, [1]) for name, old in tensors.items()}))
    yield "no tensor", file_of(*layout({}))
    yield "another's names", file_of(*layout({f"other.{name}": old for name, old in tensors.items()}))


def tensor_cases(made: Example) -> Iterator[tuple[str, str, str, str, bytes]]:
    """Every case for KIND; some for the Transformer, which has a moving average, and few for the other kinds."""
    is_main = made.kind == KIND
    groups, step = {KIND: (GROUPS, 4), "transformer": (("average.moving.",), 12)}.get(made.kind, ((), 100))
    places = [("finished", MODEL, "predict"), ("unfinished", f"{NEWEST}/{MODEL}", "resume")]
    if is_main:
        places += [("finished", MODEL, "score"), ("finished", MODEL, "doctor"), ("unfinished", MODEL, "resume")]
    for state, path, command in places:
        run = made.finished if state == "finished" else made.unfinished
        tensors = parse_tensors((run / path).read_bytes())
        for name, content in itertools.chain(headers(tensors) if is_main else (), models(tensors, step)):
            yield state, path, command, name, content
    tensors = parse_tensors((made.unfinished / NEWEST / OPTIMIZER).read_bytes())
    for path in (f"{NEWEST}/{OPTIMIZER}", "both") if is_main else ("both",):
        for name, content in itertools.chain(headers(tensors) if is_main else (), optimizers(tensors, groups)):
            yield "unfinished", path, "resume", name, content


HARMLESS = ("metadata", "header: a newline", "names twice")  # files that a reader may accept, with the same tensors
SHORTER = "without average.snapshot.1."  # in both checkpoints: what the older one, with fewer validations, could hold


@EVERY_KIND
def test_crafted_tensors_with_a_fitting_manifest(attack: Attack, record_property: Count) -> None:
    with trying("crafted tensors", record_property) as tried:
        count = 70 if attack.made.kind == KIND else 5
        for state, path, command, name, content in shuffled(tensor_cases(attack.made), count):
            with tried(state, path, command, name):
                run = attack.copy(state)
                for place in [f"{NEWEST}/{OPTIMIZER}", f"{OLDER}/{OPTIMIZER}"] if path == "both" else [path]:
                    (run / place).write_bytes(content)
                    sign((run / place).parent)
                result = attack.run(state, command, run, equal=(path, name) != ("both", SHORTER))
                if path in (MODEL, "both") and command != "doctor" and not name.startswith((*HARMLESS, SHORTER)):
                    assert result.code == 5, (result.code, result.error)  # the doctor reports the problem
                attack.discard(run)


def test_one_element_moments_do_not_crash_the_optimizer(attack: Attack) -> None:
    """With a fitting manifest these ended in a segmentation fault, inside the fused AdamW."""
    tensors = parse_tensors((attack.made.unfinished / NEWEST / OPTIMIZER).read_bytes())
    moments = {name: zeros("F32", [1]) for name in tensors if name.endswith((".exp_avg", ".exp_avg_sq"))}
    run = attack.copy("unfinished")
    for folder in (NEWEST, OLDER):
        (run / folder / OPTIMIZER).write_bytes(file_of(*layout({**tensors, **moments})))
        sign(run / folder)
    result = attack.run("unfinished", "resume", run)
    assert result.code == 5, result.error
    assert OPTIMIZER in result.error


def test_values_that_are_not_finite(attack: Attack, record_property: Count) -> None:
    """Nothing but their values is wrong: any documented end is right, a crash is not."""
    with trying("tensors with values that are not finite", record_property) as tried:
        for name in (MODEL, OPTIMIZER):
            tensors = parse_tensors((attack.made.unfinished / NEWEST / name).read_bytes())
            floats = [key for key, tensor in tensors.items() if tensor.dtype == "F32"]
            for key, value in itertools.product(sample(floats, 3), (float("nan"), float("inf"), -1e30)):
                with tried(name, key, value):
                    run = attack.copy("unfinished")
                    content = struct.pack("<f", value) * (len(tensors[key].content) // 4)
                    changed = {**tensors, key: tensors[key]._replace(content=content)}
                    (run / NEWEST / name).write_bytes(file_of(*layout(changed)))
                    sign(run / NEWEST)
                    attack.run("unfinished", "resume", run, equal=False)
                    attack.discard(run)


@EVERY_KIND
def test_random_bytes_with_a_fitting_manifest(attack: Attack, record_property: Count) -> None:
    generator = random.Random(f"fuzz {attack.made.kind}")
    # No manifest, nor that of the checkpoint that a finished run keeps: `sign` cannot make a damaged one fit anything.
    # `test_crafted_manifests` and the test of every file try them.
    files = [("finished", name) for name in files_of(attack.made.finished) if Path(name).name != MANIFEST]
    files += [("unfinished", f"{NEWEST}/{name}") for name in (MODEL, OPTIMIZER, STATE)]
    if attack.made.kind == "subwords":
        files += [("finished", "source.tokens")] * 3 * len(files)  # read by code that is not regard's own
    count = 500 if attack.made.kind in (KIND, "subwords") else 60
    with trying("files of random changes", record_property) as tried:
        for number in range(count if WHOLE else 3):
            state, name = files[number % len(files)] if WHOLE else generator.choice(files)
            command = "resume" if state == "unfinished" else generator.choice(list(COMMANDS))
            run = attack.copy(state)
            (run / name).write_bytes(changed_at_random((run / name).read_bytes(), generator))
            sign((run / name).parent)
            with tried(number, state, name, command):
                attack.run(state, command, run, equal=False)
            attack.discard(run)


def changed_at_random(content: bytes, generator: random.Random) -> bytes:
    """Replace, delete or insert bytes, at the beginning or anywhere."""
    changed = bytearray(content)
    for _ in range(generator.choice((1, 3, 20))):
        position = generator.randrange(max(1, min(len(changed), generator.choice((200, 10**9)))))
        length = generator.randrange(1, 9)
        changed[position : position + generator.choice((0, length))] = generator.randbytes(
            generator.choice((0, length))
        )
    return bytes(changed)


def test_a_run_with_no_good_checkpoint_is_left_as_it_is(attack: Attack) -> None:
    run = attack.copy("unfinished")
    for folder in (NEWEST, OLDER):
        flip(run / folder / OPTIMIZER, 0.9, 3)
    before = digests(run)
    result = attack.run("unfinished", "resume", run)
    assert result.code == 5, result.error
    assert good_checkpoints(run) == []
    assert set(before.values()) <= set(digests(run).values()) | {before.get(LOCK)}
