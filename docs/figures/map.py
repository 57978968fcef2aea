"""Draws the map of the README: trains `dates` and looks at one unseen date. Run it with `make figures`."""

from pathlib import Path

from regard import storage
from regard.cli.demonstration import demonstrate

HERE = Path(__file__).parent


def main() -> None:
    shown = demonstrate("runs")
    for ending in (".svg", ".png"):
        storage.write(HERE / f"map{ending}", (shown.run.path / f"map{ending}").read_bytes())
    print(shown.shown[0].source, "->", shown.shown[0].text)


if __name__ == "__main__":
    main()
