"""Search as a recipe says: the likeliest outputs by beam search, or outputs drawn at random."""

from collections.abc import Sequence

from jaxtyping import Int
from torch import Tensor

from regard.decoders import AnyDecoder
from regard.recipe import Search
from regard.search.beam import beam
from regard.search.sample import sample
from regard.types import Hypothesis, Memory


def find(
    decoder: AnyDecoder,
    memory: Memory,
    settings: Search,
    *,
    limits: Sequence[int],
    seeds: Sequence[int],
    n_best: int,
    prefix: Int[Tensor, "batch prefix"] | None = None,
) -> list[list[Hypothesis]]:
    """`n_best` outputs for every sentence, drawn at random if there is a temperature; `seeds` are for those drawn.

    A larger `n_best` leaves the first ones as they are. If more are wanted than the beam is wide, the rest come from a
    second search with a beam of `n_best`, and one of them may score higher than the first.
    """
    if settings.temperature:
        return sample(
            decoder,
            memory,
            limits=limits,
            seeds=seeds,
            temperature=settings.temperature,
            top_k=settings.top_k,
            top_p=settings.top_p,
            count=n_best,
            prefix=prefix,
        )

    def search(width: int, count: int) -> list[list[Hypothesis]]:
        return beam(
            decoder,
            memory,
            width=width,
            limits=limits,
            length_penalty=settings.length_penalty,
            coverage_penalty=settings.coverage_penalty,
            no_repeat=settings.no_repeat,
            prefix=prefix,
            n_best=count,
        )

    found = search(settings.beam, min(n_best, settings.beam))
    if n_best <= settings.beam:
        return found
    return [_joined(mine, wider, n_best) for mine, wider in zip(found, search(n_best, n_best), strict=True)]


def _joined(mine: list[Hypothesis], wider: list[Hypothesis], n_best: int) -> list[Hypothesis]:
    """The hypotheses of a search, then those of a wider one that are others."""
    known = [(each.tokens, each.finished) for each in mine]
    return [*mine, *(each for each in wider if (each.tokens, each.finished) not in known)][:n_best]
