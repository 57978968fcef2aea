"""Files of captions, as they are published, are recognised by their content; pictures are in folders and archives."""

import io
import json
import os
import tarfile
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from regard import recipe as recipes
from regard.data import captions
from regard.data.archives import Places, StoredFiles
from regard.data.captions import NORMALIZATIONS, read
from regard.data.files import LIMITS
from regard.data.paths import find
from regard.errors import DataError, RecipeError
from regard.tasks import Transduce

FLICKR = "b.jpg#0\tA dog .\na.jpg#0\tA cat , asleep .\na.jpg#1\tTwo cats\n"
NUMBERED = "b.jpg\t0\tA dog .\na.jpg\t0\tA cat , asleep .\na.jpg\t1\tTwo cats\n"
BARS = "image_name| comment_number| comment\nb.jpg| 0| A dog .\na.jpg| 0| A cat , asleep .\na.jpg| 1   Two cats\n"
COMMAS = 'image,caption\nb.jpg,A dog .\na.jpg,"A cat , asleep ."\na.jpg,Two cats\n'
PAIRS = [("b.jpg", "A dog ."), ("a.jpg", "A cat , asleep ."), ("a.jpg", "Two cats")]
COCO = {
    "info": {"year": 2017},
    "images": [{"id": 7, "file_name": "a.jpg", "url": "x"}, {"id": 9, "file_name": "b.jpg"}],
    "annotations": [
        {"id": 1, "image_id": 9, "caption": "A dog ."},
        {"id": 2, "image_id": 7, "caption": "A cat ,\n asleep ."},
        {"id": 3, "image_id": 7, "caption": "Two cats"},
    ],
}
KARPATHY = {
    "dataset": "flickr8k",
    "images": [
        {"filename": "b.jpg", "split": "train", "sentences": [{"raw": "A dog .", "tokens": ["a", "dog"]}]},
        {"filename": "a.jpg", "split": "restval", "sentences": [{"raw": "A cat , asleep ."}, {"raw": "Two cats"}]},
        {"filename": "c.jpg", "filepath": "val2014", "split": "val", "sentences": [{"raw": "A bird"}]},
    ],
}


def write(folder: Path, text: str | dict[str, Any], name: str = "captions.txt") -> str:
    path = folder / name
    path.write_text(text if isinstance(text, str) else json.dumps(text), encoding="utf-8")
    return str(path)


def texts(*names: str) -> list[tuple[str, str]]:
    return [(example.source, example.target) for example in read(names).examples]


def pack(path: Path, files: dict[str, bytes]) -> str:
    with tarfile.open(path, "w") as archive:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return str(path)


# formats


@pytest.mark.parametrize("content", [FLICKR, NUMBERED, BARS, COMMAS, COCO])
def test_every_published_form_gives_the_same_pairs(tmp_path: Path, content: str | dict[str, Any]) -> None:
    assert texts(write(tmp_path, content)) == PAIRS


@pytest.mark.parametrize(("content", "first"), [(FLICKR, 1), (NUMBERED, 1), (BARS, 2), (COMMAS, 2), (COCO, 1)])
def test_the_origin_of_a_caption_is_its_line_or_its_number(tmp_path: Path, content: Any, first: int) -> None:
    name = write(tmp_path, content)
    assert [example.origin for example in read((name,)).examples] == [f"{name}:{first + number}" for number in range(3)]


@pytest.mark.parametrize(
    ("field", "caption"),
    [
        ('"A dog , and a cat ."', "A dog , and a cat ."),
        ("A dog , and a cat .", "A dog , and a cat ."),
        ("A dog,a cat,", "A dog,a cat,"),
        ('"A ""big"" dog , asleep ."', 'A "big" dog , asleep .'),
        ('"""Stop"" , says a sign"', '"Stop" , says a sign'),
        ('"Stop" , says a "sign"', '"Stop" , says a "sign"'),
        ('A sign says , "Stop"', 'A sign says , "Stop"'),
        ('"A dog', '"A dog'),
    ],
)
def test_captions_of_a_table_have_commas_and_quotes(tmp_path: Path, field: str, caption: str) -> None:
    lines = ["image,caption", f"a.jpg,{field}", f'"b,1.jpg",{field}', "", 'c.jpg,""']
    name = write(tmp_path, "\r\n".join(lines))
    assert texts(name) == [("a.jpg", caption), ("b,1.jpg", caption)]
    assert read((name,)).dropped == 2
    assert texts(write(tmp_path, f'"image","caption"\na.jpg,{field}\n')) == [("a.jpg", caption)]


