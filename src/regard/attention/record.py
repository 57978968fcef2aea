"""Record attention weights and gates of forward passes and searches, with hooks that do not change their results."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from regard.attention.core import Attended
from regard.attention.gates import ContextGate, SqueezeExcite, lstm_gates
from regard.attention.scopes import Scope
from regard.errors import RecipeError, shown
from regard.kernels.choose import Observer
from regard.maps import AttentionMap, numbered

NAMED = 3  # number of modules that the repr of a recording names


@dataclass
class Recording:
    """The recorded attention weights and gates, by the name of their module.

    An LSTM has several gates of shape (batch, time, units), each with its own name: `encoder.recurrence.rnn.forget_l0`.
    The gate of a decoder's context has the shape (batch, time, 1).
    """

    calls: dict[str, list[Float[Tensor, "batch *heads query key"]]] = field(default_factory=dict)

    @property
    def weights(self) -> dict[str, Float[Tensor, "batch *heads query key"]]:
        """The weights by module, with the rows of all its calls joined: a decoder that steps makes many calls."""
        return {name: self.joined(name) for name in self.calls}

    def joined(self, name: str) -> Float[Tensor, "batch *heads query key"]:
        """The weights of one module, with the rows of all its calls joined; RecipeError if it was not recorded."""
        if name not in self.calls:
            near = ", ".join(get_close_matches(name, list(self.calls), n=NAMED, cutoff=0))
            names = f"the nearest names are {near}" if near else "nothing was recorded: run the model inside the block"
            raise RecipeError(f"{shown(name)} is not in the recording; {names}")
        return _joined(name, self.calls[name])

    def __repr__(self) -> str:
        names = ", ".join([*list(self.calls)[:NAMED], *["..."] * (len(self.calls) > NAMED)])
        return f"Recording({len(self.calls)} weights: {names})" if names else "Recording(nothing yet)"

    def map(
        self, name: str, row: int = 0, *, head: int | None = None, rows: Sequence[str] = (), columns: Sequence[str] = ()
    ) -> AttentionMap:
        """The map of one row of the batch: of one head or the mean of all, with labels or numbers on its axes.

        Heads are counted from 1, as in `AttentionMaps.pick` and on the command line; rows of the batch from 0, as in
        the list of texts.
        """
        weights = self.joined(name)[row]
        if head is not None:
            heads = weights.shape[-3] if weights.ndim > 2 else 1
            if not 1 <= head <= heads:
                raise RecipeError(f"head {head}: {name} has {numbered('head', heads)}")
            weights = weights.select(-3, head - 1) if weights.ndim > 2 else weights
        weights = weights.flatten(0, -3).mean(0) if weights.ndim > 2 else weights  # mean over heads and beams
        queries, keys = weights.shape
        return AttentionMap(
            weights,
            tuple(rows) or tuple(map(str, range(queries))),
            tuple(columns) or tuple(map(str, range(keys))),
        )

    def add(self, name: str, weights: Tensor) -> None:
        """Store the weights of one call."""
        self.calls.setdefault(name, []).append(weights)


def _joined(name: str, calls: Sequence[Tensor]) -> Tensor:
    """Join the rows of all calls. If keys were added from call to call (a cache), later keys get weight 0 before."""
    if len(calls) == 1:
        return calls[0]
    keys = [weights.shape[-1] for weights in calls]
    growing = [keys[0], *(count + weights.shape[-2] for count, weights in zip(keys, calls[1:], strict=False))]
    if len({weights.shape[:-2] for weights in calls}) > 1 or (len(set(keys)) > 1 and keys != growing):
        raise ValueError(
            f"{name} ran on batches of several sizes, which cannot be joined to one map; record each batch on its own, "
            "or call predict(texts, all_maps=True), which gives the maps of every text"
        )
    return torch.cat([functional.pad(weights, (0, keys[-1] - weights.shape[-1])) for weights in calls], dim=-2)


@contextmanager
def record(model: nn.Module, *, layers: Sequence[str] | None = None) -> Iterator[Recording]:
    """Record the weights of all attentions and gates in `model`, or of the modules whose names are in `layers`.

    Results and gradients of the model stay the same, bit for bit: the recorded weights are copies. Weights of fused
    paths and gates are computed a second time, in the hook. The gates of an LSTM take about as long as stepping through
    the LSTM once more.

    A search (`Predictor.predict`) is recorded as if its best output had been forced: the steps of the search are not
    recorded, and after it the decoder runs once over the first output of every sentence of the batch. The rows are
    those of the output's tokens, without END; shorter outputs of a batch are padded. The rows of a language model begin
    with those of its prompt; with language_model.window, only the first window is recorded.
    """
    recording = Recording()
    handles = []
    for name, module in model.named_modules():
        if isinstance(module, Scope | SqueezeExcite | ContextGate | nn.LSTM) and (layers is None or name in layers):
            handles.append(module.register_forward_hook(_recording_hook(recording, name), with_kwargs=True))
    try:
        yield recording
    finally:
        for handle in handles:
            handle.remove()


def _recording_hook(recording: Recording, name: str) -> Observer:
    """A forward hook that adds a module's weights or gates to the recording."""

    def hook(module: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any], result: Any) -> None:
        with torch.no_grad():
            if isinstance(module, SqueezeExcite):
                recording.add(name, module.gate(*inputs, **named).unsqueeze(-2))
            elif isinstance(module, ContextGate):
                recording.add(name, module.gate(inputs[0]))
            elif isinstance(module, nn.LSTM):
                arguments = dict(zip(("input", "hx"), inputs, strict=False)) | named  # torch's names of them
                for gate, values in lstm_gates(module, arguments["input"], arguments.get("hx")).items():
                    recording.add(f"{name}.{gate}" if name else gate, values)
            elif isinstance(result, Attended) and result.weights is not None:
                recording.add(name, result.weights.detach().clone())
            elif isinstance(module, Scope):
                query, keys, *_ = inputs
                options = {key: named[key] for key in ("mask", "bias", "start") if key in named}
                recording.add(name, module.weigh(query, keys, **options))

    return Observer(hook)
