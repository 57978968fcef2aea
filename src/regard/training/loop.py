"""The one loop in which models learn."""

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import torch
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor

from regard import recipe as recipes
from regard import storage
from regard.data.batching import Batches, in_order
from regard.device import choose_device
from regard.errors import NotFiniteError, pick
from regard.metrics import METRICS
from regard.models import Seq2Seq
from regard.recipe import Recipe
from regard.storage import Run
from regard.tasks import TASKS, Translate
from regard.tasks.translate import Encoded
from regard.training.progress import Teller
from regard.training.schedules import SCHEDULES
from regard.types import Batch


def train(recipe: Recipe | str | Path, *overrides: str, runs: str | Path = "runs", quiet: bool = False) -> Run:
    """Train what the recipe says, with `a.b=c` overrides, and keep it in a new directory under `runs`.

    Nothing is written before the recipe and all data are found to be good.
    """
    if not isinstance(recipe, Recipe):
        recipe = recipes.load(recipe)
    for text in overrides:
        recipe = recipes.override(recipe, text)
    kind = pick(TASKS, recipe.task, "task")
    metric = pick(METRICS, recipe.metric, "metric")
    pick(SCHEDULES, recipe.train.schedule, "schedule")
    kind.check(recipe)
    device = choose_device(recipe.train.device)
    if recipe.train.threads:
        torch.set_num_threads(recipe.train.threads)

    with Teller(quiet=quiet) as teller:
        examples = kind.examples(recipe)
        task = kind.learn(recipe, examples.train)
        everything, dev = task.encode(examples.train), task.encode(examples.dev)
        data = task.within_length(everything)
        torch.manual_seed(recipe.train.seed)
        model = task.build().to(device)

        run = Run.create(Path(runs), recipe.name)
        run.write(storage.RECIPE, recipes.to_toml(recipe).encode())
        for name, content in task.files().items():
            run.write(name, content)
        too_long = len(everything.examples) - len(data.examples)
        for line in (
            *examples.notes,
            *_intent(task, model, data, dev, too_long),
            f"device {device}, run {run.path}",
        ):
            teller.say(line)

        seconds = fit(task, model, data, dev, run, teller)
        model.load_state_dict(load_tensors(run.read(storage.MODEL)))
        answers = task.answer(model, [each.source for each in dev.examples], recipe.search)
        measured = metric([each.text for each in answers], [each.target for each in dev.examples])
        run.record({recipe.metric: measured.value, "signature": measured.signature, "train_seconds": seconds})
        run.seal()
        teller.say(f"learned in {seconds:.1f} s; best on dev: {measured.value:.4f} ({measured.signature})")
    return run


def fit(task: Translate, model: Seq2Seq, data: Encoded, dev: Encoded, run: Run, teller: Teller) -> float:
    """Let the model learn; the weights with the lowest dev loss end in the run. Gives the seconds it took."""
    settings = task.recipe.train
    device = next(model.parameters()).device
    batches = Batches(data.lengths(), settings.batch_tokens, settings.seed)
    schedule = SCHEDULES[settings.schedule]
    optimizer = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.98), weight_decay=0.0)
    began, meter = time.perf_counter(), Meter()
    lowest, waited = math.inf, 0
    teller.begin(settings.updates)
    for update in range(1, settings.updates + 1):
        model.train()
        batch = task.collate(data, batches[update - 1]).to(device)
        loss = task.loss(model, batch, settings.smoothing)
        optimizer.zero_grad(set_to_none=True)
        (loss.total / loss.tokens).backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), settings.clip or math.inf)
        _check_finite(update, loss.total, norm, batch, data)
        rate = settings.learning_rate * schedule(update, settings.warmup, settings.updates)
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.step()
        meter.add(loss.total.item(), loss.tokens)
        teller.advance(meter.loss(), meter.tokens_per_second())

        if update % settings.validate == 0 or update == settings.updates:
            dev_loss = evaluate(task, model, dev)
            if not math.isfinite(dev_loss):
                raise NotFiniteError(
                    f"update {update}: the dev loss is {dev_loss}; a lower train.learning_rate may help"
                )
            run.record(
                {
                    "update": update,
                    "epoch": batches.locate(update - 1)[0],
                    "loss": meter.loss(),
                    "dev_loss": dev_loss,
                    "learning_rate": rate,
                    "gradient_norm": norm.item(),
                    "tokens_per_second": meter.tokens_per_second(),
                    "seconds": time.perf_counter() - began,
                }
            )
            teller.say(f"update {update:,}: loss {meter.loss():.4f}, dev loss {dev_loss:.4f}")
            meter = Meter()
            waited += 1
            if dev_loss < lowest:
                lowest, waited = dev_loss, 0
                run.write(storage.MODEL, save_tensors(model.state_dict()))
                run.seal()
            if settings.patience and waited >= settings.patience:
                teller.say(f"stopping: the dev loss has not fallen for {waited} validations")
                break
    return time.perf_counter() - began


@torch.no_grad()
def evaluate(task: Translate, model: Seq2Seq, data: Encoded) -> float:
    """The mean loss of a target token, in nats."""
    model.eval()
    device = next(model.parameters()).device
    losses = [
        task.loss(model, task.collate(data, indices).to(device))
        for indices in in_order(data.lengths(), task.recipe.train.batch_tokens)
    ]
    return sum(loss.total.item() for loss in losses) / sum(loss.tokens for loss in losses)


@dataclass
class Meter:
    """What was seen since the last validation."""

    total: float = 0.0
    tokens: int = 0
    began: float = field(default_factory=time.perf_counter)

    def add(self, total: float, tokens: int) -> None:
        """One batch more."""
        self.total += total
        self.tokens += tokens

    def loss(self) -> float:
        """The mean loss of a token."""
        return self.total / self.tokens

    def tokens_per_second(self) -> float:
        """Target tokens learned from in a second."""
        return self.tokens / (time.perf_counter() - self.began)


def _check_finite(update: int, loss: Tensor, norm: Tensor, batch: Batch, data: Encoded) -> None:
    """Stop before the optimizer moves, and say where to look."""
    if math.isfinite(loss.item()) and math.isfinite(norm.item()):
        return
    origins = [data.examples[index].origin for index in batch.examples]
    more = f" and {len(origins) - 8:,} more" if len(origins) > 8 else ""
    raise NotFiniteError(
        f"update {update}: the loss is {loss.item()}, the norm of its gradient {norm.item()}; the weights "
        f"are as before. The batch held {', '.join(origins[:8])}{more}. "
        "A lower train.learning_rate, more train.warmup or a smaller train.clip often helps"
    )


def _intent(task: Translate, model: Seq2Seq, data: Encoded, dev: Encoded, too_long: int) -> Iterator[str]:
    """What is going to be done, in a few lines."""
    dropped = f" ({too_long:,} over {task.recipe.data.max_length} tokens dropped)" if too_long else ""
    unknown = f"{task.unknown(dev):.2%} of the dev tokens unknown"
    yield f"{len(data.examples):,} pairs to learn from{dropped}, {len(dev.examples):,} dev pairs, {unknown}"
    parameters = sum(parameter.numel() for parameter in model.parameters())
    yield f"vocabularies of {task.source.size:,} and {task.target.size:,} tokens, {parameters:,} parameters"
    settings = task.recipe.train
    yield f"{settings.updates:,} updates of at most {settings.batch_tokens:,} tokens"
