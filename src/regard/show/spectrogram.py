"""A map over a recording: the alignment of its tokens above the spectrogram, with one time axis."""

from collections.abc import Callable, Iterator

from regard.maps import AttentionMap, Frames, Spectrogram
from regard.show.labels import LONGEST, clipped, make_visible, shown
from regard.show.large import DOTS, Axis, pool
from regard.show.layout import HAIRLINE, MARGIN, PALE, SIZE, Area, Image, Line, Photo, Picture, Square, Word
from regard.show.scale import darkest, shades
from regard.show.views import inked, loudness, row_times

WIDE, SOUND = 760.0, 150.0  # width of the plot, and height of the spectrogram, in pixels
TALL, MOST = 20.0, 60  # height of a row of the alignment in pixels, and their maximum number
SMALL, PITCH = 11.0, 8.0  # font size of times and notes, and least space between two words, in pixels
MARK = "#e8790c"  # of the times of tokens
STEPS = [factor * 10.0**power for power in range(-3, 5) for factor in (1, 2, 5)]  # seconds between two ticks


def duration(attention: AttentionMap, view: Spectrogram) -> float:
    """The seconds that a map and its spectrogram show; the last position of the map may reach beyond the last frame."""
    assert isinstance(attention.layout, Frames)
    return max(len(view.features) * view.seconds, len(attention.columns) * attention.layout.seconds)


def ticks(seconds: float, most: int) -> list[tuple[float, str]]:
    """At most so many round times from 0 on, and their labels; the last one has the unit."""
    step = next(step for step in STEPS if seconds / step < most)
    digits = max(0, next(digits for digits in range(4) if round(step, digits) == step))
    times = [step * number for number in range(int(seconds / step + 1e-6) + 1)]
    labels = [f"{time:.{digits}f}" for time in times]
    return list(zip(times, [*labels[:-1], f"{labels[-1]} s"], strict=True))


def row_names(axis: Axis) -> list[str]:
    """The label of each row of dots; if a row has several tokens, the first after its number."""
    if axis.step == 1:
        return list(map(shown, axis.labels))
    return [f"{axis.number(dot):,} {shown(axis.labels[axis.number(dot) - 1])}" for dot in range(axis.dots)]


def lay_out(
    attention: AttentionMap, view: Spectrogram, title: str, spell: Callable[[str], str] = str, scale: str = "map"
) -> Picture:
    """Place the alignment with a row for each token and its time, then the spectrogram, and the seconds below it."""
    assert isinstance(attention.layout, Frames)
    whole = duration(attention, view)
    pooled = pool(attention, MOST, DOTS)
    wide = WIDE * len(attention.columns) * attention.layout.seconds / whole
    down = pooled.rows.dots * TALL
    times = row_times(attention)
    names = [clipped(spell(name), LONGEST) for name in row_names(pooled.rows)]
    rows = [Word(-10, (n + 0.7) * TALL, name, SIZE, "right") for n, name in enumerate(names)]
    seconds = [times[dot * pooled.rows.step] for dot in range(pooled.rows.dots)]
    rows += [
        Word(WIDE + 8, (n + 0.68) * TALL, f"{time:.2f} s", SMALL, ink=PALE)
        for n, time in enumerate(seconds)
        if time is not None
    ]
    high = down + 24  # y of the upper edge of the spectrogram
    spoken = _spoken([(time, spell(shown(row))) for row, time in zip(attention.rows, times, strict=True)], whole, high)
    marks = [
        Line(((time / whole * WIDE, high - 5), (time / whole * WIDE, high + SOUND)), MARK)
        for time in times[: MOST * 10]
        if time is not None
    ]
    axis, foot = ticks(whole, 11), high + SOUND
    lines = [Line(((time / whole * WIDE, foot), (time / whole * WIDE, foot + 5)), PALE) for time, _ in axis]
    words = [Word(time / whole * WIDE, foot + 18, text, SMALL, "center", ink=PALE) for time, text in axis]
    words += [Word(-10, high + 10, _hertz(view.highest), SMALL, "right", ink=PALE)]
    words += [Word(-10, foot, "0 Hz", SMALL, "right", ink=PALE)]
    under = foot + 32
    legend = [Square(13 + 10 * step, under, 10, step / 10) for step in range(11)]
    words += [Word(x, under + 9, text, SMALL, ink=PALE) for x, text in ((1, "0"), (129, _darkest(attention, scale)))]
    levels = (shades(pooled.weights, scale).nan_to_num(0).clamp(0, 1) * 255).round().byte()
    sound = inked(loudness(view, DOTS, view.features.shape[1]))
    photo = Photo(0, high, WIDE * len(view.features) * view.seconds / whole, SOUND, sound)
    image = Image(0, 0, wide, down, levels) if levels.numel() else None
    frames = [_frame(0, down), _frame(high, SOUND)]
    grid = [Line(((0, row * TALL), (WIDE, row * TALL)), HAIRLINE, 0.5) for row in range(1, pooled.rows.dots)]
    areas = [
        Area(0, n * TALL, WIDE, TALL, name if time is None else f"{name} at {time:.2f} s")
        for n, (name, time) in enumerate(zip(row_names(pooled.rows), seconds, strict=True))
    ]
    left = -max(word.length + 10 for word in [*rows, *words] if word.anchor == "right")
    right, top = WIDE + 8 + 0.61 * SMALL * 9, -6.0
    if title:
        named, spelled = make_visible(title), spell(make_visible(title))
        size = 15.0 if spelled == named else 10.0
        words.append(Word(left, top - 12, clipped(spelled, int((right - left) / (0.61 * size))), size))
        areas.append(Area(left, top - 28, right - left, 20, named))
        top -= 30
    extent = (left - MARGIN, top - MARGIN, right - left + 2 * MARGIN, under + 12 - top + 2 * MARGIN)
    drawn = (*grid, *frames, *lines, *marks)
    return Picture(legend, [*rows, *words, *spoken], *extent, drawn, image, tuple(areas), (photo,))


def _frame(top: float, height: float) -> Line:
    return Line(((0, top), (WIDE, top), (WIDE, top + height), (0, top + height), (0, top)), PALE)


def _spoken(tokens: list[tuple[float | None, str]], whole: float, high: float) -> Iterator[Word]:
    """The tokens above the spectrogram at their times, those that have room."""
    end = -PITCH
    for time, token in sorted((time, clipped(token, LONGEST)) for time, token in tokens if time is not None):
        word = Word(time / whole * WIDE, high - 8, token, SMALL, ink=MARK)
        if word.x >= end + PITCH:
            yield word
            end = word.x + word.length


def _hertz(frequency: float) -> str:
    return f"{frequency / 1000:g} kHz" if frequency >= 1000 else f"{frequency:g} Hz"


def _darkest(attention: AttentionMap, scale: str) -> str:
    return f"{darkest(attention.weights, scale)} · time: that of the largest weight of a row"
