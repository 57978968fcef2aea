"""Search as a recipe says: the best by beam search, or drawn at random."""

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
    """`n_best` outputs for every sentence, drawn where there is a temperature; `seeds` are for those drawn."""
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
    return beam(
        decoder,
        memory,
        width=settings.beam,
        limits=limits,
        length_penalty=settings.length_penalty,
        coverage_penalty=settings.coverage_penalty,
        no_repeat=settings.no_repeat,
        prefix=prefix,
        n_best=n_best,
    )
