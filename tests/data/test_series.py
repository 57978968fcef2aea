"""Series: read from files and from Python as they are, gaps as missing values, and every problem as one sentence."""

import gzip
import re
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given as cases
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from regard.data.frequency import Frequency
from regard.data.series import Series, continued, first_where, is_no_count
from regard.data.series_files import FORMATS, Reading, read
from regard.data.series_given import given
from regard.data.tables import Columns
from regard.errors import DataError, UnknownNameError
from regard.recipe import Limits
from shapes import unchecked

NAN = float("nan")
HOUR, DAY = Frequency("hour"), Frequency("day")
LONG = "series,time,value\n"
numbers = st.floats(allow_infinity=False)
DATES = ("2020-01-01", "2020-01-02", "2020-01-01T05:00Z")
cells = st.sampled_from([*DATES, "1", "7", "8", "-2.5", "3,5", "a", "nan", "inf", '"', "", " "])


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("REGARD_DATA", raising=False)


def write(content, name="x.csv"):
    Path(name).write_bytes(content if isinstance(content, bytes) else content.encode())
    return name


def loaded(content, format="", columns=Columns(), limits=Limits(), **how):  # noqa: B008
    return read(write(content), format, Reading(columns, **how), limits)


def only(content, *arguments, **options):
    (series,) = loaded(content, *arguments, **options).series
    return series


def time(text):
    return np.datetime64(text, "s")


def same(values, expected):
    return np.array_equal(values, np.array(expected, float), equal_nan=True)


# long files


def test_a_long_file_has_a_row_for_each_value():
    first, second = loaded(LONG + "a,2020-01-01 05:00,1\nb,2020-01-01 09:00,3\na,2020-01-01 06:00,2.5\n").series
    assert (first.name, first.start, first.frequency, first.values.tolist()) == (
        *("a", time("2020-01-01T05:00"), HOUR),
        [1, 2.5],
    )
    assert (second.name, second.start, second.values.tolist()) == ("b", time("2020-01-01T09:00"), [3])
    assert [first.origin, second.origin] == ["x.csv:2", "x.csv:3"]
    assert [first.where(0), first.where(1), second.where(0)] == ["x.csv:2", "x.csv:4", "x.csv:3"]


@pytest.mark.parametrize("header", ["unique_id,ds,y", "item_id,timestamp,target", "ID,Date,Value", "series,time,value"])
def test_columns_have_usual_names(header):
    assert only(f"{header}\na,2020-01-01,1\na,2020-01-02,2\n").values.tolist() == [1, 2]


def test_a_file_without_a_column_of_series_is_one_series():
    series = only("ds,y\n2020-01-01,1\n2020-01-02,2\n")
    assert (series.name, series.frequency, series.values.tolist()) == ("series", DAY, [1, 2])


def test_columns_are_given_roles():
    content = (
        "sales,shop,day,city,holiday,visits,spare\n"
        "1,a,2020-01-01,Ulm,1,11,z\n"
        "2,a,2020-01-02,Ulm,0,12,z\n"
        ",a,2020-01-03,Ulm,1,,z\n"
        ",a,2020-01-04,Ulm,0,,z\n"
    )
    columns = Columns("shop", "day", "sales", known=("holiday",), past=("visits",), categories=("city",))
    series, notes = loaded(content, columns=columns)
    assert notes == ("x.csv: columns without a role are not used: 'spare'",)
    (one,) = series
    assert one.values.tolist() == [1, 2]
    assert one.known.tolist() == [[1], [0], [1], [0]]
    assert one.past.tolist() == [[11], [12]]
    assert one.categories == ("Ulm",)
    assert [one.labels(), one.labels(4)[2:]] == [("2020-01-01", "2020-01-02"), ("2020-01-03", "2020-01-04")]


def test_without_known_covariates_a_series_ends_with_its_last_row():
    series, notes = loaded("time,value\n2020-01-01,1\n2020-01-02,\n2020-01-03,NaN\n")
    assert same(series[0].values, [1, NAN, NAN])
    assert notes == ("x.csv: 1 series with 2 missing values, which are masked",)


def test_gaps_are_missing_and_noted():
    rows = "a,2020-01-01,1\na,2020-01-04,4\nb,2020-01-01,1\nb,2020-01-02,\nb,2020-01-03,3\nc,2020-01-01,1\n"
    series, notes = loaded(LONG + rows)
    assert [one.values.tolist()[-1] for one in series] == [4, 3, 1]
    assert [one.missing for one in series] == [2, 1, 0]
    assert same(series[0].values, [1, NAN, NAN, 4])
    assert series[0].where(1) == "x.csv:2: series 'a', value 2"
    assert notes == ("x.csv: 2 series with 2 missing steps and 1 missing values, which are masked",)


