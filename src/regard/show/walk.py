"""A map as a moving picture: the output appears token by token, each with the weights of its row. A GIF file."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from io import BytesIO

import numpy as np

from regard.errors import MissingExtraError, RecipeError
from regard.maps import MARKS, AttentionMap, Grid, PictureView, SeriesView, Spectrogram
from regard.show import fan, layout, spectrogram
from regard.show.labels import LONGEST, clipped, make_visible, shown
from regard.show.large import has_many_cells
from regard.show.layout import INK, MARGIN, PALE, Line, Photo, Picture, Word
from regard.show.png import paint
from regard.show.ramp import tint
from regard.show.scale import shades, tops
from regard.show.views import fitted, overlay, resized, row_times, source_view, upsample

STEP, END = 500, 2500  # milliseconds of a token, and of the last one
MOST = 100  # tokens; of a longer output, the first
MARK = "#e8790c"
SIDE, LINE, LETTER = 420.0, 26.0, 16.0  # longer side of a picture, height of a line of words, and their font size
SHARPNESS = 130  # dots for 100 pixels
COLOURS = 255

Spell = Callable[[str], str]
Arrange = Callable[[int, Spell], Picture]


def gif(attention: AttentionMap, title: str = "", scale: str | None = None) -> bytes:
    """The play of a map as an animated GIF: over a text its matrix, or the map on its picture, recording or series.

    Of more than 100 tokens, the first are shown. The title `source → output` has what is written so far.
    """
    try:
        from PIL import Image
    except ImportError as error:
        raise MissingExtraError("Pillow", "vision", "drawing a GIF") from error
    attention = _first(attention)
    bare = _arranged(attention, title, scale)

    def arrange(step: int, spell: Spell) -> Picture:
        return layout.with_sentence(bare(step, spell), attention.trust)

    texts = (title, attention.trust, *attention.rows, *attention.columns)
    pictures = []
    for step in range(len(attention.rows) + 1):
        content = paint(texts, lambda spell, step=step: arrange(step, spell), SHARPNESS)  # type: ignore[misc]
        pictures.append(Image.open(BytesIO(content)).convert("RGB"))
    width, height = pictures[0].size
    chosen = [*pictures[:: max(1, len(pictures) // 8)], pictures[-1]]  # of some frames, the colours for all
    together = Image.new("RGB", (width, height * len(chosen)))
    for number, picture in enumerate(chosen):
        together.paste(picture, (0, height * number))
    palette = together.quantize(COLOURS)
    colours = palette.getpalette() or []
    lightest = max(range(len(colours) // 3), key=lambda place: sum(colours[3 * place : 3 * place + 3]))
    palette.putpalette([*colours[: 3 * lightest], 255, 255, 255, *colours[3 * lightest + 3 :]])
    frames = [picture.quantize(palette=palette, dither=Image.Dither.NONE) for picture in pictures]
    for frame, picture in zip(frames, pictures, strict=True):  # Pillow takes a colour near white for white
        white = (np.asarray(picture) == 255).all(-1).astype(np.uint8) * 255
        frame.paste(lightest, (0, 0), Image.fromarray(white))
    durations = [*[STEP] * (len(frames) - 1), END]
    file = BytesIO()
    frames[0].save(file, "GIF", save_all=True, append_images=frames[1:], duration=durations, loop=0, optimize=True)
    return file.getvalue()


def _first(attention: AttentionMap) -> AttentionMap:
    """The map of the tokens that are shown."""
    if len(attention.rows) <= MOST:
        return attention
    return replace(attention, weights=attention.weights[:MOST], rows=attention.rows[:MOST])


def _arranged(attention: AttentionMap, title: str, scale: str | None) -> Arrange:
    """The function that places the parts of the picture after so many tokens."""
    view = source_view(attention)
    if isinstance(view, PictureView):
        return lambda step, spell: _on_picture(attention, view, title, spell, scale or "row", step)
    if isinstance(view, Spectrogram):
        return lambda step, spell: _on_recording(attention, view, _told(title, attention, step), spell, scale, step)
    if isinstance(view, SeriesView):
        return lambda step, spell: _on_series(attention, view, title, spell, scale, step)
    if has_many_cells(attention):
        size = " × ".join(f"{count:,}" for count in attention.weights.shape)
        raise RecipeError(f"a .gif cannot show {size} weights; write this map to a .html file, which plays it, too")
    return lambda step, spell: _matrix(attention, title, spell, scale or "one", step)


def _told(title: str, attention: AttentionMap, step: int) -> str:
    """The title with what is written after so many tokens, if it has the form `source → output`."""
    source, arrow, _ = title.rpartition(" → ")
    rows = [row for row in attention.rows[:step] if row not in MARKS]
    is_pieces = any("▁" in row for row in attention.rows)
    is_letters = all(len(row) == 1 for row in attention.rows if row not in MARKS)
    written = "".join(rows).replace("▁", " ").strip() if is_pieces else ("" if is_letters else " ").join(rows)
    return f"{source} → {written}" if arrow else title


def _hidden(picture: Picture, top: float, bottom: float, wide: float) -> Picture:
    """The picture without the rows between two heights: a white rectangle over them, and their labels left out."""
    if bottom <= top:
        return picture
    veil = Line(((0.0, top), (wide, top), (wide, bottom), (0.0, bottom)), "white", filled=True)
    words = [
        word for word in picture.words if not (top < word.y <= bottom and (word.anchor == "right" or word.x > wide))
    ]
    return replace(picture, words=words, lines=(*picture.lines, veil))


def _framed(picture: Picture, top: float, bottom: float, wide: float) -> Picture:
    """The picture with a frame around the row between two heights, whose label has the colour of the frame."""
    frame = Line(((0, top), (wide, top), (wide, bottom), (0, bottom), (0, top)), MARK, 2.5)
    words = [
        replace(word, ink=MARK) if word.anchor == "right" and word.x < 0 and top < word.y <= bottom else word
        for word in picture.words
    ]
    return replace(picture, words=words, lines=(*picture.lines, frame))


def _matrix(attention: AttentionMap, title: str, spell: Spell, scale: str, step: int) -> Picture:
    """The rows so far; under the labels of columns that are one letter, the weights of the last row."""
    rows, wide, cell = len(attention.rows), layout.CELL * len(attention.columns), layout.CELL
    whole = layout.lay_out(attention, title, spell, scale)
    written = layout.lay_out(attention, _told(title, attention, step), spell, scale)
    squares = [square for square in whole.squares if not step * cell <= square.y < rows * cell]
    picture = _hidden(replace(whole, words=written.words, squares=squares), step * cell, rows * cell, wide)
    if not step:
        return picture
    weights = shades(attention.weights, scale)[step - 1].nan_to_num(0).tolist()
    chips = [
        Line(((x + 2, -25), (x + cell - 2, -25), (x + cell - 2, -4), (x + 2, -4)), _colour(weight), filled=True)
        for x, weight, label in zip(_places(wide, cell), weights, attention.columns, strict=True)
        if abs(weight) >= 0.02 and len(shown(label)) == 1
    ]
    words = [
        replace(word, ink="white")
        if word.anchor == "center" and word.y < 0 and abs(weights[int(word.x / cell)]) > 0.55
        else word
        for word in picture.words
    ]
    return _framed(replace(picture, words=words, lines=(*chips, *picture.lines)), (step - 1) * cell, step * cell, wide)


def _places(wide: float, cell: float) -> list[float]:
    return [column * cell for column in range(round(wide / cell))]


def _colour(weight: float) -> str:
    red, green, blue = tint(weight)
    return f"#{red:02x}{green:02x}{blue:02x}"


def _on_picture(attention: AttentionMap, view: PictureView, title: str, spell: Spell, scale: str, step: int) -> Picture:
    """The picture under the weights of the last word, and below it the words so far."""
    assert isinstance(attention.layout, Grid)
    high, wide = fitted(view, SIDE)
    height, width = fitted(view, SIDE * SHARPNESS / 100)
    pixels = resized(view.pixels, height, width)
    if step:
        weights = attention.weights[step - 1].detach().cpu().float().nan_to_num(0, 0, 0)
        top = tops(attention.weights, scale)[step - 1].item()
        pixels = overlay(pixels, upsample(weights, attention.layout, height, width) / top)
    room = max(float(wide), 360.0)
    lines = list(_lines(list(map(shown, attention.rows)), spell, room))
    words = [
        replace(word, y=high + word.y, ink=MARK if number == step - 1 else INK)
        for number, word in enumerate(lines)
        if number < step
    ]
    name = make_visible(title.rpartition(" → ")[0] or title)
    head = [Word(0, -12, clipped(spell(name), int(room / (0.61 * layout.SIZE))), layout.SIZE, ink=PALE)] if name else []
    foot = high + max([word.y for word in lines], default=0.0) + 10
    top = -32.0 if head else 0.0
    extent = (-MARGIN, top - MARGIN, room + 2 * MARGIN, foot - top + 2 * MARGIN)
    return Picture([], [*head, *words], *extent, photos=(Photo(0, 0, wide, high, pixels),))


def _lines(labels: list[str], spell: Spell, room: float) -> Iterator[Word]:
    """The words below a picture, in lines of at most this width."""
    x, y = 0.0, LINE + 4
    for label in labels:
        word = Word(x, y, clipped(spell(label), LONGEST), LETTER)
        if x and x + word.length > room:
            x, y = 0.0, y + LINE
            word = replace(word, x=x, y=y)
        yield word
        x += word.length + 0.6 * LETTER


def _on_recording(
    attention: AttentionMap, view: Spectrogram, title: str, spell: Spell, scale: str | None, step: int
) -> Picture:
    """The alignment so far above the spectrogram; tokens that are not written yet have no time there."""
    picture = spectrogram.lay_out(attention, view, title, spell, scale or "map")
    rows, tall, wide, whole = (
        len(attention.rows),
        spectrogram.TALL,
        spectrogram.WIDE,
        spectrogram.duration(attention, view),
    )
    times = row_times(attention)
    later = {round(time / whole * wide, 3) for time in times[step:] if time is not None}
    later -= {round(time / whole * wide, 3) for time in times[:step] if time is not None}
    lines = tuple(own for own in picture.lines if own.ink != MARK or round(own.points[0][0], 3) not in later)
    words = [own for own in picture.words if own.ink != MARK or round(own.x, 3) not in later]
    drawn = _hidden(replace(picture, lines=lines, words=words), step * tall, rows * tall, wide)
    return _framed(drawn, (step - 1) * tall, step * tall, wide) if step else drawn


def _on_series(
    attention: AttentionMap, view: SeriesView, title: str, spell: Spell, scale: str | None, step: int
) -> Picture:
    """The fan and the map so far."""
    picture = fan.lay_out(attention, view, title, spell, scale or "map", step)
    if not step or not attention.columns:
        return picture
    tall, top = fan.row_height(attention), fan.HIGH + fan.GAP
    return _framed(picture, top + (step - 1) * tall, top + step * tall, fan.WIDE)
