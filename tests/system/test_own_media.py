"""From a folder of one's own pictures or recordings to a first look: the commands of the docs, run as they stand."""

import json
import os
import re
import shlex
import wave
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from commands import Result
from regard.data.corpora.shapes import render, shapes

Image = pytest.importorskip("PIL.Image")

Command = Callable[..., Result]
DOCS = Path(__file__).parents[2] / "docs"
COUNT = 200
FREQUENCIES = {"one": 300, "two": 500, "red": 800, "blue": 1200}  # hertz of the words of the recordings


def commands_of(page: str, heading: str) -> list[list[str]]:
    """The arguments of the first block of commands under a heading of a page of the docs."""
    section = (DOCS / page).read_text(encoding="utf-8").split(f"\n## {heading}\n")[1]
    block = re.search(r"```sh\n(.*?)```", section, re.DOTALL)
    assert block is not None
    return [shlex.split(line)[1:] for line in block[1].splitlines()]


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory, regard: Command) -> tuple[Path, list[Result]]:
    """200 pictures with captions, and the results of the three commands."""
    folder = tmp_path_factory.mktemp("pictures")
    (folder / "photos").mkdir()
    lines = []
    for number, example in enumerate(shapes(1, COUNT).train):
        Image.fromarray(render(example.source)).save(folder / "photos" / f"{number}.png")
        lines.append(f"{number}.png\t{example.target}\n")
    (folder / "photos" / "captions.tsv").write_text("".join(lines), encoding="utf-8")
    commands = commands_of("pictures.md", "Your own pictures, in three commands")
    return folder, [regard(*arguments, folder=folder) for arguments in commands]


def test_three_commands_lead_from_pictures_to_a_first_look(photos: tuple[Path, list[Result]]) -> None:
    folder, (trained, predicted, looked) = photos
    assert trained.code == 0, trained.error
    assert (predicted.code, len(predicted.lines)) == (0, COUNT), predicted.error
    assert f"photos: {COUNT} pictures, sorted by name; 1 other entry skipped" in predicted.error
    assert looked.code == 0, looked.error
    assert looked.lines
    assert (folder / "map.html").stat().st_size > 1000


def test_names_of_pictures_come_from_arguments_folders_lists_and_stdin(
    photos: tuple[Path, list[Result]], regard: Command
) -> None:
    folder, (_, predicted, _) = photos
    names = sorted(os.listdir(folder / "photos"))
    few = [f"photos/{name}" for name in names[:3]]
    for arguments in (few, ["--text", few[0], "--text", few[1], "--text", few[2]]):
        assert regard("predict", "runs/mine", *arguments, folder=folder).lines == predicted.lines[:3]
    (folder / "photos" / "names.txt").write_text("\n".join(names[:3]), encoding="utf-8")
    listed = regard("predict", "runs/mine", "--list", "photos/names.txt", folder=folder)
    assert listed.lines == predicted.lines[:3], listed.error
    streamed = regard("predict", "runs/mine", folder=folder, stdin="\n".join(few).encode())
    assert streamed.lines == predicted.lines[:3], streamed.error
    both = regard("predict", "runs/mine", "--json", few[1], "photos", folder=folder)
    sources = [json.loads(line)["source"] for line in both.lines]
    assert sources == [few[1], *(f"photos/{name}" for name in names if name.endswith(".png"))]


def test_of_a_folder_only_files_of_the_right_kind_are_read(photos: tuple[Path, list[Result]], regard: Command) -> None:
    folder, _ = photos
    mixed = folder / "mixed"
    (mixed / "inside").mkdir(parents=True)
    content = (folder / "photos" / "3.png").read_bytes()
    for name in ("b.txt", "a.png", "inside/c.png"):  # the first bytes decide, not the name
        (mixed / name).write_bytes(content)
    (mixed / "text.png").write_text("no picture\n")
    (mixed / "sound.wav").write_bytes(b"RIFF\0\0\0\0WAVEfmt ")
    os.mkfifo(mixed / "pipe.png")
    (mixed / "broken.png").symlink_to("nowhere.png")
    result = regard("predict", "runs/mine", "mixed", "--json", folder=folder)
    assert [json.loads(line)["source"] for line in result.lines] == ["mixed/a.png", "mixed/b.txt"], result.error
    assert "mixed: 2 pictures, sorted by name; 5 other entries skipped" in result.error
    assert regard("predict", "runs/mine", "mixed", "--quiet", folder=folder).error == ""
    (folder / "nothing").mkdir()
    empty = regard("predict", "runs/mine", "nothing", folder=folder)
    empty.assert_behaved({2})
    assert "nothing has no picture in it, but nothing at all" in empty.error
    looked = regard("look", "runs/mine", "mixed", folder=folder)
    looked.assert_behaved({2})
    assert "mixed is a folder; name a file in it" in looked.error


