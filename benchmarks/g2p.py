"""CMUdict as papers on spelling have it: pronunciations without stress digits, each once.

    python benchmarks/g2p.py FOLDER OUT      FOLDER has train.tsv.gz ...; OUT gets train.tsv, valid.tsv, test.tsv
    regard train g2p_bahdanau data.train=OUT/train.tsv data.dev=OUT/valid.tsv data.test=OUT/test.tsv
    regard score runs/g2p_bahdanau --metric phoneme_errors_unstressed

The metric takes digits off both sides, so a run that was trained with them is scored likewise.
"""

import argparse
import gzip
from pathlib import Path

SPLITS = ("train", "valid", "test")


def unstressed(line: str) -> str:
    word, phonemes = line.split("\t")
    return f"{word}\t{' '.join(phoneme.rstrip('0123456789') for phoneme in phonemes.split())}"


def prepare(folder: Path, out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    for split in SPLITS:
        text = gzip.decompress((folder / f"{split}.tsv.gz").read_bytes()).decode("utf-8")
        lines = text.removesuffix("\n").split("\n")
        told = list(dict.fromkeys(map(unstressed, lines)))  # two that differ in stress alone become one
        (out / f"{split}.tsv").write_text("\n".join(told) + "\n", encoding="utf-8")
        words = len({line.split("\t")[0] for line in told})
        print(f"{out / split}.tsv: {len(told):,} pronunciations of {words:,} words, of {len(lines):,} with stress")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("out", type=Path)
    prepare(**vars(parser.parse_args()))


if __name__ == "__main__":
    main()
