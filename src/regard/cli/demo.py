"""`regard demo`: the first minute with regard."""

import json
from pathlib import Path

from regard.cli.core import Json, Quiet, Runs, draw_for_terminal


def demo(runs: Runs = Path("runs"), as_json: Json = False, quiet: Quiet = False) -> None:
    """Learn to read dates in a minute and show the map."""
    from regard.cli.demonstration import demonstrate

    done = demonstrate(runs, quiet=quiet)
    value, seconds, run = done.scored.measured.value, done.train_seconds, str(done.run.path)
    if as_json:
        told = {"exact_match": value, "train_seconds": seconds, "run": run}
        print(json.dumps(told | {"examples": done.examples, "exact_match_by_language": done.scored.groups}))
        return
    for shown in done.shown:
        print(f"{shown.source} -> {shown.text}")
    assert done.shown[0].map is not None
    print("\nHow it read the first one (rows: what it wrote, columns: what it looked at):\n")
    print(draw_for_terminal(done.shown[0].map))
    languages = ", ".join(f"{group} {share:.3f}" for group, share in done.scored.groups.items())
    print(f"Exact match on unseen days by language: {languages}")
    print(f"In all {value:.4f} of {done.examples:,}, after {seconds:.0f} s of training. The run is in {run}.\n")
    print(f'  regard look {run} "14 juillet 1989"\n  open {run}/map.svg')
