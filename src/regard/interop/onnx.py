"""Export to ONNX: an encoder graph and a graph of one decoder step with its cache, run by onnxruntime.

The encoder graph turns token ids into all that the decoder needs of the source (`source.*`) and into its first state
(`state.*`). The step graph reads one token for each row, and returns logits, the next state and a row of the map.
"""

import contextlib
import dataclasses
import io
import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from regard.decoders import ORDERS, AnyDecoder, TransformerDecoder
from regard.encoders import RecurrentEncoder
from regard.errors import MissingExtraError, RecipeError
from regard.interop import transformer
from regard.kernels.choose import definitions_only
from regard.maps import TEXT
from regard.models import Seq2Seq
from regard.predict import Predictor
from regard.recipe import Recipe
from regard.tasks import Transduce
from regard.types import BEGIN, END, PAD, Memory, Padded, Prepared, State

NAME = "ONNX"
ENCODER, STEP = "encoder.onnx", "step.onnx"
OPSET = 18
TOKENS, LOGITS, MAP = "tokens", "logits", "map"
SOURCE_PREFIX, STATE_PREFIX = "source.", "state."
# Sizes of the examples that the exporter runs: primes that no width, number of heads or of layers is likely to be.
ROWS, SOURCE_LENGTH, PAST = 11, 37, 41
AXES = {ROWS: "batch", SOURCE_LENGTH: "source_length", PAST: "past"}


def check(recipe: Recipe) -> None:
    """Raise RecipeError if a model of this recipe is not exported."""
    model = recipe.model
    wanted: list[tuple[str, object, tuple[object, ...]]] = [
        ("task", recipe.task, (transformer.TASK,)),
        ("source", recipe.source, ("text",)),
        ("model.encoder.kind", model.encoder.kind, ("transformer", "recurrent")),
        ("model.decoder.kind", model.decoder.kind, ("transformer", "recurrent")),
        ("model.decoder.copies", model.decoder.copies, (False,)),
        ("model.positions", model.positions, ("sinusoidal", "learned", "none")),
    ]
    for site in ("encoder.self_attention", "decoder.self_attention", "decoder.cross_attention"):
        side, own = site.split(".")
        settings = getattr(getattr(model, side), own).of(model.attention)
        wanted.append((f"model.{site}.scope", settings.scope, ("global",)))
        wanted.append((f"model.{site}.normalizer", settings.normalizer, ("softmax", "sigmoid")))
    if model.decoder.kind == "recurrent":
        attending = tuple(name for name, order in ORDERS.items() if order.attends())
        wanted.append(("model.decoder.order", model.decoder.order, attending))
    for key, value, allowed in wanted:
        if value not in allowed:
            raise RecipeError(f"the ONNX export takes {key} = {' or '.join(map(str, allowed))}, not {value}")


class Leaf(NamedTuple):
    """A tensor somewhere in a state, by the names of the fields and the numbers of the parts that lead to it."""

    path: tuple[str | int, ...]
    tensor: Tensor

    @property
    def name(self) -> str:
        """The path with dots."""
        return ".".join(map(str, self.path))


def leaves(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[Leaf]:
    """All tensors of a state, in order."""
    if isinstance(value, Tensor):
        yield Leaf(path, value)
    elif dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            yield from leaves(getattr(value, field.name), (*path, field.name))
    elif isinstance(value, tuple):
        names = getattr(value, "_fields", range(len(value)))
        for name, part in zip(names, value, strict=True):
            yield from leaves(part, (*path, name))


def rebuilt(value: Any, tensors: Mapping[str, Tensor], path: tuple[str | int, ...] = ()) -> Any:
    """A state of the same structure with other tensors."""
    if isinstance(value, Tensor):
        return tensors[Leaf(path, value).name]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        own = {
            field.name: rebuilt(getattr(value, field.name), tensors, (*path, field.name))
            for field in dataclasses.fields(value)
        }
        return dataclasses.replace(value, **own)
    if isinstance(value, tuple):
        names = getattr(value, "_fields", range(len(value)))
        parts = [rebuilt(part, tensors, (*path, name)) for name, part in zip(names, value, strict=True)]
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    return value


class Reader(nn.Module):
    """From token ids to the tensors of the prepared source and of the first state."""

    def __init__(self, model: Seq2Seq) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor) -> tuple[Tensor, ...]:
        """All tensors, in the order of their names."""
        prepared, state = self.states(tokens)
        return tuple(leaf.tensor for leaf in (*leaves(prepared), *leaves(state)))

    def states(self, tokens: Tensor) -> tuple[Prepared, State]:
        """What the decoder prepares, and its first state."""
        mask = tokens != PAD
        encoder = self.model.encoder
        embedded = encoder.embedding.embed(Padded(tokens, mask))
        if isinstance(encoder, RecurrentEncoder):  # ONNX has no packed sequences
            memory = _memory(encoder, embedded.vectors, mask)
        else:
            memory = encoder.read(embedded.vectors, mask)
        prepared = self.model.decoder.prepare(memory)
        return prepared, self.model.decoder.start(prepared)


