"""From one's own recordings and a TSV to a first look, and hostile recordings, through the command line."""

import json
import os
import tarfile
import wave
from collections.abc import Callable
from pathlib import Path

import pytest

from commands import Result
from regard.data.corpora.tones import render, tones

Command = Callable[..., Result]

KEYS = (
    *("source=speech", "tokens.target=word", "metric=word_errors", "name=own", "train.device=cpu"),
    *("model.embedding=6", "model.encoder.dim=8", "model.decoder.dim=8", "model.attention.dim=6"),
    *("speech.bands=12", "speech.width=8", "train.updates=4", "train.validate=2", "search.max_ratio=0.2"),
)


def write_wave(path: Path, description: str) -> None:
    samples, rate = render(description)
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes((samples * 32_767).short().numpy().tobytes())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, regard: Command) -> Path:
    """A folder with 20 recordings, a TSV that names them, and a run that was trained on them."""
    folder = tmp_path_factory.mktemp("own")
    (folder / "set").mkdir()
    (folder / "empty.toml").write_text("")
    lines = []
    for number, example in enumerate(tones(1, 20).train):
        write_wave(folder / "set" / f"{number}.wav", example.source)
        lines.append(f"{number}.wav\t{example.target}\n")
    (folder / "set" / "train.tsv").write_text("".join(lines))
    result = regard("train", "empty.toml", "data.train=set/train.tsv", *KEYS, folder=folder)
    assert result.code == 0, result.error
    assert "dev recordings of" in result.error
    return folder


def test_a_run_on_own_recordings_predicts_scores_and_looks(folder: Path, regard: Command) -> None:
    direct = regard("predict", "runs/own", "set/0.wav", "set/1.wav", folder=folder)
    assert (direct.code, len(direct.lines)) == (0, 2), direct.error
    scored = regard("score", "runs/own", "set/train.tsv", folder=folder)
    assert scored.lines[0].startswith("word_errors "), scored.error
    looked = regard("look", "runs/own", "set/0.wav", "--json", folder=folder)
    content = json.loads(looked.lines[0])
    assert content["layout"] == {"kind": "frames", "seconds": 0.04}
    assert content["source_tokens"][:2] == ["0.00", "0.04"]
    drawn = regard("look", "runs/own", "set/0.wav", "--out", "map.svg", folder=folder)
    assert (drawn.code, (folder / "map.svg").exists()) == (0, True), drawn.error
    assert "4 kHz" in (folder / "map.svg").read_text()  # above its spectrogram
    regard("look", "runs/own", "set/0.wav", "--matrix", "--out", "map.svg", folder=folder)
    assert "kHz" not in (folder / "map.svg").read_text()


def test_names_come_from_arguments_from_lists_and_from_stdin(folder: Path, regard: Command) -> None:
    (folder / "set" / "names.txt").write_text("0.wav\n\n1.wav\n")
    direct = regard("predict", "runs/own", "set/0.wav", "set/1.wav", folder=folder).lines
    listed = regard("predict", "runs/own", "--list", "set/names.txt", folder=folder)
    assert listed.lines == [direct[0], "", direct[1]], listed.error
    streamed = regard("predict", "runs/own", folder=folder, stdin=b"set/0.wav\nset/1.wav\n")
    assert streamed.lines == direct, streamed.error
    both = regard("predict", "runs/own", "set/1.wav", "--list", "set/names.txt", folder=folder)
    assert both.lines == [direct[1], direct[0], "", direct[1]]
    described = regard("predict", "runs/own", "tones:7:C4-E4-G4", folder=folder)
    assert (described.code, len(described.lines)) == (0, 1), described.error
    mixed = regard("predict", "runs/own", "-", "set/0.wav", folder=folder)
    assert (mixed.code, mixed.error.count("\n")) == (2, 1)
    assert "- reads names from stdin; give it alone" in mixed.error


def test_members_of_a_tar_file_beside_the_table_are_read(folder: Path, regard: Command) -> None:
    (folder / "packed").mkdir()
    with tarfile.open(folder / "packed" / "test.tar", "w") as archive:
        archive.add(folder / "set" / "0.wav", "0.wav")
    (folder / "packed" / "test.tsv").write_text("0.wav\tC4\n")
    assert regard("score", "runs/own", "packed/test.tsv", folder=folder).code == 0
    direct = regard("predict", "runs/own", "set/0.wav", folder=folder).lines
    assert regard("predict", "runs/own", "packed/test.tar/0.wav", folder=folder).lines == direct


def test_hostile_recordings_get_one_sentence_that_names_the_file(folder: Path, regard: Command) -> None:
    whole = (folder / "set" / "0.wav").read_bytes()
    hostile = {
        "text.wav": b"not a recording\n",
        "nothing.wav": b"",
        "short.wav": whole[:60],
        "silent.wav": whole[:40] + bytes(4),
        "zip.wav": b"PK\3\4" + bytes(30),
        "rate.wav": whole[:24] + bytes(4) + whole[28:],
    }
    for name, content in hostile.items():
        (folder / name).write_bytes(content)
    os.mkfifo(folder / "pipe.wav")
    (folder / "inside.wav").mkdir()
    for name in (*hostile, "pipe.wav", "inside.wav", "missing.wav", "tones:7:X1"):
        for command in ("predict", "look"):
            result = regard(command, "runs/own", name, folder=folder)
            result.assert_behaved({2})
            assert name in result.error
            assert result.error.count("\n") == 1
            assert not result.out
    (folder / "bad.tsv").write_text("set/0.wav\tC4\ntext.wav\tC4\n")
    for arguments in (("score", "runs/own", "bad.tsv"), ("train", "empty.toml", "data.train=bad.tsv", *KEYS)):
        result = regard(*arguments, folder=folder)
        result.assert_behaved({2})
        assert "text.wav" in result.error.split("\n")[-2]


def test_a_run_that_reads_texts_takes_no_list_of_names(folder: Path, regard: Command) -> None:
    result = regard("predict", "runs/own", "--text", "x", "--list", "set/names.txt", folder=folder)
    assert (result.code, "give files or --text, not both" in result.error) == (2, True)
    (folder / "pairs.tsv").write_text("a\tb\nc\td\n")
    keys = ("data.train=pairs.tsv", "name=texts", "train.updates=1", "model.encoder.dim=4", "model.decoder.dim=4")
    assert regard("train", "empty.toml", *keys, "train.device=cpu", folder=folder).code == 0
    result = regard("predict", "runs/texts", "--list", "set/names.txt", folder=folder)
    result.assert_behaved({2})
    assert "--list is for runs that read recordings or pictures; runs/texts reads texts" in result.error
