"""Draws the moving picture of the README: the model of `dates` reads a date that it has not seen, letter by letter.

Run it with `make figures`; a run in ./runs is used if it is there."""

from pathlib import Path

import regard
from regard import storage
from regard.show.maps import draw

HERE = Path(__file__).parent
DATE = "Wednesday, September 16, 1992"


def main() -> None:
    run = Path("runs") / "dates"
    predictor = regard.load(run if run.exists() else regard.train("dates"))
    [prediction] = predictor.predict([DATE])
    print(prediction.title)
    assert prediction.map is not None
    storage.write(HERE / "walk.gif", draw(prediction.map, ".gif", prediction.title))


if __name__ == "__main__":
    main()
