"""From predictions to JSON."""

import json
import math
from collections.abc import Sequence
from typing import Any

from regard.maps import AttentionMap
from regard.serve.batcher import Answer
from regard.serve.limits import Bounds
from regard.serve.questions import Options, Question, too_many_cells
from regard.show import viewer_data
from regard.show.viewer_data import Data
from regard.tasks.intervened import Intervened
from regard.types import Prediction

ONE_MAP = "The text is long, so that only the map of the output is shown, not those of all sites, layers and heads."


def answer_of(answer: Answer, question: Question, name: str = "") -> dict[str, Any]:
    """One answer as a dictionary for JSON: `Prediction.to_dict`, with all maps and the viewer's data if asked.

    With interventions, it is the prediction after them, and `intervened` has the one before and the difference. `name`
    is that of the run, for views of several runs.
    """
    options = question.options
    if isinstance(answer, Intervened):
        told = answer.to_dict(maps=options.maps)
        about = {key: told[key] for key in ("interventions", "changed", "before", "diff")} | {"marked": answer.marked}
        view = {"view": _view_of_both(answer)} if options.view else {}
        return _content(answer.after, options) | {"intervened": about} | view
    if not options.view:
        return _content(answer, options)
    view = {"view": _view(answer, name)}
    return _content(answer, options) | view | ({} if question.records else {"note": ONE_MAP})


def _content(prediction: Prediction, options: Options) -> dict[str, Any]:
    """A prediction, with all maps if asked."""
    content = prediction.to_dict(maps=options.maps)
    if options.all_maps:
        content["maps"] = [_place(attention) for attention in prediction.maps or ()]
    return content


def _view(prediction: Prediction, name: str) -> Data | None:
    """The viewer's data of a prediction, with how far its map may be trusted; None if there is nothing to draw."""
    drawn = prediction.map is not None or prediction.maps is not None or hasattr(prediction, "view")
    return viewer_data.data_of_prediction(prediction, name=name) if drawn else None


def _view_of_both(intervened: Intervened) -> Data | None:
    """The viewer's data of the predictions before and after interventions, side by side."""
    before, after = (_view(each, name) for each, name in ((intervened.before, "before"), (intervened.after, "after")))
    return None if before is None or after is None else viewer_data.side_by_side([before, after])


def _place(attention: AttentionMap) -> dict[str, Any]:
    """A map with its place in the model."""
    place = attention.place._asdict() if attention.place else {}
    labels = {"rows": attention.rows, "source_tokens": attention.columns, "trust": attention.trust}
    return place | labels | {"attention": attention.weights.tolist()}


def check_cells(answers: Sequence[Answer], options: Options, bounds: Bounds) -> None:
    """Refuse to send more weights than an answer may have."""
    cells = 0
    for answer in answers:
        prediction = answer.after if isinstance(answer, Intervened) else answer
        outputs = [prediction, *prediction.alternatives] if options.maps else []
        outputs += [answer.before] if options.maps and isinstance(answer, Intervened) else []
        cells += sum(output.map.weights.numel() for output in outputs if output.map is not None)
        if options.all_maps and prediction.maps is not None:
            cells += sum(layer.weights.numel() for layer in prediction.maps.layers)
    if cells > bounds.cells:
        raise too_many_cells(cells, bounds)


def to_json(content: Any) -> bytes:
    """JSON in UTF-8; numbers that are not finite, which JSON cannot write, become null."""
    try:
        text = json.dumps(content, ensure_ascii=False, allow_nan=False)
    except ValueError:
        text = json.dumps(_finite(content), ensure_ascii=False, allow_nan=False)
    return text.encode("utf-8", "replace")


def _finite(content: Any) -> Any:
    if isinstance(content, float):
        return content if math.isfinite(content) else None
    if isinstance(content, dict):
        return {key: _finite(value) for key, value in content.items()}
    if isinstance(content, list | tuple):
        return [_finite(value) for value in content]
    return content