def test_a_picture_that_cannot_be_read_does_not_keep_others_from_their_answers(
    photos: tuple[Path, list[Result]], regard: Command
) -> None:
    folder, (_, predicted, _) = photos
    some = folder / "some"
    some.mkdir()
    contents = {name: (folder / "photos" / name).read_bytes() for name in ("0.png", "1.png", "10.png")}
    for name, content in contents.items():
        (some / name).write_bytes(content)
    (some / "1.png").write_bytes(contents["1.png"][:100])
    answers = [predicted.lines[0], "", predicted.lines[2]]
    damaged = "some/1.png is not a whole PNG picture"
    for arguments in (["some"], [f"some/{name}" for name in contents]):
        result = regard("predict", "runs/mine", *arguments, folder=folder)
        result.assert_behaved({2})
        assert result.lines == answers
        assert f"regard: {damaged}" in result.error
        last = "regard: 1 of 3 pictures cannot be read; each has an empty line in the output"
        assert result.error.splitlines()[-1] == last
    sampled = [
        regard("predict", "runs/mine", name, "--search", "temperature=1.0", folder=folder).lines
        for name in ("some", "photos")
    ]
    assert [sampled[0][0], sampled[0][2]] == [sampled[1][0], sampled[1][2]]  # of the same seeds
    as_json = regard("predict", "runs/mine", "some", "--json", "--quiet", folder=folder)
    objects = [json.loads(line) for line in as_json.lines]
    assert [entry["source"] for entry in objects] == [f"some/{name}" for name in contents]
    assert [entry["text"] for entry in objects] == answers
    assert [entry.get("error", "").startswith(damaged) for entry in objects] == [False, True, False]
    assert as_json.error.splitlines()[-1] == (
        "regard: 1 of 3 pictures cannot be read; each has an empty text and the key error in the output"
    )
    streamed = regard("predict", "runs/mine", folder=folder, stdin=b"gone.png\nsome/0.png\n")
    assert (streamed.code, streamed.lines) == (2, ["", answers[0]])
    assert "regard: cannot find gone.png; looked for " in streamed.error
    none = regard("predict", "runs/mine", "some/1.png", "gone.png", folder=folder)
    assert (none.code, none.out, none.error.count("\n")) == (2, b"", 1)


def test_a_list_of_pictures_is_not_a_picture(photos: tuple[Path, list[Result]], regard: Command) -> None:
    """The sentence names the command that reads such a file."""
    folder, _ = photos
    (folder / "photos" / "list.txt").write_text("0.png\n1.png\n", encoding="utf-8")
    (folder / "table.csv").write_text("picture,caption\nphotos/0.png,a\n", encoding="utf-8")
    (folder / "prose.txt").write_text("not a list\n", encoding="utf-8")
    score, cut = "regard score runs/mine photos/captions.tsv", "cut -f1 photos/captions.tsv"
    captions = f"photos/captions.tsv has pictures and texts; to score the run on them, write: {score}; --list takes "
    listed = "photos/list.txt is a list of pictures; write: regard predict runs/mine --list photos/list.txt"
    table = "table.csv is no picture, but a table; if it has pictures and texts, write:"
    expected = {
        ("predict", "photos/captions.tsv"): f"{captions}names alone, such as those of: {cut}",
        ("predict", "photos/0.png", "photos/captions.tsv"): f"{captions}names alone, such as those of: {cut}",
        ("predict", "--list", "photos/captions.tsv"): f"{captions}names alone, such as those of: {cut}",
        ("look", "photos/captions.tsv"): f"{captions}names alone, such as those of: {cut}",
        ("predict", "photos/list.txt"): listed,
        ("look", "photos/list.txt"): listed,
        ("predict", "table.csv"): f"{table} regard score runs/mine table.csv --columns SOURCE,TARGET",
        ("predict", "prose.txt"): "prose.txt is not a picture: it is a text; give a file in JPEG, ",
    }
    for (command, *arguments), sentence in expected.items():
        result = regard(command, "runs/mine", *arguments, folder=folder)
        result.assert_behaved({2})
        assert result.error.startswith(f"regard: {sentence}"), result.error
        assert (result.error.count("\n"), result.out) == (1, b"")
    assert regard(*shlex.split(score)[1:], folder=folder).code == 0


