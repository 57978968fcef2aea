"""Every command through the installed script: what it prints, what it refuses, what it leaves on disk."""

import gzip
import json
import os
import random
import re
import resource
import shutil
import string
import subprocess
import sys
import tomllib
import warnings
from pathlib import Path
from typing import get_type_hints

import pytest

from conftest import SCRIPT, Answer, Command
from regard import __version__
from regard.analysis.doctor import EXTRAS
from regard.attention.scores import SCORES
from regard.kernels.choose import PATHS
from regard.maps import AttentionMap
from regard.show.maps import DRAWINGS

with warnings.catch_warnings():  # typer asks for what click 8.5 calls deprecated
    warnings.simplefilter("ignore", DeprecationWarning)
    from regard import cli

TINY = (
    "name=upper",
    "metric=character_errors",
    "model.embedding=24",
    "model.encoder.dim=48",
    "model.decoder.dim=48",
    "model.attention.dim=24",
    "model.decoder.order=luong",
    "train.updates=150",
    "train.validate=50",
    "train.batch_tokens=400",
    "train.learning_rate=0.01",
    "train.device=cpu",
    "search.max_ratio=1.0",
    "search.max_extra=3",
)
KEYS = {"source", "tokens", "text", "score", "attention"}


def pairs(count: int) -> str:
    generator = random.Random(7)
    words = ["".join(generator.choices(string.ascii_lowercase[:8], k=generator.randint(2, 5))) for _ in range(count)]
    return "".join(f"{word}\t{word.upper()}\n" for word in words)


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory, script: Command) -> tuple[Path, Answer]:
    """The folder in which one tiny run was trained on a TSV of 200 lines, and what was said."""
    folder = tmp_path_factory.mktemp("trained")
    (folder / "pairs.tsv").write_text(pairs(200), encoding="utf-8")
    said = script("train", "dates", "data.train=pairs.tsv", *TINY, folder=folder)
    assert said.code == 0, said.error
    return folder, said


@pytest.fixture(scope="session")
def run(trained: tuple[Path, Answer]) -> Path:
    return trained[0] / "runs" / "upper"


def refused(said: Answer, code: int = 2) -> str:
    """The one sentence of an error: no traceback, nothing on stdout."""
    assert said.code == code, said.error
    assert said.out == b""
    assert said.error.endswith("\n")
    last = said.error[:-1]
    assert "\n" not in last
    assert last.startswith("regard: ")
    return last.removeprefix("regard: ")


def snapshot(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


# Help


COMMANDS = {each.name or each.callback.__name__: each.callback for each in cli.app.registered_commands}


@pytest.mark.parametrize("name", COMMANDS)
def test_help_tells_every_argument_and_option_once(regard: Command, name: str) -> None:
    said = regard(name, "--help")
    assert said.code == 0
    shown = " ".join(said.out.decode().split())
    hints = get_type_hints(COMMANDS[name], include_extras=True)
    told = [info for key, hint in hints.items() if key != "return" for info in hint.__metadata__]
    assert len(told) == len(hints) - 1
    for info in told:
        assert info.help
        assert " ".join(info.help.split()) in shown
    has_arguments = any(type(info).__name__ == "ArgumentInfo" for info in told)
    assert shown.lower().count("arguments: ") == has_arguments


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("predict", "RUN", ""), 'the name of a file is empty; an empty text is given as --text ""'),
        (("predict", "RUN", "-", ""), 'the name of a file is empty; an empty text is given as --text ""'),
        (("vectors", "RUN", ""), "the name of a file is empty; name a file that is there"),
        (("near", "RUN", "", "--text", "a"), "the name of a file is empty; name a file that is there"),
        (("score", "RUN", ""), "the name of a file is empty; name a file that is there"),
        (("align", "RUN", ""), "the name of a file is empty; name a file that is there"),
        (("predict", ""), "the name of a run is empty; name a run directory, such as runs/dates"),
        (("train", "--resume", ""), "the name of a run is empty; name a run directory, such as runs/dates"),
    ],
)
def test_an_empty_name_is_called_empty(regard: Command, run: Path, arguments: tuple[str, ...], sentence: str) -> None:
    assert refused(regard(*(str(run) if each == "RUN" else each for each in arguments))) == sentence


# Doctor


def test_the_doctor_names_the_machine_the_versions_and_every_fast_path(regard: Command) -> None:
    said = regard("doctor")
    assert said.code == 0, said.error
    assert [line for line in said.lines if not line.startswith("  ")] == [
        *("machine", "versions", "extras", "fast paths  (regard/kernels/choose.py)"),
    ]
    shown = said.out.decode()
    assert __version__ in shown
    assert all(f"\n  {name} " in shown for name in ("processor", "torch", "plot", *PATHS))
    told = json.loads(regard("doctor", "--json").lines[0])
    assert told["paths"].keys() == PATHS.keys()
    assert told["run"] is None


