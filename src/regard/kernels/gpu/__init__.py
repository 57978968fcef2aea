"""Kernels in Triton, which only a GPU runs; their modules are imported where there is one, and nowhere else."""

from importlib.util import find_spec

import torch

WIDEST_ROW = 4096  # that `add_norm` takes: one program holds a row as a whole
FEW = 64  # queries, or keys, that `short_attention` takes: one program holds all of a head
HEAD_WIDTHS = (16, 32, 64, 128)
AVAILABLE = torch.cuda.is_available() and find_spec("triton") is not None

if AVAILABLE:
    from regard.kernels.gpu import add_norm as add_norm
    from regard.kernels.gpu import additive as additive
    from regard.kernels.gpu import short_attention as short_attention
