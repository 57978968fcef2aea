"""Draws pages with something to choose: all heads of a Transformer, and two models side by side, for one date.

Run it with `make figures`; runs in ./runs are used if they are there."""

import shutil
import sys
import tempfile
from pathlib import Path

import regard
from regard import storage
from regard.show.html import html_of_prediction, html_side_by_side
from regard.types import Prediction

sys.path.insert(0, str(Path(__file__).parent))
from screens import photograph
from sources import with_palette

HERE = Path(__file__).parent
DATE = "14 juillet 1989"
RECIPES = ("dates", "transformer_small")
# Moves the slider, as somebody does who wants to see the output after six tokens.
SLIDE = """<script type="module">
const slider = document.querySelector("input");
slider.value = 6;
slider.dispatchEvent(new Event("input"));
</script></body>"""


def predicted(recipe: str) -> Prediction:
    """The date as the model of a recipe reads it, with two rivals and all maps."""
    run = Path("runs") / recipe
    predictor = regard.load(run if run.exists() else regard.train(recipe))
    return predictor.predict([DATE], n_best=3, all_maps=True)[0]


def main() -> None:
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        sys.exit("There is no chromium on the PATH: the pictures of the HTML pages stay as they were.")
    predictions = {recipe: predicted(recipe) for recipe in RECIPES}
    pages = {
        "heads": (html_of_prediction(predictions["transformer_small"]), (860, 940), "#heads"),
        "models": (html_side_by_side([*predictions.items()]), (1300, 1060), ""),
    }
    for name, (content, size, place) in pages.items():
        text = content.decode()
        policy = text[text.index("<meta http-equiv") : text.index(">", text.index("<meta http-equiv")) + 1]
        with tempfile.TemporaryDirectory() as folder:
            page = Path(folder) / "map.html"
            storage.write(page, text.replace(policy, "").replace("</body>", SLIDE).encode())
            picture = photograph(chromium, page, Path(folder), *size, place)
            storage.write(HERE / f"{name}_page.png", with_palette(picture))


if __name__ == "__main__":
    main()
