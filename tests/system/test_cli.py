"""Every command of the command line: its output, its error messages and exit codes, and the files it writes."""

import gzip
import json
import os
import random
import re
import resource
import shlex
import shutil
import signal
import string
import subprocess
import sys
import tomllib
import warnings
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, get_type_hints

import pytest
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors

from commands import Result, shared_commands, user_environment
from conftest import SCRIPT, Command
from regard import __version__, storage
from regard import recipe as recipes
from regard.analysis.doctor import EXTRAS
from regard.attention.scores import SCORES
from regard.errors import DataError, RecipeError, StorageError
from regard.kernels.choose import PATHS
from regard.maps import AttentionMap
from regard.show.maps import DRAWINGS
from regard.storage import Run
from regard.types import END

with warnings.catch_warnings():  # typer uses names that click 8.5 deprecates
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
def trained(tmp_path_factory: pytest.TempPathFactory, script: Command) -> tuple[Path, Result]:
    """The folder in which one tiny run was trained on a TSV file of 200 lines, and the output of the command."""
    folder = tmp_path_factory.mktemp("trained")
    (folder / "pairs.tsv").write_text(pairs(200), encoding="utf-8")
    result = script("train", "dates", "data.train=pairs.tsv", *TINY, folder=folder)
    assert result.code == 0, result.error
    return folder, result


@pytest.fixture(scope="session")
def run(trained: tuple[Path, Result]) -> Path:
    return trained[0] / "runs" / "upper"


def refused(result: Result, code: int = 2) -> str:
    """The error message of a command, which is one sentence, without a traceback and with an empty stdout."""
    assert result.code == code, result.error
    assert result.out == b""
    assert result.error.endswith("\n")
    last = result.error[:-1]
    assert "\n" not in last
    assert last.startswith("regard: ")
    return last.removeprefix("regard: ")


