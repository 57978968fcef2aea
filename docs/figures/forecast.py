"""Draws a forecast with its map: trains `waves`, and looks at a series whose values come from seven steps before.

Run it with `make figures`; a run in ./runs is used if it is there."""

from pathlib import Path

import regard

FIGURE = Path(__file__).with_name("forecast.svg")
SERIES = "waves:lagged-7:2071"


def main() -> None:
    run = Path("runs/waves")
    predictor = regard.load(run if run.exists() else regard.train("waves"))
    [forecast] = predictor.predict([SERIES])
    print(forecast.title)
    forecast.save(FIGURE)


if __name__ == "__main__":
    main()
