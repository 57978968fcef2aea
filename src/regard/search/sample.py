"""Sampling: draws outputs at random, with temperature, top-k and top-p."""

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from regard.decoders import AnyDecoder
from regard.device import check_cancelled
from regard.errors import NotFiniteError, RecipeError
from regard.search.follow import report
from regard.search.hypotheses import FORBIDDEN_TOKENS, begin, check_limits
from regard.search.recorded import recorded
from regard.types import END, PAD, Hypothesis, Memory, Padded

# Added to the seed for each further output of a sentence; torch uses only the low 32 bits of a seed.
SEED_STEP = 15_485_863
LOWEST_TEMPERATURE = 1e-30  # a lower one may be 0 in float32; far above it, only the best token is left


@recorded
@torch.no_grad()
def sample(
    decoder: AnyDecoder,
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
    """Draw `count` outputs at random for every sentence; they come in the order in which they were drawn.

    `temperature` sharpens (below 1) or flattens (above 1) the distribution over the next word. It is then cut to the
    `top_k` most likely words (Fan et al. 2018; 0 for all) and to the smallest set of words with a probability of
    `top_p` together (Holtzman et al. 2020). The score of a hypothesis is its log-probability under the unchanged
    distribution. Every sentence has its own seed, so the other sentences of a batch do not change the result, and a
    larger `count` does not change the first outputs.
    """
    if not temperature > 0 or top_k < 0 or not 0 < top_p <= 1 or count < 1:
        raise RecipeError(
            "sampling needs temperature > 0, top_k >= 0, 0 < top_p <= 1 and a count of 1 or more, "
            f"not {temperature}, {top_k}, {top_p} and {count}"
        )
    check_limits(limits, memory, prefix)
    prepared = decoder.prepare(memory)
    beams, logits = begin(decoder, prepared, memory, prefix, count)
    scores = beams.scores[::count].repeat_interleave(count).tolist()  # of the prefix
    generators = [torch.Generator().manual_seed(seed + draw * SEED_STEP) for seed in seeds for draw in range(count)]
    row_limits = [limit for limit in limits for _ in range(count)]
    done: list[Hypothesis | None] = [None] * len(row_limits)
    for length in range(beams.tokens.shape[1], max(limits) + 1):
        log_probs = torch.log_softmax(logits.to(beams.scores.dtype), dim=-1)
        probabilities = shape(log_probs, temperature, top_k, top_p).cpu()
        drawn = [
            END if done[row] else int(torch.multinomial(probabilities[row], 1, generator=generators[row]))
            for row in range(len(row_limits))
        ]
        for row, word in enumerate(drawn):
            if done[row] is not None:
                continue
            scores[row] += float(log_probs[row, word])
            if word == END or length == row_limits[row]:
                done[row] = beams.complete(row, word, scores[row])
        if all(done):
            break
        beams = beams.extend(torch.tensor(drawn, device=memory.mask.device))
        report(beams)
        check_cancelled()
        step = decoder.step(beams.tokens[:, -1:], beams.state, prepared)
        beams, logits = beams.follow(step), step.logits[:, -1]
    hypotheses = [hypothesis for hypothesis in done if hypothesis is not None]
    return [hypotheses[start : start + count] for start in range(0, len(hypotheses), count)]


@torch.no_grad()
def sample_batch(
    decoder: AnyDecoder, memory: Memory, *, limits: Sequence[int], count: int, generator: torch.Generator
) -> Padded:
    """Draw `count` outputs for every sentence as one batch of tokens, for training; those of a sentence are neighbours.

    Rows begin with BEGIN, and end with END unless they are cut at their limit. Every step draws the words of all rows
    at once on the device of the model, where `generator` must be, too: the word of the largest p / e, where e is drawn
    from an exponential distribution, has the probability p.
    """
    check_limits(limits, memory, None)
    prepared = decoder.prepare(memory)
    beams, logits = begin(decoder, prepared, memory, None, count)
    state, tokens = beams.state, [beams.tokens[:, 0]]
    row_limits = torch.tensor(limits, device=logits.device).repeat_interleave(count)
    alive = torch.ones_like(row_limits, dtype=torch.bool)
    masks = [alive]
    for length in range(1, max(limits) + 1):
        probabilities = torch.softmax(forbid(logits.to(beams.scores.dtype)), dim=-1)
        noise = torch.empty_like(probabilities).exponential_(generator=generator)
        noise.clamp_(min=torch.finfo(noise.dtype).tiny)  # 0 / 0 is not a number
        words = (probabilities / noise).argmax(-1).masked_fill(~alive, PAD)
        tokens.append(words)
        masks.append(alive)
        alive = alive & (words != END) & (row_limits > length)
        if not bool(alive.any()):
            break
        check_cancelled()
        step = decoder.step(words.unsqueeze(1), state, prepared)
        state, logits = step.state, step.logits[:, -1]
    return Padded(torch.stack(tokens, dim=1), torch.stack(masks, dim=1))


def forbid(scores: Float[Tensor, "*rows vocabulary"]) -> Float[Tensor, "*rows vocabulary"]:
    """The scores, -inf for PAD and BEGIN, which no output contains."""
    allowed = scores.clone()
    for token in FORBIDDEN_TOKENS:  # an index of both would be copied to the GPU at each step
        allowed[..., token] = float("-inf")
    return allowed


def shape(
    log_probs: Float[Tensor, "rows vocabulary"], temperature: float, top_k: int, top_p: float
) -> Float[Tensor, "rows vocabulary"]:
    """The probabilities by which words are drawn, after temperature, top-k and top-p; 0 for PAD and BEGIN."""
    log_probs = forbid(log_probs)
    best = log_probs.amax(-1, keepdim=True)  # subtracted first, so that a tiny temperature does not overflow
    probabilities = torch.softmax((log_probs - best) / max(temperature, LOWEST_TEMPERATURE), dim=-1)
    if bool(probabilities.isnan().any()):
        raise NotFiniteError("the model's predictions are not finite numbers; nothing can be drawn from them")
    falling, order = probabilities.sort(dim=-1, descending=True, stable=True)
    before = falling.cumsum(-1) - falling  # the summed probability of all more likely words
    keep = (before < top_p) | (top_p == 1.0)  # rounding lets the sum reach 1 too early
    if top_k:
        keep &= torch.arange(keep.shape[-1], device=keep.device) < top_k
    kept = probabilities * torch.zeros_like(keep).scatter(-1, order, keep)
    return kept / kept.sum(-1, keepdim=True)