def test_the_doctor_counts_what_a_run_takes_and_says_why_not(
    regard: Command, trained: tuple[Path, Answer], run: Path, tmp_path: Path
) -> None:
    before = snapshot(run)
    told = json.loads(regard("doctor", run, "--json", folder=trained[0]).lines[0])["run"]
    training, search = told["training"], told["search"]
    assert (training["device"], training["precision"], training["problem"]) == ("cpu", "float32", "")
    assert training["answers"]["linear_gradient"]["taken"] > 0
    assert training["answers"]["plain_recurrent"]["against"] == {
        "the model is training, or gradients are computed": 1,
    }
    assert search["answers"]["plain_recurrent"] == {"taken": 1, "against": {}}
    elsewhere = regard("doctor", run, folder=tmp_path)  # where the run's data is not
    assert elsewhere.code == 0, elsewhere.error
    shown = elsewhere.out.decode()
    assert "this run in training, on cpu in float32\n  not tried: " in shown
    assert "pairs.tsv" in shown
    assert re.search(r"\n  plain_recurrent +taken \(1\)\n", shown)
    assert snapshot(run) == before


def test_the_doctor_says_if_definitions_run_everywhere(
    script: Command, run: Path, trained: tuple[Path, Answer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REGARD_PLAIN", "1")
    said = script("doctor", run, folder=trained[0])
    assert said.code == 0, said.error
    sentence = "REGARD_PLAIN is set: definitions run everywhere"
    assert said.lines.count(f"  {sentence}") == 2
    assert all(f"  {name:<22} not here: {sentence}" in said.lines for name in PATHS)


def test_the_doctor_refuses_what_is_no_run(regard: Command, tmp_path: Path) -> None:
    assert "holds no run" in refused(regard("doctor", tmp_path))


def test_the_doctor_knows_every_extra_of_the_package() -> None:
    packages = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text("utf-8"))["project"]
    extras = packages["optional-dependencies"]
    named = {extra: {re.match(r"\w+", each)[0].lower() for each in extras[extra]} for extra in extras if extra != "dev"}
    assert named == {extra: set(names) for extra, names in EXTRAS.items()}


# Train


def test_training_says_what_it_does_and_prints_the_run(trained: tuple[Path, Answer]) -> None:
    folder, said = trained
    assert said.lines == ["runs/upper"]
    assert "pairs.tsv" in said.error
    assert "no data.dev given: 20 pairs split off for it" in said.error
    assert "180 pairs to learn from, 20 dev pairs" in said.error
    assert "parameters" in said.error
    assert "150 updates of at most 400 tokens" in said.error
    assert "parameters on cpu" in said.error
    assert "run runs/upper" in said.error
    assert "character_errors|n:20|" in said.error
    assert "regard look runs/upper" in said.error
    assert "\x1b" not in said.error
    expected = {"recipe.toml", "data.json", "manifest.json", "metrics.jsonl", "model.safetensors"}
    assert expected | {"source.tokens", "target.tokens"} == {each.name for each in (folder / "runs/upper").iterdir()}


def test_training_again_overwrites_nothing(
    trained: tuple[Path, Answer], regard: Command, run: Path, tmp_path: Path
) -> None:
    runs = tmp_path / "runs"
    shutil.copytree(run, runs / "upper")
    before = snapshot(runs)
    settings = ("train.updates=1", "--runs", runs, "--json", "--quiet")
    said = regard("train", "dates", "data.train=pairs.tsv", *TINY, *settings, folder=trained[0])
    assert said.code == 0, said.error
    assert said.error == ""
    [line] = said.lines
    told = json.loads(line)
    assert told["run"] == str(runs / "upper-2")
    assert {"character_errors", "signature", "train_seconds"} <= told.keys()
    assert before.items() <= snapshot(runs).items()


# Predict


def test_predict_answers_a_file_stdin_and_texts_alike(regard: Command, run: Path, tmp_path: Path) -> None:
    file = tmp_path / "words.txt"
    file.write_bytes(b"abc\nfade\nbed\n")
    answers = [
        regard("predict", run, file),
        regard("predict", run, "-", stdin=file.read_bytes()),
        regard("predict", run, stdin=file.read_bytes()),
        regard("predict", run, "--text", "abc", "--text", "fade", "--text", "bed"),
    ]
    assert [answer.code for answer in answers] == [0] * 4
    assert {answer.out for answer in answers} == {answers[0].out}
    assert len(answers[0].lines) == 3
    assert all(line and line == line.upper() for line in answers[0].lines)
    assert len(set(answers[0].lines)) == 3
    both = regard("predict", run, file, "-", stdin=b"bed\n")
    assert both.lines == [*answers[0].lines, answers[0].lines[2]]


def test_predict_json_is_one_object_a_line(regard: Command, run: Path) -> None:
    said = regard("predict", run, "--json", "--beam", 3, "--n-best", 2, stdin="abc\n\nfade\u2028x\n".encode())
    assert said.code == 0, said.error
    told = [json.loads(line) for line in said.lines]
    assert [each["source"] for each in told] == ["abc", "", "fade\u2028x"]
    for each in told:
        assert each.keys() >= KEYS
        assert len(each["attention"]) == len(each["tokens"])
        assert "".join(each["tokens"]) == each["text"]
        for row in each["attention"]:
            assert len(row) == len(each["source_tokens"]) == len(each["source"]) + 1
            assert sum(row) == pytest.approx(1, abs=1e-5)
    assert told[0]["tokens"]
    assert told[1]["text"] == ""
    assert told[1]["attention"] == []
    assert [len(each.get("alternatives", [])) for each in told] == [1, 0, 1]
    assert told[0]["alternatives"][0]["score"] <= told[0]["score"]


def test_the_script_answers_as_main_does(script: Command, regard: Command, run: Path) -> None:
    arguments, stdin = ("predict", run, "--json"), "abc\n\nfa\u2028de\r\nb\re".encode()
    assert script(*arguments, stdin=stdin) == regard(*arguments, stdin=stdin)
    refusal = script("predict", run, stdin=b"abc\nd\xff\n")
    assert refusal == regard("predict", run, stdin=b"abc\nd\xff\n")
    assert refused(refusal).startswith("stdin:2:2: ")


@pytest.mark.parametrize(
    ("content", "count"),
    [
        (b"", 0),
        (b"\n", 1),
        (b"abc", 1),
        (b"abc\n", 1),
        (b"abc\n\n", 2),
        (b"\n\nabc\n \nbed", 5),
        ("ab\u2028cd\nef\u2029gh\u0085ab\n".encode(), 2),
        (b"ab\rcd\n", 1),
        (b"\r\n\r\n", 2),
        (b"abc\r\nbed\r\n", 2),
        (b"a\x0bb\x0cc\x1cd\n", 1),
    ],
)
def test_a_line_in_is_a_line_out(regard: Command, run: Path, content: bytes, count: int) -> None:
    said = regard("predict", run, stdin=content)
    assert said.code == 0, said.error
    assert said.out.count(b"\n") == count
    assert said.out == b"" or said.out.endswith(b"\n")
    blank = [not line.decode().strip() for line in content.split(b"\n")[:count]]
    assert [line == "" for line, empty in zip(said.lines, blank, strict=True) if empty] == [True] * sum(blank)


def test_a_carriage_return_before_the_newline_is_no_letter(regard: Command, run: Path) -> None:
    assert regard("predict", run, stdin=b"abc\r\nbed\r\n").out == regard("predict", run, stdin=b"abc\nbed\n").out


@pytest.mark.parametrize("options", [[], ["--quiet", "--json"]])
def test_a_line_of_ten_megabytes_gets_an_empty_line_and_a_notice(
    regard: Command, run: Path, options: list[str]
) -> None:
    long = b"abcdefgh" * 1_250_000
    said = regard("predict", run, *options, stdin=b"abc\n\n" + long + b"\nbed\n" + b"a" * 5001)
    assert said.code == 0, said.error
    lines = [json.loads(line)["text"] for line in said.lines] if options else said.lines
    assert [bool(line) for line in lines] == [True, False, False, True, False]
    told = "has more than 5,000 tokens; it is answered with an empty line"
    assert said.error == f"regard: line 3 {told}\nregard: line 5 {told}\n"


@pytest.fixture(scope="session")
def in_windows(tmp_path_factory: pytest.TempPathFactory, regard: Command) -> Path:
    """A language model of all that ends a line: whatever it writes is mostly that."""
    folder = tmp_path_factory.mktemp("windows")
    (folder / "ends.txt").write_bytes(("a" + LINE_ENDS + "\n").encode() * 40)
    sizes = ("model.embedding=8", "model.decoder.dim=12", "train.updates=2", "train.validate=2", "train.device=cpu")
    text = (
        "name=ends",
        "data.train=ends.txt",
        "language_model.window=16",
        "language_model.stride=16",
        "train.batch_tokens=64",
        "search.max_extra=12",
    )
    said = regard("train", "char_lstm", *sizes, *text, "-q", folder=folder)
    assert said.code == 0, said.error
    return folder / "runs" / "ends"


LINE_ENDS = "".join(character for character in map(chr, range(0x110000)) if len(f"a{character}b".splitlines()) == 2)


def test_a_line_end_in_an_answer_is_no_line_end_on_paper(regard: Command, in_windows: Path) -> None:
    arguments = ("predict", in_windows, "--search", "temperature=2.0")
    plain, told = (regard(*arguments, *more, stdin=b"a\naa\n\n") for more in ([], ["--json"]))
    assert (plain.code, told.code) == (0, 0), plain.error
    texts = [json.loads(line)["text"] for line in told.out.decode().splitlines()]
    assert len(texts) == 3
    assert any(set(text) & set(LINE_ENDS) for text in texts)  # whole
    for end in LINE_ENDS:
        texts = [text.replace(end, repr(end)[1:-1]) for text in texts]
    assert plain.out.decode().splitlines() == texts


def test_near_and_vectors_print_a_line_for_a_line_too(regard: Command, run: Path, tmp_path: Path) -> None:
    text = "ab" + LINE_ENDS.replace("\n", "") + "c"
    (tmp_path / "texts").write_text(f"{text}\nbed\n", encoding="utf-8", newline="\n")
    plain, told = (regard("near", run, tmp_path / "texts", "--text", "ab", *more) for more in ([], ["--json"]))
    assert {line.split("\t")[2] for line in plain.out.decode().splitlines()} == {repr(text)[1:-1], "bed"}
    assert {json.loads(line)["text"] for line in told.out.decode().splitlines()} == {text, "bed"}
    for more in ([], ["--json"]):
        assert len(regard("vectors", run, tmp_path / "texts", *more).out.decode().splitlines()) == 2


# Score


def test_score_a_file_plain_and_json(regard: Command, run: Path, trained: tuple[Path, Answer]) -> None:
    file = trained[0] / "pairs.tsv"
    plain, told = regard("score", run, file), regard("score", run, file, "--json")
    assert (plain.code, told.code) == (0, 0)
    [line] = told.lines
    scored = json.loads(line)
    assert scored.keys() == {"character_errors", "signature", "groups", "alignment_error"}
    assert scored["alignment_error"] == {}  # files tell no alignment
    assert scored["signature"].startswith("character_errors|n:200|")
    assert 0 <= scored["character_errors"] < 0.5  # it has learned something
    assert plain.lines == [f"character_errors {scored['character_errors']:.4f}  {scored['signature']}"]
    rows = [line.split("\t") for line in file.read_text(encoding="utf-8").splitlines()]
    other = json.loads(regard("score", run, file, "--json", "--metric", "exact_match").lines[0])
    answers = regard("predict", run, stdin="".join(f"{source}\n" for source, _ in rows).encode())
    assert other["exact_match"] == sum(map(str.__eq__, answers.lines, (target for _, target in rows))) / 200


def test_score_without_a_test_set_says_how_to_give_one(regard: Command, run: Path) -> None:
    assert "names no test set; write: regard score" in refused(regard("score", run))


# Align


def test_align_plain_and_json(regard: Command, run: Path, tmp_path: Path) -> None:
    (tmp_path / "pairs").write_text("abc ||| ABC\nfa de ||| FA DE\n", encoding="utf-8")
    (tmp_path / "gold").write_text("1-1\n1-1 2-2 2p1 3-1\n", encoding="utf-8")
    plain = regard("align", run, "pairs", "gold", "--first", 1, folder=tmp_path)
    told = regard("align", run, "pairs", "gold", "--first", 1, "--json", folder=tmp_path)
    assert (plain.code, told.code) == (0, 0), plain.error
    assert plain.error == told.error == "regard: 1 links to words that do not exist were left out\n"
    [line] = told.lines
    rates, signatures = (json.loads(line)[key] for key in ("alignment_error_rate", "signature"))
    assert list(rates) == list(signatures) == ["output step", "input step", "diagonal"]
    assert all(0 <= rate <= 1 for rate in rates.values())
    assert rates["diagonal"] == 0
    assert plain.lines == [
        f"alignment error rate, {how}: {rates[name]:.4f}  {signatures[name]}"
        for name, how in [
            ("output step", "read at the output step"),
            ("input step", "read at the input step"),
            ("diagonal", "of the diagonal baseline"),
        ]
    ]
    assert signatures["diagonal"] == "alignment_error_rate|n:2|sure:3|possible:1|skipped:1|links:diagonal"


def test_align_refuses_gold_that_counts_otherwise(regard: Command, run: Path, tmp_path: Path) -> None:
    (tmp_path / "x.tsv").write_text("a b\tA B\t1-1 2-2\n", encoding="utf-8")
    assert "add --first 1" in refused(regard("align", run, "x.tsv", folder=tmp_path))
    assert "cannot find y.tsv" in refused(regard("align", run, "y.tsv", folder=tmp_path))


# Look


def test_look_draws_plain_text_where_there_is_no_terminal(regard: Command, run: Path) -> None:
    said = regard("look", run, "fade")
    assert said.code == 0, said.error
    assert "\x1b" not in said.out.decode()
    answer = regard("predict", run, "--text", "fade").lines[0]
    assert said.lines[0] == answer
    header = next(line for line in said.lines[1:] if line.strip())
    assert header.split() == [*"fade", "</s>"]
    rows = [line for line in said.lines if line[:1] in answer and line[1:2] == " " and line.strip()]
    assert [row[0] for row in rows] == list(answer)
    assert set("".join(row[1:] for row in rows)) <= set(" ·░▒▓█")


def test_look_writes_pictures_by_their_ending(regard: Command, run: Path, tmp_path: Path) -> None:
    said = regard("look", run, "fade", "-o", "x.svg", "-o", "x.png", folder=tmp_path)
    assert said.code == 0, said.error
    assert (tmp_path / "x.svg").read_bytes().startswith(b"<svg ")
    assert (tmp_path / "x.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    assert sorted(os.listdir(tmp_path)) == ["x.png", "x.svg"]


def test_look_without_matplotlib_says_so_before_anything_is_written(
    script: Command, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    (hidden / "matplotlib.py").write_text("raise ImportError", encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(hidden), os.environ.get("PYTHONPATH", "")]))
    pictures = [part for ending in ("svg", "html", "png") for part in ("-o", f"a.{ending}")]
    for asked in (run, "no-such-run"):
        said = refused(script("look", asked, "fade", *pictures, folder=tmp_path))
        assert said == "drawing a PNG needs the package matplotlib; install it with: pip install 'regard[plot]'"
        assert os.listdir(tmp_path) == ["hidden"]


def test_look_writes_no_picture_unless_all_are_drawn(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(attention: AttentionMap, title: str) -> bytes:
        assert title == ""  # only tried
        return b""

    monkeypatch.setitem(DRAWINGS, ".csv", broken)
    with pytest.raises(AssertionError):
        cli.look(str(run), "fade", [tmp_path / "x.svg", tmp_path / "x.csv"])
    assert os.listdir(tmp_path) == []


def test_look_refuses_an_unknown_ending_before_any_work(regard: Command, tmp_path: Path) -> None:
    said = regard("look", "no-such-run", "fade", "-o", "x.svg", "-o", "x.svgg", folder=tmp_path)
    endings = ".svg, .png, .html, .csv, .pharaoh"
    assert refused(said) == f"unknown picture ending '.svgg'; choose from {endings}; did you mean '.svg'?"
    assert os.listdir(tmp_path) == []


def test_look_json_and_blank(regard: Command, run: Path) -> None:
    [line] = regard("look", run, "fade", "--json").lines
    assert json.loads(line).keys() >= KEYS
    assert "there is no map: the text is blank" in refused(regard("look", run, " "))


# Data


def test_data_tells_what_is_found_and_what_is_not(regard: Command, tmp_path: Path) -> None:
    (tmp_path / "pairs.tsv").write_text("a\tb\nc\td\n", encoding="utf-8")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "dev.tsv.gz").write_bytes(gzip.compress(b"a\tb\n"))
    files = ("data.train=pairs.tsv", "data.dev=dev.tsv.gz")
    said = regard("data", "dates", *files, folder=tmp_path)
    assert (said.code, said.error) == (0, "")
    assert said.lines[0].startswith("Dates in fifteen languages")
    size = (tmp_path / "data" / "dev.tsv.gz").stat().st_size
    assert said.lines[1:] == ["train  pairs.tsv: 8 bytes, 2 lines", f"dev    data/dev.tsv.gz: {size} bytes, 1 lines"]
    told = json.loads(regard("data", "dates", *files, "--json", folder=tmp_path).lines[0])
    assert told["corpus"] == ""
    assert [(each["part"], each["path"], each["lines"], each["problem"]) for each in told["files"]] == [
        ("train", "pairs.tsv", 2, ""),
        ("dev", "data/dev.tsv.gz", 1, ""),
    ]
    missing = regard("data", "dates", *files, "data.test=peirs.tsv", "data.dev=", folder=tmp_path)
    assert missing.code == 2
    assert missing.lines[2].startswith("test   cannot find peirs.tsv; looked for peirs.tsv, data/peirs.tsv")
    assert missing.lines[2].endswith("($REGARD_DATA is not set); did you mean 'pairs.tsv'?")
    assert missing.lines[3] == "dev    none is named: a part of train is split off"
    where = "put peirs.tsv under a folder that you name in $REGARD_DATA, or under ./data"
    assert missing.error == f"regard: 1 of 2 files are missing; {where}\n"
    known = regard("data", "dates", "data.train=peirs.tsv", "--json", folder=tmp_path)
    assert (known.code, json.loads(known.lines[0])["files"][0]["path"]) == (2, None)


def test_data_tells_what_comes_with_regard_and_what_is_damaged(regard: Command, tmp_path: Path) -> None:
    said = regard("data", "dates")
    assert said.code == 0
    assert said.lines[1] == "corpus dates: comes with regard, which generates 30,000 examples to learn from"
    assert json.loads(regard("data", "dates", "--json").lines[0])["corpus"] == "dates"
    (tmp_path / "cut.gz").write_bytes(gzip.compress(b"a\tb\n")[:-5])
    damaged = regard("data", "dates", "data.train=cut.gz", folder=tmp_path)
    assert damaged.code == 2
    assert damaged.error.startswith("regard: 1 of 1 files cannot be used: cut.gz is not a whole gzip file")
    assert "nothing to learn from" in refused(regard("data", "dates", "data.corpus="))
    assert "did you mean 'dates'?" in refused(regard("data", "datse"))


# Compare


def test_compare_a_run_with_a_recipe(regard: Command, trained: tuple[Path, Answer], run: Path, tmp_path: Path) -> None:
    file, runs = trained[0] / "pairs.tsv", tmp_path / "runs"
    settings = (*TINY, f"data.train={file}", "train.updates=2", "name=short")
    arguments = ("compare", run, "dates", *settings, "--data", file, "--runs", runs)
    said = regard(*arguments, "-o", "x.svg", "-o", "y.png", folder=tmp_path)
    assert said.code == 0, said.error
    head, first, second, blank, examples, signature = said.lines
    assert head.split() == ["name", "character_errors", "parameters", "tokens/s", "seconds"]
    assert [first.split()[0], second.split()[0]] == ["upper", "short"]
    assert float(first.split()[1]) < float(second.split()[1])  # fewer errors
    assert (blank, examples) == ("", f"on 200 pairs of {file}")
    assert signature.startswith("character_errors|n:200|")
    assert "short: to be trained" in said.error
    assert said.error.endswith("drawn: x.svg\ndrawn: y.png\n")
    assert (tmp_path / "x.svg").read_bytes().startswith(b"<svg ")
    assert (tmp_path / "y.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    assert sorted(os.listdir(tmp_path)) == ["runs", "x.svg", "y.png"]
    assert os.listdir(runs) == ["short"]

    again = regard("compare", "dates", *settings, run, "--data", file, "--runs", runs, "--json", folder=tmp_path)
    assert again.code == 0, again.error
    assert f"{runs}/short is taken as it is" in again.error
    told = [json.loads(line) for line in again.lines]
    assert [each["name"] for each in told] == ["short", "upper"]
    assert [f"{each['character_errors']:.4f}" for each in told] == [second.split()[1], first.split()[1]]
    assert sum(point["examples"] for point in told[0]["curve"]) == 200
    assert sorted(os.listdir(runs)) == ["compare.png", "compare.svg", "short"]

    before = snapshot(runs)
    quiet = regard("compare", runs / "short", "--data", file, "--quiet")
    assert (quiet.code, quiet.error) == (0, "")
    assert sorted(os.listdir(runs)) == ["compare-2.png", "compare-2.svg", "compare.png", "compare.svg", "short"]
    assert before.items() <= snapshot(runs).items()


def test_compare_without_matplotlib_leaves_the_png_out_and_says_so(
    script: Command, trained: tuple[Path, Answer], run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "matplotlib.py").write_text("raise ImportError('none here')", encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path) + os.pathsep + os.environ.get("PYTHONPATH", ""))
    shutil.copytree(run, tmp_path / "runs" / "upper")
    judged = ("compare", "runs/upper", "--data", trained[0] / "pairs.tsv", "--quiet")
    said = script(*judged, folder=tmp_path)
    assert said.code == 0
    assert "runs/compare.png is left out: drawing a PNG needs the package matplotlib" in said.error
    assert sorted(os.listdir(tmp_path / "runs")) == ["compare.svg", "upper"]
    assert "pip install 'regard[plot]'" in refused(script(*judged, "-o", "x.png", folder=tmp_path))


def test_compare_refuses_with_a_sentence(regard: Command, run: Path, tmp_path: Path) -> None:
    cases = {
        (run, "-o", "x.gif"): "unknown picture ending '.gif'; choose from .svg, .png",
        (run, "moods"): "upper and moods do not compare: their tasks are 'translate' and 'classify'",
        ("datse",): "no recipe 'datse'",
        (run, "train.updates=3"): "is a run, which is taken as it is",
        (run, "--data", "no.tsv"): "cannot find no.tsv",
        (run,): "cannot find pairs.tsv",  # what it was trained on; --data would do without
    }
    for arguments, said in cases.items():
        assert said in refused(regard("compare", *arguments, "--quiet", folder=tmp_path)), arguments
    assert os.listdir(tmp_path) == []
    assert "Usage" in regard("compare").error


# List, version, help


def test_list_tells_every_table(regard: Command) -> None:
    said = regard("list")
    assert said.code == 0
    for word in (
        "recipes",
        "dates",
        "scores",
        "additive",
        "orders",
        "bahdanau",
        "tokenizers",
        "sentencepiece",
    ):
        assert word in said.out.decode()
    [*_, table] = json.loads(regard("list", "--json").lines[0])
    assert table in said.out.decode()


def test_list_tells_one_table(regard: Command) -> None:
    said = regard("list", "scores")
    assert said.lines[0] == "scores  (model.attention.score)"
    assert [line.split()[0] for line in said.lines[1:]] == list(SCORES)
    assert {"dot", "scaled_dot", "general", "additive"} <= SCORES.keys()
    assert "did you mean 'scores'?" in refused(regard("list", "score"))


def test_version(script: Command) -> None:
    assert script("--version").lines == [f"regard {__version__}"]


@pytest.mark.parametrize("arguments", [["--help"], ["list"], ["list", "--json"], ["--version"], ["train", "--help"]])
def test_light_commands_do_not_import_torch(arguments: list[str]) -> None:
    code = (
        "import sys\nfrom regard import cli\n"
        "sys.argv = ['regard', *sys.argv[1:]]\n"
        "try:\n    cli.main()\nexcept SystemExit as end:\n    assert end.code == 0, end.code\n"
        "heavy = {'torch', 'numpy', 'sacrebleu', 'matplotlib', 'sentencepiece'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout


@pytest.mark.parametrize("arguments", [["--help"], ["list"]])
def test_light_commands_answer_at_once(script: Command, arguments: list[str]) -> None:
    def seconds() -> float:
        """Of the processor, which other processes lengthen less than the clock's."""
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert script(*arguments).code == 0
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime

    seconds()  # the first writes the byte code
    assert min(seconds() for _ in range(7)) < 0.3


@pytest.mark.parametrize("arguments", [["trian"], ["predict"], ["predict", "run", "--beam", "0"], ["look", "run"]])
def test_wrong_usage_is_shown_and_exits_with_2(regard: Command, arguments: list[str]) -> None:
    said = regard(*arguments)
    assert said.code == 2
    assert said.out == b""
    assert "Usage" in said.error
    assert "Traceback" not in said.error


# Errors: one sentence, exit 2, nothing written

BAD = {
    "unknown key": (
        ["train.learning_rat=1"],
        "unknown key 'train.learning_rat' .* did you mean 'train.learning_rate'",
    ),
    "unknown score": (["model.attention.score=aditive"], "unknown score 'aditive'.* did you mean 'additive'"),
    "no override": (["train.seed"], "an override is KEY=VALUE"),
    "wrong type": (["train.seed=seven"], "train.seed .* is a whole number, not 'seven'"),
    "missing file": (["data.train=pears.tsv"], r"cannot find pears.tsv.* did you mean 'pairs.tsv'"),
    "missing dev": (["data.train=pairs.tsv", "data.dev=no.tsv"], "cannot find no.tsv"),
    "missing test": (["data.train=pairs.tsv", "data.test=no.tsv"], "cannot find no.tsv"),
    "empty file": (["data.train=empty.tsv"], "empty.tsv is empty"),
    "one field": (["data.train=one.tsv"], r"one.tsv:3: one field, expected two"),
    "uneven": (["data.train=a.txt,b.txt"], r"a.txt has 1,000 lines, b.txt 999; they must be parallel"),
    "not utf-8": (["data.train=latin.tsv"], r"latin.tsv:2:4: not valid UTF-8 \(byte 0xe9\)"),
    "bad name": (["data.train=pairs.tsv", "name=a/b"], "the name of a run is made of"),
    "gzip cut short": (["data.train=cut.tsv.gz"], "cut.tsv.gz is not a whole gzip file"),
    "one pair": (["data.train=short.tsv"], "no dev part can be split off"),
}


@pytest.fixture(scope="session")
def bad(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bad")
    contents = {
        "pairs.tsv": pairs(20).encode(),
        "empty.tsv": b"",
        "one.tsv": b"a\tA\nb\tB\nc\nd\tD\n",
        "a.txt": b"a\n" * 1000,
        "b.txt": b"A\n" * 999,
        "latin.tsv": b"a\tA\ncaf\xe9\tX\n",
        "short.tsv": b"a\tA\n",
        "cut.tsv.gz": gzip.compress(pairs(200).encode())[:-9],
    }
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    return folder


@pytest.mark.parametrize("case", BAD)
def test_bad_input_to_train_is_one_sentence_and_writes_nothing(regard: Command, bad: Path, case: str) -> None:
    overrides, said = BAD[case]
    before = snapshot(bad)
    message = refused(regard("train", "dates", *overrides, "--quiet", folder=bad))
    assert re.search(said, message), message
    assert snapshot(bad) == before
    assert not (bad / "runs").exists()


def test_bad_input_is_one_sentence_without_quiet_too(script: Command, bad: Path) -> None:
    said = script("train", "dates", "data.train=one.tsv", folder=bad)
    assert "one.tsv:3" in refused(said)


def test_an_unknown_recipe_is_one_sentence(regard: Command, bad: Path) -> None:
    assert "did you mean 'dates'?" in refused(regard("train", "datse", folder=bad))
    assert not (bad / "runs").exists()


@pytest.mark.parametrize("command", ["predict", "look", "score"])
def test_a_missing_run_is_one_sentence(regard: Command, run: Path, command: str) -> None:
    text = ["abc"] if command == "look" else []
    assert "did you mean 'upper'?" in refused(regard(command, "uper", *text, folder=run.parent))


def test_bad_input_to_predict_leaves_stdout_empty(regard: Command, run: Path, bad: Path) -> None:
    assert "latin.tsv:2:4: not valid UTF-8" in refused(regard("predict", run, "latin.tsv", folder=bad))
    message = refused(regard("predict", run, stdin=b"abc\nd\xff\n"))
    assert message.startswith("stdin:2:2: not valid UTF-8")
    # All of the input is read before the first answer.
    assert "cannot find no.txt" in refused(regard("predict", run, "pairs.tsv", "no.txt", folder=bad))
    assert "give files or --text, not both" in refused(regard("predict", run, "pairs.tsv", "--text", "a", folder=bad))


def test_more_alternatives_than_beams_leave_the_first_answer_as_it_is(regard: Command, run: Path) -> None:
    several, one = (
        json.loads(regard("predict", run, "--text", "abc", "--json", "--beam", 2, "--n-best", count).out)
        for count in (3, 1)
    )
    assert len(several["alternatives"]) == 2
    assert several["text"] == one["text"]


def test_bad_references_are_one_sentence(regard: Command, run: Path, bad: Path) -> None:
    assert "one.tsv:3: one field" in refused(regard("score", run, "one.tsv", folder=bad))
    assert "unknown metric 'blue'" in refused(regard("score", run, "pairs.tsv", "--metric", "blue", folder=bad))


# The other exit codes


def test_a_loss_that_is_not_finite_exits_with_3_and_names_examples(regard: Command, bad: Path, tmp_path: Path) -> None:
    settings = (*TINY, "train.learning_rate=1e37", "train.clip=0", "--quiet", "--runs", tmp_path / "runs")
    message = refused(regard("train", "dates", "data.train=pairs.tsv", *settings, folder=bad), code=3)
    assert "pairs.tsv:" in message


@pytest.mark.parametrize("place", ["runs", "runs/deeper"])
def test_a_runs_folder_that_cannot_be_written_exits_with_4(
    regard: Command, bad: Path, tmp_path: Path, place: str
) -> None:
    (tmp_path / "runs").write_bytes(b"precious")
    said = regard("train", "dates", "data.train=pairs.tsv", *TINY, "--quiet", "--runs", tmp_path / place, folder=bad)
    assert "cannot be written" in refused(said, code=4)
    assert (tmp_path / "runs").read_bytes() == b"precious"


def test_a_picture_that_cannot_be_written_exits_with_4(regard: Command, run: Path, tmp_path: Path) -> None:
    said = regard("look", run, "abc", "-o", tmp_path / "nowhere" / "x.svg")
    assert "x.svg cannot be written: No such file or directory" in refused(said, code=4)


@pytest.mark.parametrize("name", ["model.safetensors", "source.tokens", "recipe.toml", "manifest.json"])
def test_a_damaged_run_exits_with_5_and_names_the_file(regard: Command, run: Path, tmp_path: Path, name: str) -> None:
    damaged = tmp_path / "upper"
    shutil.copytree(run, damaged)
    content = bytearray((damaged / name).read_bytes())
    content[len(content) // 2 if name != "manifest.json" else 0] ^= 1
    (damaged / name).write_bytes(content)
    message = refused(regard("predict", damaged, "--text", "abc"), code=5)
    assert name in message


def test_a_reader_that_leaves_is_no_error(run: Path) -> None:
    read, write = os.pipe()
    os.close(read)
    with open(write, "wb") as pipe:
        done = subprocess.run(
            [SCRIPT, "predict", run, "--text", "abc"],
            stdout=pipe,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert done.returncode == 1  # what typer makes of it
    assert done.stderr == ""
