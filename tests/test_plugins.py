"""Entries of an installed package: listed, used in training and loading, and named in errors if it is missing."""

import importlib
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import regard
from commands import Result, shared_commands
from regard import catalogue, plugins, storage
from regard import recipe as recipes
from regard.analysis.doctor import examine
from regard.attention import NORMALIZERS, SCORES, Score
from regard.attention.normalizers import Entry
from regard.attention.scores import Dot
from regard.encoders import ENCODERS, GnmtEncoder
from regard.errors import CorruptError, RecipeError, RegardError, UnknownNameError
from regard.kernels.choose import are_definitions_only
from regard.models import build
from regard.recipe import Recipe
from regard.storage import Run
from regard.tasks import task_class

HERE = Path(__file__).parent
PAGE = (HERE.parent / "docs" / "extend.md").read_text(encoding="utf-8").partition("## From a package of one's own")[2]
KINDS = {"score": "manhattan", "normalizer": "squared", "scope": "before"}  # of the package regard-small
SMALL = (
    *("model.embedding=6", "model.encoder.dim=8", "model.decoder.dim=8", "model.attention.dim=8"),
    *("train.updates=2", "train.validate=2", "train.batch_tokens=100", "train.device=cpu", "model.decoder.order=luong"),
)
NAMED = (
    *(f"model.attention.{key}={name}" for key, name in KINDS.items()),
    "model.encoder.kind=tokenwise",
    "source=backwards",
)
MISSING = "of the package 'regard-small' (version 0.3); install it with: pip install regard-small"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder into which two packages are installed: tests/plugin_package, and the one that docs/extend.md shows."""
    folder = tmp_path_factory.mktemp("packages")
    shutil.copytree(HERE / "plugin_package", folder / "small")  # pip writes build files beside the source
    (folder / "chebyshev").mkdir()
    for language, name in (("toml", "pyproject.toml"), ("python", "regard_chebyshev.py")):
        (block,) = re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.M | re.S)
        (folder / "chebyshev" / name).write_text(block, encoding="utf-8")
    options = ["--no-build-isolation", "--no-deps", "--no-index", "--disable-pip-version-check", "--no-cache-dir"]
    command = [sys.executable, "-m", "pip", "install", "-qq", *options, "--target", folder / "site"]
    done = subprocess.run(
        [*command, folder / "small", folder / "chebyshev"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return folder / "site"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with training data: pairs and lines."""
    folder = tmp_path_factory.mktemp("home")
    words = [f"{'abcd'[index % 4]}{'efg'[index % 3]}{'hi'[index % 2]}" for index in range(40)]
    (folder / "pairs.tsv").write_text("".join(f"{word}\t{word.upper()}\n" for word in words), encoding="utf-8")
    (folder / "lines.txt").write_text("".join(f"{word}\n" for word in words), encoding="utf-8")
    return folder


def command(home: Path, *arguments: object, site: Path | None = None) -> Result:
    """Run `regard ARGUMENTS`, with the packages of `site` or without them."""
    packages = {"packages": str(site)} if site else {}
    return shared_commands()(*arguments, folder=home, limit=120, **packages)


@pytest.fixture(scope="module")
def run(site: Path, home: Path) -> Run:
    """A run that was trained with five entries of the package regard-small."""
    arguments = ("train", "reverse", "name=small", "data.train=pairs.tsv", *SMALL, *NAMED)
    done = command(home, *arguments, site=site)
    assert done.code == 0, done.error
    return Run.open(home / "runs" / "small")


Use = Callable[[Path], None]


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch) -> Iterator[Use]:
    """Add a folder of packages to sys.path for one test."""
    modules = set(sys.modules)

    def add(folder: Path) -> None:
        monkeypatch.syspath_prepend(folder)
        plugins.installed.cache_clear()

    yield add
    plugins.installed.cache_clear()
    for name in set(sys.modules) - modules:
        if name.startswith("regard_"):
            del sys.modules[name]


def write(folder: Path, package: str, entries: dict[str, str], *, version: str = "1.0", **modules: str) -> Path:
    """Write a package as pip would install it."""
    info = folder / f"{package.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n")
    (info / "entry_points.txt").write_text("[regard]\n" + "".join(f"{key} = {at}\n" for key, at in entries.items()))
    for name, text in modules.items():
        (folder / f"{name}.py").write_text(text, encoding="utf-8")
    return folder


