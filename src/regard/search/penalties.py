"""What search makes of a log-probability before it compares hypotheses."""


def length(tokens: int, exponent: float) -> float:
    """Wu et al. 2016, eq. 14: what a log-probability over `tokens` tokens, END included, is divided by."""
    return float(((5 + tokens) / 6) ** exponent)
