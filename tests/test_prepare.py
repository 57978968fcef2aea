"""The script that prepares real corpora, on small files of the forms that are published."""

import gzip
import io
import re
import subprocess
import sys
import tarfile
import wave
import zipfile
from array import array
from itertools import groupby
from pathlib import Path

import pytest

from regard import recipe as recipes
from regard.data.archives import StoredFiles, full_name
from regard.data.audio import decode
from regard.data.files import load

SCRIPT = Path(__file__).parent.parent / "benchmarks/prepare.py"


def prepare(corpus: str, *downloaded: Path, out: Path) -> dict[str, list[str]]:
    """The lines of the files that the script writes; it gets the standard library alone."""
    command = [sys.executable, "-I", "-S", str(SCRIPT), corpus, *map(str, downloaded), str(out)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert len(done.stdout.splitlines()) == len(list(out.iterdir()))
    return {path.name: list(load(str(path), recipes.Limits())) for path in out.iterdir()}


def refused(corpus: str, *downloaded: Path, out: Path) -> str:
    command = [sys.executable, "-I", "-S", str(SCRIPT), corpus, *map(str, downloaded), str(out)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert not out.exists()
    assert done.stderr.startswith(f"prepare.py {corpus}: ")
    assert done.stderr.count("\n") == 1
    return done.stderr


def zipped(path: Path, files: dict[str, str]) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return path


def words(sentence: str) -> str:
    return " ".join(re.findall(r"\w+", sentence.casefold()))


def test_tatoeba_has_no_sentence_in_two_parts(tmp_path: Path) -> None:
    pairs = [(f"Number {number // 3}{'!' * (number % 2)}", f"numéro {(number + 1) // 3}") for number in range(60)]
    pairs += [(f"alone {number}", f"seul {number}") for number in range(140)]
    text = "".join(f"{english}\t{french}\tCC-BY 2.0\n" for english, french in pairs)
    source = zipped(tmp_path / "fra-eng.zip", {"fra.txt": text, "_about.txt": "about"})
    parts = prepare("tatoeba", source, out=tmp_path / "out")
    assert {name: len(lines) for name, lines in parts.items()} == {
        "train.tsv.gz": 160,
        "valid.tsv.gz": 20,
        "test.tsv.gz": 20,
    }
    assert sorted(line for lines in parts.values() for line in lines) == sorted("\t".join(pair) for pair in pairs)
    assert parts["train.tsv.gz"] != sorted(parts["train.tsv.gz"])
    for side in (0, 1):
        sentences = [{words(line.split("\t")[side]) for line in lines} for lines in parts.values()]
        assert sum(map(len, sentences)) == len(set.union(*sentences))
    assert sum("number" in line.casefold() for line in parts["train.tsv.gz"]) == 60  # each is linked to the next
    (tmp_path / "fra.txt").write_text(text, "utf-8")
    prepare("tatoeba", tmp_path / "fra.txt", out=tmp_path / "again")
    for name in parts:
        assert (tmp_path / "again" / name).read_bytes() == (tmp_path / "out" / name).read_bytes()


def test_cmudict_keeps_the_pronunciations_of_a_word_together(tmp_path: Path) -> None:
    entries = [f"word{number}{again} W ER1 D" for number in range(50) for again in ("", "(2)")]
    text = "\n".join([";;; a comment", *entries, "d'artagnan D AH0 R # foreign french", ""])
    (tmp_path / "cmudict.dict").write_text(text, "utf-8")
    parts = prepare("cmudict", tmp_path / "cmudict.dict", out=tmp_path / "out")
    spelled = {name: {line.split("\t")[0] for line in lines} for name, lines in parts.items()}
    assert {name: len(found) for name, found in spelled.items()} == {
        "train.tsv.gz": 41,
        "valid.tsv.gz": 5,
        "test.tsv.gz": 5,
    }
    assert len(set.union(*spelled.values())) == 51
    lines = [line for part in parts.values() for line in part]
    assert len(lines) == 101
    assert "d'artagnan\tD AH0 R" in lines
    assert lines.count("word7\tW ER1 D") == 2


def test_sst2_tests_on_the_dev_data_of_glue(tmp_path: Path) -> None:
    rows = [f"a film {number} \t{number % 2}" for number in range(100)]
    dev = ["sentence\tlabel", "charming \t1", "bleak \t0"]
    files = {
        "SST-2/train.tsv": "\n".join(["sentence\tlabel", *rows, ""]),
        "SST-2/dev.tsv": "\n".join([*dev, ""]),
        "SST-2/test.tsv": "index\tsentence\n0\tunknown\n",
    }
    parts = prepare("sst2", zipped(tmp_path / "SST-2.zip", files), out=tmp_path / "out")
    assert parts["test.tsv.gz"] == dev
    header, *train = parts["train.tsv.gz"]
    assert (header, len(train), len(parts["valid.tsv.gz"])) == ("sentence\tlabel", 90, 11)
    assert sorted([*train, *parts["valid.tsv.gz"][1:]]) == sorted(rows)


def test_ewt_is_packed_as_published(tmp_path: Path) -> None:
    text = "# sent_id = 1\n1\tRun\trun\tVERB\tVB\t_\t0\troot\t_\t_\n\n"
    (tmp_path / "downloaded").mkdir()
    for part in ("train", "dev", "test"):
        (tmp_path / f"downloaded/en_ewt-ud-{part}.conllu").write_text(text, "utf-8")
    (tmp_path / "downloaded/README.md").write_text("read me", "utf-8")
    prepare("ewt", tmp_path / "downloaded", out=tmp_path / "out")
    recipe = recipes.load("ewt_small").data
    for name in (*recipe.train, *recipe.dev, *recipe.test):
        assert gzip.decompress((tmp_path / "out" / Path(name).name).read_bytes()).decode() == text


def test_wikiann_loses_its_prefix(tmp_path: Path) -> None:
    text = "en:George\tB-PER\nen:Hearst\tI-PER\nen::\tO\n\nen:Iowa\tB-LOC\n\n"
    with tarfile.open(tmp_path / "en.tar.gz", "w:gz") as archive:
        for name in ("train", "dev", "test", "extra"):
            member = tarfile.TarInfo(name)
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text.encode()))
    parts = prepare("wikiann", tmp_path / "en.tar.gz", out=tmp_path / "out")
    assert set(parts) == {"train.tsv.gz", "dev.tsv.gz", "test.tsv.gz"}
    assert parts["dev.tsv.gz"] == ["George\tB-PER", "Hearst\tI-PER", ":\tO", "", "Iowa\tB-LOC", ""]