def small(home: Path, *overrides: str) -> Recipe:
    return recipes.load("reverse", ["name=small", f"data.train={home / 'pairs.tsv'}", *SMALL, *overrides])


# From the command line


def test_the_list_names_the_package_of_an_entry(site: Path, home: Path) -> None:
    done = command(home, "list", "scores", site=site)
    assert done.code == 0, done.error
    assert "  manhattan        (from regard-small 0.3)\n" in done.out.decode()
    (line,) = [line for line in PAGE.split("\n") if line.startswith("regard list scores")]
    assert f"  {line.partition('# ')[2]}\n" in done.out.decode()  # as docs/extend.md shows it
    listed = json.loads(command(home, "list", "--json", site=site).out)
    for table, name in (
        ("normalizers", "squared"),
        ("scopes", "before"),
        ("encoders", "tokenwise"),
        ("sources", "backwards"),
    ):
        assert listed[table][name] == "(from regard-small 0.3)"
    assert listed["tasks"]["capitals"] == "(from regard-small 0.3)"
    assert "manhattan" not in json.loads(command(home, "list", "--json").out)["scores"]


def test_a_run_predicts_with_the_package_and_without_it_says_how_to_install_it(
    run: Run, site: Path, home: Path
) -> None:
    assert len(command(home, "predict", run.path, "lines.txt", site=site).lines) == 40
    done = command(home, "predict", run.path, "lines.txt")
    assert done.code == 2
    assert done.out == b""
    assert done.error == f"regard: the run {run.path} needs the source 'backwards' {MISSING}\n"


# What a run stores


def test_a_run_names_the_packages_it_needs_and_its_manifest_covers_them(run: Run, tmp_path: Path) -> None:
    package = {"package": "regard-small", "version": "0.3"}
    expected = {f"{kind}s.{name}": package for kind, name in KINDS.items()} | {
        "encoders.tokenwise": package,
        "sources.backwards": package,
    }
    assert json.loads(run.read(storage.PLUGINS)) == expected
    copy = shutil.copytree(run.path, tmp_path / "copy")
    (copy / storage.PLUGINS).write_text("{}", encoding="utf-8")
    with pytest.raises(CorruptError, match=r"plugins\.json is damaged"):
        regard.load(copy)


@pytest.mark.parametrize("load", [regard.load, regard.resume])
def test_every_loader_names_the_missing_package(run: Run, load: Callable[[Run], object]) -> None:
    with pytest.raises(RecipeError, match=rf"the run {run.path} needs the \w+ '\w+' {re.escape(MISSING)}$"):
        load(run)


def test_a_comparison_and_the_doctor_name_the_missing_package_of_a_task(run: Run, tmp_path: Path) -> None:
    copy = Run(shutil.copytree(run.path, tmp_path / "copy"))
    copy.replace(storage.RECIPE, run.read(storage.RECIPE).replace(b'task = "translate"', b'task = "capitals"'))
    copy.replace(storage.PLUGINS, plugins.to_json({"tasks.capitals": plugins.Package("regard-small", "0.3")}))
    with pytest.raises(RecipeError, match=rf"the run {copy.path} needs the task 'capitals' {re.escape(MISSING)}$"):
        regard.compare(copy, "reverse")
    with pytest.raises(RecipeError, match=rf"the run {copy.path} needs the task 'capitals' {re.escape(MISSING)}$"):
        examine(copy.path)
    with pytest.raises(RecipeError, match=rf"the run {run.path} needs the \w+ '\w+' {re.escape(MISSING)}$"):
        regard.compare(run, "reverse")


def test_starting_from_a_run_needs_only_what_the_new_recipe_names(run: Run, home: Path, tmp_path: Path) -> None:
    start = f"train.start_from={run.path}"
    with pytest.raises(RecipeError, match=f"the run {run.path} needs the score 'manhattan' {re.escape(MISSING)}"):
        regard.train(small(home, "model.attention.score=manhattan", start), runs=tmp_path)
    with pytest.raises(UnknownNameError, match="unknown score 'manhatan'; choose from dot"):
        regard.train(small(home, "model.attention.score=manhatan", start), runs=tmp_path)
    assert not list(tmp_path.iterdir())
    started = regard.train(small(home, start), runs=tmp_path, quiet=True)
    assert not started.has_file(storage.PLUGINS)


