"""Model cards: what a run is, what it was trained on, how good it is and how to use it, in plain English."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torch import nn

from regard import __version__, plugins
from regard.attention import Score
from regard.device import only_shapes
from regard.errors import quantity
from regard.recipe import Recipe
from regard.storage import CARD, Run
from regard.tasks import AnyTask
from regard.training.callbacks import Callback, Ended
from regard.training.validation import update_of_weights

Metrics = Sequence[Mapping[str, Any]]  # the entries of metrics.jsonl
NO_DATA = "data that was given in Python, or is not recorded"


class ModelCard(Callback):
    """Writes the model card into the folder of a run, before the run is marked as finished: a resumed run gets it anew.

    It must be called before the last line of the metrics is written.
    """

    def __init__(self, run: Run, task: AnyTask) -> None:
        self.run, self.task = run, task

    def on_end(self, event: Ended) -> None:
        """Write the card, unless training was stopped."""
        if event.finished:
            store(self.run, self.task, [*self.run.metrics(), event.entry()])


def store(run: Run, task: AnyTask, metrics: Metrics) -> None:
    """Write the model card of a run into its folder, unless somebody has written a text of his own there.

    No other process may write the run meanwhile.
    """
    run.replace_own(CARD, write(run, task, metrics).encode())


def write(run: Run, task: AnyTask, metrics: Metrics, exported: str = "", parity: str = "") -> str:
    """The model card of a run in Markdown; of an export, with its format and its parity check."""
    recipe, trust = task.recipe, run.trust()
    with plugins.loading(run.needs()), only_shapes():
        model = task.build()
    sections = [
        f"# {recipe.name}",
        *_purpose(recipe, model, exported),
        "## Training data",
        *_data(recipe),
        "## How good it is",
        *_scores(run, metrics),
        *(["", f"Parity with the run it was exported from: {parity}."] if parity else []),
        "## Limits",
        "It answers inputs like those of its training data; other inputs get answers that may be wrong.",
        *([trust] if trust else []),
        "## How it was made",
        _making(recipe, metrics),
    ]
    return "\n\n".join(section for section in sections if section) + "\n"


def _purpose(recipe: Recipe, model: nn.Module, exported: str) -> Iterator[str]:
    """What the model does, and its parts."""
    parameters = sum(parameter.numel() for parameter in model.parameters())
    source = "series" if recipe.task == "forecast" else recipe.source
    yield f"A model for the task `{recipe.task}` from {source}, with {parameters:,} parameters."
    settings = recipe.model
    parts = []
    if hasattr(model, "encoder"):
        encoder = settings.encoder
        parts.append(f"encoder: {encoder.kind}, {quantity(encoder.layers, 'layer')} of width {encoder.dim}")
    if hasattr(model, "decoder"):
        decoder = settings.decoder
        order = f", order {decoder.order}" if decoder.kind == "recurrent" and recipe.task == "translate" else ""
        parts.append(f"decoder: {decoder.kind}{order}, {quantity(decoder.layers, 'layer')} of width {decoder.dim}")
    if any(isinstance(part, Score) for part in model.modules()):
        attention = settings.decoder.cross_attention.of(settings.attention)
        heads = quantity(attention.heads, "head")
        parts.append(f"attention: score {attention.score}, {attention.normalizer}, {heads}")
    if recipe.task == "forecast" and recipe.forecast.lag_mixture:
        parts.append("attention: by location, to the values at the lags")
    yield f"Parts: {'; '.join(parts)}."
    if exported:
        yield f"This folder is an export for {exported}."


def _making(recipe: Recipe, metrics: Metrics) -> str:
    """How the weights came about."""
    if metrics and "update" not in metrics[0]:
        return f"It was trained elsewhere, and imported by regard {__version__}."
    length = f"{recipe.train.updates:,} updates at most, seed {recipe.train.seed}"
    return f"regard {__version__}, recipe `{recipe.name}`, {length}."


def _data(recipe: Recipe) -> Iterator[str]:
    """Where the training data comes from."""
    data = recipe.data
    files = ", ".join(f"`{name}`" for name in data.train)
    generated = f"the corpus `{data.corpus}`, which regard generates ({data.size:,} pairs)"
    yield f"It was trained on {files or (generated if data.corpus else NO_DATA)}."
    if data.train and data.dev:
        how = "It was validated" if recipe.train.keep == "last" else "Its best weights were chosen"
        yield f"{how} on " + ", ".join(f"`{name}`" for name in data.dev) + "."


def _scores(run: Run, metrics: Metrics) -> Iterator[str]:
    """The scores of the stored weights: those of their validation, and the final one with its signature."""
    update = update_of_weights(run)
    if update is None:
        yield "It has no recorded scores."
        return
    validation = next(entry for entry in metrics if entry.get("update") == update)
    settings, metric = run.recipe().train, run.recipe().metric
    of = "the last ones" if settings.keep == "last" else f"the best ones by `{settings.best_by}`"
    end = metrics[-1]
    measured = [(f"{metric}, on all of the dev data", end[metric])] if metric in end else []
    measured.append(("dev_loss", validation["dev_loss"]))
    measured += [(f"{key}, on a part, greedily", validation[key]) for key in (f"dev_{metric}",) if key in validation]
    table = ["| measure | value |", "|---|---|", *(f"| {name} | {value:.4g} |" for name, value in measured)]
    yield f"Its weights are {of}, after {update:,} updates. On dev data:"
    yield "\n".join(table)
    if signature := end.get("signature"):
        yield f"Signature of the score on all of the dev data: `{signature}`"