class Stepper(nn.Module):
    """One step of the decoder, from tensors to tensors; `prepared` and `state` give the structure."""

    def __init__(self, model: Seq2Seq, prepared: Prepared, state: State) -> None:
        super().__init__()
        self.decoder, self.prepared, self.state = model.decoder, prepared, state
        self.source_names = [leaf.name for leaf in leaves(prepared)]
        self.state_names = [leaf.name for leaf in leaves(state)]

    def forward(self, tokens: Tensor, source: list[Tensor], state: list[Tensor]) -> tuple[Tensor, ...]:
        """The logits, the row of the map if there is one, and the next state."""
        prepared = rebuilt(self.prepared, dict(zip(self.source_names, source, strict=True)))
        before = rebuilt(self.state, dict(zip(self.state_names, state, strict=True)))
        if isinstance(self.decoder, TransformerDecoder):
            before = dataclasses.replace(before, length=state[0].shape[-2])
        step = self.decoder.step(tokens, before, prepared)
        maps = [] if step.attention is None else [step.attention.squeeze(1)]
        return (step.logits.squeeze(1), *maps, *(leaf.tensor for leaf in leaves(step.state)))


def _memory(encoder: RecurrentEncoder, vectors: Tensor, mask: Tensor) -> Memory:
    """What a recurrent encoder reads, without packed sequences."""
    states, summary = encoder.recurrence.read_unpacked(vectors, mask)
    return Memory(states, mask, summary, TEXT)


def files(predictor: Predictor, precision: str = "float32") -> dict[str, bytes]:
    """The two graphs."""
    try:
        import onnx  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError:
        raise MissingExtraError("onnx and onnxscript", "export", "an export to ONNX") from None
    _, model = transformer.parts(predictor)
    with definitions_only(), torch.no_grad():
        reader = Reader(model).eval()
        tokens = torch.full((ROWS, SOURCE_LENGTH), END)
        tokens[0, -1] = PAD
        prepared, state = reader.states(tokens)
        if isinstance(model.decoder, TransformerDecoder):  # the exporter must see a cache that is not empty
            begin = torch.full((ROWS, PAST), BEGIN)
            decoder: AnyDecoder = model.decoder
            state = decoder.step(begin, state, prepared).state
        stepper = Stepper(model, prepared, state).eval()
        source, before = ([leaf.tensor for leaf in leaves(part)] for part in (prepared, state))
        source_names = [SOURCE_PREFIX + name for name in stepper.source_names]
        state_names = [STATE_PREFIX + name for name in stepper.state_names]
        begins = torch.full((ROWS, 1), BEGIN)
        has_map = stepper.decoder.step(begins, state, prepared).attention is not None
        return {
            ENCODER: _graph(reader, (tokens,), (_dynamic(tokens),), [TOKENS], [*source_names, *state_names]),
            STEP: _graph(
                stepper,
                (begins, source, before),
                (_dynamic(begins), *([_dynamic(tensor) for tensor in part] for part in (source, before))),
                [TOKENS, *source_names, *state_names],
                [LOGITS, *([MAP] if has_map else []), *(f"next.{name}" for name in state_names)],
            ),
        }


def _dynamic(tensor: Tensor) -> dict[int, Any]:
    """The axes of a tensor that may have another size: the batch, and the time of sources and caches."""
    time = 1 if tensor.ndim == 2 else tensor.ndim - 2
    axes = [0, *([time] if tensor.shape[time] in (SOURCE_LENGTH, PAST) else [])]
    return dict.fromkeys(axes, torch.export.Dim.DYNAMIC)


