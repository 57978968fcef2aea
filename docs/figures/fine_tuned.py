"""Draws the map of docs/import.md: a head of a tagger that was fine-tuned from MiniLM attends to the next word.

    python docs/figures/fine_tuned.py runs/ewt_minilm

The run is that of `regard train ewt_minilm train.start_from=RUN`. It needs the weights and the data, so `make figures`
does not draw it.
"""

import sys
from pathlib import Path

import regard

HERE = Path(__file__).parent
SENTENCE = "I saw Rose saw a rose with the old saw ."
LAYER, HEAD = 2, 9


def main() -> None:
    [tagged] = regard.load(sys.argv[1]).predict([SENTENCE], all_maps=True)
    assert tagged.maps is not None
    tagged.maps.pick(layer=LAYER, head=HEAD).save(HERE / "fine_tuned.svg")
    print(" ".join(f"{word}/{tag}" for word, tag in zip(SENTENCE.split(), tagged.tokens, strict=True)))


if __name__ == "__main__":
    main()
