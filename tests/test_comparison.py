"""Comparison of runs: same examples, unique names, no training twice, and refusal if tasks or metrics do not match."""

import errno
import os
import random
import shutil
import string
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

import regard
from regard import Comparison, Run
from regard import recipe as recipes
from regard.analysis import significance
from regard.analysis.comparison import MAX_BINS, MIN_BIN_SIZE, Compared, Difference, System, bins
from regard.errors import DataError, RecipeError, StorageError
from regard.metrics import METRICS, Measured, better
from regard.storage import METRICS as METRICS_FILE

SMALL = (
    *("model.embedding=8", "model.encoder.dim=12", "model.decoder.dim=10", "model.attention.dim=6"),
    *("train.device=cpu", "train.updates=2", "train.validate=1", "train.batch_tokens=200"),
    *("search.max_ratio=1", "search.max_extra=2"),
)
LENGTHS, PER_LENGTH = 6, 25  # test set: words of 1 to LENGTHS letters, PER_LENGTH of each length


def pairs(lengths: Sequence[int], seed: int = 7) -> str:
    generator = random.Random(seed)
    words = ["".join(generator.choices(string.ascii_lowercase[:8], k=length)) for length in lengths]
    return "".join(f"{word}\t{word[::-1]}\n" for word in words)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """Overrides that give a recipe small files: 60 pairs for training, 18 for dev, and 150 for test."""
    folder = tmp_path_factory.mktemp("data")
    lengths = [*range(1, LENGTHS + 1)]
    for name, count in (("train", 10), ("dev", 3), ("test", PER_LENGTH)):
        (folder / f"{name}.tsv").write_text(pairs(lengths * count, seed=count), encoding="utf-8")
    return tuple(f"data.{name}={folder / name}.tsv" for name in ("train", "dev", "test"))


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def compared(runs: Path, data: tuple[str, ...]) -> Comparison:
    entrants = ("reverse", "reverse", "model.decoder.order=none", "reverse", "name=mine", "train.seed=2")
    return regard.compare(*SMALL, *data, *entrants, runs=runs, quiet=True)


# bins


@pytest.mark.parametrize("count", [1, 19, 20, 39, 40, 57, 400, 1234])
@pytest.mark.parametrize("longest", [1, 3, 30, 5000])
def test_bins_are_full_and_ordered_and_never_split_equal_lengths(count: int, longest: int) -> None:
    generator = random.Random(count * longest)
    lengths = [int(longest * generator.random() ** 2) for _ in range(count)]
    bin_numbers = bins(lengths)
    assert len(bin_numbers) == count
    sizes = Counter(bin_numbers)
    assert sorted(sizes) == list(range(len(sizes)))
    assert len(sizes) <= MAX_BINS
    assert count < MIN_BIN_SIZE or min(sizes.values()) >= MIN_BIN_SIZE
    by_length = sorted(zip(lengths, bin_numbers, strict=True))
    assert [number for _, number in by_length] == sorted(bin_numbers)
    assert len({length for length, _ in by_length}) == len(set(by_length))
    if longest == 5000 and count >= 400:  # hardly any lengths are equal, so bins can be about equally full
        assert len(sizes) >= MAX_BINS - 1
        assert max(sizes.values()) <= 1.2 * count / MAX_BINS + MIN_BIN_SIZE


def test_no_lengths_have_no_bins() -> None:
    assert bins([]) == []


# the results


def test_the_table_has_a_line_for_each_system(compared: Comparison, runs: Path) -> None:
    assert [entry.name for entry in compared.entries] == ["reverse", "reverse order=none", "mine"]
    assert [entry.run.path for entry in compared.entries] == [runs / "reverse", runs / "reverse-2", runs / "mine"]
    first, without, other = compared.entries
    assert first.parameters == other.parameters > without.parameters > 0
    assert all(entry.tokens_per_second > 0 < entry.train_seconds for entry in compared.entries)
    head, *lines = compared.table().split("\n")
    assert head.split() == ["name", "seeds", "exact_match", "deviation", "parameters", "tokens/s", "seconds"]
    assert len({len(line) for line in (head, *lines[:2])}) == 1
    for line, system, runs_of in zip(lines[:2], compared.systems, ((first, other), (without,)), strict=True):
        assert line.startswith(system.name)
        assert system.runs == runs_of
        assert f"{len(runs_of)}  " in line
        assert f"{system.mean:.4f}" in line
        assert f"{runs_of[0].parameters:,}" in line
    tests, notes = lines[3:6], [line for line in lines[6:] if not line.startswith("all scores are equal")]
    assert tests[0].split() == ["against", "reverse", "difference", "p"]
    assert tests[1].startswith("reverse order=none  ")
    assert tests[2] == "p: approximate randomisation, 10,000 trials"
    blank, where, signature, *rest = notes
    assert where.startswith("on 150 test pairs of ")
    assert where.endswith("test.tsv")
    folder = f"the run of reverse order=none: {runs / 'reverse-2'}"  # the others are named as their folders
    assert [blank, signature, *rest] == ["", "exact_match|n:150|case:mixed|space:kept", folder, ""]


