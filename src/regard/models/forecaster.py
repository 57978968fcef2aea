"""Forecasters: autoregressive models of series, whose output is a probability distribution for each step."""

from collections.abc import Callable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from regard import recipe as recipes
from regard.attention.lags import LagMixture
from regard.data.windows import Windows, WindowShape
from regard.decoders.history import History, HistoryState, RecurrentHistory, TransformerHistory
from regard.errors import pick
from regard.kernels.linear import Linear
from regard.layers.recurrence import CELLS
from regard.models import core
from regard.models.likelihoods import FILL, LIKELIHOODS, Likelihood, around

WIDEST = 50  # the width of a category's embedding, at most
DECODERS = ("recurrent", "transformer")  # values of model.decoder.kind
ORDERS = ("none", "luong")  # values of model.decoder.order: DeepAR, or with attention to its own history


class Forecaster(nn.Module):
    """Salinas et al. 2020, DeepAR: p(z_t | z_1 ... z_(t-1)), a distribution whose parameters a decoder computes.

    A step t reads the values of the steps t - lag, divided by the scale of the window, and the features of t. The
    decoder is recurrent, with or without attention to its own history, or a causal Transformer.

    With `mixes_lags`, a step also copies: the context of its attention to lagged values (`LagMixture`) is the centre of
    its distribution, from which the network's location is counted in deviations (as the linear part of LSTNet, Lai et
    al. 2018, but with weights that depend on the state). So values that repeat earlier ones need not pass through
    the network, which would copy them only roughly.
    """

    def __init__(
        self,
        decoder: History,
        likelihood: Likelihood,
        shape: WindowShape,
        categories: nn.ModuleList,
        *,
        mixes_lags: bool = False,
    ) -> None:
        super().__init__()
        self.decoder, self.likelihood, self.shape = decoder, likelihood, shape
        self.categories = categories
        self.out = Linear(decoder.dim, likelihood.parameters)
        self.mix = LagMixture(decoder.dim, len(shape.lags)) if mixes_lags else None

    def forward(self, windows: Windows) -> Float[Tensor, "batch steps parameters"]:
        """The parameters of the distribution of every step, given all values before it (teacher forcing)."""
        scaled = scaled_values(windows)
        vectors = self.vectors(scaled, windows, self.static(windows), 0, self.shape.steps)
        before = windows.observed[:, self.shape.before - 1 : -1]
        states, _ = self.decoder(vectors, before, self.decoder.start(len(scaled)))
        return self.parameters_of(states, scaled, windows.observed, 0)

    def parameters_of(
        self,
        states: Float[Tensor, "batch steps dim"],
        scaled: Float[Tensor, "batch before_and_steps"],
        observed: Bool[Tensor, "batch before_and_steps"],
        first: int,
    ) -> Float[Tensor, "batch steps parameters"]:
        """The parameters of the distribution of each step from `first` on, in float32 at least."""
        raw = precise(self.out(states))
        if self.mix is None:
            return raw
        places = self.lagged(first, states.shape[1], states.device)
        return around(raw, self.mix(states, scaled[:, places], observed[:, places]).context)

    def lagged(self, first: int, steps: int, device: torch.device) -> Int[Tensor, "{steps} lags"]:
        """The places of the lagged values of so many steps, among the values of a window."""
        numbers = torch.arange(first, first + steps, device=device).unsqueeze(1) + self.shape.before
        return numbers - torch.tensor(self.shape.lags, device=device)

    def log_prob(self, windows: Windows) -> Float[Tensor, "batch steps"]:
        """The log-probability (density) of the value of each step; 0 where none was observed."""
        observed = windows.observed[:, self.shape.before :]
        values = windows.values[:, self.shape.before :]
        raw = self(windows)
        safe = torch.where(observed, values - windows.location.unsqueeze(1), FILL)
        return torch.where(observed, self.likelihood.log_prob(raw, safe, windows.scale.unsqueeze(1)), 0.0)

    def static(self, windows: Windows) -> Float[Tensor, "batch width"]:
        """What does not change within a window: its scale and location as logarithms, and the embedded categories."""
        columns = [table(windows.categories[:, number]) for number, table in enumerate(self.categories)]
        level = torch.asinh(windows.location / windows.scale)
        return torch.cat([torch.stack([windows.scale.log(), level], dim=1), *columns], dim=-1)

    def vectors(
        self,
        scaled: Float[Tensor, "batch before_and_steps"],
        windows: Windows,
        static: Float[Tensor, "batch width"],
        first: int,
        steps: int,
    ) -> Float[Tensor, "batch {steps} inputs"]:
        """The inputs of so many steps from `first` on: lagged values, whether the last is observed, features."""
        before = self.shape.before
        observed = windows.observed[:, before + first - 1 : before + first - 1 + steps].unsqueeze(-1)
        parts = [
            scaled[:, self.lagged(first, steps, scaled.device)],
            observed.to(scaled.dtype),
            windows.features[:, first : first + steps],
            static.unsqueeze(1).expand(-1, steps, -1),
        ]
        return torch.cat(parts, dim=-1).to(self.out.weight.dtype)  # float16 of a model in half precision

    @torch.no_grad()
    def sample(
        self,
        windows: Windows,
        uniforms: Float[Tensor, "batch paths horizon numbers"],
        check: Callable[[], None] | None = None,
    ) -> Float[Tensor, "batch paths horizon"]:
        """Sample paths of the steps after the context, each step from the distribution given the path so far.

        The context is read once per window; then its state is expanded to all paths, which are read together. The
        paths are a function of the windows and of the `uniforms`, numbers drawn uniformly from (0, 1). What `check`
        raises, which is called before each step, ends the sampling.
        """
        shape, paths = self.shape, uniforms.shape[1]
        static = self.static(windows)
        scaled = scaled_values(windows)
        state = self._read(scaled, windows, static)
        many, state, static = windows.repeat(paths), state.repeat(paths), static.repeat_interleave(paths, dim=0)
        scaled, scale = scaled.repeat_interleave(paths, dim=0), many.scale.unsqueeze(1)
        location = many.location.unsqueeze(1)
        drawn = []
        for step in range(shape.context, shape.steps):
            if check is not None:
                check()
            place = shape.before + step
            vectors = self.vectors(scaled, many, static, step, 1)
            states, state = self.decoder(vectors, many.observed[:, place - 1 : place], state)
            numbers = uniforms[:, :, step - shape.context].flatten(0, 1).unsqueeze(1)
            raw = self.parameters_of(states, scaled, many.observed, step)
            values = self.likelihood.draw(raw, scale, numbers)
            scaled[:, place], many.observed[:, place] = (values / scale).squeeze(1), True
            drawn.append((values + location).unflatten(0, (-1, paths)))
        return torch.cat(drawn, dim=-1)

    def _read(
        self, scaled: Float[Tensor, "batch before_and_steps"], windows: Windows, static: Float[Tensor, "batch width"]
    ) -> HistoryState:
        """The state after the context."""
        context, before = self.shape.context, self.shape.before
        vectors = self.vectors(scaled, windows, static, 0, context)
        visible = windows.observed[:, before - 1 : before - 1 + context]
        return self.decoder(vectors, visible, self.decoder.start(len(scaled)))[1]


