"""The attention sites of a model: which of its modules are attentions, and their names in a recipe."""

from collections.abc import Collection
from typing import NamedTuple

from torch import nn

from regard.attention.heads import SelfAttention
from regard.attention.scopes import Scope

CROSS, DECODER_SELF, ENCODER_SELF = "decoder.cross_attention", "decoder.self_attention", "encoder.self_attention"
POOLING = "classify.pooling"
SITES = (CROSS, POOLING, DECODER_SELF, ENCODER_SELF)  # the first that a model has is shown unless another is chosen
# Parts of names by which other packages call the attention of a decoder to the states of an encoder.
CROSS_NAMES = ("multihead_attn", "encoder_attn", "encdecattention", "crossattention", "cross_attn", "cross_attention")


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


def sites_of_any(model: nn.Module, names: Collection[str]) -> dict[str, Site]:
    """The sites of these attention modules, also of a model that regard did not build, in the order of `sites`.

    Modules whose names differ only in numbers are the layers of one site. If nothing says whether an attention belongs
    to an encoder or a decoder, or if two kinds of modules would have the same site (a model of two encoders), the site
    is the name of the modules, with * in place of the numbers.
    """
    found = {name: site for name, site in sites(model).items() if name in names}
    patterns: dict[str, list[str]] = {}  # the names of all modules, by pattern
    for name, _ in model.named_modules():
        patterns.setdefault(_pattern(name), []).append(name)
    recorded = {_pattern(name): name for name in names if name not in found}
    usual = {pattern: _usual_site(model, name) for pattern, name in recorded.items()}
    known = list(usual.values()) + list({site.name for site in found.values()})
    for pattern, site in sorted(usual.items(), key=lambda item: SITES.index(item[1]) if item[1] else len(SITES)):
        own = site if site and known.count(site) == 1 else pattern or "attention"
        layers = {name: Site(own, layer) for layer, name in enumerate(patterns[pattern], start=1)}
        found |= {name: layer for name, layer in layers.items() if name in names}
    return found


def _pattern(name: str) -> str:
    """The name of a module with * in place of numbers: encoder.layers.*.self_attn."""
    return ".".join("*" if part.isdigit() else part for part in name.split("."))


def _usual_site(model: nn.Module, name: str) -> str | None:
    """The site of an attention module of another package, from names, classes and attributes that are in common use."""
    module, outer = model.get_submodule(name), model.get_submodule(name.rpartition(".")[0])
    path, kind = name.lower(), type(module).__name__.lower()
    if isinstance(module, Scope):  # of a part of a regard model, whose name does not say which part
        return None
    if getattr(module, "is_cross_attention", None) is True or any(part in f"{path} {kind}" for part in CROSS_NAMES):
        return CROSS
    causal = getattr(module, "is_causal", None)
    decodes = getattr(module, "is_decoder", None) is True or causal is True or "causal" in kind
    if decodes or path.rfind("decoder") > path.rfind("encoder") or isinstance(outer, nn.TransformerDecoderLayer):
        return DECODER_SELF
    encodes = causal is False or "encoder" in path or isinstance(outer, nn.TransformerEncoderLayer)
    return ENCODER_SELF if encodes else None