@pytest.mark.parametrize("content", [BARS, COMMAS])
def test_a_published_table_needs_no_columns(tmp_path: Path, content: str) -> None:
    name = write(tmp_path, content, "results.csv")
    recipe = recipes.load("flickr8k_soft", [f"data.train={name}", "data.dev=", "data.test="])
    Transduce.check_columns(recipe)
    assert len(Transduce.line_reader(recipe)((name,)).examples) == 3
    table = tmp_path / "table.csv"
    table.write_text("picture,caption\na.jpg,A dog\n", "utf-8")
    with pytest.raises(RecipeError, match=r"table\.csv has the columns"):
        Transduce.check_columns(recipes.override(recipe, f"data.train={table}"))
    with pytest.raises(RecipeError, match=r"results\.csv has the columns"):
        Transduce.check_columns(recipes.load("reverse", [f"data.train={name}"]))


def test_karpathys_files_have_parts(tmp_path: Path) -> None:
    name = write(tmp_path, KARPATHY, "dataset.json")
    assert texts(f"{name}#train") == PAIRS  # as in papers, restval is for training
    assert texts(f"{name}#val") == texts(f"{name}#dev") == [("val2014/c.jpg", "A bird")]
    assert texts(name) == [*PAIRS, ("val2014/c.jpg", "A bird")]
    assert find(f"{name}#train") == Path(name)
    with pytest.raises(DataError, match=r"dataset.json#test: no caption is left of 0"):
        read((f"{name}#test",))
    with pytest.raises(DataError, match=r"no part 'valid'; there are 'train', 'dev', 'val' or 'test'.*did you mean"):
        read((f"{name}#valid",))


def test_a_file_of_names_chooses_pictures_and_files_of_captions_are_joined(tmp_path: Path) -> None:
    first, second = write(tmp_path, FLICKR), write(tmp_path, "c.jpg\t0\tA bird\n", "more.tsv")
    names = write(tmp_path, "c.jpg\n\nb.jpg \n", "trainImages.txt")
    assert texts(first, second) == [*PAIRS, ("c.jpg", "A bird")]
    assert texts(first, second, names) == [("b.jpg", "A dog ."), ("c.jpg", "A bird")]
    with pytest.raises(DataError, match=r"trainImages.txt:1: no caption of 'c.jpg'"):
        read((first, names))


