"""Searches in a block of `record`: their steps are not recorded; the best output of each sentence is, in one pass."""

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, TypeVar, cast

import torch
from torch.nn.utils.rnn import pad_sequence

from regard.decoders import AnyDecoder
from regard.kernels.choose import has_observers, pause_observers
from regard.types import BEGIN, PAD, Hypothesis, Memory

Search = TypeVar("Search", bound=Callable[..., list[list[Hypothesis]]])


def recorded(search: Search) -> Search:
    """The same search; if the decoder is recorded, it then runs once over the first output of every sentence.

    The rows of a step are beams, which change places, so its weights belong to no single output. Without recording in
    the steps, the search takes the same paths as ever. A search that another search calls is not recorded by itself.
    """

    @wraps(search)
    def recorded_search(decoder: AnyDecoder, memory: Memory, *arguments: Any, **settings: Any) -> Any:
        if not has_observers(decoder):
            return search(decoder, memory, *arguments, **settings)
        with pause_observers():
            hypotheses = search(decoder, memory, *arguments, **settings)
        _force(decoder, memory, [best.tokens for best, *_ in hypotheses])
        return hypotheses

    return cast(Search, recorded_search)


def _force(decoder: AnyDecoder, memory: Memory, outputs: Sequence[Sequence[int]]) -> None:
    """Run the decoder over one output of every sentence, for its observers: a row for each token, none for END.

    An empty output has one row, that of the step that ended it.
    """
    rows = [torch.tensor([BEGIN, *tokens[:-1]], device=memory.mask.device) for tokens in outputs]
    with torch.no_grad(), torch.random.fork_rng(enabled=decoder.training):
        decoder(pad_sequence(rows, batch_first=True, padding_value=PAD), memory)
