"""The colour scale of attention weights."""

RAMP = ((255, 255, 255), (208, 224, 243), (146, 182, 225), (78, 130, 196), (20, 62, 125))


def tint(weight: float) -> tuple[int, int, int]:
    """The RGB colour of a weight, from white (0) to dark blue (1); lightness falls evenly. NaN is white."""
    place = min(max(0.0, weight), 1.0) * (len(RAMP) - 1)
    lower = min(int(place), len(RAMP) - 2)
    ends = zip(RAMP[lower], RAMP[lower + 1], strict=True)
    red, green, blue = (round(start + (stop - start) * (place - lower)) for start, stop in ends)
    return red, green, blue
