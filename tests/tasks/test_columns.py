"""Every task reads the same examples from lines, from files with named columns, and from Python."""

import csv
import json
from pathlib import Path

import pytest

from regard import recipe as recipes
from regard.data.records import DEV, PAIRS
from regard.errors import DataError, RecipeError
from regard.recipe import Recipe
from regard.tasks import TASKS
from regard.training import check
from regard.types import Example
from small_recipes import RECIPES

ROWS = {  # but not of forecast, whose rows are no examples: see test_forecast.py
    "translate": [("a b", "A"), ("c, \"d\"", "C;D"), ("é", "E")],
    "classify": [("a good film", "yes"), ("a bad film", "no"), ("fine", "yes")],
    "language_model": [("a first text",), ("another, longer text",), ("é",)],
    "tag": [("the cat sat", "D N V"), ("it sat", "P V"), ("no", "I")],
    "masked_lm": [("a first text",), ("another, longer text",), ("é",)],
    "answer": [("who?", "Ann is here", "Ann"), ("where?", "Ann is here", "here"), ("what?", "a cat", "a cat")],
}  # fmt: skip


def recipe_of(task: str, *overrides: str) -> Recipe:
    return recipes.load(RECIPES[task], ["data.corpus=", *overrides])


def texts(examples: list[Example]) -> list[tuple[str, str]]:
    return [(example.source, example.target) for example in examples]


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def write_all(task: str) -> dict[str, str]:
    """Files with the rows of a task, by ending; those with columns have another column, too."""
    columns, rows = TASKS[task].columns, ROWS[task]
    Path("lines.tsv").write_text("".join("\t".join(row) + "\n" for row in rows), encoding="utf-8")
    with open("table.csv", "w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([("id", *columns), *((7, *row) for row in rows)])
    objects = (json.dumps({"id": 7} | dict(zip(columns, row, strict=True))) for row in rows)
    Path("table.jsonl").write_text("\n".join(objects), encoding="utf-8")
    return {name.partition(".")[2]: name for name in ("lines.tsv", "table.csv", "table.jsonl")}


@pytest.mark.parametrize("task", ROWS)
def test_every_task_reads_the_same_from_lines_columns_and_python(task: str) -> None:
    names, kind = write_all(task), TASKS[task]
    window = ("language_model.window=0",) if task == "language_model" else ()
    lines = kind.examples(recipe_of(task, "data.train=lines.tsv", "data.dev=lines.tsv", *window))
    assert len(lines.train) == 3
    chosen = f"data.columns={','.join(kind.columns)}"
    for name in (names["csv"], names["jsonl"]):
        recipe = recipe_of(task, f"data.train={name}", f"data.dev={name}", f"data.test={name}", chosen, *window)
        check(recipe)
        read = kind.examples(recipe)
        assert texts(read.train) == texts(read.dev) == texts(read.test) == texts(lines.train)
        assert read.digest() == lines.digest()
    both = recipe_of(task, "data.train=table.csv,table.jsonl", "data.dev=table.csv", chosen, *window)
    assert texts(kind.examples(both).train) == texts(lines.train) * 2
    given = recipe_of(task, f"data.train={PAIRS}", f"data.dev={DEV}", *window)
    rows = [row[0] if len(row) == 1 else row for row in ROWS[task]]
    assert kind.examples(given, {PAIRS: rows, DEV: rows}).digest() == lines.digest()
    Path("lines.tsv").rename("lines.csv")  # of a run that was stored before there were columns
    stored = recipe_of(task, "data.train=lines.csv", "data.dev=lines.csv", *window)
    assert kind.examples(stored).digest() == lines.digest()


def test_a_text_of_a_stream_ends_with_a_newline() -> None:
    write_all("language_model")
    settings = ("data.train=table.csv", "data.dev=table.csv", "data.columns=text", "language_model.window=4")
    read = TASKS["language_model"].examples(recipe_of("language_model", *settings))
    assert [target for _, target in texts(read.train)] == [f"{row[0]}\n" for row in ROWS["language_model"]]


@pytest.mark.parametrize("task", ROWS)
def test_columns_must_fit_the_task_and_the_files(task: str) -> None:
    write_all(task)
    columns = TASKS[task].columns
    with pytest.raises(RecipeError) as unnamed:
        check(recipe_of(task, "data.train=table.csv"))
    listed = ", ".join(map(repr, ("id", *columns)))
    assert str(unnamed.value).startswith(
        f"table.csv has the columns {listed}; name those of {' and '.join(columns)} with"
    )
    with pytest.raises(RecipeError, match=rf"^data.columns names the columns of .*, {len(columns)} in all, not 'a', "):
        check(recipe_of(task, "data.train=table.csv", "data.columns=a,b,c,d"))
    for name, how in {
        "lines.txt": "leave it out",
        "array.json": "write one JSON object on each line, to a file that ends in .jsonl",
        "book.xlsx": "export the spreadsheet as CSV",
    }.items():
        with pytest.raises(
            RecipeError, match=rf"^data.columns is for files that end in .csv, .jsonl, .parquet, .tsv; {how}$"
        ):
            check(recipe_of(task, f"data.train={name}", "data.columns=a,b"))


@pytest.mark.parametrize("task", ROWS)
def test_a_tsv_file_with_a_header_is_read_by_its_columns(task: str) -> None:
    kind, rows = TASKS[task], ROWS[task]
    table = [("id, ", *kind.columns), *(("7", *row) for row in rows)]
    Path("table.tsv").write_text("".join("\t".join(row) + "\n" for row in table), encoding="utf-8")
    chosen = f"data.columns={','.join(kind.columns)}"
    window = ("language_model.window=0",) if task == "language_model" else ()
    recipe = recipe_of(task, "data.train=table.tsv", "data.dev=table.tsv", chosen, *window)
    check(recipe)
    write_all(task)
    lines = kind.examples(recipe_of(task, "data.train=lines.tsv", "data.dev=lines.tsv", *window))
    assert kind.examples(recipe).digest() == lines.digest()


def test_a_tsv_file_without_the_columns_is_refused_if_no_file_has_them() -> None:
    write_all("translate")
    with pytest.raises(RecipeError) as refused:
        check(recipe_of("translate", "data.train=lines.tsv", "data.columns=a,b"))
    how = "name columns that are there, or leave data.columns out if that line is no header"
    assert str(refused.value) == f"the first line of lines.tsv is 'a b', 'A', without 'a', 'b'; {how}"


def test_files_with_and_without_columns_do_not_mix_in_one_list() -> None:
    write_all("translate")
    recipe = recipe_of("translate", "data.train=table.csv,lines.tsv", "data.columns=source,target")
    with pytest.raises(DataError, match=r"^lines.tsv has no column 'source'; there are 'a b', 'A'"):
        TASKS["translate"].examples(recipe)
    mixed = recipe_of("translate", "data.train=table.csv", "data.test=lines.tsv", "data.columns=source,target")
    assert texts(TASKS["translate"].examples(mixed).test) == ROWS["translate"]


def test_a_tab_in_a_question_does_not_split_it() -> None:
    Path("x.jsonl").write_text(json.dumps({"q": "a\tb?", "c": "c\td", "a": "d"}), encoding="utf-8")
    recipe = recipe_of("answer", "data.train=x.jsonl", "data.dev=x.jsonl", "data.columns=q,c,a")
    assert texts(TASKS["answer"].examples(recipe).train) == [("a b?\tc d", "d")]


def test_tags_of_a_file_with_columns_are_checked() -> None:
    Path("x.csv").write_text("words,tags\na b,X\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"^x.csv:2: 2 words but 1 tags"):
        TASKS["tag"].reader(recipe_of("tag", "data.columns=words,tags"))(("x.csv",))
