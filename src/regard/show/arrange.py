"""Chooses the layout of a map: on its picture, above its spectrogram, below its series, or as a matrix."""

from collections.abc import Callable

from regard.maps import AttentionMap, PictureView, SeriesView, Spectrogram
from regard.show import fan, filmstrip, large, spectrogram
from regard.show.layout import Picture, with_sentence
from regard.show.views import source_view


def arrange(
    attention: AttentionMap, title: str, spell: Callable[[str], str] = str, scale: str | None = None
) -> Picture:
    """Place all parts of a map, on its picture, recording or series if it has one, and how far it may be trusted."""
    return with_sentence(_drawn(attention, title, spell, scale), attention.trust)


def _drawn(attention: AttentionMap, title: str, spell: Callable[[str], str], scale: str | None) -> Picture:
    """The map without its sentence."""
    view = source_view(attention)
    if isinstance(view, PictureView):
        return filmstrip.lay_out(attention, view, title, spell, scale or "row")
    if isinstance(view, Spectrogram):
        return spectrogram.lay_out(attention, view, title, spell, scale or "map")
    if isinstance(view, SeriesView):
        return fan.lay_out(attention, view, title, spell, scale or "map")
    return large.arrange(attention, title, spell, scale or "one")
