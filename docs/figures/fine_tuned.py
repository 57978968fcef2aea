"""Draws the map of docs/import.md: a tagger that was fine-tuned from MiniLM reads a sentence with one word four times.

    python docs/figures/fine_tuned.py runs/ewt_minilm

The run is that of `regard train ewt_minilm train.start_from=RUN`. It needs the weights and the data, so `make figures`
does not draw it.
"""

import sys
from pathlib import Path

import regard

HERE = Path(__file__).parent
SENTENCE = "Can you can the fish that can swim around the old can ?"


def main() -> None:
    [tagged] = regard.load(sys.argv[1]).predict([SENTENCE])
    tagged.save(HERE / "fine_tuned.svg")
    print(" ".join(f"{word}/{tag}" for word, tag in zip(SENTENCE.split(), tagged.tokens, strict=True)))


if __name__ == "__main__":
    main()