def test_covariates_of_a_gap_are_missing_too():
    series = only("time,value,x\n2020-01-01,1,5\n2020-01-03,3,6\n2020-01-04,4,7\n", columns=Columns(past=("x",)))
    assert same(series.past[:, 0], [5, NAN, 6, 7])


def test_unsorted_rows_are_sorted_with_a_note():
    series, notes = loaded(LONG + "a,2020-01-01,1\nb,2020-01-05,5\na,2020-01-03,3\na,2020-01-02,2\n")
    assert series[0].values.tolist() == [1, 2, 3]
    assert [series[0].where(index) for index in range(3)] == ["x.csv:2", "x.csv:5", "x.csv:4"]
    assert notes == ("x.csv:5: rows of 1 series are not in the order of time, first here; they were sorted",)


def test_times_with_offsets_are_in_utc_and_daylight_saving_is_no_gap():
    rows = [f"2020-10-25T{hour}+0{east}:00" for hour, east in (("01:00", 2), ("02:00", 2), ("02:00", 1), ("03:00", 1))]
    series, notes = loaded("time,value\n" + "".join(f"{row},1\n" for row in rows))
    assert (series[0].start, len(series[0]), series[0].frequency, notes) == (time("2020-10-24T23:00"), 4, HOUR, ())


@pytest.mark.parametrize("frequency", [None, Frequency("day")])
def test_days_of_local_time_are_days_whatever_their_offset(frequency):
    days = [*((day, 1) for day in range(27, 30)), *((day, 2) for day in range(30, 32))]
    rows = "".join(f"2020-03-{day}T00:00+0{east}:00,{day}\n" for day, east in days)
    series = only("time,value\n" + rows, frequency=frequency)
    assert series.labels() == ("2020-03-27", "2020-03-28", "2020-03-29", "2020-03-30", "2020-03-31")
    assert series.frequency == DAY


def test_positions_are_counted():
    series, _ = loaded(LONG + "a,10,1\na,15,2\na,25,4\nb,1990,5\n")
    assert series[0].frequency == Frequency("step", 5)
    assert (series[0].start, series[0].position, series[0].labels(5)) == (None, 10, ("10", "15", "20", "25", "30"))
    assert same(series[0].values, [1, 2, NAN, 4])
    assert (series[1].position, series[1].times()) == (1990, None)
    assert series[0].calendar(7).shape == (7, 0)


def test_whole_numbers_are_years_if_the_frequency_says_so():
    series = only("time,value\n1990,1\n1991,2\n", frequency=Frequency("year"))
    assert series.labels(3) == ("1990", "1991", "1992")


def test_months_may_have_any_day():
    series = only("time,value\n2020-01-31,1\n2020-02-28,2\n2020-03-31,3\n2020-05-29,5\n")
    assert series.frequency == Frequency("month")
    assert same(series.values, [1, 2, 3, NAN, 5])
    assert series.labels()[3:] == ("2020-04", "2020-05")


def test_business_days_have_no_gap_on_weekends():
    series, notes = loaded("time,value\n2026-11-19,1\n2026-11-20,2\n2026-11-23,3\n")
    assert (series[0].frequency, series[0].values.tolist(), notes) == (Frequency("business_day"), [1, 2, 3], ())


def test_one_value_is_read_if_the_frequency_is_given():
    assert len(only("time,value\n2020-01-01,1\n", frequency=HOUR)) == 1
    with pytest.raises(DataError, match=r"^x\.csv: no series has two times, so no frequency can be inferred; give the"):
        loaded(LONG + "a,2020-01-01,1\nb,2020-01-02,2\n")
    assert only("time,value\n7,1\n").position == 7