def test_brown_loses_its_tags_and_keeps_documents_whole(tmp_path: Path) -> None:
    text = "\n\n\tThe/at jury/nn ``/`` 1-1/2/cd ./.\n\n\tNumber/nn {0}/cd ./.\n"
    files = {f"brown/ca{number:02}": text.format(number) for number in range(1, 41)}
    parts = prepare(
        "brown", zipped(tmp_path / "brown.zip", {**files, "brown/cats.txt": "ca01 news\n"}), out=tmp_path / "out"
    )
    assert {name: len(lines) for name, lines in parts.items()} == {"train.txt.gz": 72, "valid.txt.gz": 8}
    for lines in parts.values():
        assert set(lines[::2]) == {"The jury `` 1-1/2 ."}
        numbers = [int(line.split()[1]) for line in lines[1::2]]
        assert numbers == sorted(numbers)


def test_multi30k_and_tiny_shakespeare_stay_as_they_are(tmp_path: Path) -> None:
    (tmp_path / "raw").mkdir()
    recipe = recipes.load("multi30k_small").data
    for name in (*recipe.train, *recipe.dev, *recipe.test):
        (tmp_path / "raw" / Path(name).name).write_bytes(gzip.compress(b"one\ntwo\n"))
    parts = prepare("multi30k", tmp_path / "raw", out=tmp_path / "out")
    assert {path.name for path in (tmp_path / "raw").iterdir()} == set(parts)
    assert set(map(tuple, parts.values())) == {("one", "two")}
    (tmp_path / "input.txt").write_bytes(b"First Citizen:\r\nSpeak.")
    prepare("tinyshakespeare", tmp_path / "input.txt", out=tmp_path / "plays")
    assert (tmp_path / "plays/input.txt").read_bytes() == b"First Citizen:\r\nSpeak."


