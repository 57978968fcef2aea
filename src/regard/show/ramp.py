"""The colour scale of attention weights, and of differences of two maps, which may be negative."""

RAMP = ((255, 255, 255), (208, 224, 243), (146, 182, 225), (78, 130, 196), (20, 62, 125))

MINUS = ((255, 255, 255), (251, 227, 204), (242, 189, 136), (217, 133, 56), (138, 71, 8))  # the same in the viewer
SIGNS = "blue: more weight in the first map; amber: in the second"  # of a difference


def tint(weight: float) -> tuple[int, int, int]:
    """The RGB colour of a weight, from white (0) to dark blue (1) or dark amber (-1); lightness falls evenly.

    NaN is white.
    """
    ramp = MINUS if weight < 0 else RAMP
    place = min(max(0.0, abs(weight)), 1.0) * (len(ramp) - 1)
    lower = min(int(place), len(ramp) - 2)
    ends = zip(ramp[lower], ramp[lower + 1], strict=True)
    red, green, blue = (round(start + (stop - start) * (place - lower)) for start, stop in ends)
    return red, green, blue
