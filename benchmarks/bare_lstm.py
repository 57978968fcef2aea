"""The least that decoding the comparison's LSTM takes with torch's own operations: a loop with nothing around it.

    python bare_lstm.py BEAM BATCH        beside the peers, with PYTHONPATH at regard's src, as peer_regard.py runs

The model is that of peer_regard.py with random weights: a BiLSTM, an LSTM in Luong's order with input feeding, additive
scores, 8,000 words; 16 tokens a sentence; two batches at once, a thread each, or one by one. What words say to the
gates is read from a table made before, so that it does even less than a library must. Prints tokens a second, the
median of five.
"""

import sys
import time
from concurrent.futures import ThreadPoolExecutor

import common
import torch
from torch import Tensor, nn

from regard.data import batching
from regard.device import keep_freed_memory
from regard.kernels.topk import topk
from regard.types import BEGIN, END

WORD, STATE, STEPS = common.SIZE["rnn_emb"], common.SIZE["rnn_hidden"], 16
WORDS = len(common.vocab())


def matrix(within: int, out: int) -> Tensor:
    """Random weights, laid out as products with few rows like them."""
    return torch.randn(within, out) * 0.05


class Bare:
    """The weights, and the loop."""

    def __init__(self, width: int) -> None:
        self.width = width
        self.reader = nn.LSTM(WORD, STATE // 2, bidirectional=True, batch_first=True)
        self.embedding = matrix(WORDS, WORD)
        self.given = self.embedding @ matrix(WORD, 4 * STATE)
        self.gates, self.query, self.key = matrix(2 * STATE, 4 * STATE), matrix(STATE, STATE), matrix(STATE, STATE)
        self.score, self.readout, self.words = matrix(STATE, 1), matrix(2 * STATE, STATE), matrix(STATE, WORDS)
        self.biases = torch.zeros(STATE), torch.zeros(WORDS)

    def decode(self, rows: list[list[int]]) -> int:
        """How many tokens there are in the end."""
        with torch.inference_mode():
            return self.search(batching.pad([[*row, END] for row in rows]))

    def search(self, source: batching.Padded) -> int:
        """Greedy, or with a beam, and with the map of every hypothesis."""
        batch, width = len(source.mask), self.width
        lengths = source.mask.sum(-1)
        packed = nn.utils.rnn.pack_padded_sequence(self.embedding[source.ids], lengths, True, False)
        states, _ = nn.utils.rnn.pad_packed_sequence(self.reader(packed)[0], batch_first=True)
        keys = (states @ self.key).unsqueeze(1)
        unseen = torch.zeros(source.mask.shape).masked_fill_(~source.mask, -torch.inf).unsqueeze(1)
        rows, first = batch * width, torch.arange(0, batch * width, width).unsqueeze(1)
        tokens, entering, cell = torch.full((rows, 1), BEGIN), torch.zeros(rows, 2 * STATE), torch.zeros(rows, STATE)
        scores, maps = torch.zeros(batch, width, 1), torch.zeros(rows, 0, states.shape[1])
        for _ in range(STEPS):
            gates = torch.addmm(self.given[tokens[:, -1]], entering, self.gates)
            let_in, keep, new, show = gates.chunk(4, dim=1)
            cell = torch.addcmul(keep.sigmoid_() * cell, let_in.sigmoid_(), new.tanh_())
            hidden = show.sigmoid_() * cell.tanh()
            mixed = ((hidden @ self.query).view(batch, width, 1, STATE) + keys).tanh_() @ self.score
            weights = torch.softmax(mixed.squeeze(-1) + unseen, dim=-1)
            context = torch.bmm(weights, states).view(rows, STATE)
            maps = torch.cat([maps, weights.view(rows, 1, -1)], dim=1)
            said = torch.addmm(self.biases[0], torch.cat([context, hidden], dim=1), self.readout).tanh_()
            likely = torch.log_softmax(torch.addmm(self.biases[1], said, self.words), dim=-1)
            likely[:, END] = -torch.inf
            best, words = topk(likely, width)
            found = (best.view(batch, width, width) + scores).flatten(1).topk(width)
            chosen = words.view(batch, -1).gather(1, found.indices).view(-1, 1)
            scores, entering = found.values.unsqueeze(-1), torch.cat([said, hidden], dim=1)
            if width > 1:
                come = (first + found.indices.div(width, rounding_mode="floor")).flatten()
                tokens, entering, cell, maps = tokens[come], entering[come], cell[come], maps[come]
            tokens = torch.cat([tokens, chosen], dim=1)
        return batch * (tokens.shape[1] - 1)


def main() -> None:
    torch.manual_seed(1)
    beam, size = map(int, sys.argv[1:])
    torch.set_num_threads(1 if size > 1 else 2)
    bare = Bare(beam)
    sources, _ = common.load_ids("test_2016_flickr")
    rows = sorted(sources[: 1000 if size > 1 else 100], key=len)
    groups = [rows[start : start + size] for start in range(0, len(rows), size)]
    rates = []
    with keep_freed_memory(), ThreadPoolExecutor(2) as pool:
        bare.decode(groups[0])
        for _ in range(5):
            began = time.perf_counter()
            tokens = sum((pool.map if size > 1 else map)(bare.decode, groups))
            rates.append(tokens / (time.perf_counter() - began))
    print(f"{sorted(rates)[2]:,.0f} tokens/s ({min(rates):,.0f} to {max(rates):,.0f})")


if __name__ == "__main__":
    main()