def recording(*samples: int, rate: int = 8000) -> bytes:
    content = io.BytesIO()
    with wave.open(content, "wb") as file:
        file.setparams((1, 2, rate, 0, "NONE", ""))
        file.writeframes(array("h", samples).tobytes())
    return content.getvalue()


def speech(corpus: str, downloaded: Path, out: Path) -> dict[str, dict[str, tuple[str, list[int]]]]:
    """Text and samples of each recording, by name and part, as regard reads them."""
    command = [sys.executable, "-I", "-S", str(SCRIPT), corpus, str(downloaded), str(out)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    parts = {}
    for path in out.glob("*.tsv"):
        pairs = [line.split("\t") for line in load(str(path), recipes.Limits())]
        assert f"{path.stem}.tar: {len(pairs):,} files" in done.stdout
        stored = StoredFiles()
        read = {name: stored.read(full_name(name, str(path)), 10**6, "recording_bytes") for name, _ in pairs}
        samples = {name: (32768 * decode(content, name).samples).int().tolist() for name, content in read.items()}
        parts[path.stem] = {name: (text, samples[name]) for name, text in pairs}
    return parts


def test_an4_of_a_clone_has_dev_speakers_of_its_own(tmp_path: Path) -> None:
    clone = tmp_path / "an4"
    lines: dict[str, list[str]] = {"train": [], "test": []}
    for number in range(60):
        part, speaker = ("test", f"t{number % 3}") if number < 6 else ("train", f"s{number % 18}")
        folder = clone / f"wav/an4{'test' * (part == 'test')}_clstk/{speaker}"
        folder.mkdir(parents=True, exist_ok=True)
        utterance = f"an{number}-{speaker}-b"
        (folder / f"{utterance}.wav").write_bytes(recording(number, -number, rate=16_000))
        lines[part].append(f"<s> SAY {number} </s> ({utterance})" if part == "train" else f"SAY {number} ({utterance})")
    (clone / "etc").mkdir()
    for part, text in lines.items():
        (clone / f"etc/an4_{part}.transcription").write_text("\n".join(text) + "\n", "utf-8")
    parts = speech("an4", clone, tmp_path / "out")
    assert {part: len(found) for part, found in parts.items()} == {"train": 51, "dev": 3, "test": 6}
    speakers = {part: {name.split("-")[1] for name in found} for part, found in parts.items()}
    assert not speakers["train"] & speakers["dev"]
    assert parts["test"]["an4-t1-b.wav"] == ("SAY 4", [4, -4])
    data = recipes.load("las_an4").data
    assert {Path(file).stem for file in (*data.train, *data.dev, *data.test)} == set(parts)


def test_an4_in_parts_keeps_them(tmp_path: Path) -> None:
    folder = tmp_path / "an4"
    folder.mkdir()
    for part, speaker in (("train", "fash"), ("dev", "mmxg"), ("test", "mjwl")):
        (folder / f"{part}.tsv").write_text(f"cen1-{speaker}-b\t{speaker}\t2\tW O O D\n", "utf-8")
        content = recording(7, 8, rate=16_000)
        with tarfile.open(folder / f"{part}.tar", "w") as archive:
            member = tarfile.TarInfo(f"cen1-{speaker}-b.wav")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    parts = speech("an4", folder, tmp_path / "out")
    assert parts["dev"] == {"cen1-mmxg-b.wav": ("W O O D", [7, 8])}
    (folder / "dev.tsv").write_text("cen2-mmxg-b\tmmxg\t2\tW O O D\n", "utf-8")
    message = refused("an4", folder, out=tmp_path / "again")
    assert "the recordings of 1 utterances are not here, such as cen2-mmxg-b" in message


def test_strings_of_digits_are_of_one_speaker_and_of_the_takes_of_their_part(tmp_path: Path) -> None:
    folder = tmp_path / "recordings"
    folder.mkdir()
    speakers = ("ann", "bob")
    for digit in range(10):
        for number, speaker in enumerate(speakers):
            for take in range(12):
                sample = 1000 * (number + 1) + 100 * digit + take + 1
                (folder / f"{digit}_{speaker}_{take}.wav").write_bytes(recording(sample, sample))
    parts = speech("fsdd", folder, tmp_path / "out")
    assert {part: len(found) for part, found in parts.items()} == {
        "train": 40 + 2000,
        "dev": 100 + 200,
        "test": 100,
        "strings": 1000,
    }
    assert parts["test"]["3_bob_4.wav"] == ("3", [2305, 2305])
    takes = {"train": {10, 11}, "dev": {*range(5, 10)}, "strings": {*range(5)}}
    for part, allowed in takes.items():
        strings = [found for name, found in parts[part].items() if name.startswith("string")]
        assert {len(text.split()) for text, _ in strings} == {3, 4, 5, 6, 7}
        for text, samples in strings:
            spoken = [sample for sample in samples if sample][::2]
            assert [str(sample // 100 % 10) for sample in spoken] == text.split()
            assert len({sample // 1000 for sample in spoken}) == 1
            assert {sample % 100 - 1 for sample in spoken} <= allowed
            pauses = [len(run) for sample, group in groupby(samples) if not sample for run in [list(group)]]
            assert len(pauses) == len(spoken) - 1
            assert all(400 <= pause <= 2400 for pause in pauses)
    (folder / "0_ann_0.wav").write_bytes(recording(1, rate=16_000))
    assert "0_ann_0.wav has not one channel of 16 bits at 8000" in refused("fsdd", folder, out=tmp_path / "again")


def test_flickr8k_has_captions_and_pictures_of_each_part(tmp_path: Path) -> None:
    pictures = [f"{number}.jpg" for number in range(7)]
    parts = {"train": pictures[:4], "dev": pictures[4:5], "test": pictures[5:]}
    token = "".join(f"{name}#{number}\tA dog {number} .\n" for name in pictures for number in range(2))
    lists = {f"Flickr_8k.{part}Images.txt": "\n".join(names) for part, names in parts.items()}
    texts = zipped(tmp_path / "Flickr8k_text.zip", {"Flickr8k.token.txt": token, **lists, "readme.txt": "about"})
    assert "0.jpg of train has no picture or no caption" in refused("flickr8k", texts, out=tmp_path / "out")
    images = zipped(tmp_path / "Flickr8k_Dataset.zip", {f"Flicker8k_Dataset/{name}": f"of {name}" for name in pictures})
    command = [sys.executable, "-I", "-S", str(SCRIPT), "flickr8k", str(texts), str(images), str(tmp_path / "out")]
    subprocess.run(command, check=True, capture_output=True)
    names = {path.name for path in (tmp_path / "out").iterdir()}
    data = recipes.load("flickr8k_soft").data
    assert names == {Path(name).name for name in (*data.train, *data.dev, *data.test, *data.pictures)}
    for part, expected in {"train-0": pictures[:2], "train-1": pictures[2:4], "dev": ["4.jpg"]}.items():
        with tarfile.open(tmp_path / f"out/images-{part}.tar") as archive:
            assert archive.getnames() == expected
            assert archive.extractfile(expected[0]).read() == f"of {expected[0]}".encode()
    dev = (tmp_path / "out/captions-dev.tsv").read_text("utf-8")
    assert dev == "4.jpg\t0\tA dog 0 .\n4.jpg\t1\tA dog 1 .\n"


def test_wrong_files_get_a_sentence(tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert "No such file" in refused("cmudict", tmp_path / "cmudict.dict", out=out)
    (tmp_path / "cmudict.dict").write_text("hello\n", "utf-8")
    assert "a line has 1 fields, 2 are needed: 'hello'" in refused("cmudict", tmp_path / "cmudict.dict", out=out)
    assert "too few of the files are here (0 of 2); --help" in refused("sst2", tmp_path / "cmudict.dict", out=out)
    for name in ("fra.txt", "spa.txt"):
        (tmp_path / name).write_text("Go.\tVa.\n", "utf-8")
    both = tmp_path / "fra.txt", tmp_path / "spa.txt"
    assert "one file is needed, not fra.txt and spa.txt" in refused("tatoeba", *both, out=out)
    for name, text in {"train.tsv": "sentence\tlabel\ngood\t2\n", "dev.tsv": "sentence\tlabel\nbad\t0\n"}.items():
        (tmp_path / name).write_text(text, "utf-8")
    given = tmp_path / "train.tsv", tmp_path / "dev.tsv"
    assert "train.tsv is not of SST-2" in refused("sst2", *given, out=out)
    for name, text in {"train.en": "one\ntwo\n", "train.de": "eins\n"}.items():
        (tmp_path / name).write_text(text, "utf-8")
    given = tmp_path / "train.en", tmp_path / "train.de"
    assert "train.de has 1 lines, train.en has 2: they are no translations" in refused("multi30k", *given, out=out)
    (tmp_path / "cut.zip").write_bytes(zipped(tmp_path / "whole.zip", {"fra.txt": "Go.\tVa.\n" * 99}).read_bytes()[:-9])
    refused("tatoeba", tmp_path / "cut.zip", out=out)


@pytest.mark.parametrize("name", ["tatoeba_small", "g2p_small", "sst2_small", "ewt_small", "ner_small", "brown_small"])
def test_the_recipes_name_the_files_that_the_script_writes(name: str) -> None:
    data = recipes.load(name).data
    written = {
        *(f"{part}.tsv.gz" for part in ("train", "valid", "dev", "test")),
        *(f"en_ewt-ud-{part}.conllu.gz" for part in ("train", "dev", "test")),
        *("train.txt.gz", "valid.txt.gz"),
    }
    assert {Path(file).name for file in (*data.train, *data.dev, *data.test)} <= written


def test_series_are_packed_as_they_are(tmp_path: Path) -> None:
    m4, rates, transformer = (tmp_path / name for name in ("m4", "rates", "transformer"))
    for folder in (m4, rates, transformer):
        folder.mkdir()
    train, test = "V1,V2,V3\nH1,5,\nH2,7,8\n", "V1,V2\nH1,6\nH2,9\n"
    (m4 / "Hourly-train.csv").write_text(train, "utf-8")
    (m4 / "Hourly-test.csv").write_text(test, "utf-8")
    (m4 / "Daily-train.csv").write_text("V1,V2\nD1,5\n", "utf-8")
    days = "".join(",".join(str(day + rate / 8) for rate in range(8)) + "\n" for day in range(3))
    (rates / "exchange_rate.txt.gz").write_bytes(gzip.compress(days.encode()))
    hours = "date,HUFL,HULL,MUFL,MULL,LUFL,LULL,OT\n2016-07-01 00:00:00,1,2,3,4,5,6,7\n"
    (transformer / "ETTh1.csv").write_text(hours, "utf-8")
    (transformer / "ETTh2.csv").write_text(hours, "utf-8")
    assert prepare("m4_hourly", m4, out=tmp_path / "1") == {
        "Hourly-train.csv.gz": train.splitlines(),
        "Hourly-test.csv.gz": test.splitlines(),
    }
    assert prepare("exchange_rate", rates, out=tmp_path / "2") == {"exchange_rate.txt.gz": days.splitlines()}
    assert prepare("ett", transformer, out=tmp_path / "3") == {"ETTh1.csv.gz": hours.splitlines()}


def test_series_that_are_not_those_of_the_corpus_are_refused(tmp_path: Path) -> None:
    out = tmp_path / "out"
    (tmp_path / "Hourly-train.csv").write_text("V1,V2\nH1,5\n", "utf-8")
    assert "too few of the files are here (1 of 2)" in refused("m4_hourly", tmp_path, out=out)
    (tmp_path / "Hourly-test.csv").write_text("V1,V2\nH3,5\n", "utf-8")
    assert "have different series" in refused("m4_hourly", tmp_path, out=out)
    (tmp_path / "exchange_rate.txt").write_text("1,2,3\n", "utf-8")
    assert "a line has 3 fields, 8 are needed" in refused("exchange_rate", tmp_path, out=out)
    (tmp_path / "ETTh1.csv").write_text("date,OT\n", "utf-8")
    assert "should begin with date,HUFL" in refused("ett", tmp_path, out=out)