def test_another_version_of_the_package_is_reported_on_stderr(
    run: Run, use: Use, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copy(HERE / "plugin_package" / "regard_small.py", tmp_path)
    needed = json.loads(run.read(storage.PLUGINS))
    names = {"manhattan": "Manhattan", "squared": "SQUARED", "before": "Before", "tokenwise": "Tokenwise"}
    names["backwards"] = "Backwards"
    entries = {key: f"regard_small:{names[key.partition('.')[2]]}" for key in needed}
    use(write(tmp_path, "regard-small", entries, version="0.4"))
    assert len(regard.load(run).predict(["abc"])) == 1
    lines = capsys.readouterr().err.split("\n")[:-1]
    assert len(lines) == 5
    change = "'manhattan' of regard-small 0.3; that of regard-small 0.4 is used now"
    assert f"regard: the run {run.path} was trained with the score {change}" in lines


def test_a_version_without_the_entry_has_an_error_of_its_own(run: Run, use: Use, tmp_path: Path) -> None:
    use(write(tmp_path, "regard-small", {}, version="0.4"))
    with pytest.raises(RecipeError, match=r"version 0.4 does not have it; install: pip install regard-small==0.3$"):
        regard.load(run)


def test_an_entry_of_regard_that_replaces_that_of_the_package_is_reported_on_stderr(
    run: Run, use: Use, site: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    use(site)
    monkeypatch.setitem(SCORES, "manhattan", Dot)
    regard.load(run)
    change = "score 'manhattan' of regard-small 0.3; that of regard itself is used now\n"
    assert capsys.readouterr().err == f"regard: the run {run.path} was trained with the {change}"


def test_the_error_for_a_missing_score_says_that_it_was_added_from_python(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setitem(SCORES, "mine", Dot)
        run = regard.train(small(home, "model.attention.score=mine"), runs=tmp_path, quiet=True)
    assert not run.has_file(storage.PLUGINS)
    message = r"needs the score 'mine', which is not in this regard: it was added from Python.* \(docs/extend.md\)$"
    with pytest.raises(RecipeError, match=message):
        regard.load(run)


def test_a_task_of_a_package_trains_predicts_and_is_examined_by_the_doctor(
    site: Path, home: Path, use: Use, tmp_path: Path
) -> None:
    use(site)
    recipe = small(home, "task=capitals", f"data.train={home / 'lines.txt'}", "model.attention.score=chebyshev")
    run = regard.train(recipe, runs=tmp_path, quiet=True)
    assert {key: str(package) for key, package in run.needs().packages.items()} == {
        "tasks.capitals": "regard-small 0.3",
        "scores.chebyshev": "regard-chebyshev 0.1",
    }
    assert regard.resume(run, quiet=True) == run
    assert len(regard.load(run).predict(["abc", "def"])) == 2
    phases = examine(run.path).run
    assert phases is not None
    assert {name: phase.problem for name, phase in phases.items()} == {"training": "", "search": ""}
    assert all(phase.answers for phase in phases.values()) is not are_definitions_only()


# Names


def test_nothing_of_a_package_is_imported_before_a_recipe_names_it(site: Path, use: Use) -> None:
    use(site)
    table = catalogue.tables()["scores"]
    assert table.added == {"manhattan": "(from regard-small 0.3)", "chebyshev": "(from regard-chebyshev 0.1)"}
    assert list(table.entries) == list(SCORES)
    with pytest.raises(UnknownNameError, match=r"unknown score 'manhatan'; .*, manhattan.*did you mean 'manhattan'\?"):
        plugins.pick(SCORES, "manhatan", "score", Score)
    assert "regard_small" not in sys.modules
    score = plugins.pick(SCORES, "manhattan", "score", Score)
    assert score is importlib.import_module("regard_small").Manhattan
    assert "manhattan" not in SCORES


def test_the_tables_that_packages_can_add_to_are_in_the_catalogue() -> None:
    assert set(plugins.TABLES) <= set(catalogue.TABLES)


def test_an_entry_of_regard_is_preferred_to_that_of_a_package(use: Use, tmp_path: Path) -> None:
    use(write(tmp_path, "other", {"scores.dot": "regard_nowhere:Dot"}))
    assert plugins.pick(SCORES, "dot", "score", Score) is Dot
    line = catalogue.tables()["scores"].lines()["dot"]
    assert line.endswith("e = query . key. (regard's own is used, not the one from other 1.0)")


def test_the_error_for_an_entry_of_two_packages_names_both(use: Use, tmp_path: Path) -> None:
    for package in ("one", "two"):
        use(write(tmp_path / package, package, {"scores.same": "regard_nowhere:Same"}))
    with pytest.raises(RegardError, match=r"'same' is in several .* (one 1.0 and two|two 1.0 and one) 1.0; uninstall"):
        plugins.pick(SCORES, "same", "score", Score)
    assert "uninstall all but one" in catalogue.tables()["scores"].lines()["same"]


BROKEN = {
    "scores.nowhere": "cannot be imported: ModuleNotFoundError: No module named 'regard_nowhere'",
    "scores.absent": "cannot be imported: AttributeError",
    "scores.raises": "cannot be imported: ZeroDivisionError: division by zero",
    "scores.number": "is not a subclass of regard.attention.core.Score",
    "scores.instance": "is not a subclass of regard.attention.core.Score",
    "scores.another": "is not a subclass of regard.attention.core.Score",
    "normalizers.function": "is not an instance of regard.attention.normalizers.Entry",
    "normalizers.class": "is not an instance of regard.attention.normalizers.Entry",
    "tasks.number": "is not a subclass of regard.tasks.core.Task",
}


@pytest.mark.parametrize(("key", "message"), BROKEN.items())
def test_the_error_for_an_unusable_entry_names_its_package(key: str, message: str, use: Use, tmp_path: Path) -> None:
    entries = {
        "scores.nowhere": "regard_nowhere:Score",
        "scores.absent": "regard_wrong:Absent",
        "scores.raises": "regard_raises:Score",
        "scores.number": "regard_wrong:number",
        "scores.instance": "regard_wrong:instance",
        "scores.another": "regard_wrong:Entry",
        "normalizers.function": "regard_wrong:function",
        "normalizers.class": "regard_wrong:Entry",
        "tasks.number": "regard_wrong:number",
    }
    code = (
        "from regard.attention.normalizers import Entry\nfrom regard.attention.scores import Dot\nnumber = 7\n"
        "instance = Dot(query_dim=3, key_dim=3)\ndef function(scores, mask): return scores\n"
    )
    use(write(tmp_path, "wrong", entries, regard_wrong=code, regard_raises="1 / 0\n"))
    kind, name = key.replace("s.", ".").split(".")
    tables = {"score": (SCORES, Score), "normalizer": (NORMALIZERS, Entry)}
    with pytest.raises(RegardError, match=rf"the {kind} '{name}' of wrong 1.0 \({entries[key]}\) {message}"):
        task_class(name) if kind == "task" else plugins.pick(tables[kind][0], name, kind, tables[kind][1])


def test_an_entry_for_an_unknown_table_is_reported(use: Use, tmp_path: Path) -> None:
    use(write(tmp_path, "astray", {"score.mine": "regard_nowhere:Mine", "mine": "regard_nowhere:Mine"}))
    first, second = plugins.misplaced()
    assert first.startswith("the entry 'score.mine' of astray 1.0 is in no table that packages can add to")
    assert first.endswith("did you mean 'scores'?")
    assert second.startswith("the entry 'mine' of astray 1.0")


def test_an_encoder_without_from_recipe_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    class Mine(GnmtEncoder):
        """Inherits no class method from_recipe."""

    monkeypatch.setitem(ENCODERS, "mine", Mine)
    recipe = recipes.load("reverse", ["model.encoder.kind=mine"])
    with pytest.raises(RecipeError, match=r"the encoder Mine has no class method from_recipe\(recipe, front\)"):
        build(recipe.model, source_size=9, target_size=9)
