"""Crafted recipes and extreme values: each is used or refused in a sentence, within seconds, before anything is made.

`make test` runs a sample of the cases; with REGARD_ATTACK=whole all of them run.
"""

import dataclasses
import random
import shutil
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from common import ALL_KINDS, WHOLE, commands, example, sign, snapshot, trying

from commands import DOCUMENTED, Result
from regard import recipe as recipes
from regard.errors import CorruptError, RecipeError, RegardError
from regard.predict import load
from regard.recipe import Recipe, to_toml
from regard.storage import RECIPE, Run
from regard.training.loop import check

CRAFTED = 1200 if WHOLE else 150
EXTREME = 2000 if WHOLE else 133
PARSING, USING = 1.0, 10.0  # seconds of CPU time that a case may take
TESTS = Path(__file__).parents[1]
GOLDEN = sorted((TESTS / "golden" / "runs").glob("*/finished"))

Record = Callable[[str, object], None]

VALUES = (
    *(
        '"x"',
        '""',
        "-1",
        "0",
        "1",
        "65537",
        "1e308",
        "-1e308",
        "1e400",
        "5e-324",
        "nan",
        "inf",
        "-inf",
        "true",
        "'''a'''",
    ),
    *(str(2**63), str(2**64), "9" * 5000, "0x" + "f" * 5000, "0b1", "1_0", "1.", "1979-05-27", "07:32:00"),
    *("1979-05-27T07:32:00Z", "[]", "[[]]", '[1, "a"]', "{}", "{a = 1}", "{a.b.c = 1}", '["a", "b", "c"]'),
    *('"' + "a" * 100_000 + '"', '"a' + "b" * 600 + '"', '["' + "a" * 40_000 + '"]', r'"\u0000"', r'"\u001b[31m"'),
    *('"../../../etc/passwd"', '"/dev/zero"', '"\\ud800"', "[" * 5000, "{a=" * 3000, "[" * 90 + "]" * 90),
    *("{" + ", ".join(f"k{index} = 1" for index in range(2000)) + "}", "[" + "1," * 50_000 + "]"),
)
KEYS = (
    *(r'"\u0000"', r'"a\nb"', r'"\u202e"', '""', "a.b.c", ".".join("a" * 1000), "model.attention.score.x", "__class__"),
    *("train.seed", "train", "model.decoder", '"train.seed"', "tag", "tag.letters", "-", "'" + "k" * 10_000 + "'"),
    " . ".join(['"\\""'] * 1000),
)


