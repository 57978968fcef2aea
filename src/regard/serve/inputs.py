"""From the inputs of a request to those of a run: texts, uploaded pictures and recordings, and series.

Nothing that a client sends is ever the name of a file: a run that reads files gets their content.
"""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from regard.attention import intervene as interventions
from regard.attention.intervene import Feed
from regard.data import audio, pictures, series_files
from regard.data.corpora.waves import PREFIX as WAVES
from regard.data.files import read_lines
from regard.data.media import Medium
from regard.data.series import Series
from regard.errors import shown
from regard.recipe import Limits
from regard.serve.limits import Bounds, RefusedError, check_unicode, too_large
from regard.tasks import AnyTask, Forecasting, Transduce
from regard.tasks.forecast import reading_of

UPLOADS = {  # the types of content that may be uploaded, by the noun of a run's inputs
    "picture": ("image/",),
    "recording": ("audio/",),
    "series": ("text/csv",),
}
BINARY = "application/octet-stream"  # the content type of an upload of any kind
UPLOAD = "the upload"  # its name in messages


def limits_of(task: AnyTask, bounds: Bounds) -> Limits:
    """The limits of files of a run, or those of the server if they are lower."""
    limits = task.recipe.data.limits
    return replace(
        limits,
        file_bytes=min(limits.file_bytes, bounds.upload_bytes),
        recording_bytes=min(limits.recording_bytes, bounds.upload_bytes),
        recording_seconds=min(limits.recording_seconds, bounds.seconds),
        picture_bytes=min(limits.picture_bytes, bounds.upload_bytes),
        picture_pixels=min(limits.picture_pixels, bounds.pixels),
    )


def descriptions_of(task: AnyTask) -> dict[str, str]:
    """An example of each kind of description that a run takes in place of a file, by its prefix, such as `shapes`."""
    if isinstance(task, Forecasting):
        generated = task.recipe.data.corpus == "waves" and not task.recipe.data.train
        return {"waves": f"{WAVES}seasonal:7"} if generated else {}
    return dict(task.inputs.descriptions) if isinstance(task, Transduce) else {}


def accept_value(task: AnyTask, value: Any, name: str, bounds: Bounds) -> str:
    """The input for a value of a JSON body: a text, the description of a generated source, or a series as an object."""
    noun = task.noun_of_input
    if isinstance(value, dict) and noun == "series":
        text = json.dumps(value)
        check_unicode(text, name)
        series = Series.from_text(text, name)
        check_values([series], bounds)
        return Medium(series.name, series)
    if not isinstance(value, str):
        raise RefusedError(422, f"{name} is {shown(value)}; give a text")
    if len(value) > bounds.characters:
        raise too_large(f"{name} has", f"{len(value):,} characters", f"{bounds.characters:,}", "split the text")
    check_unicode(value, name)
    described = descriptions_of(task)
    if (task.reads_files or noun == "series") and value.partition(":")[0] not in described:
        types = " or ".join(f"{start}*" if start.endswith("/") else start for start in UPLOADS.get(noun, ()))
        other = f", or give a description such as {next(iter(described.values()))}" if described else ""
        raise RefusedError(422, f"this run reads one {noun} at a time: send its content as the body, as {types}{other}")
    return value


def accept_upload(task: AnyTask, content: bytes, kind: str, bounds: Bounds) -> list[str]:
    """The inputs in an uploaded file: one picture or recording, or all series of a CSV file."""
    noun = task.noun_of_input
    if not (kind == BINARY and noun in UPLOADS) and not kind.startswith(UPLOADS.get(noun, ("application/json",))):
        allowed = " or ".join(("application/json", *UPLOADS.get(noun, ())))
        raise RefusedError(415, f"the content type is {shown(kind)}, but this run reads a {noun}; send {allowed}")
    limits = limits_of(task, bounds)
    if isinstance(task, Forecasting):
        lines = read_lines([content], UPLOAD, limits)
        series = series_files.of_lines(
            lines, UPLOAD, task.recipe.forecast.format, reading_of(task.for_later_data)
        ).series
        check_values(series, bounds)
        task.check_later(series)
        return [Medium(one.name, one) for one in series]
    if noun == "picture":
        return [task.accept(pictures.decode(content, UPLOAD, limits), UPLOAD)]
    return [task.accept(audio.decode(content, UPLOAD, limits), UPLOAD)]


def accept_interventions(task: AnyTask, texts: Sequence[str], bounds: Bounds) -> list[str]:
    """The sources that interventions feed; refuses short texts that are none.

    A source to be fed is an input: it is as short as one, and names no file.
    """
    fed = [change.source for change in interventions.read(texts) if isinstance(change, Feed)]
    return [accept_value(task, source, "the source to feed", bounds) for source in fed]


def check_values(series: list[Series], bounds: Bounds) -> None:
    """Refuse more series, or more values in all of them, than a request may have."""
    if len(series) > bounds.inputs:
        raise too_large("the request has", f"{len(series):,} series", f"{bounds.inputs}", "send fewer at a time")
    if (values := sum(map(len, series))) > bounds.values:
        raise too_large("the series have", f"{values:,} values", f"{bounds.values:,}", "send less of their past")
