"""Scorers: a second model of the outputs, whose log-probabilities a beam search adds to those of the decoder."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from regard.types import END, BatchFirst

CANDIDATES = 64  # words of a hypothesis that a scorer rates at least: those that the decoder finds most likely, and END


@dataclass(frozen=True)
class Followed(BatchFirst):
    """The state of a scorer, with a row for each hypothesis; each scorer has its own subclass."""

    log_probs: Float[Tensor, " rows"]  # of all outputs that begin with the hypothesis, together


@dataclass(frozen=True)
class Scorer(BatchFirst, ABC):
    """Base class of scorers: a frozen dataclass with a row for each sentence of a search.

    The score of a hypothesis is  (1 - weight) decoder's log P + weight scorer's log P.  Both are at most 0 and fall
    with each word, so the bound by which the search stops holds for their sum, too.
    """

    weight: float

    @abstractmethod
    def start(self) -> Any:
        """The state (`Followed`) of an empty output, with a row for each sentence."""

    @abstractmethod
    def score(self, state: Any, words: Int[Tensor, "rows count"]) -> Float[Tensor, "rows count"]:
        """The log-probability of each hypothesis with each of its words added; with END, that of exactly this output.

        The rows of one sentence stand next to each other; all sentences have the same number of them.
        """

    @abstractmethod
    def advance(self, state: Any, words: Int[Tensor, " rows"]) -> Any:
        """The state of the hypotheses with one more word each, which is not END."""


class Extensions(NamedTuple):
    """The best words after each hypothesis, best first, and what each adds to the score of its hypothesis."""

    scores: Float[Tensor, "rows count"]
    words: Int[Tensor, "rows count"]


def best_words(scorer: Scorer, state: Any, log_probs: Float[Tensor, "rows vocabulary"], count: int) -> Extensions:
    """The `count` best words by the joint score, of those that the decoder finds most likely, and END."""
    candidates = min(log_probs.shape[1], max(CANDIDATES, count))
    words = log_probs.index_fill(-1, torch.tensor(END, device=log_probs.device), float("inf")).topk(candidates).indices
    own, reached = log_probs.gather(1, words), scorer.score(state, words)
    added = (reached - state.log_probs.unsqueeze(1)).to(log_probs.dtype)
    impossible = own.isneginf() | reached.isneginf()  # 0 x -inf is not a number
    joint = ((1 - scorer.weight) * own + scorer.weight * added).masked_fill(impossible, float("-inf"))
    best = joint.topk(count)
    return Extensions(best.values, words.gather(1, best.indices))