def _graph(
    module: nn.Module, inputs: tuple[Any, ...], dynamic: tuple[Any, ...], names: Sequence[str], outputs: Sequence[str]
) -> bytes:
    """The graph of a module as bytes."""
    logger = logging.getLogger("torch.onnx")  # it warns of packages that nothing here needs
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()), _only_errors(logger):
        warnings.simplefilter("ignore")  # the exporter's own
        program = torch.onnx.export(
            module,
            inputs,
            dynamo=True,
            dynamic_shapes=dynamic,
            input_names=list(names),
            output_names=list(outputs),
            opset_version=OPSET,
            verbose=False,
        )
    assert program is not None
    proto = program.model_proto
    del proto.graph.value_info[:]  # shapes of single sizes
    for size in (dim for output in proto.graph.output for dim in output.type.tensor_type.shape.dim):
        if size.dim_value in AXES:  # the exporter forgets that these follow from the inputs
            size.dim_param = AXES[size.dim_value]
    return bytes(proto.SerializeToString())


@contextlib.contextmanager
def _only_errors(logger: logging.Logger) -> Iterator[None]:
    """In the block, a logger writes errors only."""
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


class Graphs:
    """Both graphs, loaded by onnxruntime; arrays in and out."""

    def __init__(self, folder: Path, threads: int = 1) -> None:
        try:
            import onnxruntime
        except ImportError:
            raise MissingExtraError("onnxruntime", "export", "the parity check of an export to ONNX") from None
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.log_severity_level = threads, 3
        self.encoder, self.decoder = (
            onnxruntime.InferenceSession(str(folder / name), options, providers=["CPUExecutionProvider"])
            for name in (ENCODER, STEP)
        )

    def read(self, tokens: Any) -> dict[str, Any]:
        """The tensors of the source and the first state, by name."""
        names = [output.name for output in self.encoder.get_outputs()]
        return dict(zip(names, self.encoder.run(None, {TOKENS: tokens}), strict=True))

    def step(self, tokens: Any, tensors: Mapping[str, Any]) -> dict[str, Any]:
        """The logits, the map and the next state; `tensors` are those of the source and the state."""
        wanted = {value.name for value in self.decoder.get_inputs()} - {TOKENS}
        names = [output.name for output in self.decoder.get_outputs()]
        fed = {TOKENS: tokens} | {name: tensors[name] for name in wanted}
        return dict(zip(names, self.decoder.run(None, fed), strict=True))


class Difference(NamedTuple):
    """The largest differences between the graphs and the run, forced to the same outputs."""

    logits: float
    map: float | None  # None if the model has no attention
    sentences: int

    def __str__(self) -> str:
        maps = "" if self.map is None else f", of a weight of the map {self.map:.1e}"
        return f"{self.sentences:,} sentences: the largest difference of a logit is {self.logits:.1e}{maps}"


@torch.no_grad()
def compare(task: Transduce, model: Seq2Seq, graphs: Graphs, texts: Sequence[str]) -> Difference:
    """Run both step by step over the model's own greedy outputs, in one padded batch."""
    assert task.source is not None
    batch = task.inputs.collate([task.source.encode(text) for text in texts])
    memory = model.read(batch)
    prepared = model.decoder.prepare(memory)
    state = model.decoder.start(prepared)
    tensors = graphs.read(batch.ids.numpy())
    tokens = torch.full((len(texts), 1), BEGIN)
    logits, maps = 0.0, []
    for _ in range(min(2 * batch.ids.shape[1], task.limit(batch.ids.shape[1], task.recipe.search))):
        step = model.decoder.step(tokens, state, prepared)
        other = graphs.step(tokens.numpy(), tensors)
        logits = max(logits, float(np.abs(other[LOGITS] - step.logits[:, -1].numpy()).max()))
        if step.attention is not None:
            maps.append(float(np.abs(other[MAP] - step.attention[:, -1].numpy()).max()))
        state, tokens = step.state, step.logits[:, -1:].argmax(-1)
        tensors |= {name.removeprefix("next."): value for name, value in other.items() if name.startswith("next.")}
    return Difference(logits, max(maps) if maps else None, len(texts))
