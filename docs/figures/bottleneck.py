"""Compares `reverse` with and without attention, and draws how well each does by length.

Run it with `make figures`; the picture and its numbers stand in docs/bottleneck.md.
"""

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import regard
from regard import storage

HERE = Path(__file__).parent
LONG = 20  # letters from which on docs/bottleneck.md makes its claim


def main() -> None:
    orders = ("reverse", "model.decoder.order=bahdanau", "reverse", "model.decoder.order=none")
    with TemporaryDirectory() as runs:  # so that both are trained anew each time
        compared = regard.compare(*orders, runs=runs)
    storage.write(HERE / "bottleneck.svg", compared.draw(".svg"))
    print(compared.table())
    bins = list(zip(*(entry.curve.points for entry in compared.entries), strict=True))
    for looking, blind in bins:
        print(f"{looking.length:2.0f} letters: {looking.value:.3f} with attention, {blind.value:.3f} without")
    gap = min(looking.value - blind.value for looking, blind in bins if looking.length >= LONG)
    print(f"smallest gap from {LONG} letters on: {gap:.3f}")
    if gap < 0.5:
        sys.exit("the gap is smaller than docs/bottleneck.md says")


if __name__ == "__main__":
    main()
