"""Schedules: the share of the learning rate at each update, counted from 1."""

import math
from collections.abc import Callable

from regard.recipe import Train

Schedule = Callable[[int, int, int], float]


def constant(update: int, warmup: int, updates: int) -> float:
    """Up in a line while warming up, then level."""
    return min(1.0, update / max(1, warmup))


def inverse_sqrt(update: int, warmup: int, updates: int) -> float:
    """Vaswani et al. 2017, 5.3: up in a line, then down with the root of the updates."""
    level = max(1, warmup)
    return min(update / level, math.sqrt(level / update))


def linear(update: int, warmup: int, updates: int) -> float:
    """Up in a line, then down in a line, to end just above zero."""
    falling = (updates + 1 - update) / max(1, updates + 1 - warmup)
    return min(update / max(1, warmup), falling, 1.0)


def cosine(update: int, warmup: int, updates: int) -> float:
    """Loshchilov and Hutter 2017: up in a line, then down along half a wave, to a tenth."""
    gone = (update - warmup) / max(1, updates - warmup)
    return min(update / max(1, warmup), 0.1 + 0.45 * (1.0 + math.cos(math.pi * min(1.0, max(0.0, gone)))))


SCHEDULES: dict[str, Schedule] = {
    "constant": constant,
    "inverse_sqrt": inverse_sqrt,
    "linear": linear,
    "cosine": cosine,
}


def learning_rate(settings: Train, update: int) -> float:
    """The learning rate of an update, counted from 1."""
    return settings.learning_rate * SCHEDULES[settings.schedule](update, settings.warmup, settings.updates)
