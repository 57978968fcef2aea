"""Viterbi search: the best sequence of tags, if rules say which tag may follow which."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

FORBIDDEN = float("-inf")


class Rules(NamedTuple):
    """Which tags may come first, and which tag may follow which."""

    first: Bool[Tensor, " tags"]
    after: Bool[Tensor, "tags tags"]  # [a, b]: tag b may follow tag a


def bio(tags: Sequence[str]) -> Rules | None:
    """The rules of BIO tags: I-X comes only after B-X or I-X. None if the tags are not BIO.

    Tags are BIO if all but O begin with B- or I-, and every I-X has its B-X (Ramshaw and Marcus 1995, as IOB2).
    """
    chunk_tags = set(tags) - {"O"}
    if not chunk_tags or not all(tag[:2] in ("B-", "I-") and "B-" + tag[2:] in chunk_tags for tag in chunk_tags):
        return None
    inside = [tag.startswith("I-") for tag in tags]
    after = [[not is_i or before[1:] == tag[1:] for tag, is_i in zip(tags, inside, strict=True)] for before in tags]
    return Rules(~torch.tensor(inside), torch.tensor(after))


class Path(NamedTuple):
    """The best tag of every word, and the sum of their scores for each sentence."""

    tags: Int[Tensor, "batch time"]  # arbitrary at padding
    scores: Float[Tensor, " batch"]


def best_path(scores: Float[Tensor, "batch time tags"], mask: Bool[Tensor, "batch time"], rules: Rules | None) -> Path:
    """Viterbi 1967: the sequence with the highest sum of scores, of all that the rules allow."""
    scores = scores.masked_fill(~mask.unsqueeze(-1), 0.0)
    if rules is None:
        best = scores.max(-1)
        return Path(best.indices, best.values.sum(-1))
    penalty = torch.zeros_like(rules.after, dtype=scores.dtype).masked_fill(~rules.after, FORBIDDEN)
    stay = torch.arange(scores.shape[-1], device=scores.device)
    total = scores[:, 0].masked_fill(~rules.first, FORBIDDEN)
    origins = []
    for place in range(1, scores.shape[1]):
        reached = (total.unsqueeze(-1) + penalty).max(1)
        real = mask[:, place, None]
        total = torch.where(real, reached.values + scores[:, place], total)
        origins.append(torch.where(real, reached.indices, stay))
    best = total.max(-1)
    tags = [best.indices]
    for origin in reversed(origins):
        tags.append(origin.gather(1, tags[-1].unsqueeze(1)).squeeze(1))
    return Path(torch.stack(tags[::-1], dim=1), best.values)
