"""The parity check of an export: the exported files and the run translate the same sentences."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Protocol

from regard.data import batching
from regard.models import Seq2Seq
from regard.recipe import Search
from regard.search import find
from regard.tasks import Transduce

BATCH_TOKENS = 2000  # source tokens of a batch times the beam


class Translates(Protocol):
    """What an exported model does, for encoded sources without END: the tokens of each best hypothesis."""

    def translate(self, sources: Sequence[Sequence[int]], beam: int, limits: Sequence[int]) -> list[list[int]]:
        """The tokens of the best hypothesis of each source, without END and without a length penalty."""


@dataclass(frozen=True)
class Parity:
    """How many sentences have the same best hypothesis, token by token."""

    same: int
    sentences: int
    beam: int

    @property
    def share(self) -> float:
        """The share of equal best hypotheses."""
        return self.same / max(1, self.sentences)

    def __str__(self) -> str:
        how = "greedily" if self.beam == 1 else f"with beam {self.beam}"
        return f"{how}, {self.same:,} of {self.sentences:,} outputs are the same, token by token ({self.share:.2%})"


def compare(
    task: Transduce, model: Seq2Seq, exported: Translates, texts: Sequence[str], beam: int
) -> tuple[Parity, list[tuple[list[int], list[int]]]]:
    """Translate texts with both, by the rule of other toolkits for when a hypothesis ends (`search.ends_in_beam`).

    Neither has a length penalty, because each toolkit has its own formula for it. A batch has sources of one length,
    so that all outputs have one limit, as other toolkits want it. Returns the count, and the tokens of both for each
    text.
    """
    assert task.source is not None
    settings = Search(beam=beam, ends_in_beam=True)
    sources = [task.source.encode(text) for text in texts]
    pairs: dict[int, tuple[list[int], list[int]]] = {}
    sizes = [len(source) for source in sources]
    mixed = batching.sorted_batches([(size, 0) for size in sizes], max(1, BATCH_TOKENS // beam))
    for indices in (list(group) for batch in mixed for _, group in groupby(batch, key=sizes.__getitem__)):
        batch = [sources[index] for index in indices]
        limits = [task.limit(len(source), task.recipe.search) for source in batch]
        memory = model.read(task.inputs.collate(batch))
        own = find(model.decoder, memory, settings, limits=limits, seeds=[0] * len(batch), n_best=1)
        others = exported.translate(batch, beam, limits)
        for index, hypotheses, other in zip(indices, own, others, strict=True):
            pairs[index] = list(hypotheses[0].tokens), other
    ordered = [pairs[index] for index in range(len(texts))]
    return Parity(sum(own == other for own, other in ordered), len(texts), beam), ordered