def test_constant_zeros_are_values():
    assert only("time,value\n1,0\n2,0\n3,0\n").values.tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    "content",
    [
        b"\xef\xbb\xbftime,value\n2020-01-01,1.5\n2020-01-02,\n",
        b"time,value\r\n2020-01-01,1.5\r\n2020-01-02,\r\n",
        b'"time","value"\n"2020-01-01","1.5"\n"2020-01-02",""\n',
        b"\n\ntime,value\n\n2020-01-01,1.5\n \n2020-01-02,NA",
        b"time;value\n2020-01-01;1.5\n2020-01-02;null\n",
        b"time\tvalue\n2020-01-01\t 1.5 \n2020-01-02\tNaN\n",
        b"time , value\n2020-01-01, 15e-1\n2020-01-02, N/A \n",
        gzip.compress(b"time,value\n2020-01-01,1.5\n2020-01-02,nan\n", mtime=0),
    ],
)
def test_files_of_other_programs_are_read(content):
    series = only(content)
    assert same(series.values, [1.5, NAN])
    assert series.start == time("2020-01-01")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "x.csv is empty"),
        ("\n \n", "x.csv has no line with text; give a header and at least one row"),
        ("time,value\n", "x.csv has a header, but no rows; give at least one value"),
        ("2020-01-01,1\n2020-01-02,2\n", "x.csv:1: no header, but '2020-01-01', '1'; write one such as series,time"),
        (
            "id,time,sales\n",
            "x.csv has no column of the value: none is named value, y or target; there are 'id', 'time'",
        ),
        ("id,when,value\n", "x.csv has no column of the time: none is named time, date, datetime, ds or timestamp; "),
        ("time,value,value\n1,2,3\n", "x.csv has several columns 'value'; rename all but one"),
        ("shop,town\na,b\n", "x.csv: no column is named value, y or target, and the first holds no times; there are"),
        (LONG + "a,2020-01-01\n", "x.csv:2: 2 fields, but line 1 has 3; write equally many, and decimals with a"),
        (LONG + "a,1,2\nb,1,2,5\n", "x.csv:3: 4 fields, but line 1 has 3"),
        (LONG + 'a,1,"2\n', "x.csv:2: this line is not valid CSV ("),
        (LONG + 'a,1,2"3\n', "x.csv:2: the column 'value' has '2\"3', which is no number"),
        (LONG + "a,1,2\n,2,3\n", "x.csv:3: a row without the name of its series"),
        (LONG + "a,soon,2\n", "x.csv:2: 'soon' is no time; write it as 2026-11-18"),
        (LONG + "a,,2\n", "x.csv:2: no time; write it as"),
        (LONG + "a,0000-01-01,2\n", "x.csv:2: '0000-01-01' is out of range (year 0 is out of range)"),
        (LONG + "a,99999-01-01,2\n", "x.csv:2: '99999-01-01' is out of range (year 99999 is out of range)"),
        (LONG + "a,1,2\na,2,x\n", "x.csv:3: the column 'value' has 'x', which is no number; leave the cell empty if"),
        (LONG + "a,1,inf\n", "x.csv:2: the column 'value' has 'inf', which is not finite; leave the cell empty"),
        (LONG + "a,1,-Infinity\n", "x.csv:2: the column 'value' has '-Infinity', which is not finite; "),
        (LONG + "a,1,1e999\n", "x.csv:2: the column 'value' has '1e999', which is not finite"),
        (LONG + "a,1,1_000\n", "x.csv:2: the column 'value' has '1_000', which is no number"),
        (LONG + "a,1,٣\n", "x.csv:2: the column 'value' has '٣', which is no number"),
        ("time;value\n1;2\n2;3,5\n", "x.csv:3: the column 'value' has '3,5', which is no number; write a point, not a"),
        (LONG + "a,1,2\na,2,3\na,1,4\n", "x.csv:4: series 'a' has two rows for 1, the other is line 2; keep one"),
        (
            LONG + "a,2020-10-25 02:00,2\na,2020-10-25 02:00,3\n",
            "x.csv:3: series 'a' has two rows for 2020-10-25 02:00:00, the other is line 2; keep one, or write offsets",
        ),
        (
            LONG + "".join(f"a,2020-0{day},1\n" for day in ("1-01", "2-01", "3-01", "4-01", "4-15", "5-01", "6-01")),
            "x.csv:6: series 'a' has two rows for 2020-04-15 00:00:00, the other is line 5; keep one",
        ),
        (
            LONG + "a,2020-01-01 00:00,1\na,2020-01-01 01:00,2\na,2020-01-01 02:00,2\na,2020-01-01 03:30,2\n",
            "x.csv:5: 2020-01-01 03:30:00 is no whole number of steps after 2020-01-01 00:00:00, where series 'a' "
            "begins; a step is one hour, as inferred; correct it, or give the frequency",
        ),
        (
            LONG + "a,2020-01-01 00:00,1\na,2020-01-01 01:00+01:00,2\n",
            "x.csv:3: '2020-01-01 01:00+01:00' is a time with an offset, but the one before is a time without",
        ),
        (LONG + "a,1,2\na,2020-01-01,2\n", "x.csv:3: '2020-01-01' is a time without an offset, but the one before is"),
        (
            LONG + "a,1970-01-01 00:00:00,1\na,1970-01-01 00:00:01,1\na,2020-01-01,2\n",
            "x.csv:4: series 'a' has 3 rows from 1970-01-01 00:00:00 to 2020-01-01 00:00:00; that is 1,577,836,801 "
            "steps of one second; check the times, or give the frequency",
        ),
        (LONG + "a,1,\na,2,\n", "x.csv:2: series 'a' has no value; leave it out"),
        (b"time,value\n1,\xff\n", "x.csv:2:3: not valid UTF-8"),
    ],
)
def test_bad_input_gets_one_sentence_with_its_place(content, message):
    with pytest.raises(DataError, match=f"^{re.escape(message)}"):
        loaded(content)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (Columns(value="sale"), "x.csv has no column 'sale'; there are 'time', 'sales', 'city'; did you mean 'sales'?"),
        (Columns(value="sales", known=("price",)), "x.csv has no column 'price'; there are"),
        (Columns(value="sales", known=("sales",)), "x.csv: the column 'sales' has several roles; give it one"),
        (
            Columns(value="sales", categories=("city",)),
            "x.csv:3: the categories are 'Bonn', but 'Ulm' before; they are the same in all rows of a series",
        ),
    ],
)
def test_roles_that_do_not_fit_are_refused(columns, message):
    with pytest.raises(DataError, match=f"^{re.escape(message)}"):
        loaded("time,sales,city\n1,2,Ulm\n2,3,Bonn\n", columns=columns)


