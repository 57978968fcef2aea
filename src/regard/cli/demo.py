"""`regard demo`: train a small model in about a minute and show an attention map."""

import json
import shlex
from pathlib import Path

from regard.cli.core import Json, Quiet, Runs, print_map, write_beside, write_line


def demo(runs: Runs = Path("runs"), as_json: Json = False, quiet: Quiet = False) -> None:
    """Train on dates and show an attention map.

    The model reads dates in fifteen languages; its training takes about a minute.
    """
    from regard.cli.demonstration import demonstrate, own_command

    result = demonstrate(runs, quiet=quiet)
    value, run = result.scored.measured.value, str(result.run.path)
    seconds = result.run.metrics()[-1]["train_seconds"]
    if as_json:
        content = {"exact_match": value, "train_seconds": seconds, "run": run}
        write_line(json.dumps(content | {"examples": result.examples, "exact_match_by_language": result.scored.groups}))
        return
    for prediction in result.shown:
        write_beside("", f"{prediction.source} -> {prediction.text}")
    assert result.shown[0].map is not None
    write_line("")
    write_beside("", "The attention map of the first one (rows: what it wrote, columns: what it attended to):")
    write_line("")
    print_map(result.shown[0].map)
    write_line("")
    languages = ", ".join(f"{group} {share:.3f}" for group, share in result.scored.groups.items())
    write_beside("", f"Exact match on unseen days by language: {languages}")
    in_all = f"In all {value:.4f} of {result.examples:,}, after {seconds:.0f} s of training."
    write_beside("", f"{in_all} The run is in {run}.")
    page, *others = result.maps
    write_line("")
    write_beside("", f"The map as a page for the browser: {run}/{page} (also {', '.join(others)})")
    write_beside("", f'Another map: {own_command()} look {shlex.quote(run)} "14 juillet 1989"')
