"""Triton kernels for a GPU; their modules are imported only if there is a GPU and Triton is installed."""

from importlib.util import find_spec

import torch

WIDEST_ROW = 4096  # widest row of `add_norm`: one program holds a whole row
MOST_TOKENS = 64  # most queries, and most keys, of `short_attention`: one program holds a whole head
HEAD_WIDTHS = (16, 32, 64, 128)  # of `short_attention`
AVAILABLE = torch.cuda.is_available() and find_spec("triton") is not None

if AVAILABLE:
    from regard.kernels.gpu import add_norm as add_norm
    from regard.kernels.gpu import additive as additive
    from regard.kernels.gpu import short_attention as short_attention
