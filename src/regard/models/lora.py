"""LoRA: fine-tunes a model by small matrices beside its attention projections; the model's own weights stay frozen."""

from collections.abc import Mapping

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from regard.attention.heads import MultiHead, SelfAttention
from regard.errors import RecipeError
from regard.kernels.linear import Linear

PROJECTIONS = {SelfAttention: ("all", "out"), MultiHead: ("query", "key", "value", "out")}
DOWN, UP = "lora_down", "lora_up"


class LowRank(Linear):
    """Hu et al. 2022, 4.1:  W x + b + B A x, in which A has `rank` rows; B is zero at first, and W and b are frozen."""

    def __init__(self, linear: nn.Linear, rank: int) -> None:
        super().__init__(linear.in_features, linear.out_features, bias=linear.bias is not None, device="meta")
        self.weight, self.bias = linear.weight, linear.bias
        self.lora_down = nn.Parameter(linear.weight.new_empty(rank, linear.in_features))
        self.lora_up = nn.Parameter(linear.weight.new_zeros(linear.out_features, rank))
        nn.init.normal_(self.lora_down, std=linear.in_features**-0.5)

    def forward(self, states: Float[Tensor, "*batch in"]) -> Float[Tensor, "*batch out"]:
        """W x + b + B A x."""
        return super().forward(states) + functional.linear(functional.linear(states, self.lora_down), self.lora_up)


def with_lora(model: nn.Module, rank: int) -> nn.Module:
    """Add LoRA matrices to all attention projections of a model, in place, and freeze encoder and decoder otherwise.

    Parameters outside of encoder and decoder, such as those of an output layer, are learned as usual. With rank 0, the
    model stays as it is. Returns the model.
    """
    if not rank:
        return model
    adapted: list[LowRank] = []
    for part in list(model.modules()):
        for name in PROJECTIONS.get(type(part), ()):
            adapted.append(LowRank(getattr(part, name), rank))
            setattr(part, name, adapted[-1])
    if not adapted:
        raise RecipeError("train.lora_rank is for Transformers, and this model has none; leave it out")
    for name, parameter in model.named_parameters():
        inside = name.partition(".")[0] in ("encoder", "decoder")
        parameter.requires_grad_(not inside or name.endswith((DOWN, UP)))
    return model


def merged(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of a model with LoRA as those of a model without it:  W + B A in place of W, A and B."""
    plain = {name: tensor for name, tensor in tensors.items() if not name.endswith((DOWN, UP))}
    for name, up in tensors.items():
        weight, down = name.removesuffix(UP) + "weight", name.removesuffix(UP) + DOWN
        if name.endswith(UP) and weight in plain and down in tensors and _fit(plain[weight], up, tensors[down]):
            plain[weight] = torch.addmm(plain[weight], up, tensors[down])
    return plain


def _fit(weight: Tensor, up: Tensor, down: Tensor) -> bool:
    """Whether B A has the shape and the type of W."""
    return weight.shape == (up.shape[0], down.shape[-1]) and up.shape[1:] == down.shape[:1] and up.dtype == weight.dtype
