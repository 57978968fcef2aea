"""Model cards: what a run is, what it was trained on, how good it is and how to use it, in plain English."""

from collections.abc import Iterator

from regard import __version__
from regard.predict import Predictor
from regard.recipe import Recipe
from regard.storage import Run

NO_DATA = "data that was given in Python, or is not recorded"


def write(predictor: Predictor, exported: str = "", parity: str = "") -> str:
    """The model card of a run in Markdown; of an export, with its format and its parity check."""
    run, recipe = predictor.run, predictor.task.recipe
    parameters = sum(parameter.numel() for parameter in predictor.model.parameters())
    sections = [
        f"# {run.path.resolve().name}",
        *_purpose(recipe, parameters, exported),
        "## Training data",
        *_data(recipe),
        "## How good it is",
        *_scores(run),
        *(["", f"Parity with the run it was exported from: {parity}."] if parity else []),
        "## Limits",
        "It answers inputs like those of its training data; other inputs get answers that may be wrong.",
        *([predictor.trust] if predictor.trust else []),
        "## How it was made",
        f"regard {__version__}, recipe `{recipe.name}`, {recipe.train.updates:,} updates at most, "
        f"seed {recipe.train.seed}.",
    ]
    return "\n\n".join(section for section in sections if section) + "\n"


def _purpose(recipe: Recipe, parameters: int, exported: str) -> Iterator[str]:
    """What the model does, and its parts."""
    model = recipe.model
    yield f"A model for the task `{recipe.task}` from {recipe.source}, with {parameters:,} parameters."
    kinds = f"encoder: {model.encoder.kind}, {model.encoder.layers} layers of width {model.encoder.dim}"
    if recipe.task == "translate":
        order = f", order {model.decoder.order}" if model.decoder.kind == "recurrent" else ""
        kinds += f"; decoder: {model.decoder.kind}{order}, {model.decoder.layers} layers of width {model.decoder.dim}"
    attention = model.decoder.cross_attention.of(model.attention)
    yield f"It has an {kinds}; attention: score {attention.score}, {attention.normalizer}, {attention.heads} heads."
    if exported:
        yield f"This folder is an export for {exported}."


def _data(recipe: Recipe) -> Iterator[str]:
    """Where the training data comes from."""
    data = recipe.data
    files = ", ".join(f"`{name}`" for name in data.train)
    generated = f"the corpus `{data.corpus}`, which regard generates ({data.size:,} pairs)"
    yield f"It was trained on {files or (generated if data.corpus else NO_DATA)}."
    if data.train and data.dev:
        yield "Its best weights were chosen on " + ", ".join(f"`{name}`" for name in data.dev) + "."


def _scores(run: Run) -> Iterator[str]:
    """The scores of the last validation, with their signature."""
    entries = [entry for entry in run.metrics() if "update" in entry] if run.finished() else []
    if not entries:
        yield "It has no recorded scores."
        return
    best = min(entries, key=lambda entry: entry["dev_loss"])
    numbers = [f"| {name} | {value:.4g} |" for name, value in best.items() if name.startswith("dev_")]
    yield "\n".join(
        [f"On dev data, after {best['update']:,} updates:", "", "| measure | value |", "|---|---|", *numbers]
    )
    if signature := next((entry["signature"] for entry in reversed(run.metrics()) if "signature" in entry), ""):
        yield f"Signature: `{signature}`"
