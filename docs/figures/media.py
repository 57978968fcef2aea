"""Draws the maps of docs/pictures.md and docs/speech.md: trains `shapes` and `tones`. Run it with `make figures`."""

from pathlib import Path

import regard
from regard import storage
from regard.show import maps

HERE = Path(__file__).parent
FIGURES = {  # recipe, and the source whose map is drawn
    "caption": ("shapes", "shapes:red-circle-24-7-6,blue-square-40-40-7,green-cross-8-56-7,green-cross-56-56-6"),
    "transcript": ("tones", "tones:415119148:C4-C4-E4-C4-C4-G5"),
}


def draw(run: regard.Run, source: str, name: str) -> None:
    """Write the map of one source as NAME.png."""
    (prediction,) = regard.load(run).predict([source])
    assert prediction.map is not None
    storage.write(HERE / f"{name}.png", maps.draw(prediction.map, ".png", prediction.text))
    print(source, "->", prediction.text)


def main() -> None:
    for name, (recipe, source) in FIGURES.items():
        draw(regard.train(recipe), source, name)


if __name__ == "__main__":
    main()