def test_a_table_without_several_seeds_has_no_column_for_them(compared: Comparison) -> None:
    alone = regard.compare(compared.entries[1].run, quiet=True).table().split("\n")
    assert alone[0].split() == ["name", "exact_match", "parameters", "tokens/s", "seconds"]
    assert (alone[2], alone[3][:17]) == ("", "on 150 test pairs")


@pytest.mark.parametrize("width", [40, 60, 120])
def test_a_narrow_table_breaks_between_words(compared: Comparison, width: int) -> None:
    *lines, where, signature, folder, _ = compared.table(width).split("\n")
    assert max(map(len, lines)) <= width
    words = " ".join(lines).replace(",", " ").split()
    for word in ("reverse", "order=none", "seeds", "exact_match", "deviation", "parameters", "difference", "p"):
        assert word in words
    assert (where, signature, folder) == tuple(compared.table().split("\n")[-4:-1])


# seeds and differences


def test_runs_that_differ_in_seed_and_name_alone_are_joined(compared: Comparison) -> None:
    first, without, other = compared.entries
    joined, alone = compared.systems
    values = first.measured.value, other.measured.value
    assert joined.mean == pytest.approx(sum(values) / 2)
    assert joined.deviation == pytest.approx(abs(values[0] - values[1]) / 2**0.5)
    assert (alone.mean, alone.deviation) == (without.measured.value, None)
    for mean, one, two in zip(joined.curve().points, first.curve.points, other.curve.points, strict=True):
        assert (mean.length, mean.examples) == (one.length, one.examples)
        assert mean.value == pytest.approx((one.value + two.value) / 2)
        assert mean.deviation == pytest.approx(abs(one.value - two.value) / 2**0.5)


