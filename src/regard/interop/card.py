"""Model cards: what a run is, what it was trained on, how good it is and how to use it, in plain English."""

from collections.abc import Iterator

from regard import __version__
from regard.predict import Predictor
from regard.recipe import Recipe
from regard.storage import Run
from regard.training import update_of_weights

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
        _making(run, recipe),
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


def _making(run: Run, recipe: Recipe) -> str:
    """How the weights came about."""
    if run.finished() and update_of_weights(run) is None:
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


def _scores(run: Run) -> Iterator[str]:
    """The scores of the stored weights: those of their validation, and the final one with its signature."""
    entries, update = run.metrics(), update_of_weights(run)
    if update is None:
        yield "It has no recorded scores."
        return
    validation = next(entry for entry in entries if entry.get("update") == update)
    settings, metric = run.recipe().train, run.recipe().metric
    of = "the last ones" if settings.keep == "last" else f"the best ones by `{settings.best_by}`"
    end = entries[-1]
    measured = [(f"{metric}, on all of the dev data", end[metric])] if metric in end else []
    measured.append(("dev_loss", validation["dev_loss"]))
    measured += [(f"{key}, on a part, greedily", validation[key]) for key in (f"dev_{metric}",) if key in validation]
    table = ["| measure | value |", "|---|---|", *(f"| {name} | {value:.4g} |" for name, value in measured)]
    yield f"Its weights are {of}, after {update:,} updates. On dev data:"
    yield "\n".join(table)
    if signature := end.get("signature"):
        yield f"Signature of the score on all of the dev data: `{signature}`"