def all_keys(section: Any, prefix: str = "") -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Name and limits of every key of a recipe; the limits of a key that is not a number are empty."""
    for item in dataclasses.fields(section):
        value, name = getattr(section, item.name), prefix + item.name
        if dataclasses.is_dataclass(value):
            yield from all_keys(value, name + ".")
        else:
            yield name, item.metadata


# ---- crafted recipes


def other_value(generator: random.Random, text: str) -> bytes:
    """The recipe with other values at one to three keys."""
    lines = text.split("\n")
    for place in generator.sample(
        [index for index, line in enumerate(lines) if " = " in line], generator.randint(1, 3)
    ):
        lines[place] = f"{lines[place].partition(' = ')[0]} = {generator.choice(VALUES)}"
    return "\n".join(lines).encode()


def other_section(generator: random.Random, text: str) -> bytes:
    """The recipe with a section that is a value, a list of tables, a key of another section, or there twice."""
    heads = [line for line in text.split("\n") if line.startswith("[")]
    head = generator.choice(heads)
    name = head.strip("[]")
    changes = (
        f"[[{name}]]",
        f"{head}\n{head}",
        f"{name} = {generator.choice(VALUES)}",
        f"[{name}.{name}]",
        f"[{name}",
        "",
    )
    return text.replace(head, generator.choice(changes), 1).encode()


def other_key(generator: random.Random, text: str) -> bytes:
    """The recipe with one more key, at its top or at its end."""
    line = f"{generator.choice(KEYS)} = {generator.choice(VALUES)}\n"
    return (line + text if generator.random() < 0.5 else text + line).encode()


def other_format(generator: random.Random, text: str) -> bytes:
    """The recipe in an older or an impossible format, with keys that have moved since."""
    number = generator.choice(("1", "2", "1", "2", *VALUES))
    lines = [f"format = {number}", *(line for line in text.split("\n") if not line.startswith("format"))]
    moved = generator.choice(sorted(recipes.MOVED))
    section, key = moved.split(".")
    task = recipes.MOVED[moved].partition(".")[0]
    lines.insert(1, f"{generator.choice((task, section))} = {generator.choice(VALUES)}")
    lines.append(f"[{section}]\n{key} = {generator.choice(VALUES)}")
    return "\n".join(line for line in lines if generator.random() > 0.02).encode()


def damaged(generator: random.Random, text: str) -> bytes:
    """The recipe with bytes flipped, put in or cut off."""
    content = bytearray(text.encode())
    for _ in range(generator.randint(1, 8)):
        place = generator.randrange(len(content))
        content[place : place + generator.randint(0, 2)] = generator.randbytes(generator.randint(0, 2))
    return bytes(content[: generator.choice((len(content), generator.randrange(len(content) + 1)))])


def noise(generator: random.Random, text: str) -> bytes:
    """No recipe at all, or too much of one."""
    choices = (
        *(b"", b"\0" * 100, b"\xef\xbb\xbf" + text.encode(), b"\xff\xfe" + text.encode("utf-16-le"), text.encode() * 2),
        *(generator.randbytes(1000), b"#" * (recipes.LARGEST_RECIPE + 1), b"[a]\n" * 1000, b"a = " + b"[" * 200_000),
        *(
            b"[[a]]\n" * 40_000,
            ".".join("a" * 100_000).encode() + b" = 1",
            b'"\\"' * 80_000,
            b"a = {" + b"a={" * 60_000,
        ),
        b"".join(b"[" + b".".join([b"a"] * 15) + b".k%d]\n" % index for index in range(7000)),
        b"".join(b"k%d = 1\n" % index for index in range(20_000)),
    )
    return generator.choice(choices)


ATTACKS = (other_value, other_value, other_section, other_key, other_format, damaged, noise)


def assert_is_sentence(error: RegardError) -> None:
    assert "\n" not in str(error)
    assert len(str(error)) < 3000


def try_run(run: Path) -> None:
    """Read the recipe of a run; if it is accepted, check it and load the run with it."""
    start = time.process_time()
    try:
        recipe = Run.open(run).recipe()
    except (RecipeError, CorruptError) as error:
        assert_is_sentence(error)
        return
    finally:
        assert time.process_time() - start < PARSING
    start = time.process_time()
    for use in (lambda: check(recipe, stored=True), lambda: load(run, "cpu")):
        try:
            use()
        except RegardError as error:
            assert_is_sentence(error)
        assert time.process_time() - start < USING


def test_a_crafted_recipe_of_a_run_is_used_or_refused_in_a_sentence(tmp_path: Path, record_property: Record) -> None:
    generator = random.Random(14)
    runs = [Path(shutil.copytree(run, tmp_path / run.parent.name)) for run in GOLDEN]
    texts = {run: to_toml(Run.open(run).recipe()) for run in runs}
    failed = []
    for number in range(CRAFTED):
        run, attack = runs[number % len(runs)], ATTACKS[number % len(ATTACKS)]
        (run / RECIPE).write_bytes(attack(generator, texts[run]))
        sign(run)
        try:
            try_run(run)
        except Exception as error:
            start = (run / RECIPE).read_bytes()[:300]
            failed.append(f"{number} {attack.__name__} {run.name}: {type(error).__name__}: {error!s:.300} {start!r}")
    record_property("crafted recipes", CRAFTED)
    assert not failed, "\n".join([f"{len(failed)} of {CRAFTED}", *failed[:20]])


STOPPED = 128 + signal.SIGTERM
ENOUGH = 3.0  # seconds of CPU time after which a training is told to stop: a crafted recipe may ask for a long one


@pytest.mark.parametrize("kind", ALL_KINDS if WHOLE else ["tagger"])
def test_a_run_with_a_crafted_recipe_is_used_or_refused_by_the_commands(
    kind: str, tmp_path: Path, record_property: Record
) -> None:
    generator, made = random.Random(kind), example(kind)
    text = to_toml(Run.open(made.unfinished).recipe())
    with trying("crafted recipes that commands use", record_property) as tried:
        for number in range(120 if WHOLE else 14):
            run, attack = made.copy_unfinished(tmp_path / str(number)), ATTACKS[number % len(ATTACKS)]
            content = attack(generator, text)
            (run / RECIPE).write_bytes(content)
            sign(run)
            before = snapshot(tmp_path)
            with tried(number, attack.__name__, content[:300]):
                commands()("predict", run, "--text", "a\tb c").assert_behaved()
                assert snapshot(tmp_path) == before
                result = commands()("train", "--resume", run, kill_after=[ENOUGH, signal.SIGTERM])
                result.assert_behaved(DOCUMENTED | {STOPPED})
                others = {name: state for name, state in before.items() if not name.startswith(f"{number}/{kind}")}
                assert snapshot(tmp_path, without=[run]) == others
            shutil.rmtree(run.parent)


# ---- extreme values


def extremes(limits: Mapping[str, Any]) -> Iterator[str]:
    """Extreme values of a key, as they are written on the command line."""
    yield from (
        "-1",
        "0",
        "1e308",
        "-1e308",
        "1e-320",
        "nan",
        "inf",
        "true",
        "",
        "''",
        "1979-05-27",
        "{a = 1}",
        "[" * 500,
    )
    yield from (
        str(10**9),
        str(10**18),
        str(2**63),
        str(2**64),
        str(10**30),
        "9" * 5000,
        "0x" + "f" * 5000,
        "a" * 10_000,
    )
    if limits:
        yield from (str(limits["least"]), str(limits["most"]), str(limits["most"] + 1), str(10 * limits["most"]))


def test_an_extreme_value_is_used_or_refused_in_a_sentence(record_property: Record) -> None:
    cases = [(key, value) for key, limits in all_keys(Recipe()) for value in extremes(limits)]
    chosen = [cases[number * len(cases) // min(EXTREME, len(cases))] for number in range(min(EXTREME, len(cases)))]
    for number, (key, value) in enumerate(chosen):
        for name in ("dates", "transformer2017") if WHOLE else ("dates", "transformer2017")[number % 2 :][:1]:
            start = time.process_time()
            try:
                check(recipes.load(name, [f"{key}={value}"]))
            except RegardError as error:
                assert_is_sentence(error)
            except Exception as error:
                pytest.fail(f"{name} {key}={value:.40}: {type(error).__name__}: {error!s:.300}")
            assert time.process_time() - start < USING, (name, key, value[:40])
    record_property("extreme values of keys", len(chosen))


NAMES = ("dates", "transformer2017", "gnmt2016", "sentences", "clues", "moods", "parts", "facts")


@pytest.mark.parametrize("name", NAMES if WHOLE else NAMES[::3])
def test_every_largest_value_passes_the_checks_or_is_refused(name: str) -> None:
    sizes = ("layers", "batch_tokens", "longest", "size", "dim", "heads", "embedding", "window")
    keys = [(key, limits["most"]) for key, limits in all_keys(Recipe()) if limits and (WHOLE or key.endswith(sizes))]
    for key, most in keys:
        try:
            check(recipes.load(name, [f"{key}={most}"]), stored=True)
        except RecipeError as error:
            assert_is_sentence(error)


# ---- through the command line

TINY = (
    *("data.train=pairs.tsv", "model.embedding=8", "model.encoder.dim=12", "model.decoder.dim=12"),
    *("model.attention.dim=6", "train.updates=2", "train.validate=2", "train.batch_tokens=100", "train.device=cpu"),
    *("search.max_ratio=1.0", "search.max_extra=3"),
)
REFUSED = (  # by the limits of numbers and texts
    *(f"model.encoder.dim={10**18}", f"model.embedding={10**12}", f"tokens.size={10**18}", f"train.seed={10**30}"),
    *(
        "train.threads=100000",
        "model.encoder.layers=1000000",
        f"train.accumulate={10**9}",
        f"search.max_extra={10**18}",
    ),
    *(f"search.top_k={10**30}", f"train.average={10**30}", "train.seed=" + "9" * 5000, "train.seed=" + "[" * 5000),
    *("search.length_penalty=1000", "search.max_ratio=1e308", "train.\udcff=1", "name=" + "a" * 5000),
    *("train.device=meta", "search.coverage_penalty=1 model.decoder.order=none"),
)
REFUSED_LATER = {  # when files are read, or the vocabulary is known
    "data.train=" + "b" * 300: 2,
    "train.start_from=" + "c" * 300: 4,
    "model.decoder.dim=65536 model.decoder.layers=200": 6,
}
ACCEPTED = (f"train.seed={2**63 - 1}", "train.threads=512", "train.average=1000", "search.top_k=10000000")
ACCEPTED += (
    "search.length_penalty=10 search.beam=1000",
    "search.temperature=1e-320",
    "train.clip=1e37 train.ema=0.99999",
)


def printable(overrides: str) -> str:
    """A short name of a case."""
    return overrides[:40].encode("ascii", "replace").decode()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the data of the tiny recipe."""
    folder = tmp_path_factory.mktemp("commands")
    words = ["".join(random.Random(seed).choices("abcdefgh", k=4)) for seed in range(40)]
    (folder / "pairs.tsv").write_text("".join(f"{word}\t{word.upper()}\n" for word in words), encoding="utf-8")
    return folder


