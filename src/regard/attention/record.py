"""Looking at a forward pass without touching it."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from regard.attention.core import Attended
from regard.attention.gates import SqueezeExcite, lstm_gates
from regard.attention.scopes import Scope
from regard.kernels.choose import observer
from regard.maps import AttentionMap


@dataclass
class Recording:
    """The weights of every attention that ran, and every gate, by the name of its module.

    An LSTM has several gates, (batch, time, units) each, and a name for each: `encoder.recurrence.rnn.forget_l0`.
    """

    calls: dict[str, list[Float[Tensor, "batch *heads query key"]]] = field(default_factory=dict)

    @property
    def weights(self) -> dict[str, Float[Tensor, "batch *heads query key"]]:
        """All rows of each: a decoder that steps is called again and again, a row or more at a time."""
        return {name: _joined(name, calls) for name, calls in self.calls.items()}

    def map(
        self,
        name: str,
        row: int = 0,
        *,
        head: int | None = None,
        rows: Sequence[str] = (),
        columns: Sequence[str] = (),
    ) -> AttentionMap:
        """One map: of one row of the batch, of one head or the mean of all, with labels or numbers on its axes."""
        weights = _joined(name, self.calls[name])[row]
        if head is not None:
            weights = weights.select(-3, head)
        weights = weights.flatten(0, -3).mean(0) if weights.ndim > 2 else weights  # heads, and the axis of beams
        queries, keys = weights.shape
        return AttentionMap(
            weights,
            tuple(rows) or tuple(map(str, range(queries))),
            tuple(columns) or tuple(map(str, range(keys))),
        )

    def add(self, name: str, weights: Tensor) -> None:
        """What one call gave."""
        self.calls.setdefault(name, []).append(weights)


def _joined(name: str, calls: Sequence[Tensor]) -> Tensor:
    """All rows in one; where a decoder stepped on among its own tokens, those to come weigh nothing in a row."""
    keys = [each.shape[-1] for each in calls]
    onward = [keys[0], *(before + each.shape[-2] for before, each in zip(keys, calls[1:], strict=False))]
    if len({each.shape[:-2] for each in calls}) > 1 or (len(set(keys)) > 1 and keys != onward):
        raise ValueError(
            f"{name} ran on batches of several sizes, which make no one map; record each batch on its own, "
            "and in a search take the map of each hypothesis"
        )
    return torch.cat([functional.pad(each, (0, keys[-1] - each.shape[-1])) for each in calls], dim=-2)


@contextmanager
def record(model: nn.Module, *, layers: Sequence[str] | None = None) -> Iterator[Recording]:
    """Keep the weights of all attentions and gates in `model`, or of those modules whose names are in `layers`.

    While in the block, results and gradients of the model stay the same, bit for bit: weights are copies of what it
    used, or computed beside a fused path, as gates are. Those of an LSTM take time, about that of stepping through it
    once more.
    """
    recording = Recording()
    handles = []
    for name, module in model.named_modules():
        if isinstance(module, Scope | SqueezeExcite | nn.LSTM) and (layers is None or name in layers):
            handles.append(module.register_forward_hook(_keeper(recording, name), with_kwargs=True))
    try:
        yield recording
    finally:
        for handle in handles:
            handle.remove()


def _keeper(recording: Recording, name: str) -> Any:
    @observer
    def keep(module: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any], result: Any) -> None:
        with torch.no_grad():
            if isinstance(module, SqueezeExcite):
                recording.add(name, module.gate(*inputs, **named).unsqueeze(-2))
            elif isinstance(module, nn.LSTM):
                given = dict(zip(("input", "hx"), inputs, strict=False)) | named  # as torch calls them
                for gate, opened in lstm_gates(module, given["input"], given.get("hx")).items():
                    recording.add(f"{name}.{gate}" if name else gate, opened)
            elif isinstance(result, Attended) and result.weights is not None:
                recording.add(name, result.weights.detach().clone())
            elif isinstance(module, Scope):
                query, keys, *_ = inputs
                asked = {key: named[key] for key in ("mask", "bias", "start") if key in named}
                recording.add(name, module.weigh(query, keys, **asked))

    return keep
