"""From predictions to JSON."""

import json
import math
from collections.abc import Sequence
from typing import Any

from regard.maps import AttentionMap
from regard.serve.limits import Bounds, too_large
from regard.serve.questions import Options
from regard.types import Prediction


def answer_of(prediction: Prediction, options: Options) -> dict[str, Any]:
    """One prediction as a dictionary for JSON: `Prediction.to_dict`, with all maps and the viewer's data if asked."""
    content = prediction.to_dict(maps=options.maps)
    if options.all_maps:
        content["maps"] = [_place(attention) for attention in prediction.maps or ()]
    return content


def _place(attention: AttentionMap) -> dict[str, Any]:
    """A map with its place in the model."""
    place = attention.place._asdict() if attention.place else {}
    labels = {"rows": attention.rows, "source_tokens": attention.columns}
    return place | labels | {"attention": attention.weights.tolist()}


def check_cells(predictions: Sequence[Prediction], options: Options, bounds: Bounds) -> None:
    """Refuse to send more weights than an answer may have."""
    cells = 0
    for prediction in predictions:
        outputs = [prediction, *prediction.alternatives] if options.maps else []
        cells += sum(output.map.weights.numel() for output in outputs if output.map is not None)
        if options.all_maps and prediction.maps is not None:
            cells += sum(layer.weights.numel() for layer in prediction.maps.layers)
    if cells > bounds.cells:
        how = "send a shorter text, or ask without maps"
        raise too_large("the maps of the answer have", f"{cells:,} weights", f"{bounds.cells:,}", how)


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
