"""`regard card`: the model card of a run."""

from regard.cli.core import Quiet, RunPath, note_unfinished, write_lines


def card(run: RunPath, quiet: Quiet = False) -> None:
    """Print the model card of a run.

    It says in Markdown what the model is, what it was trained on, how good it is on dev data and how it was made.
    """
    from regard.console import ProgressLog
    from regard.storage import Run

    opened = Run.open(run)  # an error before torch is loaded
    with ProgressLog(quiet=quiet) as log:
        log.begin("loading torch")
        from regard.tasks import task_of
        from regard.training import card as cards

        text = cards.write(opened, task_of(opened), opened.metrics())
    note_unfinished(opened, quiet=quiet)
    write_lines(text.rstrip("\n").split("\n"))
