"""Rules for the source: a part imports only parts before it in ORDER, only storage may write files, no pickle."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "regard"
ORDER = (
    *("errors", "visible", "plugins", "maps", "specials", "types", "recipe", "storage", "console", "device", "memory"),
    "data",
    *(
        "kernels",
        "attention",
        "layers",
        "sources",
        "encoders",
        "decoders",
        "models",
        "search",
        "metrics",
        "tasks",
        "trust",
        "predict",
    ),
    *("training", "show", "analysis", "catalogue", "serve", "interop", "cli", "__main__"),
)
LAZY = {
    ("maps.py", "show"),
    ("types.py", "show"),
}  # a notebook calls a map to draw itself, so the import is inside a function
WRITER = "storage/"
WRITING_METHODS = {"write_text", "write_bytes", "mkdir", "touch", "rename", "hardlink_to", "symlink_to"}
WRITING_FUNCTIONS = {
    "os": {"replace", "rename", "renames", "makedirs", "mkdir", "truncate", "link", "symlink"},
    "shutil": {"copy", "copy2", "copyfile", "copytree", "move", "rmtree"},
    "torch": {"save"},
    "numpy": {"save", "savez", "savetxt"},
}
PICKLES = {"pickle", "cPickle", "cloudpickle", "dill", "marshal", "shelve", "joblib"}


def parse_files(root: Path) -> Iterator[tuple[str, ast.Module]]:
    for path in sorted(root.rglob("*.py")):
        yield path.relative_to(root).as_posix(), ast.parse(path.read_text("utf-8"))


def is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")


def executed_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """All nodes that may be executed, with bodies of functions, without those under `if TYPE_CHECKING`."""
    for child in ast.iter_child_nodes(node):
        if is_type_checking(child):
            assert isinstance(child, ast.If)
            for other in child.orelse:
                yield other
                yield from executed_nodes(other)
        else:
            yield child
            yield from executed_nodes(child)


def imports_of(name: str, tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Line and full name of every import of a file."""
    package = ["regard", *Path(name).parent.parts]
    for node in executed_nodes(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parents = package[: len(package) - node.level + 1] if node.level else []
            home = ".".join([*parents, *([node.module] if node.module else [])])
            yield from ((node.lineno, f"{home}.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("import_module", "__import__")):
            name_node = node.args[0]
            yield node.lineno, name_node.value if isinstance(name_node, ast.Constant) else "regard.(computed)"


def part(name: str) -> str:
    """The first folder of a path, or its file without suffix: the names in ORDER."""
    return name.partition("/")[0].removesuffix(".py")


def wrong_imports(root: Path) -> list[str]:
    """All imports of a part that comes after the importing part in ORDER, or that is not in ORDER."""
    wrong, names = [], [part(name) for name, _ in parse_files(root)]
    for name, tree in parse_files(root):
        if name == "__init__.py":
            continue
        if part(name) not in ORDER:
            wrong.append(f"{name}: add {part(name)!r} to ORDER")
            continue
        for line, full in imports_of(name, tree):
            home, *inner = full.split(".")
            if home != "regard" or not inner or inner[0] == part(name) or (name, inner[0]) in LAZY:
                continue
            if inner[0] not in ORDER:
                if inner[0] in names or not inner[0].startswith("__"):
                    wrong.append(f"{name}:{line} imports {full}, which is not in ORDER")
            elif ORDER.index(inner[0]) > ORDER.index(part(name)):
                wrong.append(f"{name}:{line} imports {full}, which comes after it in ORDER")
    return wrong


def opens_for_writing(call: ast.Call) -> bool:
    """`open(...)`, `path.open(...)`, `gzip.open(...)` and such, with a mode that may write."""
    called = ast.unparse(call.func)
    if called == "os.open":
        flags = set(ast.unparse(call.args[1]).split(" | "))
        return ast.unparse(call.args[0]) != "os.devnull" and not flags <= {"os.O_RDONLY", "os.O_NONBLOCK"}
    if called.rpartition(".")[2] not in ("open", "fdopen"):
        return False
    modes = [keyword.value for keyword in call.keywords if keyword.arg == "mode"]
    texts = [value for value in call.args if isinstance(value, ast.Constant) and isinstance(value.value, str)]
    if called in ("open", "io.open", "gzip.open", "bz2.open", "lzma.open", "os.fdopen"):
        modes += call.args[1:2]
    else:
        modes += [text for text in texts if set(text.value) <= set("rwaxbt+U")]
    return any(not isinstance(mode, ast.Constant) or not set(str(mode.value)).isdisjoint("wax+") for mode in modes)


def writing_calls(root: Path) -> list[str]:
    """All calls that write a file, outside the folder WRITER."""
    wrong = []
    for name, tree in parse_files(root):
        for node in ast.walk(tree):
            if name.startswith(WRITER) or not isinstance(node, ast.Call):
                continue
            home, _, method = ast.unparse(node.func).rpartition(".")
            if (
                opens_for_writing(node)
                or (home and method in WRITING_METHODS)
                or method in WRITING_FUNCTIONS.get(home, ())
                or method == "save_file"
            ):
                wrong.append(f"{name}:{node.lineno} writes: {ast.unparse(node)}")
    return wrong


def pickle_uses(root: Path) -> list[str]:
    """All imports of pickle and its like, and all uses of torch.load and torch.save."""
    wrong = []
    for name, tree in parse_files(root):
        wrong += [
            f"{name}:{line} imports {full}"
            for line, full in imports_of(name, tree)
            if full.partition(".")[0] in PICKLES or full in ("torch.load", "torch.save")
        ]
        wrong += [
            f"{name}:{node.lineno} calls {ast.unparse(node)}"
            for node in ast.walk(tree)
            if isinstance(node, ast.Attribute) and ast.unparse(node) in ("torch.load", "torch.save")
        ]
    return wrong


def test_the_source_is_found_and_order_has_no_duplicates():
    assert len(list(parse_files(SOURCE))) > 20
    assert len(set(ORDER)) == len(ORDER)


def test_parts_import_only_parts_before_them_in_order():
    assert wrong_imports(SOURCE) == []


def test_only_storage_writes_files():
    assert writing_calls(SOURCE) == []


def test_pickle_is_not_used():
    """But for published weights, whose hash is checked before."""
    assert [re.sub(r":\d+", "", use) for use in pickle_uses(SOURCE)] == ["sources/pretrained.py calls torch.load"]
    source = (SOURCE / "sources/pretrained.py").read_text("utf-8")
    check, load = source.index("if sha256 != published.sha256:"), source.index("torch.load(")
    assert check < load
    assert source[load:].startswith("torch.load(io.BytesIO(content), weights_only=True)")


def test_only_the_version_is_imported_from_the_package_root():
    root_imports = {
        full
        for name, tree in parse_files(SOURCE)
        if name != "__init__.py"
        for _, full in imports_of(name, tree)
        if full == "regard" or full.startswith("regard.__")
    }
    assert root_imports <= {"regard.__version__"}


# Tests of the checks themselves, on small trees that break the rules.


def write_tree(root: Path, content: dict[str, str]) -> Path:
    for name, text in content.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text, "utf-8")
    return root


@pytest.mark.parametrize(
    "line",
    [
        "import regard.cli",
        "from regard.cli import main",
        "from regard import cli",
        "from regard.decoders.core import Decoder",
        "from ..models import build",
        "from .. import models",
        "def late():\n    from regard.search import beam",
        "class Late:\n    def late(self):\n        import regard.training.loop",
        "try:\n    from regard import search\nexcept ImportError:\n    pass",
        "import importlib\nimportlib.import_module('regard.cli')",
        "if TYPE_CHECKING:\n    pass\nelse:\n    from regard.cli import main",
        "from regard import unheard_of",
        "from importlib import import_module\nimport_module(name)",
    ],
)
def test_an_import_of_a_later_part_is_found(tmp_path, line):
    tree = {
        "attention/core.py": "from regard.errors import pick\n",
        "cli.py": "from regard import attention\n",
    }
    assert wrong_imports(write_tree(tmp_path, tree)) == []
    assert len(wrong_imports(write_tree(tmp_path, tree | {"attention/core.py": line}))) == 1


@pytest.mark.parametrize(
    "line",
    [
        "import torch\nfrom regard.types import PAD",
        "from regard.attention import masks",
        "from . import masks\nfrom .masks import check",
        "from ..types import PAD",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from regard.cli import main",
        "from regard import __version__",
    ],
)
def test_an_allowed_import_is_not_reported(tmp_path, line):
    assert wrong_imports(write_tree(tmp_path, {"attention/core.py": line})) == []


def test_the_one_lazy_import_is_allowed_only_in_maps(tmp_path):
    line = "def draw():\n    from regard.show.maps import svg"
    assert wrong_imports(write_tree(tmp_path, {"maps.py": line})) == []
    assert wrong_imports(write_tree(tmp_path, {"recipe.py": line})) == [
        "recipe.py:2 imports regard.show.maps.svg, which comes after it in ORDER"
    ]


def test_a_part_that_is_not_in_order_is_found(tmp_path):
    assert wrong_imports(write_tree(tmp_path, {"helpers.py": ""})) == ["helpers.py: add 'helpers' to ORDER"]


@pytest.mark.parametrize(
    "line",
    [
        'open(path, "w")',
        'open(path, mode="ab")',
        "open(path, mode)",
        'open(path, "r+")',
        'path.open("x")',
        'gzip.open(path, "wt")',
        'path.write_text("")',
        'path.write_bytes(b"")',
        "os.replace(one, other)",
        "os.makedirs(path)",
        "os.open(path, os.O_WRONLY)",
        "os.open(path, os.O_RDONLY | os.O_CREAT)",
        "path.mkdir()",
        "shutil.rmtree(path)",
        "torch.save(model, path)",
        "save_file(tensors, path)",
        "def f():\n    with open(path, 'wb') as file:\n        pass",
    ],
)
def test_writing_is_found(tmp_path, line):
    assert len(writing_calls(write_tree(tmp_path, {"data/files.py": line}))) == 1
    assert writing_calls(write_tree(tmp_path / "other", {f"{WRITER}files.py": line})) == []


@pytest.mark.parametrize(
    "line",
    [
        "open(path)",
        'open(path, "rb")',
        'path.open("r")',
        "path.open()",
        'gzip.open(path, "rt")',
        "path.read_text()",
        'Run.open("runs/dates")',
        "dataclasses.replace(one, two=2)",
        "text.replace('a', 'b')",
        "file.write(content)",
        "os.open(os.devnull, os.O_WRONLY)",
        "os.open(path, os.O_RDONLY | os.O_NONBLOCK)",
    ],
)
def test_reading_is_not_writing(tmp_path, line):
    assert writing_calls(write_tree(tmp_path, {"data/files.py": line})) == []


@pytest.mark.parametrize(
    "line",
    ["import pickle", "from pickle import loads", "import torch\ntorch.load(path)", "from torch import load"],
)
def test_pickle_is_found(tmp_path, line):
    assert len(pickle_uses(write_tree(tmp_path, {"predict.py": line}))) == 1
