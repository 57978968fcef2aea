"""The bounds of the server, and how a request that breaks one is refused: before any work is done for it."""

import json
import re
from dataclasses import dataclass
from typing import Any

from regard.errors import RegardError, shown

# Outside of strings, the brackets of JSON; a string that does not end goes on to the end of the text.
STRINGS = re.compile(rb'"(?:[^"\\]|\\.)*+\\?(?:"|\Z)', re.DOTALL)
BRACKETS = re.compile(rb"[\[\]{}]")
EXAMPLE = 'such as {"inputs": ["..."]}'


@dataclass(frozen=True)
class Bounds:
    """The bounds of requests, queues and times; docs/serve.md has them as a table."""

    json_bytes: int = 1_000_000  # size of a JSON body
    upload_bytes: int = 20_000_000  # size of an uploaded picture, recording or CSV file
    held_bytes: int = 200_000_000  # size of all bodies that are held at the same time
    body_seconds: float = 10.0  # time in which a body must arrive
    json_depth: int = 16  # brackets within brackets of a JSON body
    digits: int = 400  # of one whole number of a JSON body
    inputs: int = 64  # inputs of a request
    characters: int = 2_000  # of one text
    work: int = 32_000  # characters or positions of all inputs of a request x the larger of beam and n_best
    searched: int = 12_000_000  # attention weights of all beams or outputs of a request, if they are as long as allowed
    recorded: int = 20_000_000  # attention weights of all sites, layers and heads, in all recordings of a request
    beam: int = 50  # width of a beam, and number of outputs (n_best)
    max_ratio: float = 10.0  # search.max_ratio
    max_extra: int = 1_000  # search.max_extra
    pixels: int = 20_000_000  # of a picture, before it is resized
    seconds: int = 120  # of a recording
    values: int = 200_000  # of all series of a request
    cells: int = 1_000_000  # weights of `attention` and `maps` of an answer
    interventions: int = 16  # of a request
    seed: int = 2**31 - 1  # the largest
    queue: int = 256  # inputs that wait for a run
    batch: int = 64  # inputs that a run answers at once
    window: float = 0.005  # seconds that the first request of a batch waits for others
    deadline: float = 30.0  # seconds in which a request is answered, from its start, unless it asks for fewer
    requests: int = 1_024  # that are being read or answered at the same time
    drain: float = 20.0  # seconds that a stopping server has for the requests that it has accepted
    header_seconds: float = 10.0  # time in which the first line and the headers of a request must arrive


class RefusedError(RegardError):
    """A request that is not answered: the status of the response, a sentence, and when to try again if that helps."""

    def __init__(self, status: int, sentence: str, retry_after: int | None = None) -> None:
        super().__init__(sentence)
        self.status, self.retry_after = status, retry_after


def too_large(what: str, found: object, most: object, how: str) -> RefusedError:
    """The refusal of something that is larger than a bound."""
    return RefusedError(413, f"{what} {found}, at most {most}; {how}")


def parse_json(content: bytes, bounds: Bounds) -> dict[str, Any]:
    """The JSON object in a body; RefusedError if it is none, or nested too deeply."""
    check_depth(content, bounds.json_depth)

    def whole(digits: str) -> int:
        if (count := len(digits.lstrip("-"))) > bounds.digits:
            found = f"a whole number of {count:,} digits"
            raise RefusedError(400, f"the JSON body has {found}, at most {bounds.digits:,}; give a smaller number")
        return int(digits)

    try:
        parsed = json.loads(content.decode("utf-8"), parse_int=whole, parse_constant=_refuse_constant)
    except UnicodeDecodeError as error:
        raise RefusedError(400, f"the body is not valid JSON: its byte {error.start + 1:,} is no UTF-8") from error
    except json.JSONDecodeError as error:
        where = f"line {error.lineno:,}, column {error.colno:,}"
        raise RefusedError(400, f"the body is not valid JSON: see {where}; send an object, {EXAMPLE}") from error
    if not isinstance(parsed, dict):
        raise RefusedError(400, f"the body is {shown(parsed)}, not a JSON object {EXAMPLE}")
    return parsed


def check_depth(content: bytes, most: int) -> None:
    """Refuse JSON with too many brackets within brackets; in linear time, before it is parsed."""
    depth = 0
    for bracket in BRACKETS.finditer(STRINGS.sub(b"", content)):
        depth += 1 if bracket[0] in b"[{" else -1
        if depth > most:
            raise RefusedError(400, f"the JSON body has more than {most} brackets within brackets; nest it less")


def _refuse_constant(name: str) -> None:
    raise RefusedError(400, f"{name} is not a number of JSON; give a finite number")


def check_unicode(text: str, name: str) -> None:
    """Refuse a text with half of a surrogate pair, which no encoding can write."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        half = f"\\u{ord(text[error.start]):04x}"
        raise RefusedError(
            422, f"{name} has {half} without its other half, which is no character; leave it out"
        ) from error