def test_a_frequency_that_does_not_fit_is_refused():
    content = "time,value\n2020-01-01 00:00,1\n2020-01-01 01:30,2\n"
    with pytest.raises(
        DataError, match=r"^x\.csv:3: 2020-01-01 01:30:00 is no whole .*; a step is one hour; correct it$"
    ):
        loaded(content, frequency=HOUR)
    with pytest.raises(
        DataError, match=r"^x\.csv has times, but the frequency is step; give one such as hour, or none$"
    ):
        loaded(content, frequency=Frequency("step"))
    with pytest.raises(
        DataError, match=r"^x\.csv:3: series 'series' has two rows for 2020-01-09 00:00:00, the other is"
    ):
        loaded("time,value\n2020-01-01,1\n2020-01-09,2\n", frequency=Frequency("month"))
    with pytest.raises(DataError, match=r"^x\.csv has times of its own; give no start$"):
        loaded(content, start=time("2020-01-01"))


def test_kinds_of_times_are_compared_over_a_whole_file(monkeypatch):
    monkeypatch.setattr("regard.data.series_files.CELLS", 4)
    content = "time,value\n" + "".join(f"2020-01-0{day},1\n" for day in range(1, 6))
    assert len(only(content)) == 5
    with pytest.raises(DataError, match=r"^x\.csv:7: '2020-01-06T00:00Z' is a time with an offset, but the one before"):
        loaded(content + "2020-01-06T00:00Z,1\n")


# other files


def test_a_wide_file_has_a_column_for_each_series():
    series, notes = loaded("date,a,b\n2020-01-01,1,\n2020-01-02,2,5\n2020-01-04,4,6\n")
    assert [one.name for one in series] == ["a", "b"]
    assert same(series[0].values, [1, 2, NAN, 4])
    assert same(series[1].values, [NAN, 5, NAN, 6])
    assert series[0].start == series[1].start == time("2020-01-01")
    assert series[1].where(1) == "x.csv:3"
    assert notes == ("x.csv: 2 series with 2 missing steps and 1 missing values, which are masked",)
    begun = series[1].from_first_value()
    assert (begun.start, begun.origin) == (time("2020-01-02"), "x.csv:3")
    assert same(begun.values, [5, NAN, 6])
    assert series[0].from_first_value() is series[0]


def test_a_wide_file_may_have_an_index_without_a_name_and_numbers_as_names():
    series = loaded(",0,1\n2020-01-01,1,3\n2020-01-02,2,4\n").series
    assert {one.name: one.values.tolist() for one in series} == {"0": [1, 2], "1": [3, 4]}


def test_a_file_of_m4_has_a_row_for_each_series():
    series, notes = loaded('"V1","V2","V3","V4"\n"H1","5","6",\n"H2","1",,"3"\n', frequency=HOUR)
    assert [one.name for one in series] == ["H1", "H2"]
    assert series[0].values.tolist() == [5, 6]
    assert same(series[1].values, [1, NAN, 3])
    assert (series[0].frequency, series[0].start, series[0].label(1)) == (HOUR, None, "1")
    assert [series[1].origin, series[1].where(2)] == ["x.csv:3", "x.csv:3"]
    assert notes == ("x.csv: 1 series with 1 missing values, which are masked",)