def scaled_values(windows: Windows) -> Float[Tensor, "batch before_and_steps"]:
    """The values as the network reads them; 0 where none was observed."""
    scaled = (windows.values - windows.location.unsqueeze(1)) / windows.scale.unsqueeze(1)
    return torch.where(windows.observed, scaled, 0.0)


def precise(raw: Float[Tensor, "*rows parameters"]) -> Float[Tensor, "*rows parameters"]:
    """The outputs of the network in float32 at least, since likelihoods need it."""
    return raw.to(torch.promote_types(raw.dtype, torch.float32))


def build(
    recipe: recipes.Model, forecast: recipes.Forecast, shape: WindowShape, *, features: int, categories: tuple[int, ...]
) -> Forecaster:
    """Build the forecaster of a recipe: `features` numbers for each step, `categories` entries in each column."""
    settings = recipe.decoder
    pick(dict.fromkeys(DECODERS), settings.kind, "decoder of a forecaster")
    tables = [nn.Embedding(1 + size, min(WIDEST, (size + 1) // 2), padding_idx=0) for size in categories]
    width = len(shape.lags) + 1 + features + 2 + sum(table.embedding_dim for table in tables)
    decoder: History
    if settings.kind == "transformer":
        decoder = TransformerHistory(core.stack_shape(recipe, settings, None), width=width)
    else:
        pick(dict.fromkeys(ORDERS), settings.order, "order of a forecaster")
        decoder = RecurrentHistory(
            pick(CELLS, settings.cell, "cell"),
            width=width,
            dim=settings.dim,
            layers=settings.layers,
            dropout=settings.dropout,
            attention=core.stack_shape(recipe, settings, None) if settings.order == "luong" else None,
        )
    likelihood = pick(LIKELIHOODS, forecast.likelihood, "likelihood")()
    return Forecaster(decoder, likelihood, shape, nn.ModuleList(tables), mixes_lags=forecast.lag_mixture)
