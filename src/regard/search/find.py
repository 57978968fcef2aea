"""Search with the settings of a recipe: beam search, or sampling if `search.temperature` is set."""

from collections.abc import Sequence
from functools import partial

from jaxtyping import Int
from torch import Tensor

from regard.decoders import AnyDecoder
from regard.recipe import Search
from regard.search.beam import beam
from regard.search.recorded import recorded
from regard.search.sample import sample
from regard.search.scorers import Scorer
from regard.types import Hypothesis, Memory


@recorded
def find(
    decoder: AnyDecoder,
    memory: Memory,
    settings: Search,
    *,
    limits: Sequence[int],
    seeds: Sequence[int],
    n_best: int,
    prefix: Int[Tensor, "batch prefix"] | None = None,
    scorer: Scorer | None = None,
) -> list[list[Hypothesis]]:
    """Find `n_best` outputs for every sentence: by beam search, or by sampling with `seeds` if a temperature is set.

    A larger `n_best` does not change the first outputs. If `n_best` is larger than the beam width, the additional ones
    come from a second search of width `n_best`, and one of them may score higher than the first output. Only beam
    search uses a `scorer`.
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

    search = partial(
        beam,
        decoder,
        memory,
        limits=limits,
        length_penalty=settings.length_penalty,
        coverage_penalty=settings.coverage_penalty,
        no_repeat=settings.no_repeat,
        ends_in_beam=settings.ends_in_beam,
        prefix=prefix,
        scorer=scorer,
    )
    narrow = search(width=settings.beam, n_best=min(n_best, settings.beam))
    if n_best <= settings.beam:
        return narrow
    wide = search(width=n_best, n_best=n_best)
    return [_joined(first, wider, n_best) for first, wider in zip(narrow, wide, strict=True)]


def _joined(first: list[Hypothesis], wider: list[Hypothesis], n_best: int) -> list[Hypothesis]:
    """The hypotheses of the first search, then those that only the wider search found; at most `n_best`."""
    known = [(hypothesis.tokens, hypothesis.finished) for hypothesis in first]
    new = (hypothesis for hypothesis in wider if (hypothesis.tokens, hypothesis.finished) not in known)
    return [*first, *new][:n_best]