def snapshot(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# Help


COMMANDS = {each.name or each.callback.__name__: each.callback for each in cli.app.registered_commands}


def test_the_list_of_commands_is_not_cut(regard: Command) -> None:
    result = regard("--help")
    shown = dict(line.strip().split(maxsplit=1) for line in result.lines[result.lines.index("Commands:") + 1 :])
    assert shown.keys() == COMMANDS.keys()
    for name, summary in shown.items():
        assert summary == (COMMANDS[name].__doc__ or "").split("\n")[0]
        assert len(summary) <= 45


@pytest.mark.parametrize("name", COMMANDS)
def test_help_shows_every_argument_and_option_once(regard: Command, name: str) -> None:
    result = regard(name, "--help")
    assert result.code == 0
    shown = " ".join(result.out.decode().split())
    hints = get_type_hints(COMMANDS[name], include_extras=True)
    infos = [info for key, hint in hints.items() if key != "return" for info in hint.__metadata__]
    assert len(infos) == len(hints) - 1
    for info in infos:
        assert info.help
        assert " ".join(info.help.split()) in shown
    has_arguments = any(type(info).__name__ == "ArgumentInfo" for info in infos)
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
def test_an_empty_name_is_refused(regard: Command, run: Path, arguments: tuple[str, ...], sentence: str) -> None:
    assert refused(regard(*(str(run) if each == "RUN" else each for each in arguments))) == sentence


# Doctor


def test_the_doctor_names_the_machine_the_versions_and_every_fast_path(regard: Command) -> None:
    result = regard("doctor")
    assert result.code == 0, result.error
    assert [line for line in result.lines if not line.startswith("  ")] == [
        *("machine", "versions", "extras", "fast paths  (regard/kernels/choose.py)"),
    ]
    shown = result.out.decode()
    assert __version__ in shown
    assert all(f"\n  {name} " in shown for name in ("processor", "torch", "plot", *PATHS))
    report = json.loads(regard("doctor", "--json").lines[0])
    assert report["paths"].keys() == PATHS.keys()
    assert report["run"] is None


def test_the_doctor_counts_the_fast_paths_of_a_run_and_says_why_others_are_not_taken(
    regard: Command, trained: tuple[Path, Result], run: Path, tmp_path: Path
) -> None:
    before = snapshot(run)
    report = json.loads(regard("doctor", run, "--json", folder=trained[0]).lines[0])["run"]
    training, search = report["training"], report["search"]
    assert (training["device"], training["precision"], training["problem"]) == ("cpu", "float32", "")
    assert training["answers"]["linear_gradient"]["taken"] > 0
    assert training["answers"]["plain_recurrent"]["against"] == {
        "the model is training, or gradients are computed": 1,
    }
    assert search["answers"]["plain_recurrent"] == {"taken": 1, "against": {}}
    elsewhere = regard("doctor", run, folder=tmp_path)  # the data of the run is not there
    assert elsewhere.code == 0, elsewhere.error
    shown = elsewhere.out.decode()
    assert "this run in training, on cpu in float32\n  not tried: " in shown
    assert "pairs.tsv" in shown
    assert re.search(r"\n  plain_recurrent +taken \(1\)\n", shown)
    assert snapshot(run) == before


def test_the_doctor_says_if_definitions_run_everywhere(
    script: Command, run: Path, trained: tuple[Path, Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REGARD_PLAIN", "1")
    result = script("doctor", run, folder=trained[0])
    assert result.code == 0, result.error
    sentence = "REGARD_PLAIN is set: definitions run everywhere"
    assert result.lines.count(f"  {sentence}") == 2
    assert all(f"  {name:<22} not here: {sentence}" in result.lines for name in PATHS)


def test_the_doctor_refuses_a_folder_without_a_run(regard: Command, tmp_path: Path) -> None:
    assert "holds no run" in refused(regard("doctor", tmp_path))


def test_the_doctor_knows_every_extra_of_the_package() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text("utf-8"))["project"]
    extras = project["optional-dependencies"]
    modules = {"pillow": "PIL", "protobuf": "google.protobuf"}  # the others have the name of their package
    named = {}
    for extra in extras.keys() - {"dev"}:
        packages = [re.match(r"[\w-]+", each)[0].lower().replace("-", "_") for each in extras[extra]]
        named[extra] = {modules.get(package, package) for package in packages}
    assert named == {extra: set(names) for extra, names in EXTRAS.items()}


# Train


def test_training_reports_its_steps_and_prints_the_run(trained: tuple[Path, Result]) -> None:
    folder, result = trained
    assert result.lines == ["runs/upper"]
    assert "pairs.tsv" in result.error
    assert "no data.dev given: 20 pairs split off for it" in result.error
    assert "180 pairs to learn from, 20 dev pairs" in result.error
    assert "parameters" in result.error
    assert "150 updates of at most 400 tokens, about 50 passes over the data" in result.error
    assert "on all 20 dev examples: " in result.error
    assert "parameters on cpu" in result.error
    assert "run runs/upper" in result.error
    assert "character_errors|n:20|" in result.error
    assert "regard look runs/upper" in result.error
    assert "\x1b" not in result.error
    expected = {"recipe.toml", "data.json", "environment.json", "manifest.json", "metrics.jsonl", "model.safetensors"}
    expected |= {"source.tokens", "target.tokens", "checkpoints", "README.md"}
    assert expected == {each.name for each in (folder / "runs/upper").iterdir()}
    assert os.listdir(folder / "runs/upper/checkpoints") == ["00000150"]


def test_training_again_overwrites_nothing(
    trained: tuple[Path, Result], regard: Command, run: Path, tmp_path: Path
) -> None:
    runs = tmp_path / "runs"
    shutil.copytree(run, runs / "upper")
    before = snapshot(runs)
    settings = ("train.updates=1", "--runs", runs, "--json", "--quiet")
    result = regard("train", "dates", "data.train=pairs.tsv", *TINY, *settings, folder=trained[0])
    assert result.code == 0, result.error
    assert result.error == ""
    [line] = result.lines
    scores = json.loads(line)
    assert scores["run"] == str(runs / "upper-2")
    assert {"character_errors", "signature", "train_seconds"} <= scores.keys()
    assert before.items() <= snapshot(runs).items()


def test_missing_data_of_a_known_corpus_names_the_first_file_and_the_command(regard: Command, tmp_path: Path) -> None:
    message = refused(regard("train", "multi30k_tiny", "--quiet", folder=tmp_path))
    assert message.startswith("cannot find multi30k-tokenised/train.en; looked for ")
    assert message.endswith("; `regard data multi30k_tiny` says where the data comes from")
    message = refused(regard("train", "multi30k_tiny", "name=mine", "--quiet", folder=tmp_path))
    assert message.endswith("; `regard data multi30k_bahdanau` says where the data comes from")
    message = refused(regard("train", "dates", "data.train=my/pairs.tsv", "--quiet", folder=tmp_path))
    assert "regard data" not in message


def test_a_corpus_that_would_not_be_read_is_refused(regard: Command, tmp_path: Path) -> None:
    for command in ("train", "compare"):
        message = refused(regard(command, "tatoeba_small", "data.corpus=reverse", "name=mine", folder=tmp_path))
        files = "the recipe names files, such as tatoeba-eng-fra/train.tsv.gz"
        without = "data.train= data.dev= data.test="
        assert message == f"data.corpus=reverse is not read, because {files}; add: {without}"
    generated = ("tatoeba_small", "data.corpus=reverse", *without.split())
    assert regard("train", *generated, "--dry-run", "--quiet", folder=tmp_path).code == 0


def test_a_second_run_says_its_name_before_and_after_training_and_is_the_latest(
    trained: tuple[Path, Result], regard: Command, run: Path, tmp_path: Path
) -> None:
    shutil.copytree(run, tmp_path / "runs" / "upper")
    data = f"data.train={trained[0] / 'pairs.tsv'}"
    result = regard("train", "dates", data, *TINY, "train.updates=1", folder=tmp_path)
    assert result.lines == ["runs/upper-2"]
    lines = result.error.splitlines()
    assert sum("runs/upper-2" in line for line in lines) == 3  # the third suggests what to do next
    first, last = [number for number, line in enumerate(lines) if line == "runs/upper exists; this run is runs/upper-2"]
    [begun] = [number for number, line in enumerate(lines) if line.startswith("update 1 of 1")]
    assert first < begun < last == len(lines) - 2
    assert os.readlink(tmp_path / "runs" / "latest") == "upper-2"
    for name in ("runs/latest", "latest"):
        shown = regard("look", name, "abc", "--json", folder=tmp_path)
        assert shown.code == 0, shown.error
        resumed = regard("train", "--resume", name, folder=tmp_path)
        assert resumed.lines == ["runs/upper-2"]
        assert "the run runs/upper-2 is finished already" in resumed.error


def test_a_finished_run_is_prolonged(trained: tuple[Path, Result], regard: Command, run: Path, tmp_path: Path) -> None:
    prolonged = Path(shutil.copytree(run, tmp_path / "upper"))
    result = regard("train", "--resume", prolonged, "train.updates=151", "train.patience=9", folder=trained[0])
    assert result.code == 0, result.error
    assert result.lines == [str(prolonged)]
    assert "train.updates is 151 now (was 150): by the schedule " in result.error
    assert "train.patience is 9 now (was 0)" in result.error
    assert os.listdir(prolonged / "checkpoints") == ["00000151"]
    cases = {
        ("train.updates=150",): f"train.updates=150: the run {prolonged} has done 151 updates; give more",
        ("train.patience=7", "train.seed=2"): "train.seed cannot change when a run goes on, only train.updates and",
        ("dates",): "give a RECIPE to train, or --resume RUN to resume a run, and not both",
    }
    for arguments, message in cases.items():
        assert refused(regard("train", "--resume", prolonged, *arguments, folder=trained[0])).startswith(message)


# Predict


def test_predict_gives_the_same_for_a_file_stdin_and_texts(regard: Command, run: Path, tmp_path: Path) -> None:
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
    arguments = ("predict", run, "--json", "--beam", 3, "--n-best", 2)
    result = regard(*arguments, "--maps", stdin="abc\n\nfade\u2028x\n".encode())
    assert result.code == 0, result.error
    predictions = [json.loads(line) for line in result.lines]
    assert [prediction["source"] for prediction in predictions] == ["abc", "", "fade\u2028x"]
    for prediction in predictions:
        assert prediction.keys() >= KEYS
        assert len(prediction["attention"]) == len(prediction["tokens"])
        assert "".join(prediction["tokens"]) == prediction["text"]
        for row in prediction["attention"]:
            assert len(row) == len(prediction["source_tokens"]) == len(prediction["source"]) + 1
            assert sum(row) == pytest.approx(1, abs=1e-5)
    assert predictions[0]["tokens"]
    assert predictions[1]["text"] == ""
    assert predictions[1]["attention"] == []
    assert [len(prediction.get("alternatives", [])) for prediction in predictions] == [1, 0, 1]
    assert predictions[0]["alternatives"][0]["score"] <= predictions[0]["score"]
    without = [json.loads(line) for line in regard(*arguments, stdin="abc\n\nfade\u2028x\n".encode()).lines]
    for prediction in [*predictions, *(other for each in predictions for other in each.get("alternatives", []))]:
        del prediction["attention"], prediction["source_tokens"]
        assert prediction.pop("trust", "").startswith("not measured") is bool(prediction["tokens"])
    assert without == predictions
    assert "--maps adds attention maps to JSON; add --json" in refused(regard("predict", run, "--maps"))
    assert "--n-best adds further outputs to JSON; add --json" in refused(regard("predict", run, "--n-best", 3))


def test_300_lines_with_three_outputs_each_are_less_than_a_megabyte_of_json(regard: Command, run: Path) -> None:
    lines = "".join(f"{word * 4}\n" for word in ("abcde", "fgh", "bad") for _ in range(100)).encode()
    result = regard("predict", run, "--json", "--n-best", 3, stdin=lines)
    assert len(result.lines) == 300
    assert len(json.loads(result.lines[0])["alternatives"]) == 2
    assert len(result.out) < 1_000_000


def test_lines_that_the_model_cannot_read_are_counted_in_a_note(regard: Command, run: Path) -> None:
    result = regard("predict", run, stdin="abc\nabß\nzü1ß\n\nab\tAB\n".encode())
    assert result.code == 0
    assert len(result.lines) == 5
    assert result.error.split("\n")[:-1] == [
        "regard: 1 of 5 lines have a tab; each is read as one text with the tab in it; for one column, use: cut -f1",
        "regard: note: 3 of 5 lines have parts that are not in the vocabulary: 'ß', 'z', 'ü', '1', '\\t', ...",
    ]
    assert regard("predict", run, "--quiet", stdin="abß\t\n".encode()).error == ""
    assert regard("predict", run, stdin=b"abc\nbed\n").error == ""


@pytest.fixture(scope="session")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the same pairs as TSV, without and with a header, CSV and JSONL."""
    folder = tmp_path_factory.mktemp("tables")
    rows = [line.split("\t") for line in pairs(30).splitlines()]
    (folder / "pairs.tsv").write_text(pairs(30), encoding="utf-8")
    (folder / "header.tsv").write_text("word\tupper\n" + pairs(30), encoding="utf-8")
    records = [f'{number};"{word}";{upper}' for number, (word, upper) in enumerate(rows)]
    (folder / "pairs.csv").write_text("\r\n".join(["id;word;upper", *records]), encoding="utf-8")
    objects = [json.dumps({"upper": upper, "word": word}) for word, upper in rows]
    (folder / "pairs.jsonl.gz").write_bytes(gzip.compress("\n".join(objects).encode()))
    (folder / "words.txt").write_text("".join(f"{word}\n" for word, _ in rows), encoding="utf-8")
    return folder


def test_files_with_columns_are_predicted_and_scored_as_lines_are(regard: Command, run: Path, tables: Path) -> None:
    lines = regard("predict", run, "words.txt", folder=tables)
    assert len(lines.lines) == 30
    scored = regard("score", run, "pairs.tsv", folder=tables)
    for name in ("pairs.csv", "header.tsv", "pairs.jsonl.gz"):
        assert regard("predict", run, name, "--columns", "word", folder=tables) == lines
        assert regard("score", run, name, "--columns", "word,upper", folder=tables) == scored
    first_line = ", ".join(map(repr, pairs(1).split()))
    refusals = {
        (
            "predict",
            run,
            "pairs.csv",
            "--columns",
            "wort",
        ): "pairs.csv has no column 'wort'; there are 'id', 'word', 'upper'; name others with data",
        (
            "predict",
            run,
            "words.txt",
            "--columns",
            "word",
        ): "--columns is for files that end in .csv, .jsonl, .parquet, .tsv; leave it out",
        ("predict", run, "--columns", "word"): "--columns is for files that end in .csv, .jsonl, .parquet, .tsv; leave",
        ("predict", run, "pairs.csv", "--columns", ","): "--columns is empty; name columns, such as english,french",
        (
            "score",
            run,
            "pairs.csv",
        ): "pairs.csv has the columns 'id', 'word', 'upper'; name those of source and target with",
        (
            "score",
            run,
            "pairs.csv",
            "--columns",
            "word",
        ): "data.columns names the columns of source and target, 2 in all",
        ("score", run, "pairs.tsv", "--columns", "word,upper"): f"the first line of pairs.tsv is {first_line}, without",
        ("force", run, "pairs.tsv", "--columns", "word,upper"): f"the first line of pairs.tsv is {first_line}, without",
        ("predict", run, "pairs.tsv", "--columns", "word"): f"pairs.tsv has no column 'word'; there are {first_line}; ",
        ("predict", run, "pairs.csv", "--columns", "word,upper"): "--columns names the columns of source, 1 in all",
    }
    for arguments, sentence in refusals.items():
        assert refused(regard(*arguments, folder=tables)).startswith(sentence)


def test_a_file_with_columns_is_not_read_as_lines_unless_on_stdin(regard: Command, run: Path, tables: Path) -> None:
    """Without data.columns or --columns, all commands name the columns that there are, and what to write."""
    (tables / "lines.csv").write_text("abc\nbad\n", encoding="utf-8")
    (tables / "lines.jsonl").write_text("abc\nbad\n", encoding="utf-8")
    pairs_csv = "pairs.csv has the columns 'id', 'word', 'upper'; name"
    source, on_stdin = "that of source with --columns SOURCE", "if its lines are texts, give it on stdin: - <"
    both = f"{pairs_csv} those of source and target with data.columns=SOURCE,TARGET (of a run: --columns SOURCE,TARGET)"
    refusals = {
        ("predict", run, "pairs.csv"): f"{pairs_csv} {source}; {on_stdin} pairs.csv",
        ("predict", run, "words.txt", "pairs.csv"): f"{pairs_csv} {source}; {on_stdin} pairs.csv",
        ("vectors", run, "pairs.csv"): f"{pairs_csv} {source}; {on_stdin} pairs.csv",
        ("near", run, "pairs.csv", "--text", "abc"): f"{pairs_csv} {source}; {on_stdin} pairs.csv",
        ("predict", run, "pairs.jsonl.gz"): f"pairs.jsonl.gz has the columns 'upper', 'word'; name {source}",
        ("predict", run, "lines.jsonl"): f"lines.jsonl is named like a file with columns; name {source}; {on_stdin}",
        ("predict", run, "gone.csv"): "cannot find gone.csv; looked for gone.csv, ",
        ("score", run, "pairs.csv"): both,
        ("force", run, "pairs.csv"): both,
    }
    for arguments, sentence in refusals.items():
        message = refused(regard(*arguments, folder=tables))
        assert message.startswith(sentence), message
    lines = regard("predict", run, "-", folder=tables, stdin=(tables / "lines.csv").read_bytes())
    assert (lines.code, len(lines.lines)) == (0, 2)


def test_other_commands_read_columns_too(regard: Command, run: Path, tables: Path) -> None:
    forced = regard("force", run, "pairs.tsv", folder=tables)
    assert regard("force", run, "pairs.csv", "--columns", "word,upper", folder=tables) == forced
    for command, *more in (("vectors",), ("near", "--text", "abc")):
        lines = regard(command, run, "words.txt", *more, folder=tables)
        assert lines.code == 0, lines.error
        assert regard(command, run, "pairs.csv", "--columns", "word", *more, folder=tables) == lines


def test_a_run_on_columns_reads_them_again(regard: Command, tables: Path, tmp_path: Path) -> None:
    settings = (*TINY, "train.updates=2", "data.columns=word,upper", "--runs", tmp_path)
    trained = regard("train", "dates", "data.train=pairs.csv,pairs.jsonl.gz", *settings, folder=tables)
    assert trained.code == 0, trained.error
    assert "54 pairs to learn from, 6 dev pairs" in trained.error
    run = trained.lines[0]
    lines = regard("predict", run, "words.txt", folder=tables)
    assert regard("predict", run, "pairs.csv", folder=tables).out == lines.out
    assert regard("score", run, "pairs.csv", folder=tables).out == regard("score", run, "pairs.tsv", folder=tables).out
    named = ("data", "dates", "data.train=pairs.csv", "data.columns=word,upper")
    assert "30 lines" not in (listed := regard(*named, folder=tables).out.decode())
    assert "pairs.csv: " in listed
    assert "31 lines" in listed


@pytest.mark.parametrize(
    ("name", "how"),
    [
        ("14 juillet 1989", "regard predict RUN --text '14 juillet 1989'"),
        ("abc", "regard predict RUN --text abc"),
        ("it's", "regard predict RUN --text 'it'\"'\"'s'"),
        ("abc " * 30, "regard predict RUN --text TEXT"),
    ],
)
def test_a_text_in_place_of_a_file_gets_a_hint(regard: Command, run: Path, name: str, how: str) -> None:
    message = refused(regard("predict", run, name))
    assert message.startswith("there is no file ")
    assert message.endswith(f"; if it is the text itself, write: {how.replace('RUN', str(run))}")


def test_the_keys_of_sampling_are_refused_without_a_temperature(regard: Command, run: Path) -> None:
    for setting in ("top_k=3", "top_p=0.5"):
        message = refused(regard("predict", run, "--text", "abc", "--search", setting))
        assert message.startswith(f"search.{setting[:5]} is for sampling, and search.temperature = 0 is beam search; ")
        assert regard("predict", run, "--text", "a", "--search", setting, "--search", "temperature=1").code == 0


def test_the_script_prints_the_same_as_main(script: Command, regard: Command, run: Path) -> None:
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
def test_predict_prints_one_line_per_input_line(regard: Command, run: Path, content: bytes, count: int) -> None:
    result = regard("predict", run, stdin=content)
    assert result.code == 0, result.error
    assert result.out.count(b"\n") == count
    assert result.out == b"" or result.out.endswith(b"\n")
    blank = [not line.decode().strip() for line in content.split(b"\n")[:count]]
    assert [line == "" for line, empty in zip(result.lines, blank, strict=True) if empty] == [True] * sum(blank)


def test_a_carriage_return_before_the_newline_is_not_part_of_the_text(regard: Command, run: Path) -> None:
    assert regard("predict", run, stdin=b"abc\r\nbed\r\n").out == regard("predict", run, stdin=b"abc\nbed\n").out


@pytest.mark.parametrize("options", [[], ["--quiet", "--json"]])
def test_a_line_of_ten_megabytes_gets_an_empty_line_and_a_notice(
    regard: Command, run: Path, options: list[str]
) -> None:
    long_line = b"abcdefgh" * 1_250_000
    result = regard("predict", run, *options, stdin=b"abc\n\n" + long_line + b"\nbed\n" + b"a" * 5001)
    assert result.code == 0, result.error
    lines = [json.loads(line)["text"] for line in result.lines] if options else result.lines
    if options:
        errors = [json.loads(line).get("error") for line in result.lines]
        assert errors == [None, None, "more than 5,000 tokens", None, "more than 5,000 tokens"]
    assert [bool(line) for line in lines] == [True, False, False, True, False]
    notice = "has more than 5,000 tokens; it is answered with an empty line"
    assert result.error == f"regard: line 3 {notice}\nregard: line 5 {notice}\n"


@pytest.fixture(scope="session")
def line_end_model(tmp_path_factory: pytest.TempPathFactory, regard: Command) -> Path:
    """A language model trained on characters that end a line, so that it generates mostly these."""
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
    result = regard("train", "char_lstm", *sizes, *text, "-q", folder=folder)
    assert result.code == 0, result.error
    return folder / "runs" / "ends"


LINE_ENDS = "".join(character for character in map(chr, range(0x110000)) if len(f"a{character}b".splitlines()) == 2)


def test_line_ends_in_a_prediction_are_escaped_when_printed(regard: Command, line_end_model: Path) -> None:
    arguments = ("predict", line_end_model, "--search", "temperature=2.0")
    plain, as_json = (regard(*arguments, *more, stdin=b"a\naa\n\n") for more in ([], ["--json"]))
    assert (plain.code, as_json.code) == (0, 0), plain.error
    texts = [json.loads(line)["text"] for line in as_json.out.decode().splitlines()]
    assert len(texts) == 3
    assert any(set(text) & set(LINE_ENDS) for text in texts)  # JSON has the texts unchanged
    for end in LINE_ENDS:
        texts = [text.replace(end, repr(end)[1:-1]) for text in texts]
    assert plain.out.decode().splitlines() == texts


def test_near_and_vectors_print_one_line_per_input_line(regard: Command, run: Path, tmp_path: Path) -> None:
    text = "ab" + LINE_ENDS.replace("\n", "") + "c"
    (tmp_path / "texts").write_text(f"{text}\nbed\n", encoding="utf-8", newline="\n")
    plain, as_json = (regard("near", run, tmp_path / "texts", "--text", "ab", *more) for more in ([], ["--json"]))
    assert {line.split("\t")[2] for line in plain.out.decode().splitlines()} == {repr(text)[1:-1], "bed"}
    assert {json.loads(line)["text"] for line in as_json.out.decode().splitlines()} == {text, "bed"}
    for more in ([], ["--json"]):
        assert len(regard("vectors", run, tmp_path / "texts", *more).out.decode().splitlines()) == 2


# Score


def test_score_a_file_plain_and_json(regard: Command, run: Path, trained: tuple[Path, Result]) -> None:
    file = trained[0] / "pairs.tsv"
    plain, as_json = regard("score", run, file), regard("score", run, file, "--json")
    assert (plain.code, as_json.code) == (0, 0)
    [line] = as_json.lines
    scored = json.loads(line)
    assert scored.keys() == {"character_errors", "signature", "groups", "alignment_error"}
    assert scored["alignment_error"] == {}  # a TSV file has no gold alignment
    assert scored["signature"].startswith("character_errors|n:200|")
    assert 0 <= scored["character_errors"] < 0.5  # it has learned something
    assert plain.lines == [f"character_errors {scored['character_errors']:.4f}  {scored['signature']}"]
    rows = [line.split("\t") for line in file.read_text(encoding="utf-8").splitlines()]
    other = json.loads(regard("score", run, file, "--json", "--metric", "exact_match").lines[0])
    answers = regard("predict", run, stdin="".join(f"{source}\n" for source, _ in rows).encode())
    assert other["exact_match"] == sum(map(str.__eq__, answers.lines, (target for _, target in rows))) / 200


def test_score_lists_the_wrong_answers_and_prints_the_kinds_of_mistake(
    regard: Command, run: Path, trained: tuple[Path, Result], tmp_path: Path
) -> None:
    file = trained[0] / "pairs.tsv"
    result = regard("score", run, file, "--errors", "errors.tsv", folder=tmp_path)
    assert result.code == 0, result.error
    assert result.error == "written: errors.tsv\n"
    first, blank, *table = result.lines
    assert (first, blank) == (regard("score", run, file).lines[0], "")
    head, *rows = [line.split("\t") for line in (tmp_path / "errors.tsv").read_text(encoding="utf-8").splitlines()]
    assert head == ["source", "expected", "answer", "score", "character_errors"]
    expected = dict(line.split("\t") for line in file.read_text(encoding="utf-8").splitlines())
    answers = dict(zip(expected, regard("predict", run, stdin="\n".join(expected).encode()).lines, strict=True))
    assert {row[0] for row in rows} == {source for source in expected if answers[source] != expected[source]}
    assert all((expected[row[0]], answers[row[0]]) == (row[1], row[2]) for row in rows)
    assert [float(row[4]) for row in rows] == sorted((float(row[4]) for row in rows), reverse=True)
    text = " ".join(table)
    assert text.startswith(f"{len(rows)} of 200 answers are wrong; the most frequent of ")
    assert max(map(len, table)) <= 80
    as_json = json.loads(regard("score", run, file, "--errors", "errors.tsv", "--json", folder=tmp_path).lines[0])
    assert (as_json["answers"], as_json["wrong"]) == (200, len(rows))
    assert as_json["mistakes"][0].keys() == {"kind", "expected", "answer", "times", "example"}
    assert f"{as_json['mistakes'][0]['times']}  " in text


def test_tabs_and_line_ends_in_the_list_of_errors_are_escapes() -> None:
    from regard.cli.score import to_tsv

    assert to_tsv([("a\tb", "c\u2028d", "e\ud800\n")]) == b"a\\tb\tc\\u2028d\te\\ud800\\n\n"


def test_the_help_of_score_shows_an_escape_as_it_is_written(regard: Command) -> None:
    shown = " ".join(regard("score", "--help").out.decode().split())
    assert r"are escapes, such as \t." in shown


def test_a_place_for_errors_that_cannot_be_written_is_refused_at_once(regard: Command, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for place, reason in (
        ("none/x.tsv", "make it first: mkdir -p none"),
        (".", "is not a file"),
        ("file/x.tsv", "Not a directory"),
    ):
        result = regard("score", "no-run", "--errors", place, folder=tmp_path)
        assert (result.code, result.lines) == (4, [])
        assert reason in result.error


def test_score_without_a_test_set_is_on_the_dev_part_that_was_split_off(
    regard: Command, run: Path, trained: tuple[Path, Result], tmp_path: Path
) -> None:
    result = regard("score", run, folder=trained[0])
    assert result.code == 0, result.error
    assert "no test set is named; scored on the dev set, 20 pairs split off from data.train\n" in result.error
    assert result.lines[0] == re.sub(
        r".*dev examples: (\S+) \((.*)\).*", r"character_errors \1  \2", on_dev(trained[1])
    )
    assert "split off" not in regard("score", run, "--quiet", folder=trained[0]).error
    (tmp_path / "pairs.tsv").write_text(pairs(100), encoding="utf-8")
    changed = refused(regard("score", run, folder=tmp_path))
    assert changed.startswith("pairs.tsv has changed since ")
    assert changed.endswith(f"; write: regard score {run} FILE.tsv")


def on_dev(result: Result) -> str:
    [line] = [line for line in result.error.splitlines() if " dev examples: " in line]
    return line


def test_score_on_data_dev_without_a_test_set(regard: Command, tmp_path: Path) -> None:
    (tmp_path / "train.tsv").write_text(pairs(40), encoding="utf-8")
    (tmp_path / "dev.tsv").write_text("ab\tAB\n\tCD\nef\tEF\n", encoding="utf-8")
    settings = ("data.train=train.tsv", "data.dev=dev.tsv", *TINY, "train.updates=1")
    trained = regard("train", "dates", *settings, folder=tmp_path)
    assert "dev.tsv: 1 pair with an empty side dropped\n" in trained.error
    result = regard("score", "runs/upper", folder=tmp_path)
    assert "no test set is named; scored on the dev set, 2 pairs of dev.tsv\n" in result.error


def test_a_score_on_the_training_data_is_called_one(
    regard: Command, run: Path, trained: tuple[Path, Result], tmp_path: Path
) -> None:
    [line] = regard("score", run, "./pairs.tsv", "--quiet", folder=trained[0]).error.splitlines()
    match = re.search(
        r"pairs.tsv: the run was trained on (\d+) of these; the score says little about other pairs$", line
    )
    assert match is not None
    assert 0 < int(match[1]) < len((trained[0] / "pairs.tsv").read_text("utf-8").splitlines())  # the others are dev
    copied = tmp_path / "copied.tsv"  # another file with the same pairs
    shutil.copy(trained[0] / "pairs.tsv", copied)
    assert (
        f"{copied}: the run was trained on {match[1]} of these" in regard("score", run, copied, folder=trained[0]).error
    )
    (tmp_path / "pairs.tsv").write_text(pairs(100), encoding="utf-8")  # of the same name, but not the same
    assert "trained on" not in regard("score", run, "pairs.tsv", folder=tmp_path).error


def test_the_file_of_mistakes_can_be_forced_by_its_columns(regard: Command, run: Path, tmp_path: Path) -> None:
    (tmp_path / "wrong.tsv").write_text("abc\tXYZ\nbed\tOO\n", encoding="utf-8")
    assert regard("score", run, "wrong.tsv", "--errors", "errors.tsv", folder=tmp_path).code == 0
    forced = regard("force", run, "errors.tsv", "--columns", "source,expected", folder=tmp_path)
    assert sorted(line.split("\t")[1] for line in forced.lines) == ["OO", "XYZ"]


def test_a_score_on_unknown_characters_names_them(regard: Command, run: Path, tmp_path: Path) -> None:
    (tmp_path / "other.tsv").write_text("ab1\tAB1\nabc\tABC\nü\tÜ\n", encoding="utf-8")
    note = "regard: note: 2 of 3 sources have parts that are not in the vocabulary: '1', 'ü'\n"
    assert note in regard("score", run, "other.tsv", folder=tmp_path).error
    assert note not in regard("score", run, "other.tsv", "--quiet", folder=tmp_path).error


def test_dev_pairs_that_are_in_train_are_counted(regard: Command, tmp_path: Path) -> None:
    (tmp_path / "train.tsv").write_text("ab\tAB\ncd\tCD\nef\tEF\n", encoding="utf-8")
    (tmp_path / "dev.tsv").write_text("cd\tCD\ncd\tXY\ncd\tCD\ngh\tGH\n", encoding="utf-8")
    settings = ("data.train=train.tsv", "data.dev=dev.tsv", "--dry-run")
    note = "2 of 4 dev pairs are in train, too; their scores say little about other pairs\n"
    assert note in regard("train", "dates", *settings, folder=tmp_path).error
    (tmp_path / "dev.tsv").write_text("gh\tGH\n", encoding="utf-8")
    assert "in train, too" not in regard("train", "dates", *settings, folder=tmp_path).error


def test_outputs_that_are_cut_at_the_longest_length_are_counted(regard: Command, run: Path, tmp_path: Path) -> None:
    short = ("--search", "max_ratio=0", "--search", "max_extra=2")
    how = "raise search.max_ratio or search.max_extra, or train longer if they repeat themselves"
    note = f"2 of 3 outputs were cut at the longest length; {how}\n"
    result = regard("predict", run, *short, "--json", stdin=b"abcde\n\nfade\n")
    assert result.error == f"regard: {note}"
    assert [json.loads(line).get("finished") for line in result.lines] == [False, None, False]
    assert regard("predict", run, *short, "--quiet", stdin=b"abcde\n").error == ""
    (tmp_path / "data.tsv").write_text("abc\tABCDEFGHIJ\nfade\tFADE\nb\tBCDEF\n" * 20, encoding="utf-8")
    settings = ("data.train=data.tsv", *TINY, "train.updates=1", "data.dev=data.tsv")
    what = "40 of 60 dev targets are longer than outputs may be (1 x source length + 3 tokens)"
    sentence = f"{what}; raise search.max_ratio or search.max_extra\n"
    assert sentence in regard("train", "dates", *settings, "--dry-run", folder=tmp_path).error
    trained = regard("train", "dates", *settings, "search.max_extra=1", folder=tmp_path)
    assert "40 of 60 dev targets are longer" in trained.error
    wider = regard("train", "dates", *settings, "search.max_extra=8", "--dry-run", folder=tmp_path)
    assert "are longer than" not in wider.error
    assert "outputs were cut at the longest length; raise " in regard("score", "runs/upper", folder=tmp_path).error


# Align


def test_align_plain_and_json(regard: Command, run: Path, tmp_path: Path) -> None:
    (tmp_path / "pairs").write_text("abc ||| ABC\nfa de ||| FA DE\n", encoding="utf-8")
    (tmp_path / "gold").write_text("1-1\n1-1 2-2 2p1 3-1\n", encoding="utf-8")
    plain = regard("align", run, "pairs", "gold", "--first", 1, folder=tmp_path)
    as_json = regard("align", run, "pairs", "gold", "--first", 1, "--json", folder=tmp_path)
    assert (plain.code, as_json.code) == (0, 0), plain.error
    assert plain.error == as_json.error == "regard: 1 links to words that do not exist were left out\n"
    [line] = as_json.lines
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


def test_align_refuses_links_out_of_range_and_missing_files(regard: Command, run: Path, tmp_path: Path) -> None:
    (tmp_path / "x.tsv").write_text("a b\tA B\t1-1 2-2\n", encoding="utf-8")
    assert "add --first 1" in refused(regard("align", run, "x.tsv", folder=tmp_path))
    assert "cannot find y.tsv" in refused(regard("align", run, "y.tsv", folder=tmp_path))


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("abc\tcba\t0-2 1-1 2-0\n", "all 3 links point beyond the words; words are separated by spaces"),
        ("a b\tA B\t\n", "there are none"),
    ],
)
def test_align_refuses_gold_without_a_link_between_words(
    regard: Command, run: Path, tmp_path: Path, line: str, reason: str
) -> None:
    (tmp_path / "x.tsv").write_text(line, encoding="utf-8")
    sentence = f"x.tsv has no link to compare with: {reason}; give links between words, such as 0-0 1-2"
    assert refused(regard("align", run, "x.tsv", folder=tmp_path)) == sentence


# Look


def test_look_draws_plain_text_where_there_is_no_terminal(regard: Command, run: Path) -> None:
    result = regard("look", run, "fade")
    assert result.code == 0, result.error
    assert "\x1b" not in result.out.decode()
    answer = regard("predict", run, "--text", "fade").lines[0]
    assert result.lines[0] == answer
    header = next(line for line in result.lines[1:] if line.strip())
    assert header.split() == [*"fade", "</s>"]
    rows = [line for line in result.lines if line[:1] in answer and line[1:2] == " " and line.strip()]
    assert [row[0] for row in rows] == list(answer)
    assert set("".join(row[1:] for row in rows)) <= set(" ·░▒▓█")


def test_look_writes_pictures_by_their_ending(regard: Command, run: Path, tmp_path: Path) -> None:
    result = regard("look", run, "fade", "-o", "x.svg", "-o", "x.png", folder=tmp_path)
    assert result.code == 0, result.error
    assert (tmp_path / "x.svg").read_bytes().startswith(b"<svg ")
    assert (tmp_path / "x.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    assert sorted(os.listdir(tmp_path)) == ["x.png", "x.svg"]
    assert result.error == "written: x.svg\nwritten: x.png\n"
    assert regard("look", run, "fade", "-o", "x.svg", "--json", folder=tmp_path).error == ""


def test_look_without_matplotlib_says_so_before_anything_is_written(
    script: Command, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module_folder = tmp_path / "hidden"
    module_folder.mkdir()
    (module_folder / "matplotlib.py").write_text("raise ImportError", encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(module_folder), os.environ.get("PYTHONPATH", "")]))
    pictures = [part for ending in ("svg", "html", "png") for part in ("-o", f"a.{ending}")]
    message = refused(script("look", run, "fade", *pictures, folder=tmp_path))
    how = "pip install 'regard[plot]', or in a clone: pip install -e '.[plot]'"
    assert message == f"drawing a PNG needs the package matplotlib; install it with: {how}"
    assert os.listdir(tmp_path) == ["hidden"]


def test_look_writes_no_picture_unless_all_are_drawn(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(attention: AttentionMap, title: str) -> bytes:
        assert title == ""  # every drawing is tried without a title before any file is written
        return b""

    monkeypatch.setitem(DRAWINGS, ".csv", broken)
    with pytest.raises(AssertionError):
        cli.look(str(run), ["fade"], [tmp_path / "x.svg", tmp_path / "x.csv"])
    assert os.listdir(tmp_path) == []


def test_look_refuses_an_unknown_ending_before_any_work(regard: Command, run: Path, tmp_path: Path) -> None:
    result = regard("look", run, "fade", "-o", "x.svg", "-o", "x.svgg", folder=tmp_path)
    endings = ".svg, .png, .gif, .html, .csv, .pharaoh"
    assert refused(result) == f"unknown picture ending '.svgg'; choose from {endings}; did you mean '.svg'?"
    assert os.listdir(tmp_path) == []


def test_look_writes_rivals_two_runs_and_a_moving_picture(regard: Command, run: Path, tmp_path: Path) -> None:
    files = ("-o", "x.html", "-o", "x.gif")
    result = regard("look", run, "fade", "--beam", 3, "--n-best", 3, *files, folder=tmp_path)
    assert result.code == 0, result.error
    assert [line.endswith(")") and "rival, score -" in line for line in result.lines[:4]] == [False, True, True, False]
    assert b'"choices":["Output"]' in (tmp_path / "x.html").read_bytes()
    assert (tmp_path / "x.gif").read_bytes().startswith(b"GIF89a")
    both = regard("look", run, "fade", "--beside", run, "--all", "-o", "y.html", folder=tmp_path)
    assert both.code == 0, both.error
    page = (tmp_path / "y.html").read_bytes()
    assert page.count(b'"choices":["Site","Layer","Head"]') == 2
    assert b'"panels":[' in page


def test_look_refuses_what_a_page_of_two_runs_cannot_show(regard: Command, run: Path, tmp_path: Path) -> None:
    def refusal(*arguments: str) -> str:
        return refused(regard("look", run, "fade", *arguments, folder=tmp_path))

    message = "--beside shows two runs on one page; name it with -o, such as -o both.html"
    assert refusal("--beside", str(run)) == refusal("--beside", str(run), "-o", "x.svg") == message
    assert refusal("--beside", str(run), "-o", "x.html", "--layer", "1").startswith("with --beside, maps are chosen on")
    assert refusal("--n-best", "2", "--target", "FADE").startswith("--n-best is for a search, but --target gives")


def test_look_json_and_blank(regard: Command, run: Path) -> None:
    [line] = regard("look", run, "fade", "--json").lines
    assert json.loads(line).keys() >= KEYS
    for text in (" ", ""):
        assert refused(regard("look", run, text)) == "there is no map: the text is blank; give one with letters in it"


def test_look_says_what_a_single_argument_is_taken_for(regard: Command, run: Path) -> None:
    message = "'14 juillet 1989' is no run; is this the text? Write: regard look latest '14 juillet 1989'"
    assert refused(regard("look", "14 juillet 1989")) == message
    message = "there is no text to look at; write: regard look runs/upper TEXT"
    assert refused(regard("look", "runs/upper", folder=run.parents[1])) == message


def test_look_notes_the_name_of_a_file_and_unknown_parts(regard: Command, run: Path) -> None:
    def notes(text: str) -> str:
        return regard("look", "runs/upper", text, folder=run.parents[1]).error

    how = "regard predict runs/upper pairs.tsv"
    assert notes("pairs.tsv") == f"regard: pairs.tsv is read as a text; for the lines of a file: {how}\n"
    assert notes("abß") == "regard: note: the text has parts that are not in the vocabulary: 'ß'\n"
    assert notes("abc") == ""


@pytest.mark.parametrize(
    "arguments", [("look", "abc"), ("predict", "--text", "abc"), ("near", "words.txt", "--text", "abc")]
)
def test_in_a_terminal_a_line_says_that_torch_and_the_run_are_loaded(
    run: Path, tables: Path, arguments: tuple[str, ...]
) -> None:
    """It is there before torch is imported, and removed before the output comes."""
    command, *others = arguments
    start = partial(shared_commands(), command, run, *others, folder=tables, limit=60)
    piped = start()
    shown = start(terminals=("error",), environment={"TERM": "xterm"})
    assert (shown.code, shown.out) == (0, piped.out)
    assert piped.error == ""
    first, second = shown.error.index("loading torch"), shown.error.index("loading the run")
    assert first < second
    assert shown.error.endswith("\x1b[1A\x1b[2K")  # up to the line, and erase it
    if command == "predict":
        assert start("--quiet", terminals=("error",), environment={"TERM": "xterm"}).error == ""


BEGINS = """
import os, sys
from regard import console
from regard.__main__ import main
def begin(log, what):
    print(what, "torch" in sys.modules, flush=True)
    os._exit(0)
console.ProgressLog.begin = begin
main()
"""


@pytest.mark.parametrize(
    "arguments",
    [
        ("look", "runs/a", "abc"),
        ("predict", "runs/a", "b.txt"),
        ("near", "runs/a", "b.txt", "--text", "abc"),
        ("vectors", "runs/a", "b.txt"),
        ("score", "runs/a", "b.tsv"),
        ("force", "runs/a", "b.tsv"),
        ("align", "runs/a", "b.tsv"),
        ("compare", "runs/a", "runs/b"),
        ("train", "dates"),
        ("train", "--resume", "runs/a"),
        ("demo", "caption"),
    ],
)
def test_a_command_says_that_torch_is_loaded_before_it_is(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    """Its import takes a second, on a busy machine several."""
    Run.create(tmp_path / "runs", "a", {storage.RECIPE: recipes.to_toml(recipes.Recipe()).encode()})
    begun = [sys.executable, "-c", BEGINS, *arguments]
    result = subprocess.run(begun, capture_output=True, text=True, check=True, cwd=tmp_path, env=user_environment())
    assert result.stdout == "loading torch False\n"


REFUSES = """
import sys
from regard.__main__ import main
try:
    main()
finally:
    print("torch" in sys.modules)
"""


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("look", "nope", "abc"), "the run nope is not there"),
        (("look", "runs/a"), "there is no text to look at"),
        (("look", "runs/a", "x", "-o", "none/x.svg"), "none/x.svg cannot be written: there is no folder none"),
        (("predict", "nope"), "the run nope is not there"),
        (("near", "nope", "b.txt", "--text", "a"), "the run nope is not there"),
        (("vectors", "nope"), "the run nope is not there"),
        (("score", "nope"), "the run nope is not there"),
        (("align", "nope", "b.tsv"), "the run nope is not there"),
        (("train", "--resume", "nope"), "the run nope is not there"),
        (("train", "runs/a"), "runs/a is a run; go on with it: "),
        (("demo", "nope"), "unknown demo 'nope'"),
    ],
)
def test_errors_in_arguments_do_not_wait_for_torch(tmp_path: Path, arguments: tuple[str, ...], sentence: str) -> None:
    Run.create(tmp_path / "runs", "a", {storage.RECIPE: recipes.to_toml(recipes.Recipe()).encode()})
    command = [sys.executable, "-c", REFUSES, *arguments]
    result = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path, env=user_environment())
    assert result.stderr.startswith(f"regard: {sentence}")
    assert result.stdout == "False\n"


def test_the_next_command_shows_an_example_of_the_run(
    regard: Command, trained: tuple[Path, Result], tmp_path: Path
) -> None:
    last = trained[1].error.splitlines()[-1]
    sources = [line.split("\t")[0] for line in pairs(200).splitlines()]
    match = re.fullmatch(r"next: regard look runs/upper (\w+)", last)
    assert match is not None
    assert match[1] in sources
    finished = regard("train", "--resume", "runs/upper", folder=trained[0])  # nothing is validated
    assert finished.error.splitlines()[-1] == 'next: regard look runs/upper "..."'


def test_the_next_command_shows_a_source_that_begins_like_an_option(regard: Command, tmp_path: Path) -> None:
    (tmp_path / "data.tsv").write_text("-a 1\tA\n" * 9, encoding="utf-8")
    settings = ("data.train=data.tsv", *TINY, "train.updates=1", "data.dev=data.tsv")
    last = regard("train", "dates", *settings, folder=tmp_path).error.splitlines()[-1]
    assert last == "next: regard look runs/upper -- '-a 1'"
    assert regard(*shlex.split(last)[2:], folder=tmp_path).code == 0


def test_a_run_may_be_named_without_its_folder(regard: Command, trained: tuple[Path, Result]) -> None:
    assert (
        regard("look", "upper", "fade", folder=trained[0]).out
        == regard("look", "runs/upper", "fade", folder=trained[0]).out
    )
    resumed = regard("train", "--resume", "upper", "--quiet", folder=trained[0])
    assert (resumed.code, resumed.lines) == (0, ["runs/upper"])


def test_a_text_without_quotes_is_refused_with_the_command(regard: Command, trained: tuple[Path, Result]) -> None:
    def refusal(*arguments: str) -> str:
        return refused(regard("look", *arguments, folder=trained[0]))

    quoted = "the text has spaces; put it in quotes: regard look runs/upper '14 juillet 1989'"
    assert refusal("runs/upper", "14", "juillet", "1989") == quoted
    assert refusal("runs/upper", "14", "--beam", "2", "juillet", "1989") == quoted
    forgotten = "'14' is no run; is this the text? Write: regard look latest '14 juillet 1989'"
    assert refusal("14", "juillet", "1989") == forgotten
    near = regard("near", "runs/upper", "pairs.tsv", "--text", "14", "juillet", folder=trained[0])
    sentence = "Error: Got unexpected extra argument (juillet); put a text of several words in quotes"
    assert (near.code, near.error.splitlines()[-1]) == (2, sentence)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("help",), "Error: No such command 'help'; write: regard --help"),
        (("help", "look"), "Error: No such command 'help'; write: regard look --help"),
        (("train", "dates", "--resume"), "Error: Option '--resume' requires an argument: --resume RUN"),
        (("near", "RUN", "FILE"), "Error: Missing option '--text'."),
    ],
)
def test_wrong_arguments_are_answered_with_what_to_write(
    regard: Command, arguments: tuple[str, ...], sentence: str
) -> None:
    result = regard(*arguments)
    assert (result.code, result.out) == (2, b"")
    first, *_, last = result.error.splitlines()
    assert first.startswith("Usage: ")
    assert last == sentence


def test_regard_alone_prints_its_help_once(regard: Command) -> None:
    result = regard()
    assert result.code == 2
    assert result.error == regard("--help").out.decode()


def test_list_names_the_command_for_a_recipe(regard: Command) -> None:
    assert refused(regard("list", "dates")) == "dates is a recipe, and no table; its values: regard show dates"


def test_a_run_in_place_of_a_recipe_is_refused_with_both_ways_to_go_on(
    regard: Command, trained: tuple[Path, Result]
) -> None:
    how = "go on with it: regard train --resume runs/upper; or train its recipe again: regard train "
    for name in ("runs/upper", "upper", "latest"):
        message = refused(regard("train", name, folder=trained[0]))
        assert message == f"{name} is a run; {how}runs/upper/recipe.toml"


def test_a_name_that_no_run_can_have_is_refused_before_data_are_read(regard: Command, tmp_path: Path) -> None:
    result = regard("train", "dates", "name=a/b", "data.train=missing.tsv", folder=tmp_path)
    assert refused(result).startswith("the name of a run is made of letters, digits, ")


def test_commands_note_that_a_run_is_not_finished(regard: Command, run: Path, tmp_path: Path) -> None:
    copied = Path(shutil.copytree(run, tmp_path / "stopped"))
    (tmp_path / "pairs.tsv").write_text("abc\tABC\n", encoding="utf-8")
    with Run.open(copied).training() as locked:
        locked.prolong(recipes.override(locked.recipe(), "train.updates=1200"), 150)
    best = min(Run.open(run).metrics()[:-1], key=lambda entry: entry["dev_loss"])["update"]
    how = "if it was stopped, go on with: regard train --resume stopped"
    note = f"regard: the run stopped is not finished: its weights are those of update {best} of 1,200; {how}"
    commands = {"look": ("abc",), "predict": ("--text", "abc"), "score": ("pairs.tsv",), "force": ("pairs.tsv",)}
    for name, arguments in commands.items():
        result = regard(name, "stopped", *arguments, folder=tmp_path)
        assert result.code == 0, result.error
        assert result.error.splitlines().count(note) == 1
        finished = regard(name, run, *arguments, folder=tmp_path)
        assert "is not finished" not in finished.error
    assert regard("predict", "stopped", "--text", "abc", "--quiet", folder=tmp_path).error == ""
    (copied / storage.METRICS).unlink()  # as if it was killed before it recorded its first validation
    shutil.rmtree(copied / storage.CHECKPOINTS)
    killed = regard("predict", "stopped", "--text", "abc", folder=tmp_path)
    assert (killed.code, killed.error) == (0, f"regard: the run stopped is not finished; {how}\n")


def test_a_blank_output_gets_a_note_that_its_map_has_no_rows(regard: Command, run: Path, tmp_path: Path) -> None:
    """The model of this run ends every output at once."""
    copied = Path(shutil.copytree(run, tmp_path / "ending"))
    with Run.open(copied).training() as locked:
        weights = load_tensors(locked.read(storage.MODEL))
        weights["decoder.out.bias"][END] = 1000.0
        locked.replace(storage.MODEL, save_tensors(weights))
    how = "look --target TEXT shows the map of a given output"
    one = f"regard: the output is blank, so that its map has no rows: the model ended it at once; {how}\n"
    two = f"regard: 2 of 3 outputs are blank, so that their maps have no rows; {how}\n"
    looked = regard("look", copied, "abc")
    assert (looked.code, looked.error) == (0, one)
    assert regard("look", copied, "abc", "--target", "ABC").error == ""
    assert regard("predict", copied, "--json", "--maps", stdin=b"abc\n\nbad\n").error == two
    assert regard("predict", copied, "--json", "--maps", "--quiet", "--text", "abc").error == ""
    assert regard("predict", copied, "--text", "abc").error == ""  # there is no map in it


def test_a_latest_run_that_was_deleted_is_named_with_those_that_are_there(
    regard: Command, run: Path, tmp_path: Path
) -> None:
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "latest").symlink_to("gone")
    message = "runs/latest points to runs/gone, which is not there; runs there: "
    assert refused(regard("look", "latest", "abc", folder=tmp_path)) == f"{message}none"
    shutil.copytree(run, tmp_path / "runs" / "mine")
    shutil.copytree(run, tmp_path / "runs" / "dates")
    assert refused(regard("look", "latest", "abc", folder=tmp_path)) == f"{message}dates, mine"
    refusal = refused(regard("look", "runs/nothing", "abc", folder=tmp_path))
    assert refusal == "the run runs/nothing is not there; runs in runs: dates, mine"


class InProcess:
    """Calls a command in this process, which is much faster than a new one; returns the lines that it prints."""

    def __init__(self, capture: pytest.CaptureFixture[bytes], run: Path) -> None:
        self.capture, self.run = capture, run

    def look(self, **options: object) -> list[str]:
        cli.look(str(self.run), ["fade"], **options)
        return self.capture.readouterr().out.decode().splitlines()

    def force(self, file: Path, **options: object) -> list[str]:
        cli.force(str(self.run), [str(file)], **options)
        return self.capture.readouterr().out.decode().splitlines()


@pytest.fixture
def in_process(run: Path, capsysbinary: pytest.CaptureFixture[bytes]) -> InProcess:
    return InProcess(capsysbinary, run)


def test_look_shows_a_chosen_layer_and_head_or_all_maps(in_process: InProcess, tmp_path: Path) -> None:
    place = {"site": "decoder.cross_attention", "layer": 1, "head": 1}
    plain = json.loads(in_process.look(as_json=True)[0])
    chosen = json.loads(in_process.look(as_json=True, layer=1, head="1")[0])
    assert "site" not in plain
    assert place.items() <= chosen.items()
    assert chosen["rows"] == plain["tokens"]
    assert chosen["source_tokens"] == [*"fade", "</s>"]
    for own, same in zip(chosen["attention"], plain["attention"], strict=True):
        assert own == pytest.approx(same, abs=1e-5)
    [every] = json.loads(in_process.look(as_json=True, all_maps=True)[0])["maps"]
    assert every == {key: chosen[key] for key in (*place, "rows", "source_tokens", "attention", "trust")}
    lines = in_process.look(all_maps=True)
    assert lines[2] == "decoder.cross_attention, layer 1, head 1"


def test_look_writes_all_maps_to_a_page_and_prints_none_of_them(regard: Command, run: Path, tmp_path: Path) -> None:
    result = regard("look", run, "fade", "--all", "-o", "x.html", folder=tmp_path)
    assert result.code == 0, result.error
    assert result.lines == regard("predict", run, "--text", "fade").lines
    assert result.error == "written: x.html\n"
    assert b'"Site"' in (tmp_path / "x.html").read_bytes()


def test_look_shows_and_writes_maps_on_a_scale(in_process: InProcess, tmp_path: Path) -> None:
    largest = max(map(max, json.loads(in_process.look(as_json=True)[0])["attention"]))
    legends = {scale: "\n".join(in_process.look(scale=scale)) for scale in ("one", "map", "row")}
    assert "██ ≥0.875" in legends["one"]
    assert f"██ ≥{0.875 * largest:.3g}" in legends["map"]
    assert "██ ≥87.5% of the row's largest" in legends["row"]
    spread = largest < 0.3
    assert in_process.look() == in_process.look(scale="map" if spread else "one")
    files = {scale: tmp_path / f"{scale}.svg" for scale in ("one", "map", "row")}
    for scale, path in files.items():
        in_process.look(scale=scale, out=[path])
    in_process.look(out=[tmp_path / "default.svg"])
    assert len({path.read_bytes() for path in files.values()}) == 3
    assert (tmp_path / "default.svg").read_bytes() == files["one"].read_bytes()
    in_process.look(scale="row", all_maps=True, out=[tmp_path / "x.html"])
    assert b'"tops"' in (tmp_path / "x.html").read_bytes()
    with pytest.raises(RecipeError, match=r"^unknown scale 'x'; choose from one, map, row"):
        in_process.look(scale="x")


def test_force_writes_maps_on_a_scale(in_process: InProcess, tmp_path: Path) -> None:
    (tmp_path / "x.tsv").write_text("fade\tFADE\n", encoding="utf-8")
    for scale in (None, "one", "map"):
        files = [tmp_path / f"{scale}.{ending}" for ending in ("svg", "html")]
        in_process.force(tmp_path / "x.tsv", scale=scale, out=files)
    for ending in ("svg", "html"):
        assert (tmp_path / f"None.{ending}").read_bytes() == (tmp_path / f"one.{ending}").read_bytes()
        assert (tmp_path / f"None.{ending}").read_bytes() != (tmp_path / f"map.{ending}").read_bytes()


ONE_HEAD = "head 2: decoder.cross_attention of this model has one head, head 1"
NOT_THERE = [
    ({"layer": 7}, "layer 7: decoder.cross_attention has one layer, layer 1"),
    ({"head": "2"}, ONE_HEAD),
    ({"head": "2", "all_maps": True}, ONE_HEAD),
    ({"site": "encoder.self_attention"}, "site 'encoder.self_attention': this model has decoder.cross_attention"),
    ({"all_maps": True, "out": [Path("x.svg")]}, "'x.svg' holds one map, but --all shows several; write them to a"),
    ({"target": "F", "beam": 2}, "--beam is for a search, but --target gives the output; leave one of them out"),
]


def test_look_refuses_what_is_not_there(in_process: InProcess, regard: Command, run: Path) -> None:
    for options, sentence in NOT_THERE:
        with pytest.raises(RecipeError, match=f"^{re.escape(sentence)}"):
            in_process.look(**options)
    assert refused(regard("look", run, "fade", "--layer", 7)) == NOT_THERE[0][1]


def test_look_shows_the_map_of_a_given_output(in_process: InProcess) -> None:
    forced = json.loads(in_process.look(target="FA", as_json=True)[0])
    assert (forced["text"], forced["tokens"]) == ("FA", ["F", "A"])
    assert len(forced["attention"]) == 3  # with a row for the end
    assert sum(forced["token_scores"]) == pytest.approx(forced["score"], abs=1e-4)
    assert in_process.look(target="FA")[0] == "FA"


# Force


def test_force_prints_the_log_probability_of_each_line_or_token(
    in_process: InProcess, regard: Command, run: Path, tmp_path: Path
) -> None:
    file = tmp_path / "x.tsv"
    file.write_text("fade\tFADE\nbad\tDAB\n \tA\n", encoding="utf-8")
    result = regard("force", run, file)
    assert result.error == "regard: 1 pair with a blank side left out\n"
    rows = [line.split("\t") for line in result.lines]
    assert [target for _, target in rows] == ["FADE", "DAB"]
    likely, unlikely = (float(score) for score, _ in rows)
    assert unlikely < likely < 0
    tokens = [line.split("\t") for line in in_process.force(file, tokens=True)]
    assert [(number, token) for number, _, token in tokens][:5] == [("1", token) for token in (*"FADE", "</s>")]
    scores = [score for number, score, _ in tokens if number == "2"]
    assert sum(map(float, scores)) == pytest.approx(unlikely, abs=1e-3)
    whole = json.loads(in_process.force(file, as_json=True)[1])
    assert whole.keys() == {"source", "target", "score", "tokens", "token_scores"}
    assert [f"{score:.4f}" for score in whole["token_scores"]] == scores


def test_force_writes_the_maps_of_all_pairs(in_process: InProcess, tmp_path: Path) -> None:
    file = tmp_path / "x.tsv"
    file.write_text("fade\tFADE\nbad\tDAB\n", encoding="utf-8")
    in_process.force(file, out=[tmp_path / name for name in ("a.html", "a.pharaoh", "a.csv")], layer=1)
    assert sorted(os.listdir(tmp_path)) == ["a-1.csv", "a-2.csv", "a.html", "a.pharaoh", "x.tsv"]
    assert '"start":["1: fade → FADE"]' in (tmp_path / "a.html").read_bytes().decode("raw_unicode_escape")
    assert len((tmp_path / "a.pharaoh").read_text("utf-8").splitlines()) == 2
    table = (tmp_path / "a-2.csv").read_text("utf-8").splitlines()
    assert [line.partition(",")[0] for line in table] == ["", *"DAB", "</s>"]
    in_process.force(file, out=[tmp_path / "b.html"], all_maps=True)
    assert b'["Pair","Site","Layer","Head"]' in (tmp_path / "b.html").read_bytes()
    with pytest.raises(RecipeError, match=r"^layer 2: decoder"):
        in_process.force(file, out=[tmp_path / "c.svg"], layer=2)
    file.write_text("a\tA\n" * 1001, encoding="utf-8")
    with pytest.raises(DataError, match=r"^1,001 pairs would be as many .svg files, and at most 1,000 are written"):
        in_process.force(file, out=[tmp_path / "c.svg"])
    assert not (tmp_path / "c.svg").exists()


def test_numbered_maps_replace_nothing_that_is_there(regard: Command, run: Path, tmp_path: Path) -> None:
    """Not even of the last pair: all names are checked before the first pair is computed, and each once more then."""
    (tmp_path / "x.tsv").write_text("fade\tFADE\nbad\tDAB\n", encoding="utf-8")
    (tmp_path / "a-2.csv").write_text("mine", encoding="utf-8")
    before = snapshot(tmp_path)
    message = refused(regard("force", run, "x.tsv", "-o", "b.csv", "-o", "a.csv", folder=tmp_path), code=4)
    assert message == "a-2.csv is there already, and is not replaced; remove it, or choose another name"
    twice = regard("look", run, "fade", "-o", "b.svg", "-o", "./b.svg", folder=tmp_path)
    assert refused(twice) == "the output 'b.svg' is named twice; choose another name for one of them"
    assert snapshot(tmp_path) == before


def test_a_map_replaces_the_file_that_is_named(regard: Command, run: Path, tmp_path: Path) -> None:
    (tmp_path / "x.tsv").write_text("fade\tFADE\nbad\tDAB\n", encoding="utf-8")
    for name in ("a.html", "a.pharaoh", "a.svg"):
        (tmp_path / name).write_text("mine", encoding="utf-8")
    forced = regard("force", run, "x.tsv", "-o", "a.html", "-o", "a.pharaoh", "-o", "b.csv", folder=tmp_path)
    assert forced.code == 0
    assert forced.error == "written: a.html\nwritten: a.pharaoh\nwritten: 2 files, b-1.csv to b-2.csv\n"
    assert regard("look", run, "fade", "-o", "a.svg", folder=tmp_path).code == 0
    assert "mine" not in {path.read_text(encoding="utf-8") for path in tmp_path.glob("a*")}
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        *("a.html", "a.pharaoh", "a.svg", "b-1.csv", "b-2.csv", "x.tsv")
    ]


def test_force_writes_pair_by_pair_and_keeps_what_took_a_name_meanwhile(
    in_process: InProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from regard.analysis import forced
    from regard.cli import force as command

    file, listed = tmp_path / "x.tsv", []
    file.write_text("fade\tFADE\nbad\tDAB\nbe\tBE\n", encoding="utf-8")
    original = forced.force

    def watched(*arguments: Any, **options: Any) -> Any:
        listed.append(sorted(path.name for path in tmp_path.glob("a*")))
        if len(listed) == 3:
            (tmp_path / "a-3.svg").write_text("mine", encoding="utf-8")
        return original(*arguments, **options)

    monkeypatch.setattr(forced, "force", watched)
    monkeypatch.setattr(sys.modules[command.__module__], "CELLS", 1)
    with pytest.raises(StorageError, match=r"a-3.svg is there already, and is not replaced"):
        in_process.force(file, out=[tmp_path / "a.svg", tmp_path / "a.pharaoh", tmp_path / "a.html"])
    assert listed == [[], ["a-1.svg"], ["a-1.svg", "a-2.svg"]]
    assert sorted(os.listdir(tmp_path)) == ["a-1.svg", "a-2.svg", "a-3.svg", "x.tsv"]  # no part of the others is left
    assert (tmp_path / "a-3.svg").read_text("utf-8") == "mine"


def test_an_output_never_replaces_an_input(
    regard: Command, trained: tuple[Path, Result], run: Path, tmp_path: Path
) -> None:
    shutil.copytree(trained[0], tmp_path, dirs_exist_ok=True, symlinks=True)
    pairs, run = tmp_path / "pairs.tsv", tmp_path / "runs" / "upper"
    shutil.copy(pairs, tmp_path / "other.tsv")
    (tmp_path / "link.tsv").symlink_to("other.tsv")
    (tmp_path / "hard.tsv").hardlink_to(tmp_path / "other.tsv")
    (tmp_path / "model.svg").hardlink_to(run / "model.safetensors")
    (tmp_path / "again").symlink_to("runs")
    before = snapshot(tmp_path)
    outputs = ["other.tsv", "runs/../other.tsv", "link.tsv", "hard.tsv", "pairs.tsv", run / "metrics.jsonl"]
    for output in [*outputs, "again/upper/manifest.json", "runs/upper/plugins.json"]:
        message = refused(regard("score", run, "other.tsv", "--errors", output, folder=tmp_path))
        assert re.fullmatch(r"the output .* would replace .*, which this command reads; choose another name", message)
    for output in (run / "new.tsv", "again/upper/new.tsv", run / "checkpoints" / "new.tsv"):
        message = refused(regard("score", run, "other.tsv", "--errors", output, folder=tmp_path))
        assert re.fullmatch(r"the output .*new\.tsv' would be in the run .*upper', .*; choose another folder", message)
    (tmp_path / "one.tsv").write_text("fade\tFADE\n", encoding="utf-8")
    for command in (("compare", run, "--data", pairs), ("look", run, "fade"), ("force", run, "one.tsv")):
        assert "'model.svg' would replace" in refused(regard(*command, "-o", "model.svg", folder=tmp_path))
    (tmp_path / "table.png").hardlink_to(pairs)
    assert "'table.png' would replace" in refused(
        regard("compare", run, "--data", pairs, "-o", "table.png", folder=tmp_path)
    )
    assert before.items() <= snapshot(tmp_path).items()


# Data


def test_data_lists_files_that_are_found_and_files_that_are_missing(regard: Command, tmp_path: Path) -> None:
    (tmp_path / "pairs.tsv").write_text("a\tb\nc\td\n", encoding="utf-8")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "dev.tsv.gz").write_bytes(gzip.compress(b"a\tb\n"))
    files = ("data.train=pairs.tsv", "data.dev=dev.tsv.gz")
    result = regard("data", "dates", *files, folder=tmp_path)
    assert (result.code, result.error) == (0, "")
    assert result.lines[0].startswith("Dates in fifteen languages")
    size = (tmp_path / "data" / "dev.tsv.gz").stat().st_size
    assert result.lines[1:] == ["train  pairs.tsv: 8 bytes, 2 lines", f"dev    data/dev.tsv.gz: {size} bytes, 1 lines"]
    report = json.loads(regard("data", "dates", *files, "--json", folder=tmp_path).lines[0])
    assert report["corpus"] == ""
    assert [(file["part"], file["path"], file["lines"], file["problem"]) for file in report["files"]] == [
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


def test_show_prints_a_recipe_with_meanings_and_where_values_come_from(regard: Command, tmp_path: Path) -> None:
    changes = ["train.updates=7", "model.decoder.cross_attention.score=dot", "data.train=a.tsv,b.tsv"]
    result = regard("show", "moods", *changes)
    assert result.code == 0, result.error
    shown = result.out.decode()
    assert "\n# number of updates at most; see patience (the command line)\nupdates = 7\n" in shown
    assert "\n# name of the run directory (moods.toml)\n" in shown
    assert "(default)\nseed = 1\n" in shown
    unset = "dim, normalizer, scope, window, heads, groups, dropout\n"
    assert f"\n\n[model.encoder.self_attention]\n# as model.attention: score, {unset}\n" in shown
    assert f'(the command line)\nscore = "dot"\n# as model.attention: {unset}' in shown
    assert shown.count("as model.attention") == 3  # once for each site
    assert "[classify]" in shown
    assert "[masked_lm]" not in shown  # of another task
    assert recipes.parse(shown, "shown") == recipes.load("moods", changes)
    keys = [json.loads(line) for line in regard("show", "moods", *changes, "--json").lines]
    assert {"key": "train.updates", "value": 7, "from": "the command line"}.items() <= keys[
        [key["key"] for key in keys].index("train.updates")
    ].items()
    assert all(key["meaning"] for key in keys)
    assert "did you mean 'train.updates'" in refused(regard("show", "moods", "train.update=7"))


def test_show_prints_the_values_of_a_run_and_what_they_are_compared_with(
    regard: Command, run: Path, tmp_path: Path
) -> None:
    """A run stores no origins of its values: they are the default's, those of the recipe of its name, or its own."""
    result = regard("show", "runs/upper", "search.beam=3", folder=run.parents[1])
    assert (result.code, result.error) == (0, ""), result.error
    assert recipes.parse(result.out, "shown") == recipes.override(Run.open(run).recipe(), "search.beam=3")
    keys = [json.loads(line) for line in regard("show", "latest", "--json", folder=run.parents[1]).lines]
    origins = {entry["key"]: (entry["value"], entry["from"]) for entry in keys}
    assert origins["train.updates"] == (150, "set for this run")
    assert origins["data.train"] == (["pairs.tsv"], "set for this run")
    assert origins["train.seed"] == (1, "default")
    of_recipe = regard("train", "moods", "train.updates=1", "data.size=30", "train.device=cpu", "--runs", tmp_path)
    assert of_recipe.code == 0, of_recipe.error
    keys = [json.loads(line) for line in regard("show", tmp_path / "moods", "--json").lines]
    origins = {entry["key"]: (entry["value"], entry["from"]) for entry in keys}
    assert origins["tokens.source"] == ("word", "as in moods.toml")
    assert origins["data.size"] == (30, "set for this run")
    assert origins["train.seed"] == (1, "default")
    message = refused(regard("show", "runs/uper", folder=run.parents[1]))
    assert message == "the run runs/uper is not there; did you mean 'runs/upper'?"


def test_a_dry_run_checks_reports_and_writes_nothing(regard: Command, tmp_path: Path, cache: Path) -> None:
    (tmp_path / "pairs.tsv").write_text(pairs(30), encoding="utf-8")
    before = snapshot(tmp_path), snapshot(cache)
    settings = ("dates", "data.train=pairs.tsv", "tokens.source=word", *TINY, "--dry-run")
    result = regard("train", *settings, folder=tmp_path)
    assert result.code == 0, result.error
    assert result.out == b""
    for sentence in (
        "upper: translate, from pairs.tsv",
        "no data.dev given: 3 pairs",
        "memory: at least ",
        "nothing was",
    ):
        assert sentence in result.error
    assert (snapshot(tmp_path), snapshot(cache)) == before
    report = json.loads(regard("train", *settings, "--json", "-q", folder=tmp_path).lines[0])
    assert (report["examples"], report["dev"], report["device"]) == (27, 3, "cpu")
    assert "unknown score" in refused(regard("train", *settings, "model.attention.score=dott", folder=tmp_path))
    assert refused(regard("train", "--resume", "runs/dates", "--dry-run")).startswith("--dry-run is for new runs")


def test_large_files_are_named_before_torch_is_imported(tmp_path: Path) -> None:
    (tmp_path / "pairs.tsv").write_text("a\tb\n" * 300_000, encoding="utf-8")
    code = (
        "import sys\nsys.modules['torch'] = None\nfrom regard import cli\n"
        "sys.argv = ['regard', 'train', 'dates', 'data.train=pairs.tsv']\ncli.main()\n"
    )
    variables = os.environ | {"REGARD_CACHE": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=tmp_path, env=variables
    )
    assert done.stderr.startswith("dates: translate, from pairs.tsv\n")


def test_data_describes_a_corpus_and_names_a_damaged_file(regard: Command, tmp_path: Path) -> None:
    result = regard("data", "dates")
    assert result.code == 0
    assert result.lines[1] == "corpus dates: comes with regard, which generates 30,000 examples to learn from"
    assert result.lines[3:] == [
        "dates: a generated corpus",
        "  from     regard generates it from the seed 1 (train.seed); dev and test are the same for any seed",
        "  licence  Apache 2.0, as regard itself",
    ]
    report = json.loads(regard("data", "dates", "--json").lines[0])
    assert (report["corpus"], report["origins"]["dates"]["licence"]) == ("dates", "Apache 2.0, as regard itself")
    unknown = refused(regard("data", "dates", "data.corpus=dats"))
    assert unknown.startswith("unknown corpus 'dats'; did you mean 'dates'?")
    known = regard("data", "multi30k_tiny", folder=tmp_path)
    data = "${REGARD_DATA:-data}"
    prepare = f"python benchmarks/multi30k.py prepare {data}/multi30k {data}/multi30k-tokenised"
    assert (known.code, known.lines[-1]) == (2, f"  prepare  {prepare}")
    assert "  licence  for non-commercial research and education only" in known.out.decode()
    origins = json.loads(regard("data", "multi30k_tiny", "--json", folder=tmp_path).lines[0])["origins"]
    assert origins["multi30k-tokenised"]["commands"] == [
        f"python benchmarks/prepare.py multi30k dataset/data/task1/raw {data}/multi30k",
        prepare,
    ]
    small = regard("data", "tatoeba_small", folder=tmp_path).lines
    assert small[-1] == f"  prepare  python benchmarks/prepare.py tatoeba fra-eng.zip {data}/tatoeba-eng-fra"
    (tmp_path / "cut.gz").write_bytes(gzip.compress(b"a\tb\n")[:-5])
    damaged = regard("data", "dates", "data.train=cut.gz", folder=tmp_path)
    assert damaged.code == 2
    assert damaged.error.startswith("regard: 1 of 1 files cannot be used: cut.gz is not a whole gzip file")
    assert "nothing to learn from" in refused(regard("data", "dates", "data.corpus="))
    assert "did you mean 'dates'?" in refused(regard("data", "datse"))


# Compare


def test_compare_a_run_with_a_recipe(regard: Command, trained: tuple[Path, Result], run: Path, tmp_path: Path) -> None:
    file, runs = trained[0] / "pairs.tsv", tmp_path / "runs"
    settings = (*TINY, f"data.train={file}", "train.updates=2", "name=short")
    arguments = ("compare", run, "dates", *settings, "--data", file, "--runs", runs)
    result = regard(*arguments, "-o", "x.svg", "-o", "y.png", folder=tmp_path)
    assert result.code == 0, result.error
    head, first, second, blank, against, tested, trials, _, examples, signature = result.lines
    assert head.split() == ["name", "character_errors", "parameters", "tokens/s", "seconds"]
    assert [first.split()[0], second.split()[0]] == ["upper", "short"]
    assert float(first.split()[1]) < float(second.split()[1])  # fewer errors
    assert (blank, examples) == ("", f"on 200 pairs of {file}")
    assert signature.startswith("character_errors|n:200|")
    assert against.split() == ["against", "upper", "difference", "p"]
    assert tested.split()[0::2] == ["short", "0.0001"]
    assert trials == "p: approximate randomisation, 10,000 trials"
    assert "short: to be trained" in result.error
    assert result.error.endswith("drawn: x.svg\ndrawn: y.png\n")
    assert (tmp_path / "x.svg").read_bytes().startswith(b"<svg ")
    assert (tmp_path / "y.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    assert sorted(os.listdir(tmp_path)) == ["runs", "x.svg", "y.png"]
    assert sorted(os.listdir(runs)) == ["latest", "short"]

    again = regard("compare", "dates", *settings, run, "--data", file, "--runs", runs, "--json", folder=tmp_path)
    assert again.code == 0, again.error
    assert f"{runs}/short is taken as it is" in again.error
    entries = [json.loads(line) for line in again.lines]
    assert [entry["name"] for entry in entries] == ["short", "upper"]
    assert [f"{entry['character_errors']:.4f}" for entry in entries] == [second.split()[1], first.split()[1]]
    assert sum(point["examples"] for point in entries[0]["curve"]) == 200
    assert sorted(os.listdir(runs)) == ["compare.png", "compare.svg", "latest", "short"]

    before = snapshot(runs)
    quiet = regard("compare", runs / "short", "--data", file, "--quiet")
    assert (quiet.code, quiet.error) == (0, "")
    pictures = ["compare-2.png", "compare-2.svg", "compare.png", "compare.svg"]
    assert sorted(os.listdir(runs)) == [*pictures, "latest", "short"]
    assert before.items() <= snapshot(runs).items()


def test_compare_without_matplotlib_leaves_the_png_out_and_says_so(
    script: Command, trained: tuple[Path, Result], run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "matplotlib.py").write_text("raise ImportError('none here')", encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path) + os.pathsep + os.environ.get("PYTHONPATH", ""))
    shutil.copytree(run, tmp_path / "runs" / "upper")
    arguments = ("compare", "runs/upper", "--data", trained[0] / "pairs.tsv", "--quiet")
    result = script(*arguments, folder=tmp_path)
    assert result.code == 0
    assert "runs/compare.png is left out: drawing a PNG needs the package matplotlib" in result.error
    assert sorted(os.listdir(tmp_path / "runs")) == ["compare.svg", "upper"]
    assert "pip install 'regard[plot]'" in refused(script(*arguments, "-o", "x.png", folder=tmp_path))


def test_compare_refuses_with_a_sentence(regard: Command, run: Path, tmp_path: Path) -> None:
    cases = {
        (run, "-o", "x.gif"): "unknown picture ending '.gif'; choose from .svg, .png",
        (run, "moods"): "upper and moods do not compare: their tasks are 'translate' and 'classify'",
        ("datse",): "no recipe 'datse'",
        (run, "train.updates=3"): "is a run, which is taken as it is",
        (run, "--data", "no.tsv"): "cannot find no.tsv",
        (run,): "cannot find pairs.tsv",  # its training data; not needed with --data
    }
    for arguments, message in cases.items():
        assert message in refused(regard("compare", *arguments, "--quiet", folder=tmp_path)), arguments
    assert os.listdir(tmp_path) == []
    assert "Usage" in regard("compare").error


# List, version, help


def test_list_prints_every_table(regard: Command) -> None:
    result = regard("list")
    assert result.code == 0
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
        assert word in result.out.decode()
    [*_, table] = json.loads(regard("list", "--json").lines[0])
    assert table in result.out.decode()


def test_list_prints_one_table(regard: Command) -> None:
    result = regard("list", "scores")
    assert result.lines[0] == "scores  (model.attention.score)"
    assert [line.split()[0] for line in result.lines[1:]] == list(SCORES)
    assert {"dot", "scaled_dot", "general", "additive"} <= SCORES.keys()
    assert "did you mean 'scores'?" in refused(regard("list", "score"))


def test_version(script: Command) -> None:
    assert script("--version").lines == [f"regard {__version__}"]


@pytest.mark.parametrize(
    "arguments", [["--help"], ["list"], ["list", "--json"], ["--version"], ["train", "--help"], ["show", "dates"]]
)
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
        """CPU time of the command; other processes change it less than they change the wall-clock time."""
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert script(*arguments).code == 0
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime

    seconds()  # the first run writes the byte code
    assert min(seconds() for _ in range(7)) < 0.3


@pytest.mark.parametrize("arguments", [["trian"], ["predict"], ["predict", "run", "--beam", "0"]])
def test_wrong_usage_is_shown_and_exits_with_2(regard: Command, arguments: list[str]) -> None:
    result = regard(*arguments)
    assert result.code == 2
    assert result.out == b""
    assert "Usage" in result.error
    assert "Traceback" not in result.error
    assert result.error.count("Did you mean") <= 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["trian"], "No such command 'trian'. Did you mean 'train'?"),
        (["train", "dates", "--epochs", "3"], "regard counts updates, not epochs: train.updates=N"),
        (["train", "dates", "--batch-size", "3"], "regard counts tokens, not pairs: train.batch_tokens=N"),
        (["train", "--seed", "3"], "did you mean 'train.seed'? Keys of a recipe are written KEY=VALUE, without --"),
    ],
)
def test_wrong_names_of_commands_and_options_get_one_suggestion(
    regard: Command, arguments: list[str], message: str
) -> None:
    last = regard(*arguments).error.splitlines()[-1]
    assert last.startswith("Error: No such")
    assert last.endswith(message)