def test_a_matrix_has_numbers_only():
    series = loaded("1,4\n2,5\n\n3,6\n", "matrix", frequency=DAY, start=time("1990-01-01")).series
    assert {one.name: one.values.tolist() for one in series} == {"1": [1, 2, 3], "2": [4, 5, 6]}
    assert (series[0].label(2), series[0].where(2)) == ("1990-01-03", "x.csv:4")


@pytest.mark.parametrize(
    ("format", "content", "message"),
    [
        ("wide", "date\n2020-01-01\n", "x.csv:1: one column; a wide file has one of times, and one for each series"),
        ("wide", "date,a,\n2020-01-01,1,2\n", "x.csv:1: column 3 has no name; write that of its series"),
        ("wide", "date,a,a\n2020-01-01,1,2\n", "x.csv:1: several columns 'a'; rename all but one"),
        ("wide", "date,a,b\n1,1,2\n1,3,4\n", "x.csv:3: series 'a' has two rows for 1, the other is line 2; keep one"),
        ("wide", "date,a,b\n1,1,2\n2,3,x\n", "x.csv:3: the column 'b' has 'x', which is no number"),
        ("wide", "date,a,b\n1,1,\n2,3,\n", "x.csv:2: series 'b' has no value; leave it out"),
        ("wide", "date,a\n", "x.csv has a header, but no rows; give at least one value"),
        ("m4", "V1,V2\nH1,5\nH1,6\n", "x.csv:3: series 'H1' is also at x.csv:2; rename one"),
        ("m4", "V1,V2\nH1,5,6\n", "x.csv:2: 3 fields, but the header has 2"),
        ("m4", "V1,V2,V3\nH1,5,x\n", "x.csv:2: field 3 has 'x', which is no number"),
        ("m4", "V1,V2\nH1,\n", "x.csv:2: series 'H1' has no value; leave it out"),
        ("m4", "V1,V2\n,5\n", "x.csv:2: a row without the name of its series"),
        ("m4", "V1,V2\n", "x.csv has a header, but no rows; give at least one series"),
        ("matrix", "1,2\n3,x\n", "x.csv:2: column 2 has 'x', which is no number"),
        ("matrix", "1,2\n3\n", "x.csv:2: 1 fields, but line 1 has 2"),
        ("matrix", "1,\n2,\n", "x.csv:1: series '2' has no value; leave it out"),
    ],
)
def test_bad_input_of_other_formats_gets_one_sentence(format, content, message):
    with pytest.raises(DataError, match=f"^{re.escape(message)}"):
        loaded(content, format)


def test_a_start_needs_a_frequency_and_an_unknown_format_is_refused():
    with pytest.raises(DataError, match=r"^x\.csv: a start without a frequency such as hour; give both, or neither$"):
        loaded("V1,V2\nH1,5\n", start=time("2020-01-01"))
    with pytest.raises(
        UnknownNameError, match=r"^unknown format 'wid'; choose from long, wide, m4, matrix; did you mean"
    ):
        loaded("V1,V2\nH1,5\n", "wid")


def test_the_limits_of_data_hold():
    with pytest.raises(
        DataError, match=r"^x\.csv has more than 2 lines; split the file, or raise data\.limits\.lines$"
    ):
        loaded("time,value\n1,2\n2,3\n", limits=Limits(lines=2))
    bomb = gzip.compress(b"time,value\n" + b"\n" * 20_000_000, mtime=0)
    with pytest.raises(DataError, match=r"^x\.csv unpacks to more than 100 times its size, as decompression bombs do"):
        loaded(bomb)


def test_a_row_of_very_many_fields_is_refused_before_they_are_made(monkeypatch):
    monkeypatch.setattr("regard.data.series_files.MOST_FIELDS", 3)
    with pytest.raises(DataError, match=r"^x\.csv:1: more than 3 fields; split the file$"):
        loaded("time,a,b,c\n1,2,3,4\n")


@cases(st.binary(max_size=60), st.sampled_from(["", *FORMATS]))
def test_any_bytes_give_series_or_a_sentence(content, format):
    with suppress(DataError):
        assert loaded(content, format).series


