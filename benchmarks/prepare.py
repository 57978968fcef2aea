"""Real corpora: the files that recipes read, made from those that you download. `regard data RECIPE` says where from.

    python benchmarks/prepare.py CORPUS DOWNLOADED... OUT      OUT gets the files, for example data/tatoeba-eng-fra

    tatoeba          fra-eng.zip of manythings.org/anki, or its fra.txt; other languages too
    multi30k         the folder data/task1/raw of multi30k/dataset, or its files
    cmudict          cmudict.dict
    sst2             SST-2.zip of GLUE, or its train.tsv and dev.tsv
    ewt              en_ewt-ud-train.conllu, en_ewt-ud-dev.conllu, en_ewt-ud-test.conllu, or their folder
    wikiann          en.tar.gz, or its files train, dev and test, or their folder
    brown            brown.zip of NLTK, or its folder
    tinyshakespeare  input.txt
    flickr8k         Flickr8k_text.zip and Flickr8k_Dataset.zip, or their folders
    an4              a clone of cmusphinx/an4; or train.tsv, dev.tsv, test.tsv and tar files of these names
    fsdd             a clone of Jakobovski/free-spoken-digit-dataset, its folder recordings, or tar files of it
    m4_hourly        Hourly-train.csv and Hourly-test.csv of M4-methods, or their folders
    exchange_rate    exchange_rate.txt.gz of multivariate-time-series-data, or its folder
    ett              ETTh1.csv of ETDataset, or its folder

DOWNLOADED are files, archives (zip, tar, gzip) or folders. Files with the same names in OUT are replaced. Corpora that
are published without parts are divided at random, always in the same way for the same files. These parts are not the
lines that the scores of the documentation were measured on, so scores differ a little.
"""

import argparse
import gzip
import io
import random
import re
import sys
import tarfile
import wave
import zipfile
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

SEED = 1
BROKEN = (zlib.error, zipfile.BadZipFile, tarfile.TarError)  # errors of archives
Files = dict[str, bytes]  # content by name, without the ending .gz
Written = dict[str, bytes | Callable[[], bytes]]  # content by name, or a function that reads much of it
Groups = list[list[str]]  # lines that stay together


def members(path: Path) -> Iterator[tuple[str, Callable[[], bytes]]]:
    """The name of each file of a folder, of an archive, or of the file itself, with a function that reads it."""
    if path.is_dir():
        for file in sorted(file for file in path.iterdir() if file.is_file()):
            yield file.name, file.read_bytes
    elif zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            for name in archive.namelist():
                yield name, lambda name=name: archive.read(name)
    elif tarfile.is_tarfile(path):
        with tarfile.open(path) as archive:
            for member in archive:
                if content := archive.extractfile(member):
                    yield member.name, content.read
    else:
        yield path.name, path.read_bytes


def find(paths: list[Path], names: str, *, least: int = 1) -> Files:
    """The downloaded files whose names match a regular expression; at least so many, or the command ends."""
    found: Files = {}
    for path in paths:
        for name, read in members(path):
            base = name.rpartition("/")[2].removesuffix(".gz")
            if re.fullmatch(names, base):
                content = read()
                found[base] = gzip.decompress(content) if content.startswith(b"\x1f\x8b") else content
    if len(found) < least:
        given = ", ".join(map(str, paths))
        raise ValueError(f"{given}: too few of the files are here ({len(found)} of {least}); --help names them")
    return found


def find_one(paths: list[Path], names: str) -> bytes:
    found = find(paths, names)
    if len(found) > 1:
        raise ValueError(f"one file is needed, not {' and '.join(found)}")
    return next(iter(found.values()))


def lines(content: bytes) -> list[str]:
    return content.decode("utf-8").replace("\r\n", "\n").removesuffix("\n").split("\n")


def fields(line: str, count: int, separator: str | None = "\t") -> list[str]:
    values = line.split(separator)
    if len(values) < count:
        raise ValueError(f"a line has {len(values)} fields, {count} are needed: {line[:60]!r}")
    return values


