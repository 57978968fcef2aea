"""Scopes: which keys a query may see. Each is one class and one line in the table."""

from collections.abc import Callable

from jaxtyping import Bool, Float
from torch import Tensor, nn

from regard.attention.core import Attended, Attention, Past, Score, attend
from regard.attention.normalizers import Normalizer, softmax


class Global(nn.Module):
    """Bahdanau et al. 2015; Luong et al. 2015, 3.1: every query sees every key that the mask allows."""

    uses_past = False

    def __init__(self, score: Score, normalize: Normalizer = softmax) -> None:
        super().__init__()
        self.score = score
        self.normalize = normalize

    def project(self, states: Float[Tensor, "*batch key key_dim"]) -> Float[Tensor, "*batch key projected"]:
        """The keys of the states, as the score wants them."""
        return self.score.project(states)

    def forward(
        self,
        query: Float[Tensor, "*batch query query_dim"],
        keys: Float[Tensor, "*keys key projected"],
        values: Float[Tensor, "*keys key dim"],
        *,
        mask: Bool[Tensor, "*mask"] | None,
        start: int = 0,
        past: Past | None = None,
    ) -> Attended:
        """Look everywhere; where the query stands and where it looked before do not matter."""
        return attend(query, keys, values, score=self.score, mask=mask, normalize=self.normalize)


SCOPES: dict[str, Callable[[Score, Normalizer], Attention]] = {
    "global": Global,
}
