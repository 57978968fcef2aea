"""Frequencies: names are parsed, times come back as positions, what is inferred is what was meant."""

import re
from contextlib import suppress
from datetime import datetime, timedelta
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from regard.data.frequency import FEATURES, UNITS, Frequency, infer, infer_step
from regard.data.times import LOCAL, OFFSET, POSITION, parse_times
from regard.errors import DataError, RecipeError, RegardError

frequencies = st.builds(Frequency, st.sampled_from([unit for unit in UNITS if unit != "step"]), st.integers(1, 40)).map(
    Frequency.in_largest_unit
)
starts = st.datetimes(datetime(1950, 1, 1), datetime(2050, 1, 1)).map(lambda time: np.datetime64(time, "s"))


def time(text):
    return np.datetime64(text, "s")


@pytest.mark.parametrize(
    ("names", "frequency"),
    [
        ("h H hour hours 1h 1H hourly 60min", Frequency("hour")),
        ("15min 15T 15minutes 15mins 900s", Frequency("minute", 15)),
        ("s S second 1sec", Frequency("second")),
        ("D d day daily 24h 1440min", Frequency("day")),
        ("B b business_day", Frequency("business_day")),
        ("W w week W-SUN W-MON 7D", Frequency("week")),
        ("M MS ME BM month monthly", Frequency("month")),
        ("Q QS QE QS-OCT Q-DEC quarter 3M", Frequency("quarter")),
        ("Y A YE YS A-DEC year 12M 4Q", Frequency("year")),
        ("step steps", Frequency("step")),
        ("2W 14D", Frequency("week", 2)),
        ("90s", Frequency("second", 90)),
    ],
)
def test_names_are_parsed(names, frequency):
    assert {Frequency.parse(name) for name in names.split()} == {frequency}
    assert Frequency.parse(f" {frequency} ") == frequency


def test_names_may_have_spaces():
    assert Frequency.parse("15 minutes") == Frequency("minute", 15)
    assert Frequency.parse("business day") == Frequency("business_day")


@given(frequencies)
def test_a_frequency_is_parsed_from_its_text(frequency):
    assert Frequency.parse(str(frequency)) == frequency


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("hor", "unknown frequency 'hor'; choose from second, minute, .*, step; did you mean 'hour'[?]"),
        ("", "unknown frequency ''; choose from "),
        ("-1h", "unknown frequency '-1h'; choose from "),
        ("1.5h", "unknown frequency '1.5h'; choose from "),
        ("m", "the frequency 'm' may be of minutes or of months; write min or M"),
        ("15m", "the frequency '15m' may be of minutes or of months; write min or M"),
        ("0h", "a step of 0 hours; give 1 to "),
        ("999999999999Y", "a step of 999,999,999,999 years; give 1 to "),
    ],
)
def test_other_names_are_refused(name, message):
    with pytest.raises(RecipeError, match=f"^{message}"):
        Frequency.parse(name)


@given(st.text(max_size=12))
def test_any_name_gives_a_frequency_or_a_sentence(name):
    with suppress(RegardError):
        assert Frequency.parse(name).count > 0


@given(frequencies, starts, st.integers(1, 40))
def test_times_increase_and_come_back_as_positions(frequency, start, count):
    times = frequency.times(start, count)
    assume(frequency.unit != "business_day" or np.is_busday(start.astype("datetime64[D]")))
    assert times[0] == start
    assert (np.diff(times).astype(int) > 0).all()
    assert frequency.positions(times, times[:1]).tolist() == [*range(count)]
    assert len({frequency.label(one) for one in times}) == count


@given(frequencies, starts, st.integers(3, 40))
def test_the_frequency_of_times_is_inferred(frequency, start, count):
    if frequency.unit == "business_day":
        count += 7  # so that there is a weekend between
        assume(np.is_busday(start.astype("datetime64[D]")) and frequency.count == 1)
    if frequency.unit in ("day", "week"):
        assume(frequency.count * UNITS[frequency.unit].seconds < UNITS["day"].seconds * 28)  # more may be months
    assert infer(frequency.times(start, count)) == frequency


