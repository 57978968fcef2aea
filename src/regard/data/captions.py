"""Reads captions of pictures from files as they are published: Flickr8k, Flickr30k, COCO, and Karpathy's parts of them.

The first line of a file says which of `FORMATS` it has; a file in none of them is `picture<TAB>caption`, or one of two
parallel texts. Several files of captions are joined. A file of names alone, such as `Flickr_8k.trainImages.txt`, says
which pictures are read.
"""

import json
import re
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from regard.console import counted
from regard.data import files, store
from regard.data.files import LIMITS, Loaded, load, reading
from regard.data.paths import expanded, part_of
from regard.data.records import Record, Records
from regard.data.store import Lines, StoredExamples, Texts, joined, take, where
from regard.errors import DataError, did_you_mean, listed, shown
from regard.recipe import Limits
from regard.types import Example

MOST_VALUES = 20_000_000  # of a JSON file; all captions of COCO have half as many
# The keys of JSON that are kept: those of COCO, and those of Karpathy's files.
NEEDED = {"images", "annotations", "id", "image_id", "file_name", "caption"}
NEEDED |= {"filename", "filepath", "split", "sentences", "raw"}
SPLITS = {"train": ("train", "restval"), "dev": ("val",), "val": ("val",), "test": ("test",)}  # of Karpathy, by part


QUOTED = re.compile(r'"((?:[^"]|"")*+)"')  # a field of CSV in quotes; a quote in it is doubled


def _unquoted(field: str) -> str:
    """The text of a field of CSV; one whose quotes are not those of CSV is taken as it is."""
    match = QUOTED.fullmatch(field)
    return field if match is None else match[1].replace('""', '"')


class LineFormat(NamedTuple):
    """A format with one caption on each line."""

    first: re.Pattern[str]  # the beginning of the first line with text
    line: re.Pattern[str]  # every line; its groups are the picture and the caption
    expected: str  # for messages
    has_header: bool = False  # whether the first line names the columns; such a file may be called .csv
    field: Callable[[str], str] = str  # the text of a group of `line`


# The formats of lines. In Flickr30k's results.csv, one line lacks its second bar. In Flickr8k's captions.txt, a caption
# with commas may be in quotes or not, so all after the first comma is the caption.
FORMATS = {
    "flickr": LineFormat(
        re.compile(r"[^\t]+\.\w+#\d+\t"),
        re.compile(r"([^\t]+)#\d+\t(.*)"),
        "picture#NUMBER<TAB>caption",
    ),
    "numbered": LineFormat(
        re.compile(r"[^\t]+\t\d+\t"),
        re.compile(r"([^\t]+)\t\d+\t([^\t]*)"),
        "picture<TAB>NUMBER<TAB>caption",
    ),
    "bars": LineFormat(
        re.compile(r"image_name\s*\|\s*comment_number\s*\|\s*comment"),
        re.compile(r"([^|]++)\|\s*+\d++\s*+(?:\|\s*+)?(.*)"),
        "picture| NUMBER| caption",
        has_header=True,
    ),
    "commas": LineFormat(
        re.compile(r'"?image"?,"?caption"?\s*$'),
        re.compile(r'("(?:[^"]|"")++"|[^,"]++),(.*)'),
        "picture,caption",
        has_header=True,
        field=_unquoted,
    ),
}


def read(names: tuple[str, ...], limits: Limits = LIMITS) -> Loaded:
    """The captions of files in any of these formats, or the pairs of other files; those with a blank side are left out.

    An example has a picture and one of its captions.
    """
    loaded = {name: load(name, limits) for name in expanded(names)}
    known = {name: examples for name in loaded if (examples := _captions(name, loaded[name])) is not None}
    if not known:
        return files.pairs(names, limits)
    examples = joined(list(known.values()))
    for name in loaded:
        if name not in known:
            examples = _chosen(examples, name, loaded[name])
    texts = counted(store.texts(examples), reading(*names))
    complete = where(texts, lambda texts: bool(texts[0].strip() and texts[1].strip()))
    if not len(complete):
        raise DataError(f"{' and '.join(names)}: no caption is left of {len(examples):,}; the others are blank")
    return Loaded(take(examples, complete), len(examples) - len(complete))


def is_table(name: str, limits: Limits = LIMITS) -> bool:
    """Whether a file whose name ends as that of a table has captions in a format with a header, as results.csv."""
    start = next((line for line in load(name, limits) if line.strip()), "")
    return any(format.has_header and format.first.match(start) for format in FORMATS.values())


def _captions(name: str, lines: Lines) -> Sequence[Example] | None:
    """The examples of a file in one of the formats; None if it has none of them."""
    start = next((line for line in lines if line.strip()), "")
    if start.lstrip().startswith("{"):
        return _from_json(name, lines)
    for format in FORMATS.values():
        if format.first.match(start):
            return _from_lines(name, lines, format)
    return None


def _from_lines(name: str, lines: Lines, format: LineFormat) -> StoredExamples:
    def texts(index: int) -> Texts:
        line = lines.item(index)
        match = format.line.fullmatch(line)
        if match is None:
            if not line.strip():
                return "", ""
            raise DataError(f"{name}:{index + 1}: {shown(line)}, expected {format.expected}")
        return format.field(match[1]).rstrip(), format.field(match[2])

    numbers = np.arange(int(format.has_header), len(lines), dtype=np.int32)
    return StoredExamples(numbers, texts, lambda index: f"{name}:{index + 1}")


