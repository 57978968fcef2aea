"""The command line: thin, each command's body is a few lines. Heavy imports wait until they are needed."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, get_type_hints

import typer
from typer.core import TyperCommand
from typer.models import ArgumentInfo

from regard import __version__
from regard.errors import DataError, RecipeError, RegardError

if TYPE_CHECKING:
    from regard.types import AttentionMap, Prediction

CHUNK = 2000  # lines that are predicted, and printed, at a time
LINE_ENDS = "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"  # what ends a line for one reader or another, as str.splitlines
VISIBLE = {ord(end): repr(end)[1:-1] for end in LINE_ENDS}
IN_JSON = {ord(end): f"\\u{ord(end):04x}" for end in LINE_ENDS}


class Command(TyperCommand):
    """A command that lists its arguments with their help, which click 8.5 resets after typer 0.21 has set it."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        hints = get_type_hints(self.callback, include_extras=True)
        for parameter in self.params:
            for told in getattr(hints.get(parameter.name or ""), "__metadata__", ()):
                if isinstance(told, ArgumentInfo):
                    parameter.help = told.help

    def format_arguments(self, ctx: Any, formatter: Any) -> None:
        """List nothing: typer lists arguments with the options, and click 8.5 would list them once more."""


app = typer.Typer(
    help="Sequence-to-sequence learning with attention: train it, look at it, ship it.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)

RunPath = Annotated[str, typer.Argument(metavar="RUN", help="A run directory, such as runs/dates.")]
Runs = Annotated[Path, typer.Option(help="Where run directories go.")]
Json = Annotated[bool, typer.Option("--json", help="One JSON object a line on stdout.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="On stderr only what went wrong.")]
Beam = Annotated[int | None, typer.Option(min=1, help="Width of the beam; 1 is greedy.  [default: as the recipe says]")]


def _version(asked: bool) -> None:
    if asked:
        print(f"regard {__version__}")
        raise typer.Exit


@app.callback()
def regard(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Say the version.")
    ] = False,
) -> None:
    """Sequence-to-sequence learning with attention: train it, look at it, ship it."""


@app.command(cls=Command)
def demo(runs: Runs = Path("runs"), as_json: Json = False, quiet: Quiet = False) -> None:
    """Learn to read dates in a minute and show the map."""
    from regard.demo import demonstrate

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
    print(_drawn(done.shown[0].map))
    languages = ", ".join(f"{group} {share:.3f}" for group, share in done.scored.groups.items())
    print(f"Exact match on unseen days by language: {languages}")
    print(f"In all {value:.4f} of {done.examples:,}, after {seconds:.0f} s of training. The run is in {run}.\n")
    print(f'  regard look {run} "14 juillet 1989"\n  open {run}/map.svg')


@app.command(cls=Command)
def train(
    recipe: Annotated[
        str | None, typer.Argument(metavar="RECIPE", help="A name from `regard list`, or a .toml file.")
    ] = None,
    overrides: Annotated[list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Keys to change.")] = None,
    resume: Annotated[
        str | None, typer.Option(metavar="RUN", help="Instead of RECIPE: go on with a run that was stopped.")
    ] = None,
    runs: Runs = Path("runs"),
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Train a model by a recipe, on its data or yours.

    One's own pairs are one override: regard train dates data.train=pairs.tsv

    So are the weights of another run to start from: train.start_from=runs/dates
    """
    from regard import training
    from regard.tasks import TASKS

    if (recipe is None) == (resume is None):
        raise RecipeError("give a RECIPE to train, or --resume RUN to go on with one, and not both")
    if resume is None:
        assert recipe is not None
        run = training.train(recipe, *(overrides or []), runs=runs, quiet=quiet)
    else:
        run = training.resume(resume, quiet=quiet)
    last = run.metrics()[-1]
    if as_json:
        print(json.dumps({"run": str(run.path)} | last))
        return
    print(run.path)
    if not quiet:
        look = f'regard look {run.path} "..."; ' if TASKS[run.recipe().task].shows else ""
        print(f"next: {look}regard predict {run.path} FILE", file=sys.stderr)


@app.command(cls=Command)
def predict(
    run: RunPath,
    inputs: Annotated[
        list[str] | None, typer.Argument(metavar="[FILE]...", help="Texts, one a line; - or nothing: stdin.")
    ] = None,
    text: Annotated[
        list[str] | None, typer.Option("--text", help="A text instead of files; may be given again.")
    ] = None,
    beam: Beam = None,
    n_best: Annotated[
        int,
        typer.Option(min=1, help="With --json: outputs for each text; more than the beam come from a wider search."),
    ] = 1,
    search: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE", help="A key of the recipe's search, such as temperature=0.8; may be given again."
        ),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of outputs drawn at random.")] = 0,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    r"""Answer every line of the input with one line; a language model gives the text back, continued.

    A line of more than 5,000 tokens (or data.max_length, if that is more) is answered with an empty one, and named.

    A line end within an answer is printed as an escape, such as \n or \u2028; --json keeps the text whole.
    """
    from regard.predict import load
    from regard.recipe import assigned
    from regard.training.progress import track

    if text and inputs:
        raise RecipeError("give files or --text, not both")
    if "" in (inputs or []):
        raise RecipeError('the name of a file is empty; an empty text is given as --text ""')
    texts = list(text) if text else [line for name in inputs or ["-"] for line in _lines(name)]
    predictor = load(run)
    chunks = [texts[start : start + CHUNK] for start in range(0, len(texts), CHUNK)]
    settings = dict(item for each in search or [] for item in assigned(each).items())
    number = 0
    for chunk in track(chunks, "predicting", quiet=quiet):
        answers = predictor.predict(chunk, beam=beam, n_best=n_best, search=settings, seed=seed + number)
        for each in answers:
            number += 1
            if not each.text and predictor.task.too_long(each.source):
                most = f"more than {predictor.task.longest:,} tokens"
                print(f"regard: line {number:,} has {most}; it is answered with an empty line", file=sys.stderr)
            line = _json(_told(each)) if as_json else _one_line(each.text)
            sys.stdout.buffer.write(line.encode() + b"\n")
        sys.stdout.buffer.flush()


@app.command(cls=Command)
def score(
    run: RunPath,
    files: Annotated[
        list[str] | None,
        typer.Argument(metavar="[FILE]...", help="As data.test: a TSV, plain texts.  [default: the run's test set]"),
    ] = None,
    metric: Annotated[str | None, typer.Option(help="See `regard list metrics`.  [default: the recipe's]")] = None,
    beam: Beam = None,
    as_json: Json = False,
) -> None:
    """Score a run against references, in all and by group."""
    from regard.predict import load

    predictor = load(run)
    recipe = predictor.task.recipe
    if not files and recipe.data.train and not recipe.data.test:
        raise DataError(f"the recipe of {run} names no test set; write: regard score {run} FILE.tsv")
    named = tuple(files or recipe.data.test)
    examples = predictor.task.reader(recipe)(named).examples if named else predictor.task.examples(recipe).test
    scored = predictor.score(examples, metric=metric, beam=beam)
    if as_json:
        told = {
            scored.metric: scored.measured.value,
            "signature": scored.measured.signature,
            "groups": scored.groups,
            "alignment_error": {reading: each.value for reading, each in scored.alignment.items()},
        }
        print(_json(told | {name: each.value for name, each in scored.others.items()}))
        return
    print(f"{scored.metric} {scored.measured.value:.4f}  {scored.measured.signature}")
    for group, value in scored.groups.items():
        print(f"  {group:<8} {value:.4f}")
    for name, each in scored.others.items():
        print(f"{name} {each.value:.4f}  {each.signature}")
    for reading, each in scored.alignment.items():
        print(f"alignment error, read at the {reading}: {each.value:.4f}  {each.signature}")


@app.command(cls=Command)
def align(
    run: RunPath,
    files: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE...",
            help="A TSV of source, target and links; or `source ||| target` lines, and links; or a file of each.",
        ),
    ],
    first: Annotated[int, typer.Option(min=0, max=1, help="The number that links give to a first word.")] = 0,
    as_json: Json = False,
) -> None:
    """Score where a run looks against word alignments drawn by people (AER).

    FILE... is a TSV of source, target and links; or a file of `source ||| target` lines and one of links; or a file
    each of sources, targets and links. Links are `3-4`, sure, or `3p4`, possible; words are what spaces set apart.
    The run is made to write the given targets.
    """
    from regard.data.gold import gold
    from regard.forced import align
    from regard.predict import load

    drawn = gold(tuple(files), first)
    measured = align(load(run), drawn)
    if drawn.skipped:
        print(f"regard: {drawn.skipped:,} links of words that are not there were left out", file=sys.stderr)
    if as_json:
        told = {"alignment_error_rate": {name: each.value for name, each in measured.items()}}
        print(json.dumps(told | {"signature": {name: each.signature for name, each in measured.items()}}))
        return
    for name, each in measured.items():
        how = "of the bare diagonal" if name == "diagonal" else f"read at the {name}"
        print(f"alignment error rate, {how}: {each.value:.4f}  {each.signature}")


@app.command(cls=Command)
def look(
    run: RunPath,
    text: Annotated[str, typer.Argument(metavar="TEXT", help="The source to look at.")],
    out: Annotated[
        list[Path] | None,
        typer.Option(
            "--out", "-o", help="Also draw to a file, .svg, .png, .html, .csv or .pharaoh; may be given again."
        ),
    ] = None,
    beam: Beam = None,
    as_json: Json = False,
) -> None:
    """Show where the model looked while it wrote its answer."""
    from regard import storage
    from regard.predict import load
    from regard.show import maps

    for path in out or []:
        maps.drawable(path.suffix)  # a wrong ending, or a package that is missing, is said before the work
    prediction = load(run).predict([text], beam=beam)[0]
    if prediction.map is None:
        raise RecipeError(
            "there is no map: the text is blank, or the model never looks (model.decoder.order = none, "
            "or of a classifier a model.pooling other than attention)"
        )
    title = f"{text} → {prediction.text}"
    drawings = [(path, maps.draw(prediction.map, path.suffix, title)) for path in out or []]
    for path, content in drawings:  # once all are drawn
        storage.write(path, content)
    if as_json:
        print(_json(_told(prediction)))
    else:
        print(f"{_one_line(prediction.text)}\n\n{_drawn(prediction.map)}", end="")


@app.command(cls=Command)
def compare(
    given: Annotated[
        list[str],
        typer.Argument(
            metavar="RECIPE_OR_RUN...", help="Names from `regard list`, .toml files, run directories; keys to change."
        ),
    ],
    data: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FILE", help="As data.test; may be given again.  [default: the test set of all, or their dev set]"
        ),
    ] = None,
    metric: Annotated[str | None, typer.Option(help="See `regard list metrics`.  [default: the recipes']")] = None,
    beam: Beam = None,
    out: Annotated[
        list[Path] | None,
        typer.Option(
            "--out",
            "-o",
            help="Where to draw, .svg or .png; may be given again.  [default: compare.svg and .png beside the runs]",
        ),
    ] = None,
    runs: Runs = Path("runs"),
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Train recipes, or take runs as they are, and set them side by side: a table, and a picture by source length.

    KEY=VALUE changes the recipe it follows, as in regard train; before the first recipe, it changes all of them:

    regard compare train.updates=300 reverse reverse model.decoder.order=none runs/mine

    A recipe that was trained before, on the same data, is not trained again.
    """
    from regard import comparison, storage
    from regard.errors import MissingExtraError

    for path in out or []:
        comparison.drawable(path.suffix)  # a wrong ending, or a package that is missing, is said before the work
    compared = comparison.compare(*given, data=data or (), metric=metric, beam=beam, runs=runs, quiet=quiet)
    if as_json:
        print("".join(_json(each) + "\n" for each in compared.told()), end="")
    else:
        print(compared.table(), end="")
    sys.stdout.flush()
    pictures = out or compared.pictures()
    if not pictures and not quiet:
        print(f"no picture: of {compared.examples}, none has a length of its own", file=sys.stderr)
    for path in pictures:
        try:
            storage.write(path, compared.draw(path.suffix))
        except MissingExtraError as error:
            print(f"regard: {path} is left out: {error}", file=sys.stderr)
            continue
        if not quiet:
            print(f"drawn: {path}", file=sys.stderr)


@app.command(cls=Command)
def vectors(
    run: RunPath,
    inputs: Annotated[
        list[str] | None, typer.Argument(metavar="[FILE]...", help="Texts, one a line; - or nothing: stdin.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Print the vector of every line, as long as one, its numbers set apart by tabs.

    A blank line, or one of too many tokens, has zeros. Runs of translate, classify, masked_lm and answer give vectors.
    """
    from regard.predict import load
    from regard.vectors import vectors

    texts = [line for name in inputs or ["-"] for line in _lines(name)]
    predictor = load(run)
    for start in range(0, len(texts), CHUNK):
        chunk = texts[start : start + CHUNK]
        for text, vector in zip(chunk, vectors(predictor, chunk).tolist(), strict=True):
            told = {"text": text, "vector": vector}
            line = _json(told) if as_json else "\t".join(f"{number:.6g}" for number in vector)
            sys.stdout.buffer.write(line.encode() + b"\n")


@app.command(cls=Command)
def near(
    run: RunPath,
    file: Annotated[str, typer.Argument(metavar="FILE", help="Texts to search, one a line; -: stdin.")],
    text: Annotated[str, typer.Option("--text", help="The text to which others are to be near.")],
    count: Annotated[int, typer.Option(min=1, help="How many to find.")] = 5,
    as_json: Json = False,
) -> None:
    """Find the lines of a file that are nearest to a text: cosine, number of the line, line.

    All tokens that the run's vocabulary does not hold look the same to it; stderr names those of --text.
    """
    from regard.predict import load
    from regard.vectors import near, unknown

    predictor, lines = load(run), _lines(file)
    nearest = near(predictor, text, lines, count)
    if missing := unknown(predictor, text):
        print(f"regard: the vocabulary does not hold these tokens of --text: {', '.join(missing)}", file=sys.stderr)
    if lacking := sum(bool(unknown(predictor, line)) for line in lines):
        print(
            f"regard: the vocabulary does not hold all tokens of {lacking:,} of {len(lines):,} lines", file=sys.stderr
        )
    for found in nearest:
        number = found.place + 1
        told = {"cosine": found.cosine, "line": number, "text": found.text}
        line = _json(told) if as_json else f"{found.cosine:.4f}\t{number}\t{_one_line(found.text)}"
        sys.stdout.buffer.write(line.encode() + b"\n")


@app.command(cls=Command)
def data(
    recipe: Annotated[str, typer.Argument(metavar="RECIPE", help="A name from `regard list`, or a .toml file.")],
    overrides: Annotated[list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Keys to change.")] = None,
    as_json: Json = False,
) -> None:
    """Say what a recipe learns from: which files, where they were found, how large; exit code 2 if any is missing.

    Files are looked for as given, then under $REGARD_DATA, then under ./data.
    """
    from regard import recipe as recipes
    from regard.data.needs import needs, remedy

    settings = recipes.load(recipe, overrides or []).data
    if not settings.train and not settings.corpus:
        raise RecipeError("nothing to learn from: give data.train=FILE.tsv or data.corpus=NAME")
    about, found = recipes.comment(recipe), needs(settings)
    corpus = "" if settings.train else settings.corpus
    if as_json:
        named = [each._asdict() | {"path": str(each.path) if each.path else None} for each in found]
        print(_json({"about": about, "corpus": corpus, "files": named}))
    else:
        for line in about:
            print(line)
        if corpus:
            print(f"corpus {corpus}: comes with regard, which generates {settings.size:,} examples to learn from")
        for each in found:
            told = each.problem or f"{each.path}: {each.size:,} bytes, {each.lines:,} lines"
            print(f"{each.part:<5}  {told}")
        if settings.train and not settings.dev:
            print("dev    none is named: a part of train is split off")
    mending = remedy(found)
    if mending:
        raise DataError(mending)


@app.command(name="list", cls=Command)
def list_tables(
    what: Annotated[str | None, typer.Argument(metavar="[TABLE]", help="One table alone, such as scores.")] = None,
    as_json: Json = False,
) -> None:
    """List what there is to choose from."""
    from regard.catalogue import tables
    from regard.errors import pick

    chosen = {what: pick(tables(), what, "table")} if what else tables()
    if as_json:
        print(_json({name: table.entries for name, table in chosen.items()}))
        return
    for name, table in chosen.items():
        print(f"{name}  ({table.key})")
        for entry, told in table.entries.items():
            print(f"  {entry:<16} {told}".rstrip())


def _lines(name: str) -> list[str]:
    from regard.data.files import load, read_lines

    return read_lines(sys.stdin.buffer.read(), "stdin") if name == "-" else load(name)


def _one_line(text: str) -> str:
    """A text without line ends: each is shown as an escape, so that a line of input has one line of output."""
    return text.translate(VISIBLE)


def _json(told: Any) -> str:
    """As JSON on one line, whichever reader counts the lines; the escapes are JSON's own."""
    return json.dumps(told, ensure_ascii=False).translate(IN_JSON)


def _told(prediction: "Prediction") -> dict[str, Any]:
    """A prediction as JSON: rows of `attention` are `tokens`, its columns `source_tokens`."""
    seen = prediction.map
    told: dict[str, Any] = {
        "source": prediction.source,
        "tokens": list(prediction.tokens),
        "text": prediction.text,
        "score": prediction.score,
        "source_tokens": list(seen.columns if seen else prediction.source_tokens),
        "attention": seen.weights.tolist() if seen else [],
    }
    return told | (
        {"alternatives": [_told(each) for each in prediction.alternatives]} if prediction.alternatives else {}
    )


def _drawn(seen: "AttentionMap") -> str:
    """The map as this terminal can show it."""
    from rich.console import Console

    from regard.show.maps import terminal

    console = Console()
    return terminal(seen, width=console.width, colour=console.color_system is not None and not console.no_color)


def main() -> NoReturn:
    """Run a command; an error the user can mend is one sentence and an exit code."""
    try:
        app()
    except RegardError as error:
        print(f"regard: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    sys.exit(0)