def test_score_names_the_file_whose_sources_are_no_pictures(photos: tuple[Path, list[Result]], regard: Command) -> None:
    folder, _ = photos
    (folder / "texts.tsv").write_text("14 juillet 1989\t1989-07-14\n", encoding="utf-8")
    result = regard("score", "runs/mine", "texts.tsv", folder=folder)
    result.assert_behaved({2})
    assert result.error.startswith("regard: texts.tsv: there is no picture '14 juillet 1989'; pictures are read here")
    assert result.error.endswith("; its sources name pictures, one per line\n")
    picture = regard("score", "runs/mine", "photos/0.png", folder=folder)
    picture.assert_behaved({2})
    assert picture.error == "regard: photos/0.png is a PNG picture, and no text; give a file of texts\n"


def test_texts_in_place_of_pictures_and_pictures_in_place_of_texts_are_refused(
    photos: tuple[Path, list[Result]], tmp_path: Path, regard: Command
) -> None:
    folder, _ = photos
    reads = "pictures are read here, not texts: give the name of a file"
    expected = {
        ("look", "runs/mine", "a red circle"): f"there is no picture 'a red circle'; {reads}",
        ("look", "runs/mine", "circle", "--target", "a"): f"there is no picture 'circle'; {reads}",
        ("predict", "runs/mine", "--text", "Mr. Circle"): f"there is no picture 'Mr. Circle'; {reads}",
        ("predict", "runs/mine", "a red circle.png"): "cannot find a red circle.png; looked for ",
        ("predict", "runs/mine", "photos/none"): "cannot find photos/none; looked for ",
    }
    small = ("train.updates=1", "train.validate_examples=0", "train.device=cpu")
    sizes = ("model.encoder.dim=4", "model.decoder.dim=4", "model.embedding=4", "data.size=30", "--runs", tmp_path)
    for recipe, noun, example in (
        ("shapes", "picture", "shapes:red-circle-8-8-6,blue-square-40-8-7"),
        ("tones", "recording", "tones:7:C4-E4-G4"),
    ):
        trained = regard("train", recipe, *small, *sizes, folder=folder)
        assert trained.code == 0, trained.error
        how = f"give the name of a file, or a description of the corpus {recipe}, such as {example}"
        sentence = f"there is no {noun} 'a red circle'; {noun}s are read here, not texts: {how}\n"
        expected["look", tmp_path / recipe, "a red circle"] = sentence
        assert regard("predict", tmp_path / recipe, "--text", example, folder=folder).code == 0
    assert regard("train", "dates", *small, *sizes, folder=folder).code == 0
    run = tmp_path / "dates"
    picture = f"is the name of a picture, but {run} reads texts; give"
    more = "or a run that reads pictures, such as that of: regard train shapes\n"
    expected |= {
        ("look", run, "photos/0.png"): f"'photos/0.png' {picture} a text, {more}",
        ("look", run, "gone.png"): f"'gone.png' {picture} a text, {more}",
        ("look", run, "gone.JPEG", "--target", "a"): f"'gone.JPEG' {picture} a text, {more}",
        ("predict", run, "photos/0.png"): f"'photos/0.png' {picture} a file of texts, or --text TEXT, {more}",
        ("predict", run, "gone.wav"): f"'gone.wav' is the name of a recording, but {run} reads texts; give a file",
    }
    for arguments, sentence in expected.items():
        result = regard(*arguments, folder=folder)
        result.assert_behaved({2})
        assert result.error.startswith(f"regard: {sentence}"), result.error
        assert (result.error.count("\n"), result.out) == (1, b"")
    for arguments in (("look", run, "5. May"), ("look", run, "1.1.2001"), ("look", run, "see a.png")):
        assert regard(*arguments, folder=folder).code == 0
    assert regard("predict", run, "--text", "gone.png", folder=folder).code == 0


def test_hostile_pictures_get_one_sentence_that_names_the_file(
    photos: tuple[Path, list[Result]], regard: Command
) -> None:
    folder, _ = photos
    whole = (folder / "photos" / "0.png").read_bytes()
    hostile = {
        "text.jpg": b"no picture\n",
        "empty.jpg": b"",
        "cut.png": whole[:100],
        "bomb.png": whole[:16] + b"\0\0\xff\xff\0\0\xff\xff" + whole[24:],
    }
    (folder / "hostile").mkdir()
    for name, content in hostile.items():
        (folder / "hostile" / name).write_bytes(content)
    before = sorted(folder.rglob("*"))
    for name in (*hostile, "missing.png"):
        for command in ("predict", "look"):
            result = regard(command, "runs/mine", f"hostile/{name}", folder=folder)
            result.assert_behaved({2})
            assert f"hostile/{name}" in result.error
            assert (result.error.count("\n"), result.out) == (1, b"")
    (folder / "bad.tsv").write_text("photos/0.png\ta\nphotos/1.png\ta\nhostile/cut.png\ta\n", encoding="utf-8")
    for arguments in (("score", "runs/mine", "bad.tsv"), ("train", "shapes", "data.train=bad.tsv", "name=bad")):
        result = regard(*arguments, folder=folder)
        result.assert_behaved({2})
        assert "hostile/cut.png is not a whole PNG picture" in result.error
    assert sorted(folder.rglob("*")) == sorted([*before, folder / "bad.tsv"])


