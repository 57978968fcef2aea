"""Trains `reverse` with and without attention, and draws how well each does by length.

Run it with `make figures`; the picture and its numbers stand in docs/bottleneck.md.
"""

import sys
from dataclasses import replace
from pathlib import Path

import matplotlib
from matplotlib.figure import Figure

import regard
from regard.tasks import Translate

HERE = Path(__file__).parent
ORDERS = {"bahdanau": "with attention (order = bahdanau)", "none": "without (order = none)"}
LONG = 20  # letters from which on docs/bottleneck.md makes its claim


def by_length(order: str) -> dict[int, float]:
    """Exact match on unseen strings of each length, after the same training."""
    run = regard.train("reverse", f"model.decoder.order={order}", f"name=bottleneck-{order}")
    test = [replace(each, group=str(len(each.source))) for each in Translate.examples(run.recipe()).test]
    groups = regard.load(run).score(test).groups
    return {length: groups[str(length)] for length in sorted(map(int, groups))}


def draw(scores: dict[str, dict[int, float]]) -> None:
    figure = Figure(figsize=(7, 3.6), layout="constrained")
    axes = figure.subplots()
    for (order, lengths), mark, colour in zip(scores.items(), "os", ("#143e7d", "#c2662d"), strict=True):
        axes.plot(*zip(*lengths.items(), strict=True), marker=mark, ms=4, color=colour, label=ORDERS[order])
    axes.set(xlabel="letters to reverse", ylabel="exact match", ylim=(-0.03, 1.05))
    axes.set_title("The same training with and without attention", loc="left", fontsize=11)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#e3e9f0")
    axes.legend(frameon=False)
    with matplotlib.rc_context({"svg.hashsalt": "regard", "svg.fonttype": "none"}):
        figure.savefig(HERE / "bottleneck.svg", metadata={"Date": None})


def main() -> None:
    scores = {order: by_length(order) for order in ORDERS}
    draw(scores)
    print("letters  " + "  ".join(scores))
    for length in scores["none"]:
        print(f"{length:7}  " + "  ".join(f"{lengths[length]:8.3f}" for lengths in scores.values()))
    gap = min(scores["bahdanau"][n] - scores["none"][n] for n in scores["none"] if n >= LONG)
    print(f"smallest gap from {LONG} letters on: {gap:.3f}")
    if gap < 0.5:
        sys.exit("the gap is smaller than docs/bottleneck.md says")


if __name__ == "__main__":
    main()
