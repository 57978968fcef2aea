"""Draws what a run attends to in pictures (or recordings) of its test data, to look at them all.

    python benchmarks/filmstrips.py RUN OUT [COUNT]      10 by default; spread evenly over the test data

Writes OUT/01.png, OUT/02.png and so on, and all of them on one page, OUT/all.html. OUT must be new.
"""

import sys
from pathlib import Path

import regard
from regard import storage
from regard.show.html import Page
from regard.show.maps import draw


def main(run: str, out: str, count: int = 10) -> None:
    predictor = regard.load(run)
    task = predictor.task
    references: dict[str, list[str]] = {}  # by source: a picture may have several captions
    for example in type(task).examples(task.recipe).test:
        references.setdefault(example.source, []).append(example.target)
    sources = list(references)
    count = min(count, len(sources))
    chosen = [sources[index * len(sources) // count] for index in range(count)]
    Path(out).mkdir(parents=True)
    page = Page(("Source",), f"{count} of {len(sources):,} test sources of {run}")
    for number, prediction in enumerate(predictor.predict(chosen), 1):
        print(f"{number:02} {prediction.source}\n   wrote: {prediction.text}")
        print("".join(f"   reference: {reference}\n" for reference in references[prediction.source]), end="")
        if prediction.map is None:
            sys.exit("This run has no map: its model has no attention.")
        storage.create(Path(out) / f"{number:02}.png", draw(prediction.map, ".png", prediction.title))
        page.add((f"{number:02} {Path(prediction.source).name}: {prediction.text}",), prediction.map)
    storage.create(Path(out) / "all.html", page.html())


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], *map(int, sys.argv[3:4]))
