"""How far the predictions for a text alone differ from those for the same text in a batch.

    python benchmarks/batch_mates.py RUN... [--texts 300] [--beam 1]

For each run, texts of its test set are predicted all at once and one by one, on the CPU. Prints how many outputs
differ, and the largest differences of a score and of a weight of a map among the others.
"""

import argparse
from pathlib import Path

import torch

import regard
from regard import Prediction


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", metavar="RUN")
    parser.add_argument("--texts", type=int, default=300)
    parser.add_argument("--beam", type=int, help="the width of the beam; by default as the recipe says")
    arguments = parser.parse_args()
    print(f"torch {torch.__version__}, {torch.backends.cpu.get_cpu_capability()}, {torch.get_num_threads()} threads")
    print(f"{'run':<28} {'texts':>6} {'other output':>13} {'score':>9} {'weight':>9}")
    for path in arguments.runs:
        print(f"{name(Path(path)):<28} {compare(path, arguments.texts, arguments.beam)}", flush=True)


def name(path: Path) -> str:
    return path.parent.name if path.name == "finished" else path.name  # a golden run, or any other


def compare(path: str, count: int, beam: int | None) -> str:
    """The row of one run."""
    predictor = regard.load(path, device="cpu")
    examples = type(predictor.task).examples(predictor.task.recipe).test[:count]
    texts = [question(predictor.task.recipe.task, example.source or example.target) for example in examples]
    width = beam if predictor.task.uses("search.beam") else None
    together = predictor.predict(texts, beam=width)
    alone = [predictor.predict([text], beam=width)[0] for text in texts]
    same = [(one, other) for one, other in zip(together, alone, strict=True) if one.tokens == other.tokens]
    score = max((abs(one.score - other.score) for one, other in same), default=0.0)
    weight = max((difference(one, other) for one, other in same), default=0.0)
    return f"{len(texts):>6,} {len(texts) - len(same):>13,} {score:>9.1e} {weight:>9.1e}"


def question(task: str, text: str) -> str:
    """What to predict from: the whole text, its first three words, or the text with every third word left out."""
    words = text.split()
    if task == "language_model":
        return " ".join(words[:3])
    if task == "masked_lm":
        return " ".join("___" if place % 3 == 0 else word for place, word in enumerate(words))
    return text


def difference(one: Prediction, other: Prediction) -> float:
    """The largest difference of a weight between the maps of two predictions."""
    if one.map is None or other.map is None or not one.map.weights.numel():
        return 0.0
    return (one.map.weights - other.map.weights).abs().max().item()


if __name__ == "__main__":
    main()