@cases(
    st.sampled_from(["series,time,value", "time,value,x", "date,a,b", "V1,V2,V3", "a,b,c", "1,2,3"]),
    st.lists(st.lists(cells, min_size=3, max_size=3), max_size=4),
    st.sampled_from([None, HOUR, Frequency("month"), Frequency("business_day"), Frequency("step")]),
)
def test_any_cells_give_series_or_a_sentence(header, rows, frequency):
    content = "\n".join([header, *map(",".join, rows)])
    for format in ("", *FORMATS):
        with suppress(DataError):
            for series in loaded(content, format, frequency=frequency).series:
                assert Series.from_text(series.to_text()) == series


@cases(st.lists(arrays(float, st.integers(1, 5), elements=numbers.filter(lambda x: x == x)), min_size=1, max_size=3))
def test_values_come_back_with_the_same_bits(values):
    rows = [
        f"{name},{hour // 24 + 1:02}T{hour % 24:02},{value!r}"
        for name, series in enumerate(values)
        for hour, value in enumerate(series.tolist())
    ]
    content = LONG + "".join(row.replace(",", ",2020-01-", 1) + "\n" for row in rows)
    series = loaded(content, frequency=HOUR).series
    assert [one.values.tobytes() for one in series] == [one.tobytes() for one in values]


# from Python


class Frame:
    """A data frame as pandas has it."""

    def __init__(self, columns, index=None):
        self._columns, self.columns = columns, list(columns)
        self.index = range(len(next(iter(columns.values())))) if index is None else index

    def __getitem__(self, name):
        return self._columns[name]


DAYS = np.array(["2020-01-01", "2020-01-02", "2020-01-04"], "datetime64[ns]")


@pytest.mark.parametrize("container", [dict, Frame])
def test_long_tables_are_given_in_python(container):
    texts = ["2020-01-01", "2020-01-02", "2020-01-04"]
    for times in (DAYS, texts, np.array(texts, object)):
        table = container({"unique_id": ["a", "a", "a"], "ds": times, "y": [1, None, 4.5]})
        (series,) = given(table).series
        assert (series.name, series.start, series.frequency) == ("a", time("2020-01-01"), DAY)
        assert same(series.values, [1, NAN, NAN, 4.5])


def test_wide_frames_and_frames_with_an_index_of_times_are_given_in_python():
    columns = {"a": [1, 2, 4], "b": np.array([5, 6, 8])}
    for frame in (Frame({"when": DAYS} | columns), Frame(columns, DAYS)):
        series = given(frame).series
        assert [one.name for one in series] == ["a", "b"]
        assert same(series[1].values, [5, 6, NAN, 8])
        assert series[1].where(3) == "series given in Python:3"


def test_arrays_and_dictionaries_of_arrays_are_given_in_python():
    (series,) = given([1, None, 3]).series
    assert same(series.values, [1, NAN, 3])
    how = Reading(frequency=HOUR, start=time("2020-01-01"))
    first, second = given({"a": np.arange(3), "b": (2.5,)}, how).series
    assert (first.name, first.values.tolist(), first.label(2)) == ("a", [0, 1, 2], "2020-01-01 02:00")
    assert (second.name, second.values.tolist()) == ("b", [2.5])
    assert given([first, second]).series == [first, second]
    assert given(first).series == [first]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ([], "series given in Python: series 'series' has values of shape (0,); give one or more in a row, by name if"),
        ({}, "series given in Python: none; give at least one"),
        ("1,2", "series given in Python: series 'series' is '1,2'; give its values, such as a list of numbers"),
        (5, "series given in Python: series 'series' is 5; give its values, such as a list of numbers"),
        (np.ones((2, 3)), "series given in Python: series 'series' has values of shape (2, 3); give one or more in a"),
        ([1, "x"], "series given in Python: series 'series', value 2: it has 'x', which is no number"),
        ({"a": np.array([1, np.inf])}, "series given in Python: series 'a', value 2: it has an infinite number, which"),
        ({"a": [None]}, "series given in Python: series 'a' has no value; leave it out"),
        ({"time": DAYS, "value": [1, 2]}, "series given in Python: the columns 'time', 'value' have no rows, or not"),
        (Frame({"time": [], "value": []}), "series given in Python: the columns 'time', 'value' have no rows, or not"),
        (Frame({"time": [DAYS[0], None], "y": [1, 2]}), "series given in Python:2: no time; write it as"),
        (
            Frame({"time": np.array(["2020-01-01", "NaT"], "datetime64[s]"), "y": [1, 2]}),
            "series given in Python:2: NaT is no time in whole seconds",
        ),
        (Frame({"a": [1, 2]}), "series given in Python: the data frame has one column, 'a'; give times and values"),
    ],
)
def test_other_data_in_python_gets_one_sentence(data, message):
    with pytest.raises(DataError, match=f"^{re.escape(message)}"):
        given(data)


