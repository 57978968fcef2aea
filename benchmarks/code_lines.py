"""The size of the code at two commits: code lines by folder or file, the longest function, repeated stretches.

    python benchmarks/code_lines.py 174ca4f HEAD
    python benchmarks/code_lines.py 174ca4f HEAD --files

A code line holds a token that is neither a comment nor a part of a docstring. A repeated stretch is one of at least six
code lines that stands a second time, in the same file or in another; the indentation does not matter.
"""

import argparse
import ast
import io
import subprocess
import tarfile
import tokenize
from collections import Counter
from typing import NamedTuple

STRETCH = 6  # code lines
LAYOUT = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


class Function(NamedTuple):
    lines: int
    where: str


class Measured(NamedTuple):
    """The figures of one commit."""

    code: dict[str, list[str]]  # the code lines of each file, without indentation
    longest: Function

    def sizes(self, by_file: bool) -> Counter[str]:
        """The number of code lines of each file or folder."""
        sizes: Counter[str] = Counter()
        for path, lines in self.code.items():
            sizes[path if by_file else path.rpartition("/")[0]] += len(lines)
        return sizes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("older", help="a commit")
    parser.add_argument("newer", help="another commit")
    parser.add_argument("--folder", default="src", help="the folder whose Python files are measured")
    parser.add_argument("--files", action="store_true", help="one row for each file, not for each folder")
    arguments = parser.parse_args()
    older, newer = (measure(commit, arguments.folder) for commit in (arguments.older, arguments.newer))
    print_sizes(older.sizes(arguments.files), newer.sizes(arguments.files))
    for commit, measured in ((arguments.older, older), (arguments.newer, newer)):
        stretches = repeated_stretches(list(measured.code.values()))
        print(f"{commit}: longest function {measured.longest.lines} lines ({measured.longest.where}), ", end="")
        print(f"{stretches} stretches of {STRETCH} or more equal lines")


def measure(commit: str, folder: str) -> Measured:
    code, functions = {}, []
    for path, text in python_files(commit, folder).items():
        tree = ast.parse(text)
        code[path] = code_lines(text, tree)
        functions += [
            Function(node.end_lineno - node.lineno + 1, f"{node.name} in {path}")
            for node in ast.walk(tree)
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        ]
    return Measured(code, max(functions))


def python_files(commit: str, folder: str) -> dict[str, str]:
    """The content of the folder's Python files at a commit, by path."""
    archive = subprocess.run(["git", "archive", commit, folder], stdout=subprocess.PIPE, check=True).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        return {
            member.name: files.extractfile(member).read().decode()
            for member in files
            if member.isfile() and member.name.endswith(".py")
        }


def code_lines(text: str, tree: ast.Module) -> list[str]:
    """The lines of a file that hold code, without indentation."""
    numbers: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in LAYOUT:
            numbers.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(tree):
        if isinstance(node, DOCUMENTED) and ast.get_docstring(node) is not None:
            numbers.difference_update(range(node.body[0].lineno, node.body[0].end_lineno + 1))
    lines = text.split("\n")
    return [lines[number - 1].strip() for number in sorted(numbers)]


def repeated_stretches(files: list[list[str]]) -> int:
    """How many stretches stand a second time; neighbouring repeated windows belong to one stretch."""
    seen: set[tuple[str, ...]] = set()
    count = 0
    for lines in files:
        was_repeated = False
        for start in range(len(lines) - STRETCH + 1):
            window = tuple(lines[start : start + STRETCH])
            is_repeated = window in seen
            count += is_repeated and not was_repeated
            was_repeated = is_repeated
            seen.add(window)
    return count


def print_sizes(older: Counter[str], newer: Counter[str]) -> None:
    """Print one row for each folder or file that changed, and the total."""
    rows = [(name, older[name], newer[name]) for name in sorted(older | newer)]
    print(f"{'':<40} {'older':>7} {'newer':>7} {'change':>7}")
    for name, before, after in [*rows, ("total", older.total(), newer.total())]:
        if before != after or name == "total":
            print(f"{name:<40} {before:>7,} {after:>7,} {after - before:>+7,}")
    print(f"change of the total: {newer.total() / older.total() - 1:+.1%}")


if __name__ == "__main__":
    main()
