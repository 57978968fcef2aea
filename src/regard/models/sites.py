"""The attention sites of a model: which of its modules are attentions, and their names in a recipe."""

from typing import NamedTuple

from torch import nn

from regard.attention import SelfAttention
from regard.attention.scopes import Scope

CROSS, DECODER_SELF, ENCODER_SELF = "decoder.cross_attention", "decoder.self_attention", "encoder.self_attention"
POOLING = "classify.pooling"
SITES = (CROSS, POOLING, DECODER_SELF, ENCODER_SELF)  # the first that a model has is shown unless another is chosen


class Site(NamedTuple):
    """One attention of a model: its site, as a recipe names it, and its layer, counted from 1."""

    name: str
    layer: int


def sites(model: nn.Module) -> dict[str, Site]:
    """The attentions of a model by the name of their module, in the order of `SITES` and of their layers."""
    modules: dict[str, list[str]] = {name: [] for name in SITES}
    for name, module in model.named_modules():
        if isinstance(module, Scope):
            outer = model.get_submodule(name.rpartition(".")[0])
            of_decoder = DECODER_SELF if isinstance(outer, SelfAttention) else CROSS
            parts = {"encoder": ENCODER_SELF, "decoder": of_decoder, "pooling": POOLING}
            modules.get(parts.get(name.partition(".")[0], ""), []).append(name)
    return {name: Site(site, layer) for site in SITES for layer, name in enumerate(modules[site], start=1)}
