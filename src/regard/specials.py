"""The special tokens, which every vocabulary begins with; this module does not import torch."""

PAD, UNKNOWN, BEGIN, END = 0, 1, 2, 3
SPECIALS = ("<pad>", "<unk>", "<s>", "</s>")
