"""Training on the metric: outputs are drawn from the model, and those that score above the others become more likely.

Self-critical sequence training (Rennie et al. 2017), with several outputs for each source, whose baseline is the mean
reward of the others (Kool et al. 2019; Luo 2020).
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional

from regard import search
from regard.metrics.rewards import reward
from regard.models import Seq2Seq
from regard.tasks.core import Pairs
from regard.types import BEGIN, END, PAD, Batch, BatchFirst

if TYPE_CHECKING:
    from regard.tasks.transduce import Transduce


@dataclass(frozen=True)
class Drawn(BatchFirst):
    """The sources of an update, and the outputs that were drawn for each of them, with their rewards."""

    source: Any  # as in `Batch`
    ids: Int[Tensor, "batch samples length"]  # BEGIN, the tokens of the output, and END unless it was cut
    mask: Bool[Tensor, "batch samples length"]
    rewards: Float[Tensor, "batch samples"]
    examples: Int[Tensor, " batch"]  # as in `Batch`, of `Rewards.data`

    def advantages(self) -> Float[Tensor, "batch samples"]:
        """Each reward minus the mean reward of the other outputs for the same source (leave-one-out baseline)."""
        samples = self.rewards.shape[1]
        return (self.rewards - self.rewards.mean(1, keepdim=True)) * (samples / (samples - 1))


class Rewards:
    """Draws outputs for sources of the training data, and scores each against all targets of its source."""

    def __init__(self, task: "Transduce", data: Pairs) -> None:
        settings = task.recipe.train
        places: dict[tuple[str, str], list[int]] = {}
        for place, example in enumerate(data.examples):
            places.setdefault((example.source, example.group), []).append(place)
        self.task, self.samples = task, settings.reward_samples
        self.data = data.only([first for first, *_ in places.values()])  # each source once
        self.references = [[data.examples[place].target for place in own] for own in places.values()]
        self.score = reward(settings.reward, self.references)

    def draw(self, model: Seq2Seq, batch: Batch, generator: torch.Generator) -> Drawn:
        """Draw outputs for the sources of a batch, by the distribution of the model without dropout."""
        places, settings = batch.examples.tolist(), self.task.recipe.search
        limits = [self.task.limit(int(self.data.sizes[place]) - 1, settings) for place in places]
        model.eval()
        with torch.no_grad():
            memory = model.read(batch.source)
        drawn = search.sample_batch(model.decoder, memory, limits=limits, count=self.samples, generator=generator)
        ids, mask = (rows.unflatten(0, (len(places), self.samples)) for rows in (drawn.ids, drawn.mask))
        rewards = torch.tensor(self._rewards(places, ids.tolist()), dtype=torch.float64)
        return Drawn(batch.source, ids, mask, rewards.to(ids.device, memory.states.dtype), batch.examples)

    def _rewards(self, places: Sequence[int], ids: Sequence[Sequence[Sequence[int]]]) -> list[list[float]]:
        """The rewards of outputs, given as token ids, for the sources at these places."""
        decode, hidden = self.task.target.decode, (PAD, BEGIN, END)
        texts = ([decode([token for token in row if token not in hidden]) for row in rows] for rows in ids)
        return [self.score(outputs, self.references[place]) for place, outputs in zip(places, texts, strict=True)]

    def loss(self, model: Seq2Seq, drawn: Drawn) -> Float[Tensor, ""]:
        """REINFORCE (Williams 1992):  - sum over outputs of advantage x log p(output), in one pass over all of them.

        The sources are encoded and their keys projected once. Words that cannot be drawn have no probability here
        either, so that the gradient is that of the expected reward.
        """
        ids, decoder = drawn.ids.flatten(0, 1), model.decoder
        prepared = decoder.prepare(model.read(drawn.source)).repeat(drawn.ids.shape[1])
        logits = decoder.step(ids[:, :-1], decoder.start(prepared), prepared).logits
        allowed = search.forbid(logits.to(torch.promote_types(logits.dtype, torch.float32)))
        costs = functional.cross_entropy(
            allowed.flatten(0, 1), ids[:, 1:].flatten(), ignore_index=PAD, reduction="none"
        )
        return (drawn.advantages().flatten() * costs.unflatten(0, (len(ids), -1)).sum(1)).sum()

    def tokens(self, drawn: Drawn) -> int:
        """The number of tokens of all outputs, with END."""
        return int(drawn.mask[:, :, 1:].sum())


def generator_of(seed: int, update: int, device: torch.device) -> torch.Generator:
    """The random generator of an update, from the seed of the training: a resumed run draws the same outputs."""
    drawn = random.Random(f"reward {seed} {update}").getrandbits(63)  # a string works alike in every process
    return torch.Generator(device).manual_seed(drawn)