def _chosen(examples: Sequence[Example], name: str, lines: Lines) -> Sequence[Example]:
    """The captions of the pictures that a file names, one on each line."""
    wanted = {line.strip() for line in lines if line.strip()}
    if tabbed := next((number for number, line in enumerate(lines, start=1) if "\t" in line), None):
        raise DataError(f"{name}:{tabbed}: a tab, but beside a file of captions each line names one picture")
    there = set(store.sources(examples))
    for number, line in enumerate(lines, start=1):
        if line.strip() and line.strip() not in there:
            raise DataError(f"{name}:{number}: no caption of {shown(line.strip())}; name pictures that have one")
    return take(examples, where(store.sources(examples), lambda source: source in wanted))


# JSON


def _from_json(name: str, lines: Lines) -> Sequence[Example]:
    """The examples of a JSON file of COCO or of Karpathy; the number of each counts the captions."""
    content = _parse(name, "\n".join(lines))
    images = content.get("images")
    if not isinstance(images, list):
        raise DataError(f"{name}: no list 'images', expected captions of COCO or of Karpathy's parts; give a TSV")
    kind = _coco if "annotations" in content else _karpathy
    captions = kind(name, images, content.get("annotations"))
    records = Records.of(name, (Record(number, texts) for number, texts in enumerate(captions, start=1)), 2)
    return StoredExamples(np.arange(len(records), dtype=np.int32), lambda index: _texts(records, index), records.origin)


def _texts(records: Records, index: int) -> Texts:
    picture, caption = records.fields(index)
    return picture, " ".join(caption.split())  # captions of COCO may have line ends


def _parse(name: str, text: str) -> Mapping[str, Any]:
    """The JSON object of a file, without keys that are not needed."""
    if sum(text.count(mark) for mark in ",[{") > MOST_VALUES:
        raise DataError(f"{name}: more than {MOST_VALUES:,} values; write picture<TAB>caption on each line instead")
    try:
        content = json.loads(text, object_pairs_hook=lambda pairs: {key: v for key, v in pairs if key in NEEDED})
    except json.JSONDecodeError as error:
        raise DataError(f"{name}:{error.lineno}:{error.colno}: not valid JSON ({error.msg}); fetch it again") from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"{name}: not valid JSON ({shown(str(error))}); fetch it again") from error
    assert isinstance(content, dict), "it begins with a brace"
    return content


def _coco(name: str, images: Sequence[Any], annotations: Any) -> Iterator[Texts]:
    """The captions of a file such as captions_train2017.json: pictures by id, and captions with these ids."""
    if part := part_of(name):
        raise DataError(f"{name}: COCO's own files have no parts; leave out #{part}, and name a file for each")
    if not isinstance(annotations, list):
        raise DataError(f"{name}: 'annotations' is no list; fetch it again")
    pictures = {}
    for number, image in enumerate(images, start=1):
        place = f"{name}: picture {number:,}"
        key = _get(image, "id", (int, str), place)
        pictures[key] = _get(image, "file_name", (str,), place)
    for number, annotation in enumerate(annotations, start=1):
        place = f"{name}:{number}"
        key = _get(annotation, "image_id", (int, str), place)
        if key not in pictures:
            raise DataError(f"{place}: there is no picture with the id {shown(key)}; fetch the file again")
        yield pictures[key], _get(annotation, "caption", (str,), place)


def _karpathy(name: str, images: Sequence[Any], annotations: None) -> Iterator[Texts]:
    """The captions of a file such as dataset_flickr8k.json: of one part, or of all; train of COCO has restval too."""
    part = part_of(name)
    if part and part not in SPLITS:
        raise DataError(f"{name}: no part {shown(part)}; there are {listed([*SPLITS])}{did_you_mean(part, SPLITS)}")
    for number, image in enumerate(images, start=1):
        place = f"{name}: picture {number:,}"
        file, folder = _get(image, "filename", (str,), place), image.get("filepath", "")
        if part and _get(image, "split", (str,), place) not in SPLITS[part]:
            continue
        source = f"{folder}/{file}" if isinstance(folder, str) and folder else file
        for sentence in _get(image, "sentences", (list,), place):
            yield source, _get(sentence, "raw", (str,), place)


def _get(record: Any, key: str, kinds: tuple[type, ...], place: str) -> Any:
    """The value of a key of a JSON object; DataError if it is missing or of another type."""
    value = record.get(key) if isinstance(record, dict) else None
    if not isinstance(value, kinds):
        raise DataError(f"{place}: no {key!r} in {shown(str(record))}; fetch the file again")
    return value


# how captions are compared


def plain(caption: str) -> str:
    """As papers compare captions: in lower case, without punctuation; words are separated by one space."""
    return " ".join("".join(filter(_is_kept, caption.lower())).split())


@lru_cache(maxsize=4096)
def _is_kept(character: str) -> bool:
    """Whether a character is neither punctuation nor a symbol."""
    return unicodedata.category(character)[0] not in "PS"


def unchanged(caption: str) -> str:
    """The caption as the file has it."""
    return caption


NORMALIZATIONS: dict[str, Callable[[str], str]] = {
    "none": unchanged,
    "captions": plain,
}
