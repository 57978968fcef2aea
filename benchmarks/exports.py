"""Measures exports of a run: equal outputs, BLEU with int8, logits of ONNX, and speed beside regard.

    python benchmarks/exports.py RUN [--sentences 1000] [--beam 5] [--threads 1] [--turns 3]

RUN goes from text to text, and its test data is found. The best hypotheses of transformers and CTranslate2 are compared
with the run's own, token by token, all without a length penalty and with search.ends_in_beam; BLEU is against the
targets of the test data. The logits and maps of ONNX are compared at every step of the run's greedy outputs. Speeds are
measured in turns, after a first turn that is not counted. A format that does not take the run is left out.
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import torch

import regard
from regard.errors import RecipeError
from regard.interop import ctranslate2, hugging_face, onnx, parity
from regard.storage.files import create_folder

AT_ONCE = 100  # sentences of a batch of ONNX


def main() -> None:
    """Print all figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run")
    parser.add_argument("--sentences", type=int, default=1000)
    parser.add_argument("--beam", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--turns", type=int, default=3, help="0 measures no speed")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    predictor = regard.load(options.run, device="cpu")
    task, recipe = predictor.task, predictor.task.recipe
    names = recipe.data.test or recipe.data.dev
    examples = type(task).reader(recipe)(names).examples if names else type(task).examples(recipe).dev
    examples = list(examples)[: options.sentences]
    texts, targets = [example.source for example in examples], [example.target for example in examples]
    compare_rules(predictor, texts, targets, options.beam)
    with tempfile.TemporaryDirectory() as folder:
        engines = {}
        for name, module, precision in (
            ("transformers", hugging_face, "float32"),
            ("CTranslate2 float32", ctranslate2, "float32"),
            ("CTranslate2 int8", ctranslate2, "int8"),
            ("ONNX", onnx, "float32"),
        ):
            try:
                module.check(recipe)
            except RecipeError as error:
                print(f"{name}: {error}")
                continue
            path = Path(folder) / name.replace(" ", "-")
            create_folder(path, module.files(predictor, precision), "bench")
            if module is onnx:
                compare_logits(predictor, onnx.Graphs(path, options.threads), texts)
                continue
            threads = {} if module is hugging_face else {"threads": options.threads, "precision": precision}
            engines[name] = module.Translator(path, task, **threads)
        for name, engine in engines.items():
            measured, pairs = parity.compare(task, predictor.model, engine, texts, options.beam)
            scores = [bleu([task.target.decode(pair[side]) for pair in pairs], targets) for side in (0, 1)]
            print(f"{name}: {measured}; BLEU {scores[1]:.2f}, regard {scores[0]:.2f}", flush=True)
            for text, pair in zip(texts, pairs, strict=True):
                if pair[0] != pair[1] and name != "CTranslate2 int8":
                    print(f"  {text!r}: regard {task.target.decode(pair[0])!r}, here {task.target.decode(pair[1])!r}")
        if options.turns:
            compare_speed(predictor, engines, texts, options)


def compare_rules(predictor: regard.Predictor, texts: list[str], targets: list[str], beam: int) -> None:
    """Print how many outputs depend on search.ends_in_beam, and BLEU with both rules."""
    outputs = []
    for rule in (False, True):
        search = {"length_penalty": 0.0, "ends_in_beam": rule}
        outputs.append([prediction.text for prediction in predictor.predict(texts, beam=beam, search=search)])
        print(f"search.ends_in_beam = {str(rule).lower()}: BLEU {bleu(outputs[-1], targets):.2f}", flush=True)
    different = sum(first != second for first, second in zip(*outputs, strict=True))
    print(f"{different:,} of {len(texts):,} outputs differ between the two rules", flush=True)


def compare_logits(predictor: regard.Predictor, graphs: onnx.Graphs, texts: list[str]) -> None:
    """Print the largest differences of logits and maps between ONNX and the run."""
    batches = [texts[start : start + AT_ONCE] for start in range(0, len(texts), AT_ONCE)]
    found = [onnx.compare(predictor.task, predictor.model, graphs, batch) for batch in batches]
    maps = max(difference.map or 0.0 for difference in found)
    print(f"ONNX: {onnx.Difference(max(difference.logits for difference in found), maps, len(texts))}", flush=True)


def bleu(outputs: list[str], targets: list[str]) -> float:
    """The corpus BLEU of outputs."""
    import sacrebleu

    return float(sacrebleu.corpus_bleu(outputs, [targets]).score)


def compare_speed(
    predictor: regard.Predictor, engines: dict[str, parity.Translates], texts: list[str], options: argparse.Namespace
) -> None:
    """Print sentences per second of regard and of every engine, measured in turns."""
    task = predictor.task
    batches = [texts[start : start + 64] for start in range(0, len(texts), 64)]
    encoded = [[task.source.encode(text) for text in sorted(batch, key=len)] for batch in batches]
    limits = [[task.limit(len(source), task.recipe.search) for source in batch] for batch in encoded]
    seconds: dict[str, list[float]] = {"regard": []} | {name: [] for name in engines}
    for _ in range(options.turns + 1):
        for name, taken in seconds.items():
            start = time.perf_counter()
            if name == "regard":
                predictor.predict(texts, beam=options.beam, search={"length_penalty": 0.0, "ends_in_beam": True})
            else:
                for batch, most in zip(encoded, limits, strict=True):
                    engines[name].translate(batch, options.beam, most)
            taken.append(time.perf_counter() - start)
    ours = statistics.median(seconds["regard"][1:])
    for name, taken in seconds.items():
        middle = statistics.median(taken[1:])
        print(f"{name}: {len(texts) / middle:.1f} sentences/s, {ours / middle:.2f} times regard's speed")


if __name__ == "__main__":
    main()
