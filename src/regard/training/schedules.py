"""Learning rate schedules: each gives the factor of the highest learning rate at an update, counted from 1."""

import math
from collections.abc import Callable

from regard.recipe import Train

Schedule = Callable[[int, int, int], float]


def constant(update: int, warmup: int, updates: int) -> float:
    """Linear warmup, then constant."""
    return min(1.0, update / max(1, warmup))


def inverse_sqrt(update: int, warmup: int, updates: int) -> float:
    """Vaswani et al. 2017, 5.3: linear warmup, then decay with the inverse square root of the update."""
    level = max(1, warmup)
    return min(update / level, math.sqrt(level / update))


def linear(update: int, warmup: int, updates: int) -> float:
    """Linear warmup, then linear decay that ends just above zero."""
    decay = (updates + 1 - update) / max(1, updates + 1 - warmup)
    return min(update / max(1, warmup), decay, 1.0)


def cosine(update: int, warmup: int, updates: int) -> float:
    """Loshchilov and Hutter 2017: linear warmup, then cosine decay to a tenth."""
    elapsed = (update - warmup) / max(1, updates - warmup)
    return min(update / max(1, warmup), 0.1 + 0.45 * (1.0 + math.cos(math.pi * min(1.0, max(0.0, elapsed)))))


SCHEDULES: dict[str, Schedule] = {
    "constant": constant,
    "inverse_sqrt": inverse_sqrt,
    "linear": linear,
    "cosine": cosine,
}


def learning_rate(settings: Train, update: int) -> float:
    """The learning rate of an update, counted from 1, by the schedule of the recipe.

    If there is a reward, the schedule runs twice: over the updates with cross-entropy, and over those with reward.
    """
    schedule, before = SCHEDULES[settings.schedule], settings.cross_entropy_updates
    if update <= before:
        return settings.learning_rate * schedule(update, settings.warmup, before)
    return settings.reward_rate * schedule(update - before, settings.warmup, settings.updates - before)
