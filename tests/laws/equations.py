"""The equations in plain Python numbers, independent of the package: a new entry of a table adds its own here."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

from small import WINDOW, Variant

Vector = list[float]
Matrix = list[Vector]
Parameters = dict[str, Any]  # the parameters of a score, scope or kind of positions as nested lists, by name


def dot(query: Vector, key: Vector, position: int, parameters: Parameters) -> float:
    return sum(q * k for q, k in zip(query, key, strict=True))


def scaled_dot(query: Vector, key: Vector, position: int, parameters: Parameters) -> float:
    return dot(query, key, position, parameters) / len(key) ** 0.5


def general(query: Vector, key: Vector, position: int, parameters: Parameters) -> float:
    projected = [sum(w * k for w, k in zip(row, key, strict=True)) for row in parameters["key.weight"]]
    return dot(query, projected, position, parameters)


def additive(query: Vector, key: Vector, position: int, parameters: Parameters) -> float:
    total = 0.0
    for unit, out in enumerate(parameters["out.weight"][0]):
        inner = parameters["key.bias"][unit]
        inner += sum(w * q for w, q in zip(parameters["query.weight"][unit], query, strict=True))
        inner += sum(w * k for w, k in zip(parameters["key.weight"][unit], key, strict=True))
        total += out * math.tanh(inner)
    return total


def product_of(matrix: Matrix, vector: Vector) -> Vector:
    return [sum(w * x for w, x in zip(row, vector, strict=True)) for row in matrix]


def multiplicative(query: Vector, key: Vector, position: int, parameters: Parameters) -> float:
    return dot(
        product_of(parameters["query.weight"], query), product_of(parameters["key.weight"], key), position, parameters
    )


def concat(query: Vector, key: Vector, position: int, parameters: Parameters) -> float:
    inner = product_of(parameters["weight.weight"], [*query, *key])
    return sum(out * math.tanh(unit) for out, unit in zip(parameters["out.weight"][0], inner, strict=True))


def linear_concat(query: Vector, key: Vector, position: int, parameters: Parameters) -> float:
    return product_of(parameters["weight.weight"], [*query, *key])[0]


def cosine(query: Vector, key: Vector, position: int, parameters: Parameters) -> float:
    return (
        math.exp(parameters["weight"]) * dot(query, key, position, parameters) / math.hypot(*query) / math.hypot(*key)
    )


def gaussian(query: Vector, key: Vector, position: int, parameters: Parameters) -> float:
    bandwidth = (2 * len(key)) ** 0.25 * math.exp(-parameters["weight"])
    return -sum((q - k) ** 2 for q, k in zip(query, key, strict=True)) / (2 * bandwidth**2)


def location(query: Vector, key: Vector, position: int, parameters: Parameters) -> float:
    return dot(query, parameters["query.weight"][position], position, parameters)


SCORE_EQUATIONS = {
    "dot": dot,
    "scaled_dot": scaled_dot,
    "general": general,
    "multiplicative": multiplicative,
    "concat": concat,
    "linear_concat": linear_concat,
    "additive": additive,
    "cosine": cosine,
    "gaussian": gaussian,
    "location": location,
}


def softmax(scores: Vector) -> Vector:
    total = sum(math.exp(score) for score in scores)
    return [math.exp(score) / total for score in scores]


def threshold(total: Callable[[float], float], low: float, high: float) -> float:
    """The argument at which the decreasing function `total` is one, by bisection."""
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if total(middle) > 1 else (low, middle)
    return low


def sparsemax(scores: Vector) -> Vector:
    def weights(tau: float) -> Vector:
        return [max(0.0, score - tau) for score in scores]

    return weights(threshold(lambda tau: sum(weights(tau)), max(scores) - 1, max(scores)))


def entmax15(scores: Vector) -> Vector:
    def weights(tau: float) -> Vector:
        return [max(0.0, score / 2 - tau) ** 2 for score in scores]

    return weights(threshold(lambda tau: sum(weights(tau)), max(scores) / 2 - 1, max(scores) / 2))


def sigmoid(scores: Vector) -> Vector:
    return [1 / (1 + math.exp(-score)) for score in scores]


def hard(scores: Vector) -> Vector:
    best = scores.index(max(scores))
    return [float(key == best) for key in range(len(scores))]


NORMALIZER_EQUATIONS = {
    "softmax": softmax,
    "sparsemax": sparsemax,
    "entmax15": entmax15,
    "sigmoid": sigmoid,
    "hard": hard,
}


class VisibleKeys(NamedTuple):
    """The keys that a query sees, and the factors that multiply their normalised weights."""

    keys: list[int]
    factors: Vector


def all_allowed(query: Vector, at: int, allowed: list[int], parameters: Parameters) -> VisibleKeys:
    return VisibleKeys(allowed, [1.0] * len(allowed))


def local_m(query: Vector, at: int, allowed: list[int], parameters: Parameters) -> VisibleKeys:
    near = [key for key in allowed if at - WINDOW <= key <= at + WINDOW]
    return VisibleKeys(near, [1.0] * len(near))


def local_p(query: Vector, at: int, allowed: list[int], parameters: Parameters) -> VisibleKeys:
    inner = [math.tanh(unit) for unit in product_of(parameters["query.weight"], query)]
    centre = len(allowed) / (1 + math.exp(-product_of(parameters["out.weight"], inner)[0]))
    near = [key for key in allowed if centre - WINDOW <= key <= centre + WINDOW]
    deviation = WINDOW / 2
    return VisibleKeys(near, [math.exp(-((key - centre) ** 2) / (2 * deviation**2)) for key in near])


SCOPE_EQUATIONS = {
    "global": all_allowed,
    "local_m": local_m,
    "local_p": local_p,
    "coverage": all_allowed,  # at the first step; later steps are in `weights_with_past`
    "location_aware": all_allowed,
}


def coverage(past: Matrix, key: int, parameters: Parameters) -> Vector:
    """Tu et al. 2016: the sum of the weights that the key got so far."""
    return [sum(row[key] for row in past)]


def location_aware(past: Matrix, key: int, parameters: Parameters) -> Vector:
    """Chorowski et al. 2015: every filter over the last weights of the keys around this one; 0 outside the source."""
    last = past[-1] if past else []
    near = [last[at] if 0 <= at < len(last) else 0.0 for at in range(key - WINDOW, key + WINDOW + 1)]
    return product_of([taps for [taps] in parameters["filters.weight"]], near)


PAST_EQUATIONS = {"coverage": coverage, "location_aware": location_aware}


def shifted_additive(query: Vector, key: Vector, shift: Vector, parameters: Parameters) -> float:
    """e = v . tanh(W s + V h + b + shift)."""
    bias = [b + move for b, move in zip(parameters["key.bias"], shift, strict=True)]
    return additive(query, key, 0, parameters | {"key.bias": bias})


def shifted_dot(query: Vector, key: Vector, shift: Vector, parameters: Parameters) -> float:
    return dot(query, [k + move for k, move in zip(key, shift, strict=True)], 0, parameters)


SHIFTED_SCORE_EQUATIONS = {"additive": shifted_additive, "dot": shifted_dot}


def weights_with_past(
    variant: Variant, parameters: Parameters, queries: Matrix, keys: Matrix, mask: list[bool]
) -> Matrix:
    """Softmax weights of all steps of one sentence; every step reads those of the steps before."""
    of_score = {name.removeprefix("score."): value for name, value in parameters.items() if name.startswith("score.")}
    visible = [key for key, is_visible in enumerate(mask) if is_visible]
    rows: Matrix = []
    for query in queries:
        scores = []
        for key in visible:
            shift = product_of(parameters["move.weight"], PAST_EQUATIONS[variant.scope](rows, key, parameters))
            scores.append(SHIFTED_SCORE_EQUATIONS[variant.score](query, keys[key], shift, of_score))
        weights = dict(zip(visible, softmax(scores), strict=True))
        rows.append([weights.get(key, 0.0) for key in range(len(keys))])
    return rows


def attention_by_equations(
    variant: Variant,
    parameters: Parameters,
    queries: Matrix,
    keys: Matrix,
    values: Matrix,
    mask: list[list[bool]],
    start: int,
    bias: Matrix | None = None,
) -> tuple[Matrix, Matrix]:
    """Weights and contexts of one sentence and one head, computed from the equations."""
    of_score = {name.removeprefix("score."): value for name, value in parameters.items() if name.startswith("score.")}
    weights, contexts = [], []
    for row, (query, mask_row) in enumerate(zip(queries, mask, strict=True)):
        allowed = [key for key, is_allowed in enumerate(mask_row) if is_allowed]
        visible, factors = SCOPE_EQUATIONS[variant.scope](query, start + row, allowed, parameters)
        weights_row = [0.0] * len(keys)
        if visible:
            bias_row = [0.0] * len(keys) if bias is None else bias[row]
            scores = [
                SCORE_EQUATIONS[variant.score](query, keys[key], key, of_score) + bias_row[key] for key in visible
            ]
            normalized = NORMALIZER_EQUATIONS[variant.normalizer](scores)
            for key, weight, factor in zip(visible, normalized, factors, strict=True):
                weights_row[key] = weight * factor
        weights.append(weights_row)
        contexts.append(product_of([list(column) for column in zip(*values, strict=True)], weights_row))
    return weights, contexts


# Positions: the vector added to an embedding, the rotation of queries and keys, and the bias added to scores.


def angle(position: int, pair: int, width: int) -> float:
    return position / 10000 ** (2 * pair / width)


def sinusoid(position: int, width: int) -> Vector:
    """The sinusoidal encoding of a position; sine and cosine of a pair share one angle."""
    both = [(math.sin(angle(position, pair, width)), math.cos(angle(position, pair, width))) for pair in range(width)]
    return [number for pair in both for number in pair][:width]


def rotated(vector: Vector, position: int) -> Vector:
    """The rotary rotation: each pair of numbers is rotated by its angle."""
    result = []
    for pair in range(len(vector) // 2):
        sine, cosine = math.sin(angle(position, pair, len(vector))), math.cos(angle(position, pair, len(vector)))
        even, odd = vector[2 * pair : 2 * pair + 2]
        result += [cosine * even - sine * odd, sine * even + cosine * odd]
    return result


def bucket(distance: int, causal: bool) -> int:
    """Raffel et al. 2020, 2.1: of 32 buckets, half for near distances, the others logarithmic up to 128; in integers.

    The step n of the far half is floor(far log(away / near) / log(128 / near)), so it is the largest n with
    (128 / near)^n <= (away / near)^far.
    """
    size, first = (32, 0) if causal else (16, 16 * (distance > 0))
    away = max(0, -distance) if causal else abs(distance)
    near = far = size // 2
    if away < near:
        return first + away
    steps = [n for n in range(far) if 128**n * near**far <= away**far * near**n]
    return first + near + steps[-1]


def slope(head: int, heads: int) -> float:
    """Press et al. 2022, 3: a geometric sequence that starts at its own ratio, 2^(-8 / heads)."""
    return (2 ** (-8 / heads)) ** (head + 1)


class PositionEquations(NamedTuple):
    """The three equations of one kind of positions; `parameters` are its learned ones."""

    embedding: Callable[[int, int, Parameters], Vector] = lambda position, width, parameters: [0.0] * width
    rotation: Callable[[Vector, int], Vector] = lambda vector, position: vector
    bias: Callable[[int, int, int, bool, Parameters], float] = lambda distance, head, heads, causal, parameters: 0.0


POSITION_EQUATIONS = {
    "none": PositionEquations(),
    "sinusoidal": PositionEquations(embedding=lambda position, width, parameters: sinusoid(position, width)),
    "learned": PositionEquations(embedding=lambda position, width, parameters: parameters["table.weight"][position]),
    "rotary": PositionEquations(rotation=rotated),
    "relative": PositionEquations(
        bias=lambda distance, head, heads, causal, parameters: parameters["weight.weight"][bucket(distance, causal)][
            head
        ]
    ),
    "alibi": PositionEquations(
        bias=lambda distance, head, heads, causal, parameters: -slope(head, heads) * abs(distance)
    ),
}