@given(st.lists(st.integers(0, 80), unique=True, min_size=2, max_size=5), st.sampled_from([3600, 86_400, 7 * 86_400]))
def test_two_times_or_more_always_have_a_frequency(places, unit):
    times = time("2021-01-01") + np.sort(places) * np.timedelta64(unit, "s")
    pairs = pairwise(times)
    assert any(infer(times).positions(np.array([later]), np.array([earlier]))[0] > 0 for earlier, later in pairs)


@pytest.mark.parametrize("unit", ["hour", "day", "business_day", "month", "quarter"])
def test_gaps_do_not_change_the_inferred_frequency(unit):
    times = Frequency(unit).times(time("2021-03-01"), 40)
    assert infer(np.delete(times, [3, 4, 11, 30])) == Frequency(unit)


def test_four_weeks_are_no_month_and_ends_of_months_are():
    assert infer(Frequency("week", 4).times(time("2021-01-06"), 9)) == Frequency("week", 4)
    assert infer(Frequency("month").times(time("2021-01-31"), 3)) == Frequency("month")
    assert infer(np.array(["2021-01-01", "2021-01-30"], "datetime64[s]")) == Frequency("day", 29)
    assert infer(np.array(["2021-02-01", "2021-03-01"], "datetime64[s]")) == Frequency("month")
    first_business_days = np.array(["2021-01-01", "2021-02-01", "2021-03-01", "2021-04-01", "2021-05-03"])
    assert infer(first_business_days.astype("datetime64[s]")) == Frequency("month")


def test_weekdays_are_business_days_only_if_a_weekend_is_between():
    monday = time("2026-11-16")
    assert infer(Frequency("day").times(monday, 5)) == Frequency("day")
    assert infer(Frequency("business_day").times(monday, 6)) == Frequency("business_day")
    assert infer(Frequency("day").times(monday, 6)) == Frequency("day")


def test_times_of_several_series_are_compared_within_each():
    first = Frequency("hour", 2).times(time("2021-01-01"), 4)
    both = np.concatenate([first, first + np.timedelta64(1, "h")])
    assert infer(both, np.array([4])) == Frequency("hour", 2)
    assert infer(both[[0, 5]], np.array([1])) is None
    assert infer(both[:0]) is None
    assert infer_step(np.array([5, 10, 15, 1, 11]), np.array([3])) == Frequency("step", 5)
    assert infer_step(np.array([5])) is None


def test_steps_of_months_keep_the_day_or_the_last_day():
    days = [str(one)[:10] for one in Frequency("month").times(time("2023-11-30"), 5)]
    assert days == ["2023-11-30", "2023-12-31", "2024-01-31", "2024-02-29", "2024-03-31"]
    days = [str(one)[:13] for one in Frequency("month").times(time("2023-12-30T07:00"), 4)]
    assert days == ["2023-12-30T07", "2024-01-30T07", "2024-02-29T07", "2024-03-30T07"]
    assert str(Frequency("year").times(time("2024-02-29"), 2)[1])[:10] == "2025-02-28"


def test_a_time_between_two_steps_or_before_the_start_has_no_position():
    hours = np.array(["2021-01-01T01:00", "2021-01-01T01:30", "2020-12-31T23:00"], "datetime64[s]")
    assert Frequency("hour").positions(hours, hours[:1]).tolist() == [0, -1, -1]
    days = np.array(["2026-11-20", "2026-11-21", "2026-11-23", "2026-11-23T01:00"], "datetime64[s]")
    assert Frequency("business_day").positions(days, days[:1]).tolist() == [0, -1, 1, -1]
    months = np.array(["2021-01-31", "2021-02-26", "2021-05-03"], "datetime64[s]")
    assert Frequency("month").positions(months, months[:1]).tolist() == [0, 1, 4]
    assert Frequency("quarter").positions(months, months[:1]).tolist() == [0, -1, -1]
    assert Frequency("step", 5).positions(np.array([3, 8, 9]), np.array([3])).tolist() == [0, 1, -1]