def test_other_files_are_pairs_or_parallel_texts(tmp_path: Path) -> None:
    pair = write(tmp_path, "a.jpg\tA cat\nb.jpg\t\n")
    assert read((pair,)).dropped == 1
    assert texts(pair) == [("a.jpg", "A cat")]
    sources, targets = write(tmp_path, "a.jpg\n", "names"), write(tmp_path, "A cat\n", "captions")
    assert texts(sources, targets) == [("a.jpg", "A cat")]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (FLICKR + "c.jpg\tA bird\n", r"captions.txt:4: .*expected picture#NUMBER<TAB>caption"),
        (NUMBERED + "c.jpg\tA bird\n", r"captions.txt:4: .*expected picture<TAB>NUMBER<TAB>caption"),
        (BARS + "c.jpg A bird\n", r"captions.txt:5: .*expected picture\| NUMBER\| caption"),
        (COMMAS + "c.jpg A bird\n", r"captions.txt:5: .*expected picture,caption"),
        ("a.jpg\t0\t \n", r"captions.txt: no caption is left of 1; the others are blank"),
        ('{"images": [', r"captions.txt:1:13: not valid JSON"),
        ('{"images":' + "[" * 100_000, r"captions.txt: not valid JSON"),
        ('{"images":' + "9" * 10_000 + "}", r"captions.txt: not valid JSON"),
        ('{"captions": []}', r"captions.txt: no list 'images'"),
        ({"images": [], "annotations": {}}, r"'annotations' is no list"),
        ({"images": [7], "annotations": []}, r"captions.txt: picture 1: no 'id' in '7'"),
        (
            {"images": [], "annotations": [{"image_id": 3, "caption": "x"}]},
            r"captions.txt:1: .*no picture with the id 3",
        ),
        ({"images": [{"filename": "a"}]}, r"captions.txt: picture 1: no 'sentences' in"),
        ({"images": [{"filename": "a", "sentences": [{"raw": 5}]}]}, r"captions.txt: picture 1: no 'raw' in"),
        (COCO | {"annotations": [{"image_id": 7, "caption": "\ud800"}]}, r"captions.txt:1: half of a surrogate pair"),
    ],
)
def test_what_cannot_be_read_is_one_sentence(tmp_path: Path, content: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        read((write(tmp_path, content),))


def test_a_file_of_many_values_is_refused_before_it_is_parsed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(captions, "MOST_VALUES", 10)
    with pytest.raises(DataError, match=r"captions.txt: more than 10 values"):
        read((write(tmp_path, COCO),))


def test_a_long_line_of_spaces_takes_no_time(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"captions.txt:2: "):
        read((write(tmp_path, BARS.split("\n")[0] + "\nx" + " " * 1_000_000 + "\n"),))
    with pytest.raises(DataError, match=r"captions.txt:2: "):
        read((write(tmp_path, 'image,caption\n"' + '"' * 1_000_000 + "\n"),))


def test_coco_has_no_parts(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"COCO's own files have no parts; leave out #train"):
        read((write(tmp_path, COCO, "captions.json") + "#train",))


# the text of captions


@pytest.mark.parametrize(
    ("caption", "expected"),
    [
        ("A man 's T-shirt , in red .", "a man s tshirt in red"),
        ("“Zwei” Männer – über 30%!", "zwei männer über 30"),
        ("नमस्ते ।", "नमस्ते"),
        (" . ", ""),
    ],
)
def test_captions_are_compared_in_lower_case_without_punctuation(caption: str, expected: str) -> None:
    assert NORMALIZATIONS["captions"](caption) == expected
    assert NORMALIZATIONS["none"](caption) == caption


# places of pictures


def test_pictures_are_found_in_archives_and_folders_in_their_order(tmp_path: Path) -> None:
    first = pack(tmp_path / "first.tar", {"a.jpg": b"first", "deep/c.jpg": b"c", "1/d.jpg": b"d1", "2/d.jpg": b"d2"})
    second = pack(tmp_path / "second.tar", {"a.jpg": b"second", "./b.jpg": b"b"})
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "e.jpg").write_bytes(b"e")
    places = Places([first, second, str(folder), str(tmp_path / "missing.tar")])
    contents = {}
    for name in ("a.jpg", "b.jpg", "c.jpg", "deep/c.jpg", "1/d.jpg", "e.jpg"):
        contents[name] = StoredFiles().read(places.full_name(name), 100, "picture_bytes")
    assert contents == {
        "a.jpg": b"first",
        "b.jpg": b"b",
        "c.jpg": b"c",
        "deep/c.jpg": b"c",
        "1/d.jpg": b"d1",
        "e.jpg": b"e",
    }
    assert places.full_name("d.jpg") == ""  # there are two
    assert places.full_name("x.jpg") == ""


# Flickr8k itself

FLICKR8K = Path(os.environ.get("REGARD_DATA", "data"), "flickr8k")


@pytest.mark.skipif(not (FLICKR8K / "captions-train.tsv").exists(), reason="Flickr8k is not in $REGARD_DATA")
def test_flickr8k_has_five_references_of_each_picture() -> None:
    recipe = recipes.load("flickr8k_soft")
    examples = Transduce.examples(recipe)
    counts = [Counter(example.source for example in part) for part in (examples.train, examples.dev, examples.test)]
    assert [len(count) for count in counts] == [6000, 500, 1000]
    assert all(set(count.values()) <= {4, 5} for count in counts)  # a caption without words is left out
    assert sum(sum(count.values()) for count in counts) == 37_500
    assert not set(counts[0]) & set(counts[1]) | set(counts[0]) & set(counts[2])
    content = StoredFiles(LIMITS).read(examples.test[0].source, 10**7, "picture_bytes")
    assert content.startswith(b"\xff\xd8\xff")