# recordings


def spoken(words: list[str], rate: int = 8000) -> np.ndarray:
    """A recording in which each word is a tone of 0.15 seconds, between silences of 0.1 seconds."""
    times = np.arange(int(0.15 * rate)) / rate
    silence = np.zeros(rate // 10)
    parts = [part for word in words for part in (silence, 0.4 * np.sin(2 * np.pi * FREQUENCIES[word] * times))]
    return np.concatenate([*parts, silence])


def write_wave(path: Path, samples: np.ndarray, rate: int = 8000) -> None:
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes((samples * 32_767).astype("<i2").tobytes())


@pytest.fixture(scope="module")
def recordings(tmp_path_factory: pytest.TempPathFactory, regard: Command) -> tuple[Path, list[Result]]:
    """200 recordings with texts, and the results of the three commands."""
    folder = tmp_path_factory.mktemp("recordings")
    (folder / "set").mkdir()
    generator, lines = np.random.default_rng(1), []
    for number in range(COUNT):
        words = generator.choice([*FREQUENCIES], generator.integers(1, 4)).tolist()
        name = "a.wav" if number == 0 else f"{number}.wav"
        write_wave(folder / "set" / name, spoken(words))
        lines.append(f"{name}\t{' '.join(words)}\n")
    (folder / "set" / "train.tsv").write_text("".join(lines), encoding="utf-8")
    commands = commands_of("speech.md", "Your own recordings, in three commands")
    return folder, [regard(*arguments, folder=folder) for arguments in commands]


def test_three_commands_lead_from_recordings_to_a_first_look(recordings: tuple[Path, list[Result]]) -> None:
    folder, (trained, predicted, looked) = recordings
    assert trained.code == 0, trained.error
    assert (predicted.code, len(predicted.lines)) == (0, COUNT), predicted.error
    assert f"set: {COUNT} recordings, sorted by name; 1 other entry skipped" in predicted.error
    assert looked.code == 0, looked.error
    assert (folder / "map.html").stat().st_size > 1000


def test_a_long_recording_is_cut_at_silences_and_a_note_says_so(
    recordings: tuple[Path, list[Result]], regard: Command
) -> None:
    folder, _ = recordings
    write_wave(folder / "long.wav", spoken(["one", "red", "two", "blue"] * 30))  # 30 seconds; 250 positions are 10
    result = regard("predict", "runs/own", "long.wav", "--json", "--maps", folder=folder)
    assert result.code == 0, result.error
    note = r"the recording is longer than 10 seconds, the limit of training \(data\.max_length\); cut at silences into"
    (parts,) = re.findall(note + r" (\d+) parts", result.error)
    (answer,) = map(json.loads, result.lines)
    assert len(answer["cuts"]) == int(parts) - 1 >= 3
    assert all(0.02 <= time % 0.25 <= 0.08 for time in answer["cuts"])  # where no word is spoken
    assert answer["source_tokens"][-1] == "30.08"
    two = regard("predict", "runs/own", "long.wav", "set/a.wav", folder=folder)
    assert "1 of 2 recordings is longer than 10 seconds, the limit of training (data.max_length); cut" in two.error
    (folder / "long.tsv").write_text("long.wav\tone\n", encoding="utf-8")
    scored = regard("score", "runs/own", "long.tsv", folder=folder)
    assert (scored.code, f"into {parts} parts" in scored.error) == (0, True), scored.error
    looked = regard("look", "runs/own", "long.wav", folder=folder)
    assert (looked.code, f"into {parts} parts" in looked.error) == (0, True), looked.error


def test_names_of_media_that_are_read_as_texts_get_a_hint(
    recordings: tuple[Path, list[Result]], regard: Command
) -> None:
    folder, _ = recordings
    small = ("train.updates=1", "train.device=cpu", "model.encoder.dim=4", "model.decoder.dim=4", "model.embedding=4")
    result = regard("train", "dates", "data.train=set/train.tsv", "name=texts", *small, folder=folder)
    assert result.code == 0, result.error
    hint = "the sources look like names of recordings, such as 'a.wav', but are read as texts; to read the files, add"
    assert f"{hint} source=speech, or use the recipe tones" in re.sub(r"\s+", " ", result.error)
    assert "the sources look like" not in recordings[1][0].error
