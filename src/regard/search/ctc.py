"""The CTC probability of hypotheses while they are searched: Watanabe et al. 2017, algorithm 2, in log space."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional

from regard.search.scorers import Followed, Scorer
from regard.types import BEGIN, END, PAD

NEVER = float("-inf")
Alignments = Float[Tensor, "rows times"]  # log-probabilities; times are 0 to the number of positions


@dataclass(frozen=True)
class Aligned(Followed):
    """The alignments of each hypothesis with the first t positions: those that end with its last token, or a blank."""

    with_token: Alignments
    with_blank: Alignments
    last: Int[Tensor, " rows"]  # token; BEGIN at first


@dataclass(frozen=True)
class PrefixScorer(Scorer):
    """The log-probability of all outputs that begin with a hypothesis, by CTC; in float64, since sums are long.

    r_n(t) = (r_n(t-1) + phi(t-1)) y_t(c)  and  r_b(t) = (r_b(t-1) + r_n(t-1)) y_t(blank)  are linear recurrences, so
    all times are computed at once:  r_n(t) = Y(t) sum over s <= t of phi(s-1) / Y(s-1),  Y(t) = y_1(c) ... y_t(c).
    """

    log_probs: Float[Tensor, "batch vocabulary time"]  # at padding: blank is certain
    sums: Float[Tensor, "batch vocabulary times"]  # log Y, from time 0 on; padding adds nothing
    mask: Bool[Tensor, "batch time"]

    @staticmethod
    def of(
        log_probs: Float[Tensor, "batch time vocabulary"], mask: Bool[Tensor, "batch time"], weight: float
    ) -> "PrefixScorer":
        """The scorer for the log-probabilities of tokens at each position; the blank is PAD."""
        by_token = log_probs.double().transpose(1, 2)
        padding = ~mask.unsqueeze(1)
        # on the CPU, because with train.deterministic torch refuses `cumsum` on a GPU
        sums = by_token.masked_fill(padding, 0.0).cpu().cumsum(-1).to(mask.device)
        by_token = by_token.masked_fill(padding, NEVER)
        by_token[:, PAD].masked_fill_(~mask, 0.0)
        return PrefixScorer(weight, by_token.contiguous(), functional.pad(sums, (1, 0)), mask)

    def start(self) -> Aligned:
        """An empty output is aligned by blanks alone; all outputs begin with it."""
        blanks = self.sums[:, PAD]
        certain, last = blanks.new_zeros(len(blanks)), torch.full((len(blanks),), BEGIN, device=blanks.device)
        return Aligned(certain, torch.full_like(blanks, NEVER), blanks, last)

    def score(self, state: Aligned, words: Int[Tensor, "rows count"]) -> Float[Tensor, "rows count"]:
        """psi(hc) = sum over t of phi(t-1) y_t(c);  with END, P(h) = r_n(T) + r_b(T)."""
        emitted = self.log_probs[self._sentences(len(words)).unsqueeze(1), words]
        begun = (self._before(state, words) + emitted).logsumexp(-1)
        whole = torch.logaddexp(state.with_token[:, -1:], state.with_blank[:, -1:])
        return torch.where(words == END, whole, begun)

    def advance(self, state: Aligned, words: Int[Tensor, " rows"]) -> Aligned:
        """The alignments of the hypotheses with one more token each."""
        sentences = self._sentences(len(words))
        before = self._before(state, words.unsqueeze(1)).squeeze(1)
        with_token = _recur(before, self.sums[sentences, words]).masked_fill(~self.mask[sentences], NEVER)
        with_token = functional.pad(with_token, (1, 0), value=NEVER)
        with_blank = functional.pad(_recur(with_token[:, :-1], self.sums[sentences, PAD]), (1, 0), value=NEVER)
        log_probs = self.score(state, words.unsqueeze(1)).squeeze(1)
        return Aligned(log_probs, with_token, with_blank, words)

    def _sentences(self, rows: int) -> Int[Tensor, " rows"]:
        """The sentence of each row."""
        return torch.arange(rows, device=self.mask.device) // (rows // len(self.mask))

    def _before(self, state: Aligned, words: Int[Tensor, "rows count"]) -> Float[Tensor, "rows count time"]:
        """phi(t-1): alignments of a hypothesis after which a word may begin; if it repeats the last, after a blank."""
        either = torch.logaddexp(state.with_token, state.with_blank)
        again = (words == state.last.unsqueeze(1)).unsqueeze(-1)
        return torch.where(again, state.with_blank.unsqueeze(1), either.unsqueeze(1))[..., :-1]


def _recur(entering: Float[Tensor, "rows time"], sums: Alignments) -> Float[Tensor, "rows time"]:
    """From t = 1 on, log r(t) of  r(t) = (r(t-1) + entering(t-1)) y_t;  `sums` are log y_1 ... y_t, from t = 0 on."""
    return sums[:, 1:] + torch.logcumsumexp(entering - sums[:, :-1], dim=-1)