def divide(groups: Groups, sizes: dict[str, int], measure: Callable[[list[str]], int]) -> dict[str, Groups]:
    """Groups dealt out at random, whole, in their order; all that does not fit into the other parts is in train.

    Of a small corpus no part but train has more than a tenth.
    """
    total = sum(map(measure, groups))
    room = {part: min(size, total // 10) for part, size in sizes.items()}
    places: dict[int, str] = {}
    for index in random.Random(SEED).sample(range(len(groups)), len(groups)):
        size = measure(groups[index])
        places[index] = next((part for part, left in room.items() if size <= left), "train")
        if places[index] in room:
            room[places[index]] -= size
    parts: dict[str, Groups] = {part: [] for part in ("train", *sizes)}
    for index, group in enumerate(groups):
        parts[places[index]].append(group)
    return parts


def joined(groups: Groups) -> list[str]:
    return [line for group in groups for line in group]


def same_sentence(text: str) -> str:
    """The words of a sentence without case and punctuation."""
    return " ".join(re.findall(r"\w+", text.casefold())) or text


def connected(pairs: list[tuple[str, str]]) -> Groups:
    """Pairs that share a sentence on either side, or are linked by other pairs that do, in one group."""
    parent = list(range(len(pairs)))

    def root(index: int) -> int:
        while parent[index] != index:
            parent[index] = index = parent[parent[index]]  # halves the path
        return index

    first: dict[tuple[int, str], int] = {}
    for index, pair in enumerate(pairs):
        for side, text in enumerate(pair):
            parent[root(index)] = root(first.setdefault((side, same_sentence(text)), index))
    groups = defaultdict(list)
    for index, pair in enumerate(pairs):
        groups[root(index)].append("\t".join(pair))
    return list(groups.values())


def packed(text: list[str]) -> bytes:
    return gzip.compress(("\n".join(text) + "\n").encode("utf-8"), mtime=0)


def tatoeba(paths: list[Path]) -> Files:
    """Without a sentence of valid or test in train: the export has many translations of one sentence."""
    rows = [fields(line, 2) for line in lines(find_one(paths, r"[a-z]{3}\.txt"))]
    pairs = [(english, other) for english, other, *_ in rows]
    parts = divide(connected(pairs), {"valid": 2000, "test": 2000}, len)
    shuffled = {part: joined(groups) for part, groups in parts.items()}
    for text in shuffled.values():
        random.Random(SEED).shuffle(text)  # the export begins with the shortest
    return {f"{part}.tsv.gz": packed(text) for part, text in shuffled.items()}


def multi30k(paths: list[Path]) -> Files:
    found = find(paths, r"(train|val|test_2016_flickr|test_2017_flickr)\.(en|de|fr|cs)", least=2)
    counts = {name: content.count(b"\n") for name, content in found.items()}
    for name, count in counts.items():
        english = name.rpartition(".")[0] + ".en"
        if counts.get(english, count) != count:
            raise ValueError(f"{name} has {count:,} lines, {english} has {counts[english]:,}: they are no translations")
    return {f"{name}.gz": gzip.compress(content, mtime=0) for name, content in found.items()}


def cmudict(paths: list[Path]) -> Files:
    """All pronunciations of a word are in one part; `read(2)` is the second of `read`."""
    words: dict[str, list[str]] = defaultdict(list)
    for line in lines(find_one(paths, r"cmudict\.dict")):
        text = line.partition("#")[0].strip()
        if text and not text.startswith(";;;"):
            name, *phonemes = fields(text, 2, None)
            word = re.sub(r"\(\d+\)$", "", name)
            words[word].append(f"{word}\t{' '.join(phonemes)}")
    parts = divide(list(words.values()), {"valid": 2700, "test": 12000}, lambda group: 1)
    return {f"{part}.tsv.gz": packed(joined(groups)) for part, groups in parts.items()}


def sst2(paths: list[Path]) -> Files:
    """GLUE's test set has no labels: its dev set is our test, and a tenth of its training set is our valid."""
    found = find(paths, r"(train|dev)\.tsv", least=2)
    tables = {name: lines(content) for name, content in found.items()}
    for name, (header, *rows) in tables.items():
        if header != "sentence\tlabel" or any(fields(row, 2)[1] not in ("0", "1") for row in rows):
            raise ValueError(f"{name} is not of SST-2: it should have the columns sentence and label, 0 or 1")
    header, *rows = tables["train.tsv"]
    parts = divide([[row] for row in rows], {"valid": len(rows) // 10}, len)
    made = {f"{part}.tsv.gz": packed([header, *joined(groups)]) for part, groups in parts.items()}
    return made | {"test.tsv.gz": packed(tables["dev.tsv"])}


def ewt(paths: list[Path]) -> Files:
    found = find(paths, r"en_ewt-ud-(train|dev|test)\.conllu", least=3)
    for content in found.values():
        fields(next(line for line in lines(content) if not line.startswith("#")), 10)
    return {f"{name}.gz": gzip.compress(content, mtime=0) for name, content in found.items()}


def wikiann(paths: list[Path]) -> Files:
    made = {}
    for part, content in find(paths, "train|dev|test", least=3).items():
        text = [line.strip() and "\t".join(fields(line.removeprefix("en:"), 2)[:2]) for line in lines(content)]
        made[f"{part}.tsv.gz"] = packed(text)
    return made


def brown(paths: list[Path]) -> Files:
    """A document, such as ca01, is in one part; `jury/nn` becomes `jury`."""
    documents = []
    for _, content in sorted(find(paths, r"c[a-r]\d\d", least=20).items()):
        sentences = [line.split() for line in lines(content) if line.strip()]
        documents.append([" ".join("/".join(fields(token, 2, "/")[:-1]) for token in tokens) for tokens in sentences])
    parts = divide(documents, {"valid": 25}, lambda group: 1)
    return {f"{part}.txt.gz": packed(joined(groups)) for part, groups in parts.items()}


def tinyshakespeare(paths: list[Path]) -> Files:
    return find(paths, r"input\.txt")


def flickr8k(paths: list[Path]) -> Written:
    """The captions of each part, and its pictures in tar files: those of train in two, dealt out in their order."""
    token = r"Flickr8k\.token\.txt"
    listed = find(paths, r"Flickr_8k\.(train|dev|test)Images\.txt", least=3)
    captions = defaultdict(list)
    for line in lines(find_one(paths, token)):
        name, caption = fields(line, 2)[:2]
        picture, _, number = name.rpartition("#")
        captions[picture].append(f"{picture}\t{number}\t{caption.strip()}")
    there = {name.rpartition("/")[2] for path in paths for name, _ in members(path)}
    made: Written = {}
    for part in ("train", "dev", "test"):
        pictures = [line.strip() for line in lines(listed[f"Flickr_8k.{part}Images.txt"]) if line.strip()]
        if missing := [picture for picture in pictures if picture not in there or not captions[picture]]:
            raise ValueError(f"{missing[0]} of {part} has no picture or no caption; give both downloads")
        text = [line for picture in pictures for line in captions[picture]]
        made[f"captions-{part}.tsv"] = ("\n".join(text) + "\n").encode("utf-8")
        half = -(-len(pictures) // 2)
        halves = {f"images-{part}-0.tar": pictures[:half], f"images-{part}-1.tar": pictures[half:]}
        for name, some in halves.items() if part == "train" else [(f"images-{part}.tar", pictures)]:
            made[name] = partial(picked, paths, set(some))
    return made


def picked(paths: list[Path], names: set[str]) -> bytes:
    """A plain tar file of the files of these names."""
    found = ((name.rpartition("/")[2], read) for path in paths for name, read in members(path))
    return archive({base: read() for base, read in found if base in names})


def nested(paths: list[Path]) -> list[Path]:
    """The paths, and the folders and archives inside those that are folders."""
    found = []
    for path in paths:
        inside = sorted(path.rglob("*")) if path.is_dir() else []
        found += [
            path,
            *(inner for inner in inside if inner.is_dir() or re.search(r"\.(tar(\.\w+)?|zip)$", inner.name)),
        ]
    return found


def archive(files: Files) -> bytes:
    """A plain tar file, which regard reads at its place; always the same bytes for the same files."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w", format=tarfile.USTAR_FORMAT) as packed_files:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            packed_files.addfile(member, io.BytesIO(data))
    return content.getvalue()


def with_recordings(part: str, pairs: list[tuple[str, str]], recordings: Files) -> Files:
    """A table of recording<TAB>text, and the tar file beside it."""
    table = "".join(f"{name}\t{text}\n" for name, text in pairs)
    return {f"{part}.tsv": table.encode(), f"{part}.tar": archive({name: recordings[name] for name, _ in pairs})}


def an4(paths: list[Path]) -> Files:
    """Our parts if there are tables of them; of a clone, about a tenth of the training speakers is dev."""
    inside = nested(paths)
    recordings = find(inside, r"[a-z0-9]+-[a-z0-9]+-b\.(wav|flac)")
    recordings = {name.rpartition(".")[0] + ".wav": to_wav(content) for name, content in recordings.items()}
    parts = {name[:-4]: lines(content) for name, content in find(paths, r"(train|dev|test)\.tsv", least=0).items()}
    if parts:
        texts = {part: [fields(row, 4)[::3] for row in rows] for part, rows in parts.items()}
    else:
        texts = an4_parts(find(inside, r"an4_(train|test)\.transcription", least=2))
    if missing := [
        utterance for rows in texts.values() for utterance, _ in rows if f"{utterance}.wav" not in recordings
    ]:
        raise ValueError(f"the recordings of {len(missing)} utterances are not here, such as {missing[0]}")
    made: Files = {}
    for part, rows in texts.items():
        made |= with_recordings(part, [(f"{utterance}.wav", text) for utterance, text in rows], recordings)
    return made


def an4_parts(transcriptions: Files) -> dict[str, list[list[str]]]:
    """Utterance and text of each line, such as `<s> GO </s> (an253-fash-b)`, by part."""
    rows = {
        name: [re.fullmatch(r"(?:<s> )?(.+?)(?: </s>)? \((\S+)\)\s*", line) for line in lines(content)]
        for name, content in transcriptions.items()
    }
    if not all(row for found in rows.values() for row in found):
        raise ValueError("a line of a transcription is not TEXT (UTTERANCE)")
    speakers: dict[str, list[str]] = defaultdict(list)
    for row in rows["an4_train.transcription"]:
        speakers[row[2].split("-")[1]].append(f"{row[2]}\t{row[1]}")
    parts = divide(list(speakers.values()), {"dev": 100}, len)
    made = {part: [line.split("\t") for line in joined(groups)] for part, groups in parts.items()}
    return made | {"test": [[row[2], row[1]] for row in rows["an4_test.transcription"]]}


def to_wav(content: bytes) -> bytes:
    """A recording as WAV with 16 bits per sample."""
    if content.startswith(b"RIFF"):
        return content
    try:
        import soundfile
    except ImportError:
        raise ValueError("to turn FLAC into WAV, the package soundfile is needed: pip install soundfile") from None
    samples, rate = soundfile.read(io.BytesIO(content), dtype="int16")
    return wav(samples.tobytes(), rate)


def wav(samples: bytes, rate: int) -> bytes:
    content = io.BytesIO()
    with wave.open(content, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(samples)
    return content.getvalue()


FSDD_RATE = 8000
FSDD_STRINGS = {"train": 2000, "dev": 200, "test": 1000}
PAUSE = (400, 2400)  # samples of silence between two digits of a string


def fsdd(paths: list[Path]) -> Files:
    """Takes 0 to 4 are test, as published, and 5 to 9 dev; `strings` are of test takes, those of train are in train."""
    recordings = find(nested(paths), r"\d_[a-z]+_\d+\.wav", least=100)
    takes: dict[str, dict[tuple[str, str], list[bytes]]] = {part: defaultdict(list) for part in FSDD_STRINGS}
    pairs: dict[str, list[tuple[str, str]]] = {part: [] for part in FSDD_STRINGS}
    for name in sorted(recordings):
        digit, speaker, take = name.removesuffix(".wav").split("_")
        part = "test" if int(take) < 5 else "dev" if int(take) < 10 else "train"
        pairs[part].append((name, digit))
        with wave.open(io.BytesIO(recordings[name])) as file:
            if (file.getframerate(), file.getnchannels(), file.getsampwidth()) != (FSDD_RATE, 1, 2):
                raise ValueError(f"{name} has not one channel of 16 bits at {FSDD_RATE} samples per second")
            takes[part][speaker, digit].append(file.readframes(file.getnframes()))
    made: Files = {}
    for seed, part in enumerate(("test", "dev", "train")):
        strings, joined_recordings = digit_strings(takes[part], FSDD_STRINGS[part], seed)
        if part == "test":
            made |= with_recordings("test", pairs["test"], recordings)
            made |= with_recordings("strings", strings, joined_recordings)
        else:
            made |= with_recordings(part, pairs[part] + strings, recordings | joined_recordings)
    return made


def digit_strings(
    takes: dict[tuple[str, str], list[bytes]], count: int, seed: int
) -> tuple[list[tuple[str, str]], Files]:
    """Strings of 3 to 7 digits of one speaker, with silence between them: their names and texts, and recordings."""
    drawn = random.Random(seed)
    speakers, digits = (sorted(set(column)) for column in zip(*takes, strict=True))
    pairs, recordings = [], {}
    for number in range(count):
        speaker = drawn.choice(speakers)
        spoken = [drawn.choice(digits) for _ in range(drawn.randint(3, 7))]
        name = f"string{number:04}_{speaker}_{''.join(spoken)}.wav"
        pieces = [drawn.choice(takes[speaker, digit]) for digit in spoken]
        pauses = [bytes(2 * drawn.randint(*PAUSE)) for _ in pieces[1:]]
        joined_pieces = [part for pair in zip(pieces, [*pauses, b""], strict=True) for part in pair]
        recordings[name] = wav(b"".join(joined_pieces), FSDD_RATE)
        pairs.append((name, " ".join(spoken)))
    return pairs, recordings


def m4_hourly(paths: list[Path]) -> Files:
    """A row is a series: its name, then its values; test has the values after those of train."""
    found = find(paths, r"Hourly-(train|test)\.csv", least=2)
    names = [{line.partition(",")[0] for line in lines(content)[1:]} for content in found.values()]
    if names[0] != names[1]:
        raise ValueError("Hourly-train.csv and Hourly-test.csv have different series")
    return {f"{name}.gz": gzip.compress(content, mtime=0) for name, content in found.items()}


def exchange_rate(paths: list[Path]) -> Files:
    content = find_one(paths, r"exchange_rate\.txt")
    for line in lines(content):
        fields(line, 8, ",")
    return {"exchange_rate.txt.gz": gzip.compress(content, mtime=0)}


def ett(paths: list[Path]) -> Files:
    content = find_one(paths, r"ETTh1\.csv")
    if lines(content)[0] != "date,HUFL,HULL,MUFL,MULL,LUFL,LULL,OT":
        raise ValueError("ETTh1.csv should begin with date,HUFL,HULL,MUFL,MULL,LUFL,LULL,OT")
    return {"ETTh1.csv.gz": gzip.compress(content, mtime=0)}


TEXTS = (tatoeba, multi30k, cmudict, sst2, ewt, wikiann, brown, tinyshakespeare)
MEDIA = (flickr8k, an4, fsdd)
SERIES = (m4_hourly, exchange_rate, ett)
CORPORA: dict[str, Callable[[list[Path]], Written | Files]] = {
    corpus.__name__: corpus for corpus in (*TEXTS, *MEDIA, *SERIES)
}


def describe(name: str, content: bytes) -> str:
    if name.endswith(".tar"):
        with tarfile.open(fileobj=io.BytesIO(content)) as members_of:
            return f"{len(members_of.getnames()):,} files"
    count = (gzip.decompress(content) if name.endswith(".gz") else content).count(b"\n")
    return f"{count:,} lines"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", choices=CORPORA)
    parser.add_argument("downloaded", type=Path, nargs="+")
    parser.add_argument("out", type=Path)
    arguments = parser.parse_args()
    try:
        made = CORPORA[arguments.corpus](arguments.downloaded)
        arguments.out.mkdir(parents=True, exist_ok=True)
        for name, contents in made.items():
            content = contents() if callable(contents) else contents
            (arguments.out / name).write_bytes(content)
            print(f"{arguments.out / name}: {describe(name, content)}")
    except (OSError, EOFError, ValueError, wave.Error, *BROKEN) as error:
        sys.exit(f"prepare.py {arguments.corpus}: {error}")


if __name__ == "__main__":
    main()
