"""The bounds of requests: every one is refused before work is done, with a sentence that names the bound."""

import json
import time

import pytest

from regard.serve.limits import Bounds, RefusedError, check_depth, parse_json
from regard.serve.questions import options_of, options_of_query, values_of

BOUNDS = Bounds()


@pytest.mark.parametrize(
    "content",
    [
        b"[" * 1_000_000,
        b'{"a":' * 200_000,
        b'{"inputs": ' + b"[" * 20 + b"]" * 20 + b"}",
        b'"' + b'\\"' * 400_000 + b"[" * 100 + b'"' + b"[" * 17,
    ],
)
def test_deep_json_is_refused_quickly(content: bytes) -> None:
    began = time.perf_counter()
    with pytest.raises(RefusedError, match="more than 16 brackets within brackets") as refused:
        parse_json(content, BOUNDS)
    assert refused.value.status == 400
    assert time.perf_counter() - began < 2


@pytest.mark.parametrize(
    "content",
    [b'{"inputs": ["[[[[[[[[[[[[[[[[[[[[[[", "\\"[[[[[[[[[[[[[[[[[[[[[", "\\\\"]}', b'"[[[[[[[[[[[[[[[[[[[[[[\\'],
)
def test_brackets_in_strings_do_not_count(content: bytes) -> None:
    check_depth(content, 16)


@pytest.mark.parametrize("content", [b'"' * 1_000_001, b'"\\' * 500_000, b'\\"' * 500_000, b'"' + b"\\" * 999_999])
def test_odd_quotes_take_linear_time(content: bytes) -> None:
    began = time.perf_counter()
    check_depth(content, 16)
    assert time.perf_counter() - began < 2


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "not valid JSON: see line 1, column 1; send an object, such as"),
        (b"{}\xff\xfe", "not valid JSON: its byte 3 is no UTF-8"),
        (b"[]", "not a JSON object"),
        (b'{"seed": NaN}', "NaN is not a number of JSON"),
        (b'{"seed": ' + b"9" * 401 + b"}", "a whole number of 401 digits, at most 400; give a smaller number"),
        (b'{"seed": ' + b"9" * 5000 + b"}", "a whole number of 5,000 digits, at most 400; give a smaller number"),
        (b'{"a": 1,\n "b" 2}', "not valid JSON: see line 2, column 6; send an object"),
    ],
)
def test_what_is_no_object_is_refused(content: bytes, sentence: str) -> None:
    with pytest.raises(RefusedError, match=sentence) as refused:
        parse_json(content, BOUNDS)
    assert refused.value.status == 400


ABSURD = [
    ({"beam": 51}, r"beam is 51; give a whole number from 1 to 50"),
    ({"beam": 0}, "from 1 to 50"),
    ({"beam": True}, "beam is True"),
    ({"beam": 1.5}, "beam is 1.5"),
    ({"beam": 10**300}, "from 1 to 50"),
    ({"n_best": 10**9}, "n_best is 1000000000; give a whole number from 1 to 50"),
    ({"seed": -1}, "seed is -1; give a whole number from 0"),
    ({"maps": 1}, "maps is 1; give true or false"),
    ({"view": "yes"}, "view is 'yes'; give true or false"),
    ({"timeout": 0}, "timeout is 0; give a number from 0.01 to 30"),
    ({"timeout": 1e9}, "give a number from 0.01 to 30"),
    ({"timeout": "1"}, "timeout is '1'"),
    ({"search": []}, "search is \\[\\]; give an object"),
    ({"search": {"max_extra": 100_000}}, "search.max_extra is 100000; give a number from 0 to 1000"),
    ({"search": {"max_ratio": 99}}, "search.max_ratio is 99; give a number from 0 to 10"),
    ({"search": {"beem": 3}}, "unknown key of search 'beem'"),
    ({"beem": 3}, "unknown key 'beem'; there are .*; did you mean 'beam'"),
    ({"x" * 10_000: 3}, "unknown key"),
]


@pytest.mark.parametrize(("given", "sentence"), ABSURD, ids=lambda value: json.dumps(value)[:40])
def test_absurd_parameters_are_refused_and_the_bound_is_named(given: dict[str, object], sentence: str) -> None:
    with pytest.raises(RefusedError, match=sentence) as refused:
        options_of(given, BOUNDS)
    assert refused.value.status == 422
    assert len(str(refused.value)) < 1000


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"beam": "9" * 400}, "from 1 to 50"),
        ({"beam": "x"}, "beam is 'x'; give a number"),
        ({"beam": "nan"}, "from 1 to 50"),
        ({"maps": "perhaps"}, "give true or false"),
        ({"inputs": "x"}, "unknown parameter 'inputs'"),
        ({"max_extra": "1e9"}, "from 0 to 1000"),
    ],
)
def test_absurd_parameters_of_a_query_are_refused(given: dict[str, str], sentence: str) -> None:
    with pytest.raises(RefusedError, match=sentence):
        options_of_query(given, BOUNDS)


def test_a_query_has_the_options_of_a_body() -> None:
    given = {
        "run": "x",
        "beam": "4",
        "n_best": "2",
        "seed": "7",
        "maps": "true",
        "length_penalty": "0.6",
        "timeout": "2.5",
    }
    body = {"beam": 4, "n_best": 2, "seed": 7, "maps": True, "search": {"length_penalty": 0.6}, "timeout": 2.5}
    assert options_of_query(given, BOUNDS) == options_of(body, BOUNDS)


@pytest.mark.parametrize("given", [{}, {"inputs": []}, {"inputs": "text"}, {"inputs": {"a": 1}}])
def test_inputs_are_a_list_with_something_in_it(given: dict[str, object]) -> None:
    with pytest.raises(RefusedError, match="give a list of at least one input") as refused:
        values_of(given, BOUNDS)
    assert refused.value.status == 422


def test_too_many_inputs_are_refused() -> None:
    with pytest.raises(RefusedError, match="the request has 65 inputs, at most 64") as refused:
        values_of({"inputs": ["a"] * 65}, BOUNDS)
    assert refused.value.status == 413