@pytest.mark.parametrize(
    ("name", "season"),
    [
        *(("H", 24), ("D", 7), ("B", 5), ("W", 52), ("M", 12), ("Q", 4), ("Y", 1), ("step", 1)),
        *(("min", 60), ("5min", 288), ("15min", 96), ("30min", 48), ("7min", 1), ("s", 60), ("10s", 360)),
        *(("2h", 12), ("7h", 24), ("5h", 1), ("2M", 6), ("2D", 1)),
    ],
)
def test_the_usual_season(name, season):
    assert Frequency.parse(name).season == season


def test_lags_are_the_last_values_and_those_around_each_cycle():
    hours = Frequency("hour").lags()
    assert hours[:13] == (1, 2, 3, 4, 5, 6, 7, 23, 24, 25, 47, 48, 49)
    assert hours[-9:] == (335, 336, 337, 503, 504, 505, 671, 672, 673)
    assert Frequency("month").lags(longest=24) == (1, 2, 3, 4, 5, 6, 7, 11, 12, 13, 23, 24)
    assert Frequency("step").lags() == (1, 2, 3, 4, 5, 6, 7)
    assert 96 in Frequency("minute", 15).lags()


@given(frequencies, st.integers(1, 700))
def test_lags_increase_from_one(frequency, longest):
    lags = frequency.lags(longest)
    assert lags[0] == 1
    assert all(earlier < later for earlier, later in pairwise(lags))
    assert lags[-1] <= longest


@given(frequencies, starts, st.integers(1, 300))
def test_calendar_features_are_between_minus_one_half_and_one_half(frequency, start, count):
    features = frequency.calendar(start, count)
    assert features.shape == (count, len(frequency.features))
    assert (np.abs(features) <= 0.5).all()


def test_calendar_features_are_those_of_the_calendar():
    moment = datetime(2026, 11, 18, 7, 5, 9)
    expected = {
        "second_of_minute": moment.second / 59,
        "minute_of_hour": moment.minute / 59,
        "hour_of_day": moment.hour / 23,
        "day_of_week": moment.weekday() / 6,
        "day_of_month": (moment.day - 1) / 30,
        "day_of_year": (moment.timetuple().tm_yday - 1) / 365,
        "month_of_year": (moment.month - 1) / 11,
    }
    times = np.array([moment], "datetime64[s]")
    assert {name: feature(times)[0] + 0.5 for name, feature in FEATURES.items()} == pytest.approx(expected)
    assert Frequency("hour").features == ("hour_of_day", "day_of_week", "day_of_month", "day_of_year")
    assert Frequency("year").features == Frequency("step").features == ()


@pytest.mark.parametrize(
    ("unit", "label"),
    [
        *(("second", "2026-11-18 07:05:09"), ("minute", "2026-11-18 07:05"), ("hour", "2026-11-18 07:05")),
        *(("day", "2026-11-18"), ("week", "2026-11-18"), ("business_day", "2026-11-18")),
        *(("month", "2026-11"), ("quarter", "2026-11"), ("year", "2026")),
    ],
)
def test_labels_are_as_short_as_the_frequency_allows(unit, label):
    assert Frequency(unit).label(time("2026-11-18T07:05:09")) == label


# texts of times


def where(index):
    return f"x.csv:{index + 2}"


def parse(*texts, dates=False):
    return parse_times(texts, where, digits_are_dates=dates)


def seconds(year, *parts):
    return int((datetime(year, *parts) - datetime(1970, 1, 1)).total_seconds())


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("2026-11-18", (2026, 11, 18)),
        ("2026/11/18", (2026, 11, 18)),
        ("2026-1-8", (2026, 1, 8)),
        ("2026-11", (2026, 11, 1)),
        ("2026Q3", (2026, 7, 1)),
        ("2026-Q4", (2026, 10, 1)),
        ("2026-11-18 07", (2026, 11, 18, 7)),
        ("2026-11-18 7:05", (2026, 11, 18, 7, 5)),
        ("2026-11-18T07:05:09", (2026, 11, 18, 7, 5, 9)),
        (" 2026-11-18 07:05:09.000 ", (2026, 11, 18, 7, 5, 9)),
        ("0001-01-01", (1, 1, 1)),
        ("9999-12-31 23:59:59", (9999, 12, 31, 23, 59, 59)),
    ],
)
@pytest.mark.parametrize("others", [(), ("2026/01/01",)])
def test_times_are_parsed(text, parts, others):
    parsed = parse(text, *others)
    assert (parsed.kind, parsed.offsets) == (LOCAL, None)
    assert parsed.numbers[0] == seconds(*parts)