def train(folder: Path, overrides: str, runs: str, limit: float = USING) -> Result:
    keys = [*TINY, *overrides.split(" ")]
    return commands()("train", "dates", *keys, "--quiet", "--runs", runs, folder=folder, limit=limit)


@pytest.mark.parametrize("overrides", REFUSED, ids=printable)
def test_an_absurd_value_is_refused_by_the_checks(overrides: str) -> None:
    with pytest.raises(RecipeError) as refused:
        check(recipes.load("dates", overrides.split(" ")))
    assert_is_sentence(refused.value)


@pytest.mark.parametrize("overrides", [*(REFUSED if WHOLE else REFUSED[::5]), *REFUSED_LATER], ids=printable)
def test_an_absurd_value_is_refused_before_a_run_is_made(folder: Path, overrides: str) -> None:
    result = train(folder, overrides, "none")
    result.assert_behaved(codes=[REFUSED_LATER.get(overrides, 2)])
    assert result.error.count("\n") == 1
    assert not (folder / "none").exists()


@pytest.mark.parametrize("overrides", ACCEPTED if WHOLE else ACCEPTED[:1])
def test_the_largest_values_train_to_the_end(folder: Path, overrides: str) -> None:
    result = train(folder, overrides, "some", limit=120)
    assert result.code == 0, result.error
