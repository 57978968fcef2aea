"""Measures exports of a run: equal outputs, BLEU with int8, and speed beside regard.

    python benchmarks/exports.py RUN [--sentences 1000] [--beam 5] [--threads 1]

RUN is a Transformer from text to text whose test data is found. The best hypotheses of transformers and CTranslate2 are
compared with the run's own, token by token, all without a length penalty; BLEU is against the targets of the test data.
Speeds are measured one after another in turns, after a first turn that is not counted.
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import torch

import regard
from regard.interop import ctranslate2, hugging_face, parity
from regard.storage.files import create_folder

TURNS = 3


def main() -> None:
    """Print all figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run")
    parser.add_argument("--sentences", type=int, default=1000)
    parser.add_argument("--beam", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    predictor = regard.load(options.run, device="cpu")
    task, recipe = predictor.task, predictor.task.recipe
    names = recipe.data.test or recipe.data.dev
    examples = type(task).reader(recipe)(names).examples if names else type(task).examples(recipe).dev
    examples = list(examples)[: options.sentences]
    texts, targets = [example.source for example in examples], [example.target for example in examples]
    with tempfile.TemporaryDirectory() as folder:
        engines = {}
        for name, module, precision in (
            ("transformers", hugging_face, "float32"),
            ("CTranslate2 float32", ctranslate2, "float32"),
            ("CTranslate2 int8", ctranslate2, "int8"),
        ):
            module.check(recipe)
            path = Path(folder) / name.replace(" ", "-")
            create_folder(path, module.files(predictor, precision), "bench")
            threads = {} if module is hugging_face else {"threads": options.threads, "precision": precision}
            engines[name] = module.Translator(path, task, **threads)
        for name, engine in engines.items():
            measured, pairs = parity.compare(task, predictor.model, engine, texts, options.beam)
            scores = [bleu([task.target.decode(pair[side]) for pair in pairs], targets) for side in (0, 1)]
            print(f"{name}: {measured}; BLEU {scores[1]:.2f}, regard {scores[0]:.2f}")
        compare_speed(predictor, engines, texts, options)


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
    for _ in range(TURNS + 1):
        for name, taken in seconds.items():
            start = time.perf_counter()
            if name == "regard":
                predictor.predict(texts, beam=options.beam, search={"length_penalty": 0.0})
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
