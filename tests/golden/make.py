"""The script that made the golden runs: run once, with version 0.1.0 (commit f8274a9, torch 2.13), never again.

PYTHONPATH=src python tests/golden/make.py [NAME ...]

Runs that are made again prove nothing about runs of older versions. A version that adds a task or a format adds runs.
"""

import json
import math
import os
import shutil
import signal
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from test_golden import RUNS, score

from regard import recipe as recipes
from regard.errors import StoppedError
from regard.predict import Predictor, load
from regard.storage import Run
from regard.tasks import TASKS
from regard.training import resume, train
from regard.training.engine import eager
from regard.types import BEGIN, END, Batch, Example, Padded, Prediction

MARGIN = 0.05  # least difference, in nats, between a chosen token, label or span and the next best
LEAD = 0.005  # least difference between the largest weight of a row and the next
REMAINING = 20  # updates that a stopped run has not done yet
ANSWERS = 4
COMMON = (
    *("data.size=400", "train.batch_tokens=300", "train.learning_rate=0.02", "train.schedule=linear"),
    *("train.warmup=10", "train.updates=150", "train.validate=100", "train.device=cpu", "train.threads=1"),
    *("model.embedding=6", "model.encoder.dim=8", "model.decoder.dim=8", "model.attention.dim=6"),
    *("search.max_ratio=1.0", "search.max_extra=8"),
)
LONGER = ("data.size=2000", "train.updates=400", "train.validate=400")  # stopped before its first validation
TRANSFORMER = (
    *("model.encoder.kind=transformer", "model.decoder.kind=transformer", "model.encoder.inner_dim=16"),
    *("model.decoder.inner_dim=16", "model.attention.score=scaled_dot", "model.attention.heads=2"),
)
GOLDEN = {
    "translate_bahdanau": ("data.corpus=parts", "tokens.target=word", "metric=word_errors"),
    "translate_luong": (
        *("data.corpus=parts", "tokens.source=word", "tokens.size=80", "model.decoder.order=luong_feeding"),
        *("model.encoder.cell=lstm", "model.decoder.cell=lstm", "model.attention.score=general", "model.embedding=4"),
        *("model.decoder.start=last", "metric=character_errors", "search.max_extra=40", *LONGER),
    ),
    "translate_gnmt": (
        *("data.corpus=parts", "tokens.source=sentencepiece", "tokens.target=word", "tokens.size=70"),
        *("model.encoder.kind=gnmt", "model.encoder.cell=lstm", "model.decoder.cell=lstm", "model.encoder.layers=2"),
        *("model.decoder.order=gnmt", "model.decoder.layers=2", "metric=word_errors", "model.encoder.dim=6"),
        *("model.decoder.dim=6", "model.embedding=4", *LONGER),
    ),
    "translate_coverage": (
        *("data.corpus=parts", "tokens.target=word", "metric=word_errors", "model.attention.scope=coverage"),
        *("train.coverage=0.1", "model.decoder.start=zeros", *LONGER),
    ),
    "translate_transformer": (
        *("data.corpus=parts", "tokens.source=sentencepiece", "tokens.target=sentencepiece", "tokens.shared=true"),
        *("tokens.size=70", "model.tied=true", "metric=word_errors", "train.ema=0.9", *TRANSFORMER),
        *("model.encoder.dim=6", "model.decoder.dim=6", "model.encoder.inner_dim=8", "model.decoder.inner_dim=8"),
        *LONGER,
    ),
    "language_model_lines": (
        *("task=language_model", "data.corpus=sentences", "tokens.source=word", "metric=perplexity"),
        *("model.positions=rotary", "search.max_extra=5", *TRANSFORMER),
    ),
    "language_model_window": (
        *("task=language_model", "data.corpus=sentences", "language_model.window=32", "language_model.stride=16"),
        *("metric=bits_per_character", "model.decoder.order=none", "model.decoder.start=zeros"),
        *("model.decoder.cell=lstm", "model.decoder.dim=12", "search.max_extra=12"),
    ),
    "masked_lm": (
        *("task=masked_lm", "data.corpus=clues", "tokens.source=word", "tokens.size=80", "metric=perplexity"),
        *("model.tied=true", "model.activation=gelu", "model.positions=learned", "model.longest=24", *TRANSFORMER),
        *LONGER,
    ),
    "classify": (
        *("task=classify", "data.corpus=moods", "tokens.source=word", "tokens.size=60", "metric=accuracy"),
        *(*LONGER, "train.validate=300"),
    ),
    "tag": (
        *("task=tag", "data.corpus=parts", "tokens.source=word", "tokens.target=word", "tag.least=3"),
        *("tokens.lower=true", "tag.letters.embedding=4", "tag.letters.dim=8", "metric=tag_accuracy"),
        "train.validate=150",
    ),
    "answer": (
        *("task=answer", "data.corpus=facts", "tokens.source=sentencepiece", "tokens.size=90", "metric=answer_f1"),
        *(
            "model.activation=gelu",
            "model.positions=rotary",
            "answer.segments=true",
            "answer.overlap=true",
            *TRANSFORMER,
        ),
        *LONGER,
    ),
}

