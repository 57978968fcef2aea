"""Export of runs to other toolkits: the files, a parity check with the written files, and a model card beside them."""

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from regard.errors import CorruptError, RecipeError, pick, shown
from regard.interop import ctranslate2, hugging_face, onnx, parity, transformer
from regard.models import Seq2Seq
from regard.predict import Predictor
from regard.storage import CARD, check_new
from regard.storage.files import create_folder, write_errors
from regard.tasks import Transduce
from regard.training import card

FORCE = "--force writes it"
BEAM = 5  # of the parity check
# Shares of equal best hypotheses, greedily and with a beam; int8 rounds, so that many may differ.
LEAST_SAME = {"float32": (0.995, 0.95), "int8": (0.5, 0.25)}
LARGEST_DIFFERENCE = 1e-4  # of the logits of ONNX
FEW = 32  # sentences of the parity check of ONNX


@dataclass(frozen=True)
class Exported:
    """The result of an export."""

    path: Path
    parity: str  # a sentence


@dataclass(frozen=True)
class Format:
    """One toolkit that runs are exported to."""

    module: object
    precisions: tuple[str, ...]
    check: Callable[[Path, Transduce, Seq2Seq, Sequence[str], str], str]


def export(
    predictor: Predictor,
    to: str,
    path: Path,
    texts: Sequence[str],
    *,
    precision: str = "float32",
    force: bool = False,
) -> Exported:
    """Write a run as a folder for another toolkit; `texts` are inputs for the parity check, which runs first.

    If the check fails, nothing is written, unless `force` is set. Other precisions are checked after float32, since
    rounding could hide what else differs.
    """
    entry = pick(FORMATS, to, "format")
    module = entry.module
    if precision not in entry.precisions:
        raise RecipeError(f"--to {to} writes {' or '.join(entry.precisions)}, not {precision}")
    check_new(path)
    module.check(predictor.task.recipe)  # type: ignore[attr-defined]
    predictor.model.to("cpu").eval()
    task, model = transformer.parts(predictor)
    content: dict[str, bytes] = {}
    sentences = []
    for each in dict.fromkeys(("float32", precision)):
        content = module.files(predictor, each)  # type: ignore[attr-defined]
        sentences.append(_check_files(entry, content, task, model, texts, each, force=force))
    sentence = "; ".join(sentences)
    run, name = predictor.run, f"{module.NAME}, {precision}"  # type: ignore[attr-defined]
    about = card.write(run, task, run.metrics(), exported=name, parity=sentence)
    with write_errors(path):
        create_folder(path, content | {CARD: about.encode()}, "export")
    return Exported(path, sentence)


def _check_files(
    entry: Format,
    content: dict[str, bytes],
    task: Transduce,
    model: Seq2Seq,
    texts: Sequence[str],
    precision: str,
    *,
    force: bool,
) -> str:
    """The sentence of the parity check of files, written to a temporary folder; CorruptError unless `force` is set."""
    with tempfile.TemporaryDirectory() as folder:
        draft = Path(folder) / "export"
        create_folder(draft, content, "export")
        try:
            return f"{precision}: {entry.check(draft, task, model, texts, precision)}"
        except CorruptError as error:
            if not force:
                raise
            return str(error)


def _compare_outputs(
    name: str,
    translator: parity.Translates,
    task: Transduce,
    model: Seq2Seq,
    texts: Sequence[str],
    precision: str,
) -> str:
    """The sentence about equal best hypotheses; CorruptError if too few are equal.

    Greedy search shows whether the weights are the same; among the hypotheses of a beam, rounding decides more often.
    """
    measured = []
    for beam, least in zip((1, BEAM), LEAST_SAME[precision], strict=True):
        found, _ = parity.compare(task, model, translator, texts, beam)
        if found.share < least:
            why = f"{found}; at least {least:.1%} are needed; {FORCE}"
            raise CorruptError(f"the export to {name} in {precision} does not match the run: {why}")
        measured.append(str(found))
    return "; ".join(measured)


def _check_ctranslate2(folder: Path, task: Transduce, model: Seq2Seq, texts: Sequence[str], precision: str) -> str:
    translator = ctranslate2.Translator(folder, task)
    return _compare_outputs(ctranslate2.NAME, translator, task, model, texts, precision)


def _check_hugging_face(folder: Path, task: Transduce, model: Seq2Seq, texts: Sequence[str], precision: str) -> str:
    translator = hugging_face.Translator(folder, task)
    if different := translator.encoded_otherwise(texts):
        count = f"{len(different):,} of {len(texts):,} texts get other ids, such as {shown(different[0])}"
        raise CorruptError(f"the tokenizer of the export to {hugging_face.NAME} does not match: {count}; {FORCE}")
    return _compare_outputs(hugging_face.NAME, translator, task, model, texts, precision)


def _check_onnx(folder: Path, task: Transduce, model: Seq2Seq, texts: Sequence[str], precision: str) -> str:
    difference = onnx.compare(task, model, onnx.Graphs(folder), texts[:FEW])
    if max(difference.logits, difference.map or 0.0) > LARGEST_DIFFERENCE:
        most = f"at most {LARGEST_DIFFERENCE:g} is allowed"
        raise CorruptError(f"the export to ONNX does not match the run: {difference}; {most}; {FORCE}")
    return str(difference)


FORMATS = {
    "huggingface": Format(hugging_face, ("float32",), _check_hugging_face),
    "ctranslate2": Format(ctranslate2, ctranslate2.TYPES, _check_ctranslate2),
    "onnx": Format(onnx, ("float32",), _check_onnx),
}