# Errors: one sentence, exit 2, nothing written

BAD_TRAINING = {
    "unknown key": (
        ["train.learning_rat=1"],
        "unknown key 'train.learning_rat' .* did you mean 'train.learning_rate'",
    ),
    "key of another section": (["learning_rate=0.1"], "unknown key 'learning_rate' .* mean 'train.learning_rate'\\?$"),
    "unnamed columns": (["data.train=table.csv"], r"table.csv has the columns 'a', 'b'; .* data.columns=SOURCE,TARGET"),
    "missing column": (["data.train=table.csv", "data.columns=a,c"], "table.csv has no column 'c'; there are 'a', 'b'"),
    "open quote": (["data.train=table.csv", "data.columns=a,b"], r"table.csv:3: this record is not valid CSV"),
    "columns of lines": (
        ["data.train=pairs.tsv", "data.columns=a,b"],
        "the first line of pairs.tsv is .*, without 'a', 'b'; name",
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
def bad_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bad")
    contents = {
        "pairs.tsv": pairs(20).encode(),
        "empty.tsv": b"",
        "table.csv": b'a,b\n1,2\n"3,4\n5,6\n',
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


@pytest.mark.parametrize("case", BAD_TRAINING)
def test_bad_input_to_train_is_one_sentence_and_writes_nothing(regard: Command, bad_files: Path, case: str) -> None:
    overrides, pattern = BAD_TRAINING[case]
    before = snapshot(bad_files)
    message = refused(regard("train", "dates", *overrides, "--quiet", folder=bad_files))
    assert re.search(pattern, message), message
    assert snapshot(bad_files) == before
    assert not (bad_files / "runs").exists()


def test_bad_input_is_one_sentence_without_quiet_too(script: Command, bad_files: Path) -> None:
    result = script("train", "dates", "data.train=one.tsv", folder=bad_files)
    assert "one.tsv:3" in refused(result)


def test_an_unknown_recipe_is_one_sentence(regard: Command, bad_files: Path) -> None:
    assert "did you mean 'dates'?" in refused(regard("train", "datse", folder=bad_files))
    assert not (bad_files / "runs").exists()


@pytest.mark.parametrize("command", ["predict", "look", "score"])
def test_a_missing_run_is_one_sentence(regard: Command, run: Path, command: str) -> None:
    text = ["abc"] if command == "look" else []
    assert "did you mean 'upper'?" in refused(regard(command, "uper", *text, folder=run.parent))


def test_bad_input_to_predict_leaves_stdout_empty(regard: Command, run: Path, bad_files: Path) -> None:
    assert "latin.tsv:2:4: not valid UTF-8" in refused(regard("predict", run, "latin.tsv", folder=bad_files))
    message = refused(regard("predict", run, stdin=b"abc\nd\xff\n"))
    assert message.startswith("stdin:2:2: not valid UTF-8")
    # All of the input is read before the first prediction is printed.
    assert "cannot find no.txt" in refused(regard("predict", run, "pairs.tsv", "no.txt", folder=bad_files))
    assert "give files or --text, not both" in refused(
        regard("predict", run, "pairs.tsv", "--text", "a", folder=bad_files)
    )


def test_more_alternatives_than_beams_leave_the_first_answer_as_it_is(regard: Command, run: Path) -> None:
    several, one = (
        json.loads(regard("predict", run, "--text", "abc", "--json", "--beam", 2, "--n-best", count).out)
        for count in (3, 1)
    )
    assert len(several["alternatives"]) == 2
    assert several["text"] == one["text"]


def test_bad_references_are_one_sentence(regard: Command, run: Path, bad_files: Path) -> None:
    assert "one.tsv:3: one field" in refused(regard("score", run, "one.tsv", folder=bad_files))
    assert "unknown metric 'blue'" in refused(regard("score", run, "pairs.tsv", "--metric", "blue", folder=bad_files))


# The other exit codes


def test_a_loss_that_is_not_finite_exits_with_3_and_names_examples(
    regard: Command, bad_files: Path, tmp_path: Path
) -> None:
    settings = (*TINY, "train.learning_rate=1e37", "train.clip=0", "--quiet", "--runs", tmp_path / "runs")
    message = refused(regard("train", "dates", "data.train=pairs.tsv", *settings, folder=bad_files), code=3)
    assert "pairs.tsv:" in message


@pytest.mark.parametrize("place", ["runs", "runs/deeper"])
def test_a_runs_folder_that_cannot_be_written_exits_with_4(
    regard: Command, bad_files: Path, tmp_path: Path, place: str
) -> None:
    (tmp_path / "runs").write_bytes(b"precious")
    result = regard(
        "train", "dates", "data.train=pairs.tsv", *TINY, "--quiet", "--runs", tmp_path / place, folder=bad_files
    )
    assert "cannot be written" in refused(result, code=4)
    assert (tmp_path / "runs").read_bytes() == b"precious"


def test_a_picture_that_cannot_be_written_exits_with_4(regard: Command, run: Path, tmp_path: Path) -> None:
    result = regard("look", run, "abc", "-o", tmp_path / "nowhere" / "x.svg")
    assert "x.svg cannot be written: there is no folder " in refused(result, code=4)


@pytest.mark.parametrize("name", ["model.safetensors", "source.tokens", "recipe.toml", "manifest.json"])
def test_a_damaged_run_exits_with_5_and_names_the_file(regard: Command, run: Path, tmp_path: Path, name: str) -> None:
    damaged = tmp_path / "upper"
    shutil.copytree(run, damaged)
    content = bytearray((damaged / name).read_bytes())
    content[len(content) // 2 if name != "manifest.json" else 0] ^= 1
    (damaged / name).write_bytes(content)
    message = refused(regard("predict", damaged, "--text", "abc"), code=5)
    assert name in message


def test_a_closed_stdout_pipe_prints_no_error(run: Path) -> None:
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
    assert done.returncode == 128 + signal.SIGPIPE
    assert done.stderr == ""


def test_stdin_is_answered_line_by_line_until_stdout_is_closed(run: Path) -> None:
    command = [SCRIPT, "predict", run, "-"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, **pipes, env=os.environ | {"OMP_NUM_THREADS": "1"}) as process:
        for line in (b"abc\n", b"\n", b"bed\n"):  # each is answered before the next is written
            process.stdin.write(line)
            process.stdin.flush()
            answer = process.stdout.readline()
            assert answer == (b"\n" if line == b"\n" else answer.upper())
        process.stdout.close()
        with suppress(BrokenPipeError):
            process.stdin.write(b"abc\n" * 10_000)
            process.stdin.close()
        assert process.wait(60) == 128 + signal.SIGPIPE
        assert process.stderr.read() == b""


def test_people_who_type_are_told_how_and_answered_at_once(
    run: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    keyboard, terminal = os.openpty()
    try:
        with open(terminal, encoding="utf-8") as stdin:
            monkeypatch.setattr(sys, "stdin", stdin)
            os.write(keyboard, b"abc\nbed\n\x04")
            cli.predict(str(run))
            typed = capfdbinary.readouterr()
            os.write(keyboard, b"abc\nbed\n\x04")
            cli.predict(str(run), quiet=True)
    finally:
        os.close(keyboard)
    assert typed.out.count(b"\n") == 2
    assert typed.err == b"type a text on each line; Ctrl-D ends\n"
    assert capfdbinary.readouterr() == (typed.out, b"")


def test_exact_is_refused_without_a_run_to_resume(regard: Command) -> None:
    assert refused(regard("train", "dates", "--exact")).startswith(
        "--exact is for runs that are resumed; write: regard"
    )