SERIES = {  # added with the task, after 0.1.0; no key of texts is theirs
    "forecast": (
        *("task=forecast", "data.corpus=waves", "data.size=30", "metric=crps", "forecast.horizon=6"),
        *("forecast.context=26", "forecast.lags=1,2", "forecast.likelihood=student_t", "forecast.samples=15"),
        *("model.decoder.order=luong", "model.decoder.cell=lstm", "model.decoder.dim=8", "model.positions=rotary"),
        *("model.attention.score=scaled_dot", "train.batch_tokens=600", "train.learning_rate=0.02"),
        *("train.schedule=linear", "train.warmup=10", "train.updates=120", "train.validate=60"),
        *("train.device=cpu", "train.threads=1"),
    ),
}


def margin(predictor: Predictor, text: str, answer: Prediction) -> float:
    """The smallest difference, in nats, between a choice in an answer and the next best choice."""
    task, model = predictor.task, predictor.model
    if task.recipe.task == "forecast":
        return math.inf  # numbers are no choices
    if task.recipe.task in ("masked_lm", "classify", "answer"):
        best, next_best = [answer.score, predictor.predict([text], n_best=2)[0].alternatives[0].score]
        return best - next_best
    if task.recipe.task == "tag":
        batch = task.collate(task.encode([Example(text, answer.text)]), [0])
        return _smallest_lead(model(batch.source)[0, :, 4:])
    tokens = task.target if task.recipe.task == "translate" else task.source
    ids = {tokens.piece(token): token for token in range(tokens.size)}
    output_ids = [ids[token] for token in answer.tokens]
    source = task.source.encode(text)
    prefix = [] if task.recipe.task == "translate" else source
    target = torch.tensor([[BEGIN, *prefix, *output_ids]])
    source_ids = torch.tensor([[*source, END]] if task.recipe.task == "translate" else [[]], dtype=torch.long)
    padded = [Padded(row, torch.ones_like(row, dtype=torch.bool)) for row in (source_ids, target)]
    limit = task.recipe.search.max_extra + (len(source) if task.recipe.task == "translate" else 0)
    logits = model(_batch_with_next(*padded)).logits[0, len(prefix) :]
    return _smallest_lead(logits if len(output_ids) < limit else logits[:-1])


def _batch_with_next(source: Padded, target: Padded) -> Batch:
    """A batch with END after the target: the model does not read the last token, but predicts it."""
    ids = torch.cat([target.ids, torch.tensor([[END]])], 1)
    return Batch(source, Padded(ids, torch.ones_like(ids, dtype=torch.bool)), torch.zeros(1, dtype=torch.long))


def _smallest_lead(logits: torch.Tensor) -> float:
    best = logits.topk(2, dim=-1).values
    return (best[..., 0] - best[..., 1]).min().item()


