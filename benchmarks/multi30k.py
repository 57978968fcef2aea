"""Multi30k as papers report it: lower-cased, punctuation normalised, Moses tokens; and the scores beside each other.

    python benchmarks/multi30k.py prepare FOLDER OUT      FOLDER has train.en.gz ...; OUT gets train.en ... as tokens
    python benchmarks/multi30k.py score OUTPUT OUT/test_2016_flickr.de FOLDER/test_2016_flickr.de.gz

Needs sacremoses (the extra `papers`).
"""

import argparse
import gzip
from pathlib import Path

import sacrebleu
from sacremoses import MosesDetokenizer, MosesPunctNormalizer, MosesTokenizer

SPLITS = ("train", "val", "test_2016_flickr", "test_2017_flickr")


def lines(path: Path) -> list[str]:
    content = path.read_bytes()
    text = (gzip.decompress(content) if path.suffix == ".gz" else content).decode("utf-8")
    return text.removesuffix("\n").split("\n")


def prepare(folder: Path, out: Path, languages: list[str]) -> None:
    """The order of the data set's own script: normalise, lower-case, tokenise."""
    out.mkdir(parents=True, exist_ok=True)
    for language in languages:
        normalizer, tokenizer = MosesPunctNormalizer(language), MosesTokenizer(language)
        for split in SPLITS:
            raw = lines(folder / f"{split}.{language}.gz")
            told = [
                tokenizer.tokenize(normalizer.normalize(line).lower(), escape=False, return_str=True) for line in raw
            ]
            (out / f"{split}.{language}").write_text("\n".join(told) + "\n", encoding="utf-8")
            print(f"{out / split}.{language}: {len(told):,} lines")


def score(output: Path, tokenised: Path, raw: Path) -> None:
    """Tokenised lower-cased BLEU, as papers have it, and sacreBLEU of the joined words against the raw text."""
    said = lines(output)
    papers = sacrebleu.metrics.bleu.BLEU(tokenize="none", force=True)
    print(f"tokenised {papers.corpus_score(said, [lines(tokenised)]).score:.2f}  {papers.get_signature()}")
    joiner = MosesDetokenizer(tokenised.suffix[1:])
    joined = [joiner.detokenize(line.split()) for line in said]
    plain = sacrebleu.metrics.bleu.BLEU(lowercase=True)
    print(f"raw text  {plain.corpus_score(joined, [lines(raw)]).score:.2f}  {plain.get_signature()}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    preparing = commands.add_parser("prepare")
    preparing.add_argument("folder", type=Path)
    preparing.add_argument("out", type=Path)
    preparing.add_argument("--languages", nargs="*", default=["en", "de"])
    scoring = commands.add_parser("score")
    for name in ("output", "tokenised", "raw"):
        scoring.add_argument(name, type=Path)
    arguments = vars(parser.parse_args())
    {"prepare": prepare, "score": score}[arguments.pop("command")](**arguments)


if __name__ == "__main__":
    main()