@given(st.lists(st.datetimes(), min_size=1), st.sampled_from(["T", " "]))
def test_many_times_of_one_shape_are_those_of_each(times, mark):
    texts = [moment.isoformat(mark, "seconds") for moment in times]
    expected = [int((moment.replace(microsecond=0) - datetime(1970, 1, 1)) / timedelta(seconds=1)) for moment in times]
    assert parse(*texts).numbers.tolist() == expected
    assert [parse(text).numbers[0] for text in texts] == expected


@pytest.mark.parametrize(("offset", "east"), [("Z", 0), ("+01:00", 3600), ("-0530", -19_800), (" +14", 50_400)])
def test_offsets_are_parsed(offset, east):
    parsed = parse(f"2026-11-18T07:00:00{offset}")
    assert (parsed.kind, parsed.numbers.tolist()) == (OFFSET, [seconds(2026, 11, 18, 7)])
    assert parsed.offsets.tolist() == [east]


def test_whole_numbers_are_positions_unless_the_frequency_has_a_calendar():
    assert parse("7", "12") == (POSITION, pytest.approx([7, 12]), None)
    assert parse("1990", "199007", "19900714", dates=True).numbers.tolist() == [
        *(seconds(1990, 1, 1), seconds(1990, 7, 1), seconds(1990, 7, 14)),
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no time; write it as 2026-11-18 or 2026-11-18 07:00"),
        ("soon", "'soon' is no time; write it as "),
        ("now", "'now' is no time; write it as "),
        ("NaT", "'NaT' is no time; write it as "),
        ("18.11.2026", "'18.11.2026' may begin with a day or with a month; write it as "),
        ("11/18/2026 07:00", "'11/18/2026 07:00' may begin with a day or with a month; write it as "),
        ("0000-01-01", "'0000-01-01' is out of range (year 0 is out of range)"),
        ("99999-01-01", "'99999-01-01' is out of range (year 99999 is out of range)"),
        ("2026-13-01", "'2026-13-01' is out of range (month must be in 1..12)"),
        ("2026-02-29", "'2026-02-29' is out of range (day is out of range for month)"),
        ("2026-01-00", "'2026-01-00' is out of range (day is out of range for month)"),
        ("2026-01-01 24:00", "'2026-01-01 24:00' is out of range (hour must be in 0..23)"),
        ("2026-01-01 07:00+15:00", "'2026-01-01 07:00+15:00' is out of range (offsets are from -14:00 to +14:00)"),
        ("2026-01-01 07:00:00.5", "'2026-01-01 07:00:00.5' has a fraction of a second, and steps are whole seconds"),
        ("1467331200", "'1467331200' is no time, and too large for a position; convert seconds of Unix to dates"),
        ("٢٠٢٦-01-01", "'٢٠٢٦-01-01' is no time"),
    ],
)
def test_other_texts_are_refused_with_their_place(text, message):
    with pytest.raises(DataError, match=f"^x.csv:3: {re.escape(message)}"):
        parse("2026-11-18", text)


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        (
            "2026-11-18 07:00",
            "2026-11-18 07:00Z",
            "'2026-11-18 07:00Z' is a time with an offset, but the one before is a time without an offset; "
            "write all with an offset such as +01:00 or Z, or none",
        ),
        ("2026-11-18", "7", "'7' is a position, but the one before is a time without an offset; write all as times"),
    ],
)
def test_mixed_kinds_are_refused(first, second, message):
    with pytest.raises(DataError, match=f"^x.csv:3: {re.escape(message)}"):
        parse(first, second)
    with pytest.raises(DataError, match=r"^x.csv:2: .* but the one before is"):
        parse_times([second], where, digits_are_dates=False, kind=parse(first).kind)


@given(st.lists(st.text(alphabet="0123456789-/:TZ +.Qn", max_size=22), min_size=1, max_size=4), st.booleans())
def test_any_text_is_a_time_or_refused(texts, dates):
    with suppress(DataError):
        assert len(parse(*texts, dates=dates).numbers) == len(texts)