def observed(prediction: Prediction) -> dict[str, Any]:
    """The expected values of a prediction: text, tokens, score, the largest column of each row, and a few weights.

    The column is None if the two largest weights of a row are nearly equal.
    """
    looks, weights = None, []
    if prediction.map is not None:
        rows = prediction.map.weights
        best = rows.topk(2, dim=-1)
        lead = best.values[:, 0] - best.values[:, 1]
        looks = [column if by > LEAD else None for column, by in zip(best.indices[:, 0].tolist(), lead, strict=True)]
        places = {(row, column) for row in (0, len(rows) // 2, len(rows) - 1) for column in (0, looks[row] or 1)}
        weights = [[row, column, round(rows[row, column].item(), 6)] for row, column in sorted(places)]
    return {
        "source": prediction.source,
        "text": prediction.text,
        "tokens": list(prediction.tokens),
        "score": round(prediction.score, 6),
        "looks": looks,
        "weights": weights,
    }


@torch.no_grad()
def choose_answers(predictor: Predictor) -> list[dict[str, Any]]:
    """Answers to the first test examples for which no choice is a near tie."""
    recipe = predictor.task.recipe
    answers = []
    for example in TASKS[recipe.task].examples(recipe).test:
        text = example.source
        if recipe.task == "language_model":
            text = example.target[: len(example.target) // 2].rpartition(" ")[0]
        elif recipe.task == "masked_lm":
            words = text.split()
            text = " ".join("___" if index in (2, len(words) - 2) else word for index, word in enumerate(words))
        (answer,) = predictor.predict([text], beam=1 if predictor.task.uses("search.beam") else None)
        is_rare = [other["text"] for other in answers].count(answer.text) < ANSWERS / 2  # so that answers differ
        if is_rare and answer.tokens and margin(predictor, text, answer) > MARGIN:
            answers.append(observed(answer))
        if len(answers) == ANSWERS:
            return answers
    raise SystemExit(f"{recipe.name}: only {len(answers)} clear answers")


def stop_after(update: int) -> None:
    """Let this process interrupt itself, as Ctrl-C does, after an update."""
    real, calls = eager.learn_once, []

    def learn_once(*arguments: Any) -> None:
        real(*arguments)
        calls.append(1)
        if len(calls) == update:
            eager.learn_once = real
            os.kill(os.getpid(), signal.SIGINT)

    eager.learn_once = learn_once


def make(name: str, overrides: tuple[str, ...]) -> None:
    """Write a run that was stopped before its end, and the same run resumed and finished."""
    recipe = recipes.parse(f'name = "{name}"', "make.py", [*overrides])
    shutil.rmtree(RUNS / name, ignore_errors=True)
    (RUNS / name).mkdir(parents=True)
    with TemporaryDirectory() as folder:
        stop_after(recipe.train.updates - REMAINING)
        try:
            train(recipe, runs=folder, quiet=True)
        except StoppedError:
            shutil.copytree(Path(folder) / name, RUNS / name / "stopped")
        shutil.copytree(resume(Path(folder) / name, quiet=True).path, RUNS / name / "finished")
    older = Run.open(RUNS / name / "stopped").checkpoints()[1:]
    for checkpoint in older:  # only the newest is needed, and the repository stays small
        shutil.rmtree(checkpoint.path)


def expect(name: str) -> None:
    """Write expected.json for both runs."""
    predictor = load(RUNS / name / "finished", device="cpu")
    recipe = predictor.task.recipe
    losses = [entry["dev_loss"] for entry in predictor.run.metrics() if "dev_loss" in entry]
    expected = {
        "metric": recipe.metric,
        "value": score(predictor),
        "dev_losses": losses,
        "answers": choose_answers(predictor),
    }
    text = json.dumps(expected, indent=1, ensure_ascii=False) + "\n"
    (RUNS / name / "expected.json").write_text(text, encoding="utf-8")
    size = sum(path.stat().st_size for path in (RUNS / name).rglob("*") if path.is_file())
    weights = sum(parameter.numel() for parameter in predictor.model.parameters())
    print(f"{name}: {weights:,} parameters, {size:,} bytes, {recipe.metric} {expected['value']:.4f}, losses {losses}")
    for answer in expected["answers"]:
        print("  ", answer["source"], "->", answer["text"], answer["score"], answer["looks"])


if __name__ == "__main__":
    torch.set_num_threads(1)
    every = {name: (*COMMON, *overrides) for name, overrides in GOLDEN.items()} | SERIES
    for name in sys.argv[1:] or every:
        make(name, every[name])
        expect(name)
