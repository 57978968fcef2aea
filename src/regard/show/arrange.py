"""Chooses the layout of a map: on its picture, above its spectrogram, below its series, or as a matrix."""

from collections.abc import Callable

from regard.maps import AttentionMap, PictureView, SeriesView, Spectrogram
from regard.show import fan, filmstrip, large, spectrogram
from regard.show.layout import Picture
from regard.show.views import source_view


def arrange(
    attention: AttentionMap, title: str, spell: Callable[[str], str] = str, scale: str | None = None
) -> Picture:
    """Place all parts of a map, on its picture, recording or series if it has one."""
    view = source_view(attention)
    if isinstance(view, PictureView):
        return filmstrip.lay_out(attention, view, title, spell, scale or "row")
    if isinstance(view, Spectrogram):
        return spectrogram.lay_out(attention, view, title, spell, scale or "map")
    if isinstance(view, SeriesView):
        return fan.lay_out(attention, view, title, spell, scale or "map")
    return large.arrange(attention, title, spell, scale or "one")
