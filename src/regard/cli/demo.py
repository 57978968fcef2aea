"""`regard demo`: train a small model in about a minute and show an attention map."""

import json
from pathlib import Path

from regard.cli.core import Json, Quiet, Runs, draw_for_terminal


def demo(runs: Runs = Path("runs"), as_json: Json = False, quiet: Quiet = False) -> None:
    """Train a model that reads dates, in about a minute, and show an attention map."""
    from regard.cli.demonstration import demonstrate

    result = demonstrate(runs, quiet=quiet)
    value, run = result.scored.measured.value, str(result.run.path)
    seconds = result.run.metrics()[-1]["train_seconds"]
    if as_json:
        content = {"exact_match": value, "train_seconds": seconds, "run": run}
        print(json.dumps(content | {"examples": result.examples, "exact_match_by_language": result.scored.groups}))
        return
    for prediction in result.shown:
        print(f"{prediction.source} -> {prediction.text}")
    assert result.shown[0].map is not None
    print("\nThe attention map of the first one (rows: what it wrote, columns: what it attended to):\n")
    print(draw_for_terminal(result.shown[0].map))
    languages = ", ".join(f"{group} {share:.3f}" for group, share in result.scored.groups.items())
    print(f"Exact match on unseen days by language: {languages}")
    print(f"In all {value:.4f} of {result.examples:,}, after {seconds:.0f} s of training. The run is in {run}.\n")
    print(f'  regard look {run} "14 juillet 1989"\n  open {run}/map.svg')