# series


@st.composite
def any_series(draw):
    steps, future = draw(st.integers(1, 5)), draw(st.integers(0, 3))
    widths = draw(st.tuples(st.integers(0, 2), st.integers(0, 2)))
    has_times = draw(st.booleans())
    with unchecked():  # beartype draws random numbers of its own, which a strategy may not
        return Series(
            name=draw(st.text(max_size=5)),
            values=draw(arrays(float, steps, elements=numbers)),
            frequency=draw(st.sampled_from([HOUR, Frequency("minute", 15), Frequency("month")])),
            start=time(draw(st.datetimes())) if has_times else None,
            position=0 if has_times else draw(st.integers(0, 9)),
            known=draw(arrays(float, (steps + future, widths[0]), elements=numbers)),
            past=draw(arrays(float, (steps, widths[1]), elements=numbers)),
            categories=tuple(draw(st.lists(st.text(max_size=3), max_size=2))),
        )


@cases(any_series())
def test_a_series_comes_back_from_its_text_with_the_same_bits(series):
    text = series.to_text()
    again = Series.from_text(text, origin="x:1")
    assert again == series
    assert hash(again) == hash(series)
    assert (again.to_text(), again.origin) == (text, "x:1")
    assert "\n" not in text
    for numbers, others in ((series.values, again.values), (series.known, again.known), (series.past, again.past)):
        assert np.array_equal(numbers, others, equal_nan=True)
        assert np.array_equal(np.signbit(numbers[numbers == 0]), np.signbit(others[others == 0]))


@cases(any_series(), st.integers(1, 5))
def test_a_shorter_series_has_the_same_times_and_all_known_covariates(series, count):
    shorter = series.upto(count)
    assert len(shorter) == min(count, len(series)) == len(shorter.past)
    assert same(shorter.values, series.values[:count])
    assert np.array_equal(shorter.known, series.known, equal_nan=True) or not series.known.shape[1]
    assert shorter.labels(7) == series.labels(7)
    assert [series.label(index) for index in range(7)] == [*series.labels(7)]


def test_two_series_are_equal_if_all_but_the_place_is():
    series = Series("a", np.array([1.0, NAN]), HOUR, time("2020-01-01"))
    assert series == replace(series, origin="x.csv:7")
    for other in ({"name": "b"}, {"values": np.array([1.0, 2.0])}, {"frequency": DAY}, {"categories": ("c",)}):
        assert series != replace(series, **other)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "x:1: not valid JSON ("),
        ("[" * 100_000, "x:1: not valid JSON ("),
        ("[]", "x:1: [] is not a JSON object; write a series as an object"),
        ('{"values":[1],"valeus":1}', "x:1: unknown key 'valeus'; there are name, values, .*; did you mean 'values'?"),
        ('{"values":5}', "x:1: values is 5, expected a list of numbers, null for those that are missing"),
        ('{"values":[1,"2"]}', "x:1: values has [1, '2'], expected a list of numbers"),
        ('{"values":[true]}', "x:1: values has [True], expected a list of numbers"),
        ('{"values":[NaN]}', "x:1: not valid JSON ('NaN is no number of JSON')"),
        ('{"values":[1e999]}', "x:1: series 'series': an infinite number; give finite ones"),
        ('{"values":[]}', "x:1: series 'series': values of shape (0,); give one or more in a row"),
        ('{"name":"a"}', "x:1: series 'a': values of shape (0,); give one or more in a row"),
        ('{"values":[1],"frequency":"hor"}', "x:1: unknown frequency 'hor'; choose from"),
        ('{"values":[1],"frequency":"hour","start":"soon"}', "x:1: 'soon' is no time; write it as"),
        (
            '{"values":[1],"start":"2020-01-01"}',
            "x:1: series 'series': a start but no frequency; give both, or neither",
        ),
        ('{"values":[1,2],"known":[[1]]}', "x:1: series 'series': 2 values, but 1 steps of known covariates"),
        ('{"values":[1,2],"past":[[1],[2],[3]]}', "x:1: series 'series': 2 values, but 3 steps of past covariates"),
        ('{"values":[1],"known":[1]}', "x:1: known has 1, expected a list of numbers for each step"),
        ('{"values":[1],"known":[[1],[1,2]]}', "x:1: known is no array of numbers ("),
        ('{"values":[1],"known":[]}', "x:1: series 'series': known covariates of shape (0,); give (steps, covariates)"),
        ('{"values":[1],"position":true}', "x:1: position is True, expected a whole number"),
        ('{"values":[1],"categories":[1]}', "x:1: categories are [1], expected a list of texts"),
    ],
)
def test_other_texts_are_no_series(text, message):
    pattern = re.escape(message).replace(r"\.\*", ".*")
    with pytest.raises(DataError, match=f"^{pattern}"):
        Series.from_text(text, "x:1")


