"""Parses the times of series: ISO 8601, with or without offsets from UTC, or positions that are just counted."""

import re
from collections.abc import Callable, Sequence
from datetime import datetime
from itertools import zip_longest
from typing import NamedTuple

import numpy as np

from regard.data.frequency import HOUR, MINUTE, Positions, Time
from regard.errors import DataError, shown

POSITION, LOCAL, OFFSET = "a position", "a time without an offset", "a time with an offset"  # kinds of texts
EXAMPLE = "write it as 2026-11-18 or 2026-11-18 07:00"
EPOCH = datetime(1970, 1, 1)
DEFAULTS = (1, 1, 1, 0, 0, 0)  # of year, month, day, hour, minute, second
POSITION_TEXT = re.compile(r"[0-9]{1,9}")  # more digits would be the seconds of Unix
DATE_IN_DIGITS = re.compile(r"([0-9]{4})(?:([0-9]{2})([0-9]{2})?)?")
QUARTER = re.compile(r"([0-9]{4})-?[Qq]([1-4])")
TIME = re.compile(
    r"([0-9]{4,6})[-/]([0-9]{1,2})(?:[-/]([0-9]{1,2})"  # date; the day may be left out
    r"(?:[T ]([0-9]{1,2})(?::([0-9]{2})(?::([0-9]{2})(?:[.,]0+)?)?)?"  # hours, minutes, seconds
    r" ?(Z|[+-][0-9]{2}(?::?[0-9]{2})?)?)?)?"  # offset
)
OFFSET_GROUP = 7
DAY_FIRST = re.compile(r"[0-9]{1,2}[./-][0-9]{1,2}[./-][0-9]{4}\b.*", re.DOTALL)
SHAPES = ("0000-00-00", "0000-00-00 00:00", "0000-00-00T00:00", "0000-00-00 00:00:00", "0000-00-00T00:00:00")


class Parsed(NamedTuple):
    """The numbers of some texts, which are all of one kind."""

    kind: str
    numbers: Positions  # seconds since 1970 as the text has them, or positions
    offsets: Positions | None  # seconds to subtract for UTC; only of times with an offset


class _Number(NamedTuple):
    kind: str
    number: int
    offset: int = 0


def parse_times(texts: Sequence[str], where: Callable[[int], str], *, digits_are_dates: bool, kind: str = "") -> Parsed:
    """The times of texts, at least one; DataError at the first that is no time, or not of the kind of those before.

    `where` gives file and line of a text, and `kind` is that of texts that were parsed before. Whole numbers are
    positions, unless `digits_are_dates`: then 1990 is a year, 199007 a month and 19900714 a day.
    """
    if kind in ("", LOCAL) and (seconds := _of_one_shape(texts)) is not None:
        return Parsed(LOCAL, seconds, None)
    cache: dict[str, _Number] = {}  # times often are those of many series
    numbers, offsets = np.empty(len(texts), np.int64), np.empty(len(texts), np.int64)
    for index, text in enumerate(texts):
        if (parsed := cache.get(text)) is None:
            parsed = cache[text] = _parse(text, index, where, digits_are_dates)
            kind = kind or parsed.kind
            if parsed.kind != kind:
                raise _mixed(where(index), text, parsed.kind, kind)
        numbers[index], offsets[index] = parsed.number, parsed.offset
    return Parsed(kind, numbers, offsets if kind == OFFSET else None)


def parse_time(text: str, where: str) -> Time:
    """The time of one text, in UTC if it has an offset."""
    parsed = _parse(text, 0, lambda _: where, digits_are_dates=True)
    return np.datetime64(parsed.number - parsed.offset, "s")


def is_time(text: str) -> bool:
    """Whether a text is a time or a position."""
    try:
        _parse(text, 0, str, digits_are_dates=False)
    except DataError:
        return False
    return True


def _of_one_shape(texts: Sequence[str]) -> Positions | None:
    """The seconds of times that all look alike, such as 2026-11-18 07:00, at once; None if they do not."""
    shape = np.array([re.sub("[0-9]", "0", texts[0])])
    if shape[0] not in SHAPES:
        return None
    array = np.array(texts)
    if array.dtype != shape.dtype:
        return None
    characters, pattern = array.view(np.uint32).reshape(len(texts), -1), shape.view(np.uint32)
    is_digit = pattern == ord("0")
    digits = characters[:, is_digit] - ord("0")  # unsigned: what is below 0 is very large
    if (characters[:, ~is_digit] != pattern[~is_digit]).any() or (digits > 9).any() or not digits[:, :4].any(1).all():
        return None
    try:
        return array.astype("datetime64[s]").astype(np.int64)
    except ValueError:  # the one that is out of range is found one by one
        return None


def _parse(text: str, index: int, where: Callable[[int], str], digits_are_dates: bool) -> _Number:
    stripped = text.strip()
    if not digits_are_dates and POSITION_TEXT.fullmatch(stripped):
        return _Number(POSITION, int(stripped))
    if quarter := QUARTER.fullmatch(stripped):
        stripped = f"{quarter[1]}-{3 * int(quarter[2]) - 2}"
    match = TIME.fullmatch(stripped) or (DATE_IN_DIGITS.fullmatch(stripped) if digits_are_dates else None)
    if match is None:
        raise DataError(f"{where(index)}: {_refusal(stripped)}; {EXAMPLE}")
    year, month, day, hour, minute, second = (
        default if part is None else int(part) for part, default in zip_longest(match.groups()[:6], DEFAULTS)
    )
    try:
        time = datetime(year, month, day, hour, minute, second)
        offset = _offset(match[OFFSET_GROUP]) if match.re is TIME and match[OFFSET_GROUP] else None
    except ValueError as error:
        raise DataError(f"{where(index)}: {shown(text)} is out of range ({error}); {EXAMPLE}") from None
    seconds = int((time - EPOCH).total_seconds())
    return _Number(LOCAL, seconds) if offset is None else _Number(OFFSET, seconds, offset)


def _mixed(where: str, text: str, kind: str, before: str) -> DataError:
    """The error for a time of another kind than those before it."""
    if POSITION in (kind, before):
        how = "write all as times, or all as positions"
    else:
        how = "write all with an offset such as +01:00 or Z, or none"
    return DataError(f"{where}: {shown(text)} is {kind}, but the one before is {before}; {how}")


def _offset(text: str) -> int:
    """The seconds east of UTC of Z, +05:30, +0530 or +05."""
    if text == "Z":
        return 0
    hours, minutes = int(text[1:3]), int(text[3:].lstrip(":") or 0)
    if hours > 14 or minutes > 59:  # Kiribati is 14 hours before UTC
        raise ValueError("offsets are from -14:00 to +14:00")
    return (-1 if text[0] == "-" else 1) * (hours * HOUR + minutes * MINUTE)


def _refusal(text: str) -> str:
    """Why a text is no time."""
    if not text:
        return "no time"
    if DAY_FIRST.fullmatch(text):
        return f"{shown(text)} may begin with a day or with a month"
    if text.isdecimal():
        return f"{shown(text)} is no time, and too large for a position; convert seconds of Unix to dates"
    if "." in text and TIME.fullmatch(text.rpartition(".")[0]):
        return f"{shown(text)} has a fraction of a second, and steps are whole seconds"
    return f"{shown(text)} is no time"
