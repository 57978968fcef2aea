"""Draws maps on a picture and on a recording: trains `shapes` and `tones`, and looks at a scene and at a melody.

Run it with `make figures`; runs in ./runs are used if they are there."""

import io
import shutil
import sys
import tempfile
from pathlib import Path

from PIL import Image

import regard
from regard import storage
from regard.show.maps import draw

sys.path.insert(0, str(Path(__file__).parent))
from screens import photograph

HERE = Path(__file__).parent
SOURCES = {
    "shapes": "shapes:red-circle-8-8-6,blue-square-40-8-7,green-cross-24-40-7",
    "tones": "tones:7:C4-E4-G4-A4-B5",
}
FIGURES = {"shapes": "filmstrip", "tones": "spectrogram"}
SIZES = {"shapes": (1000, 830), "tones": (1000, 720)}  # of the pages, in pixels
# Chooses the third word, as somebody does who presses an arrow key three times.
WALK = """<script type="module">
const picture = document.querySelector(".picture");
for (let press = 0; press < 3; press++) picture.dispatchEvent(new KeyboardEvent("keydown", {key: "ArrowRight"}));
</script></body>"""


def main() -> None:
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    for recipe, source in SOURCES.items():
        run = Path("runs") / recipe
        predictor = regard.load(run if run.exists() else regard.train(recipe))
        [prediction] = predictor.predict([source])
        print(prediction.title)
        assert prediction.map is not None
        storage.write(HERE / f"{FIGURES[recipe]}.svg", draw(prediction.map, ".svg", prediction.title))
        if chromium is None:
            print(
                "There is no chromium on the PATH: the pictures of the HTML pages stay as they were.", file=sys.stderr
            )
            continue
        with tempfile.TemporaryDirectory() as name:
            page = Path(name) / "map.html"
            text = draw(prediction.map, ".html", prediction.title).decode()
            policy = text[text.index("<meta http-equiv") : text.index(">", text.index("<meta http-equiv")) + 1]
            storage.write(page, text.replace(policy, "").replace("</body>", WALK).encode())
            picture = photograph(chromium, page, Path(name), *SIZES[recipe])
            storage.write(HERE / f"{FIGURES[recipe]}_page.png", with_palette(picture))


def with_palette(png: bytes) -> bytes:
    """The picture with 256 colours, which takes a third of the bytes."""
    content = io.BytesIO()
    Image.open(io.BytesIO(png)).convert("RGB").quantize(256).save(content, "PNG", optimize=True)
    return content.getvalue()


if __name__ == "__main__":
    main()