@cases(st.text(alphabet='{}[]",:01.e-nulamesv', max_size=30))
def test_any_text_is_a_series_or_refused(text):
    with suppress(DataError):
        assert len(Series.from_text(text))


def test_the_first_value_that_is_no_count_is_found_with_its_line():
    rows = "a,1,0\nb,1,5\na,2,\na,3,2\nb,2,-1\nb,3,2.5\n"
    series = loaded(LONG + rows).series
    place = first_where(series, is_no_count)
    assert (str(place), place.value, place.series.name) == ("x.csv:6", -1, "b")
    assert first_where(series[:1], is_no_count) is None
    assert is_no_count(np.array([0, 1, NAN, -1, 0.5])).tolist() == [False, False, False, True, True]


# continuations


def hourly(start, *values, name="a", **fields):
    return Series(name, np.array(values, float), HOUR, time(start), origin="t.csv:2", **fields)


def test_a_test_file_continues_the_training_file():
    train = loaded("V1,V2,V3\nH1,1,2\nH2,5,\n").series
    test = loaded("V1,V2\nH2,6\nH1,3\n").series
    assert [(one.name, one.values.tolist()) for one in continued(train, test)] == [("H2", [5, 6]), ("H1", [1, 2, 3])]


def test_with_times_a_continuation_follows_directly_and_brings_its_covariates():
    known, past = np.arange(6.0)[:, None], np.arange(2.0)[:, None]
    first = hourly("2020-01-01T00:00", 1, 2, known=known[:4], past=past)
    (series,) = continued([first], [hourly("2020-01-01T02:00", 3, known=10 + known[:3], past=10 + past[:1])])
    assert (series.values.tolist(), series.start) == ([1, 2, 3], time("2020-01-01T00:00"))
    assert series.known[:, 0].tolist() == [0, 1, 10, 11, 12]
    assert series.past[:, 0].tolist() == [0, 1, 10]


@pytest.mark.parametrize(
    ("later", "message"),
    [
        (
            hourly("2020-01-01T03:00", 3),
            "t.csv:2: series 'a' begins at 2020-01-01 03:00, but that for training ends at 2020-01-01 01:00; it must "
            "go on at 2020-01-01 02:00",
        ),
        (
            hourly("2020-01-01T01:00", 3),
            "t.csv:2: series 'a' begins at 2020-01-01 01:00, but that for training ends at",
        ),
        (hourly("2020-01-01T02:00:30", 3), "t.csv:2: series 'a' begins at "),
        (
            hourly("2019-01-01T02:00", 3),
            "t.csv:2: series 'a' begins at 2019-01-01 02:00, but that for training ends at",
        ),
        (hourly("2020-01-01T02:00", 3, name="aa"), "t.csv:2: series 'aa' continues none of the 1 series for training"),
        (
            replace(hourly("2020-01-01T02:00", 3), frequency=DAY),
            "t.csv:2: series 'a' has a step of day, but in training",
        ),
        (replace(hourly("2020-01-01T02:00", 3), start=None), "t.csv:2: series 'a' has no times, unlike that for"),
        (hourly("2020-01-01T02:00", 3, categories=("b",)), "t.csv:2: series 'a' has the categories ('b',), but in"),
        (hourly("2020-01-01T02:00", 3, known=np.ones((1, 2))), "t.csv:2: series 'a' has 2 known covariates, but in"),
    ],
)
def test_other_continuations_are_refused(later, message):
    with pytest.raises(DataError, match=f"^{re.escape(message)}"):
        continued([hourly("2020-01-01T00:00", 1, 2)], [later])


def test_counted_steps_continue_where_they_ended():
    train = loaded("time,value\n5,1\n6,2\n").series
    assert continued(train, loaded("time,value\n7,3\n").series)[0].values.tolist() == [1, 2, 3]
    with pytest.raises(DataError, match=r"begins at 8, but that for training ends at 6; it must go on at 7$"):
        continued(train, loaded("time,value\n8,3\n").series)
