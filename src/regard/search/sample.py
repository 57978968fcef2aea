"""Sampling over the verbs of any decoder."""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from regard.decoders import Decoder
from regard.device import check_cancelled
from regard.errors import NotFiniteError, RecipeError
from regard.search.hypotheses import NEVER, begin, check_limits
from regard.types import END, Hypothesis, Memory

DRAW = 15_485_863  # between the seeds of two outputs of one sentence: torch takes the lower 32 bits of a seed alone


@torch.no_grad()
def sample(
    decoder: Decoder[Any, Any],
    memory: Memory,
    *,
    limits: Sequence[int],
    seeds: Sequence[int],
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    count: int = 1,
    prefix: Int[Tensor, "batch prefix"] | None = None,
) -> list[list[Hypothesis]]:
    """`count` outputs drawn for every sentence, in the order drawn.

    Words are drawn from the distribution sharpened by `temperature` (below 1) or flattened (above), cut to its `top_k`
    likeliest words (Fan et al. 2018; 0 for all) and to the fewest words that hold `top_p` of it (Holtzman et al. 2020).
    A hypothesis's score is its log-probability under the model itself. Every sentence draws by its own seed, so
    batch-mates change nothing, and a larger `count` changes none of the outputs before.
    """
    if not temperature > 0 or top_k < 0 or not 0 < top_p <= 1 or count < 1:
        raise RecipeError(
            "sampling needs temperature > 0, top_k >= 0, 0 < top_p <= 1 and a count of 1 or more, "
            f"not {temperature}, {top_k}, {top_p} and {count}"
        )
    check_limits(limits, memory, prefix)
    ready = decoder.prepare(memory)
    beams, logits = begin(decoder, ready, memory, prefix, count)
    first = beams.scores.view(-1, count)[:, :1].expand(-1, count)
    scores = first.flatten().tolist()
    generators = [torch.Generator().manual_seed(seed + draw * DRAW) for seed in seeds for draw in range(count)]
    room = [limit for limit in limits for _ in range(count)]
    done: list[Hypothesis | None] = [None] * len(room)
    for length in range(beams.tokens.shape[1], max(limits) + 1):
        words = torch.log_softmax(logits.to(beams.scores.dtype), dim=-1)
        chances = shape(words, temperature, top_k, top_p).cpu()
        drawn = [
            END if done[row] else int(torch.multinomial(chances[row], 1, generator=generators[row]))
            for row in range(len(room))
        ]
        for row, word in enumerate(drawn):
            if done[row] is not None:
                continue
            scores[row] += float(words[row, word])
            if word == END or length == room[row]:
                written = beams.tokens[row, 1:].tolist() + ([] if word == END else [word])
                seen = None if beams.maps is None else beams.maps[row].clone()
                done[row] = Hypothesis(written, scores[row], seen, word == END)
        if all(done):
            break
        check_cancelled()
        tokens = torch.cat([beams.tokens, torch.tensor(drawn, device=memory.mask.device).unsqueeze(1)], dim=1)
        step = decoder.step(tokens[:, -1:], beams.state, ready)
        beams, logits = type(beams)(tokens, beams.scores, beams.maps, beams.state).follow(step), step.logits[:, -1]
    rows = [each for each in done if each is not None]
    return [rows[start : start + count] for start in range(0, len(rows), count)]


def shape(
    words: Float[Tensor, "rows vocabulary"], temperature: float, top_k: int, top_p: float
) -> Float[Tensor, "rows vocabulary"]:
    """Log-probabilities to the chances words are drawn with; never PAD or BEGIN."""
    words = words.index_fill(-1, torch.tensor(NEVER, device=words.device), float("-inf"))
    best = words.amax(-1, keepdim=True)  # taken off first, so that a tiny temperature does not overflow
    chances = torch.softmax((words - best) / temperature, dim=-1)
    if bool(chances.isnan().any()):
        raise NotFiniteError("the model's predictions are not finite numbers; nothing can be drawn from them")
    falling, order = chances.sort(dim=-1, descending=True, stable=True)
    before = falling.cumsum(-1) - falling  # what the likelier words hold
    keep = (before < top_p) | (top_p == 1.0)  # rounded sums reach 1 too early
    if top_k:
        keep &= torch.arange(keep.shape[-1], device=keep.device) < top_k
    kept = torch.zeros_like(keep).scatter(-1, order, keep)
    return (chances * kept) / (chances * kept).sum(-1, keepdim=True)