def test_equal_seeds_are_not_joined(compared: Comparison, runs: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(runs / "reverse", tmp_path / "copy")
    result = regard.compare(runs / "reverse", copy, runs / "mine", metric="character_errors", quiet=True)
    assert [[run.name for run in system.runs] for system in result.systems] == [["reverse", "mine"], ["copy"]]
    (difference,) = result.differences
    assert difference.seeds == 1
    first, twin = result.entries[:2]
    assert first.outcomes == twin.outcomes
    assert significance.p_value("character_errors", first.outcomes, twin.outcomes) == difference.p == 1.0


def test_the_difference_is_tested_on_the_outputs_of_all_seeds(
    compared: Comparison, runs: Path, data: tuple[str, ...]
) -> None:
    entrants = ("reverse", "reverse", "train.seed=2", "name=mine")
    others = ("reverse", "model.decoder.order=none", "reverse", "model.decoder.order=none", "train.seed=2")
    result = regard.compare(*SMALL, *data, *entrants, *others, metric="character_errors", runs=runs, quiet=True)
    one, other = result.systems
    assert [system.name for system in result.systems] == ["reverse", "reverse order=none"]
    assert [[run.run.recipe().train.seed for run in system.runs] for system in result.systems] == [[1, 2], [1, 2]]
    (difference,) = result.differences
    assert difference.value == pytest.approx(other.mean - one.mean)
    outputs = [[outcome for run in system.runs for outcome in run.outcomes] for system in result.systems]
    assert len(outputs[0]) == 300
    assert difference == (difference.value, significance.p_value("character_errors", *outputs), 2, 10_000)
    assert "trials, with the outputs of up to 2 seeds of either" in result.table()


def test_a_name_with_control_characters_has_one_row_of_the_table(compared: Comparison) -> None:
    first, *others = compared.entries
    renamed = replace(first, name="a\nb\x1b", measured=first.measured._replace(signature="other"))
    systems = (System("a\nb\x1b", (renamed,)), *(System(entry.name, (entry,)) for entry in others))
    tested = (Difference(0.0, 1.0, 1, 100),) * len(others)
    changed = replace(compared, entries=(renamed, *others), systems=systems, differences=tested)
    table = replace(changed, examples="texts of a\n.tsv").table()
    rows = table.split("\n")[: 1 + len(systems)]
    assert {len(row) for row in rows} == {len(rows[0])}
    assert rows[1].startswith("a␊b␛ ")
    assert table.count("a␊b␛") == 4  # in the table, as what the others are tested against, with signature and folder
    assert "on texts of a␊.tsv\n" in table


def test_curves_are_what_scoring_the_bins_gives(compared: Comparison) -> None:
    entry = compared.entries[0]
    points = entry.curve.points
    assert [point.length for point in points] == list(range(1, LENGTHS + 1))
    assert [point.examples for point in points] == [PER_LENGTH] * LENGTHS
    predictor = regard.load(entry.run)
    test = predictor.task.examples(entry.run.recipe()).test
    for point in points:
        in_bin = [example for example in test if len(example.source) == point.length]
        assert predictor.score(in_bin).measured.value == pytest.approx(point.value)


def test_a_corpus_metric_is_computed_on_the_outputs_of_each_bin(compared: Comparison) -> None:
    run = compared.entries[0].run
    (entry,) = regard.compare(run, metric="chrf", quiet=True).entries
    predictor = regard.load(run)
    test = predictor.task.examples(run.recipe()).test
    long = [example for example in test if len(example.source) == LENGTHS]
    assert entry.curve.points[-1].value == pytest.approx(predictor.score(long, metric="chrf").measured.value)
    assert entry.measured.value == pytest.approx(predictor.score(test, metric="chrf").measured.value)


def test_a_picture_names_the_runs_and_the_axes(compared: Comparison) -> None:
    drawn = compared.draw(".svg").decode()
    for words in (
        "reverse order=none",
        "source length in character tokens, median of",
        "exact_match (higher is better)",
    ):
        assert words in drawn
    assert "mine" not in drawn  # it is another seed of the first
    assert drawn == compared._repr_svg_()
    assert repr(compared) + "\n" == compared.table()


def test_the_results_as_json(compared: Comparison, runs: Path) -> None:
    first, *_ = results = list(compared.to_dicts())
    assert len(results) == 3
    assert first["run"] == str(runs / "reverse")
    assert first["exact_match"] == compared.entries[0].measured.value
    assert first["curve"][0].keys() == {"length", "value", "examples"}
    system = first["system"]
    assert system == results[2]["system"]
    assert (system["name"], system["seeds"], system["difference"], system["p"]) == ("reverse", 2, None, None)
    assert system["mean"] == pytest.approx((first["exact_match"] + results[2]["exact_match"]) / 2)
    assert results[1]["system"]["p"] == compared.differences[0].p


def test_pictures_go_beside_the_runs_and_overwrite_no_file(compared: Comparison, runs: Path) -> None:
    assert compared.pictures() == [runs / "compare.svg", runs / "compare.png"]
    (runs / "compare.png").touch()
    (runs / "compare-2.svg").touch()
    assert compared.pictures() == [runs / "compare-3.svg", runs / "compare-3.png"]


# trained once


def test_a_recipe_that_was_trained_before_is_not_trained_again(
    compared: Comparison, runs: Path, data: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(runs.glob("*/manifest.json"))
    again = regard.compare(*SMALL, *data, "reverse", "reverse", "model.decoder.order=none", runs=runs)
    messages = capsys.readouterr().err
    assert f"reverse: trained before, on the same data; {runs / 'reverse'} is taken as it is" in messages
    assert f"reverse order=none: trained before, on the same data; {runs / 'reverse-2'} is taken" in messages
    assert sorted(runs.glob("*/manifest.json")) == before
    assert again.entries == compared.entries[:2]


def test_a_run_gives_the_same_results_as_its_recipe(compared: Comparison) -> None:
    entry = compared.entries[1]
    for way in (entry.run, entry.run.path, str(entry.run.path)):
        (again,) = regard.compare(way, quiet=True).entries
        assert again.name == "reverse-2"
        assert (again.measured, again.curve.points) == (entry.measured, entry.curve.points)


def test_the_latest_run_has_the_name_of_its_folder_and_is_not_counted_twice(compared: Comparison, runs: Path) -> None:
    name = (runs / "latest").readlink().name
    (entry,) = regard.compare(runs / "latest", quiet=True).entries
    assert (entry.name, entry.run.path) == (name, runs / name)
    with pytest.raises(RecipeError, match=f"{name} is given twice"):
        regard.compare(runs / "latest", runs / name, quiet=True)


def test_other_data_or_another_recipe_is_trained_anew(tmp_path: Path) -> None:
    file = tmp_path / "pairs.tsv"
    file.write_text(pairs([3, 5] * 20), encoding="utf-8")
    arguments = (*SMALL, f"data.train={file}", "name=upper", "reverse")

    def trained(*changes: str) -> str:
        return regard.compare(*arguments, *changes, runs=tmp_path, quiet=True).entries[0].run.path.name

    assert [trained(), trained(), trained("train.seed=3"), trained("train.seed=3")] == [
        *("upper", "upper", "upper-2", "upper-2")
    ]
    regard.resume(tmp_path / "upper-2", "train.updates=3", quiet=True)
    assert trained("train.seed=3", "train.updates=3") == "upper-3"  # a prolonged run had another schedule
    file.write_text(pairs([3, 5] * 20, seed=8), encoding="utf-8")
    assert trained() == "upper-4"


def test_a_run_that_cannot_be_read_now_is_not_trained_anew(
    compared: Comparison, runs: Path, data: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    before, real = sorted(runs.iterdir()), os.open

    def refuse(path: Path, *arguments: int, **named: int) -> int:
        if Path(path) == runs / "reverse" / "recipe.toml":
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), str(path))
        return real(path, *arguments, **named)

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(StorageError, match=r"recipe\.toml cannot be read: Too many open files"):
        regard.compare(*SMALL, *data, "reverse", runs=runs, quiet=True)
    assert sorted(runs.iterdir()) == before


def test_a_run_that_was_stopped_is_resumed(compared: Comparison, runs: Path, tmp_path: Path) -> None:
    recipe = compared.entries[0].run.recipe()
    examples = regard.load(compared.entries[0].run).task.examples(recipe)
    task = regard.load(compared.entries[0].run).task
    files = {"recipe.toml": recipes.to_toml(recipe).encode(), "data.json": examples.digest()} | task.files()
    begun = Run.create(tmp_path, "reverse", files)
    with pytest.raises(DataError, match=r"is not finished; go on with: regard train --resume"):
        regard.compare(begun)
    (entry,) = regard.compare(recipe, runs=tmp_path, quiet=True).entries
    assert entry.run == begun
    assert begun.has_file(METRICS_FILE)
    assert entry.measured == compared.entries[0].measured


# the examples


def test_one_data_file_for_all_runs(compared: Comparison, tmp_path: Path) -> None:
    file = tmp_path / "judge.tsv"
    file.write_text(pairs([3, 5, 7] * 15), encoding="utf-8")
    result = regard.compare(*[entry.run for entry in compared.entries], data=[str(file)], quiet=True)
    assert result.examples == f"45 pairs of {file}"
    assert "|n:45|" in result.table()
    assert all(sum(point.examples for point in entry.curve.points) == 45 for entry in result.entries)


def test_runs_on_pairs_given_in_python_are_compared_on_files(
    compared: Comparison, data: tuple[str, ...], tmp_path: Path
) -> None:
    """Their pairs are not stored; the test or dev set is read if it is a file, otherwise --data must name one."""
    given = [tuple(line.split("\t")) for line in pairs([2, 3, 4] * 10).splitlines()]

    def train(name: str, *overrides: str, dev: object = None) -> Run:
        settings = (*SMALL, f"name={name}", *overrides)
        return regard.train("reverse", *settings, pairs=given, dev=dev, runs=tmp_path, quiet=True)

    _, dev_file, test_file = data
    tested, validated, split, both = (
        train("tested", test_file, dev_file),
        train("validated", dev_file),
        train("split"),
        train("both", dev=given[:5]),
    )
    result = regard.compare(compared.entries[0].run, tested, quiet=True)
    assert result.examples == compared.examples
    assert regard.compare(validated, quiet=True).examples == f"18 dev pairs of {dev_file.removeprefix('data.dev=')}"
    for run in (split, both):
        message = (
            f"^{run.path.name} was trained on examples given in Python, which a run does not store; "
            r"give those to compare on: --data FILE\.tsv$"
        )
        for others in ([run], [tested, run]):
            with pytest.raises(DataError, match=message):
                regard.compare(*others, quiet=True)
        judged = regard.compare(run, tested, data=[test_file.removeprefix("data.test=")], quiet=True)
        assert len(judged.entries) == 2


def test_the_dev_set_is_used_if_there_is_no_test_set(tmp_path: Path) -> None:
    for name in ("train", "dev"):
        (tmp_path / f"{name}.tsv").write_text(pairs([3, 5] * 25), encoding="utf-8")
    overrides = (*SMALL, f"data.train={tmp_path / 'train.tsv'}", f"data.dev={tmp_path / 'dev.tsv'}")
    result = regard.compare(*overrides, "reverse", "reverse", "train.seed=2", runs=tmp_path, quiet=True)
    assert result.examples == f"50 dev pairs of {tmp_path / 'dev.tsv'}"
    assert [entry.name for entry in result.entries] == ["reverse", "reverse seed=2"]


def test_a_single_line_has_no_curve_if_texts_are_cut_into_windows(tmp_path: Path) -> None:
    """There are then as many windows as lines."""
    (tmp_path / "line.txt").write_text("a\n", encoding="utf-8")
    run = Path(__file__).parent / "golden" / "runs" / "language_model_window" / "finished"
    compared = regard.compare(run, data=[str(tmp_path / "line.txt")], quiet=True)
    assert compared.entries[0].curve.points == ()
    assert not compared.has_lengths()


def test_a_language_model_has_a_curve_with_lines_and_none_with_windows(tmp_path: Path) -> None:
    small = ("train.device=cpu", "train.updates=2", "train.validate=2", "train.batch_tokens=300", "data.size=80")
    sizes = ("model.decoder.dim=8", "model.embedding=8", "model.decoder.layers=1")
    lines = regard.compare(*small, *sizes, "sentences", runs=tmp_path, quiet=True)
    assert lines.has_lengths()
    assert lines.metric in lines.table()
    windows = regard.compare(*small, *sizes, "language_model.window=30", "sentences", runs=tmp_path, quiet=True)
    assert windows.entries[0].curve.points == ()
    assert windows.pictures() == []
    assert windows._repr_svg_() is None
    with pytest.raises(DataError, match="there is nothing to draw"):
        windows.draw(".svg")


@pytest.mark.parametrize("recipe", ["moods", "parts", "clues", "facts"])
def test_every_task_has_its_curve(recipe: str, tmp_path: Path) -> None:
    small = ("train.device=cpu", "train.updates=1", "train.validate=1", "train.batch_tokens=200", "data.size=60")
    result = regard.compare(*small, recipe, recipe, "train.seed=2", runs=tmp_path, quiet=True)
    for entry in result.entries:
        assert entry.measured.signature.startswith(result.metric)
        assert all(point.examples >= MIN_BIN_SIZE for point in entry.curve.points)
        assert [point.length for point in entry.curve.points] == sorted({point.length for point in entry.curve.points})
    assert result.draw(".svg")


# refused


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train.updates=3"], "nothing to compare: give recipes or runs"),
        (["reverse", "revrese"], "no recipe 'revrese'.* did you mean 'reverse'"),
        (["runs/nowhere"], "the run runs/nowhere is not there"),
        (["reverse", "reverse"], "reverse is given twice; change a key of one"),
        (["reverse", "train.seed=7", "reverse", "train.seed=7"], "reverse train.seed=7 is given twice"),
        (["reverse", "moods"], "reverse and moods do not compare: their tasks are 'translate' and 'classify'"),
        (
            ["reverse", "reverse", "metric=bleu", "name=b"],
            "reverse is scored by 'exact_match', b by 'bleu'; choose one for all with --metric",
        ),
        (["reverse", "copy"], "reverse and copy have different test sets; give one for all with --data FILE"),
        (["reverse", "model.decoder.order=nun"], "unknown order 'nun'; choose from bahdanau"),
        (["reverse", "train.shedule=linear"], "unknown key 'train.shedule'"),
        (
            ["metric=perplexity", "sentences", "sentences", "tokens.source=character"],
            "perplexity is counted by token, and sentences and sentences source=character cut texts differently",
        ),
    ],
)
def test_arguments_that_do_not_match_are_refused_and_nothing_is_written(
    arguments: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises((RecipeError, DataError), match=message):
        regard.compare("data.size=20", *arguments, quiet=True)
    assert list(tmp_path.iterdir()) == []


def test_overrides_of_a_run_are_refused(compared: Comparison) -> None:
    run = compared.entries[0].run
    with pytest.raises(RecipeError, match=r"is a run, which is taken as it is; train.updates=3 can only change a"):
        regard.compare(run, "train.updates=3")
    with pytest.raises(RecipeError, match=r"runs are taken as they are; train.updates=3 can only change a recipe"):
        regard.compare("train.updates=3", run)
    with pytest.raises(RecipeError, match="the metric 'f1' does not fit this task"):
        regard.compare(run, metric="f1")


def test_seeds_of_own_data_share_the_dev_part_that_is_split_off(tmp_path: Path, data: tuple[str, ...]) -> None:
    own = (*SMALL, data[0])
    result = regard.compare(*own, "reverse", "reverse", "train.seed=2", runs=tmp_path, quiet=True)
    assert [len(system.runs) for system in result.systems] == [2]
    assert " dev pairs of " in result.examples
    with pytest.raises(DataError, match="different dev sets"):
        regard.compare(*own, "reverse", "reverse", "data.split_seed=2", runs=tmp_path, quiet=True)


def test_labels_unknown_to_a_classifier_are_named(tmp_path: Path) -> None:
    file = tmp_path / "odd.tsv"
    file.write_text("what a day\tgreen\n", encoding="utf-8")
    small = ("train.device=cpu", "train.updates=1", "data.size=40", "model.encoder.dim=8", "model.embedding=8")
    with pytest.raises(DataError, match=r"odd.tsv:1: no training example has the label 'green'"):
        regard.compare(*small, "moods", data=[str(file)], runs=tmp_path, quiet=True)


# names


def test_names_are_brief_if_that_is_unique(tmp_path: Path, data: tuple[str, ...]) -> None:
    entrants = ("reverse", "model.encoder.dim=12", "reverse", "model.decoder.dim=12", "reverse", "train.clip=2.5")
    small = [text for text in SMALL if "dim" not in text]
    result = regard.compare(*small, *data, *entrants, runs=tmp_path, quiet=True)
    names = [entry.name for entry in result.entries]
    assert names == ["reverse model.encoder.dim=12", "reverse model.decoder.dim=12", "reverse clip=2.5"]


def test_a_difference_within_the_spread_of_the_seeds_is_called_one(compared: Comparison) -> None:
    joined, alone = compared.systems
    low, high = (
        replace(run, measured=replace_value(run, value)) for run, value in zip(joined.runs, (0.4, 0.6), strict=True)
    )
    one = alone.runs[0]

    def table(value: float, *runs: Compared) -> str:
        systems = System("first", runs), System("second", (replace(one, measured=replace_value(one, value)),))
        difference = Difference(value - systems[0].mean, 0.01, 1, 10_000)
        return replace(compared, systems=systems, differences=(difference,)).table()

    note = "difference no larger than the standard deviation between seeds, which p does not test: second\n"
    assert note in table(0.55, low, high)  # the deviation is 0.14
    assert note not in table(0.7, low, high)
    assert note not in table(0.41, low)


def test_equal_scores_are_called_so_with_a_metric_that_may_differ(compared: Comparison) -> None:
    def table(*values: float) -> str:
        runs = zip(compared.entries, values, strict=True)
        return replace(
            compared, entries=tuple(replace(run, measured=replace_value(run, value)) for run, value in runs)
        ).table()

    note = "all scores are equal; --metric character_errors may tell the systems apart\n"
    assert note in table(0.0, 0.0, 0.0)
    assert note not in table(0.0, 0.1, 0.0)
    equal = replace(compared, metric="character_errors", entries=(compared.entries[0],) * 2)
    assert "all scores are equal" not in equal.table()


def replace_value(run: Compared, value: float) -> Measured:
    return run.measured._replace(value=value)


@pytest.mark.parametrize("metric", METRICS)
def test_every_metric_has_a_direction(metric: str) -> None:
    expected = ("higher is better", "lower is better")
    assert better(metric) in expected or metric.startswith("coverage_")  # of which neither more nor less is better
