"""The equations once more, in plain Python numbers: a new entry of a table writes its own here."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

from small import WINDOW, Variant

Vector = list[float]
Matrix = list[Vector]
Parts = dict[str, Any]  # a learned part of a score or scope, by its name


def dot(query: Vector, key: Vector, place: int, part: Parts) -> float:
    return sum(q * k for q, k in zip(query, key, strict=True))


def scaled_dot(query: Vector, key: Vector, place: int, part: Parts) -> float:
    return dot(query, key, place, part) / len(key) ** 0.5


def general(query: Vector, key: Vector, place: int, part: Parts) -> float:
    turned = [sum(w * k for w, k in zip(row, key, strict=True)) for row in part["key.weight"]]
    return dot(query, turned, place, part)


def additive(query: Vector, key: Vector, place: int, part: Parts) -> float:
    total = 0.0
    for place, out in enumerate(part["out.weight"][0]):
        mixed = part["key.bias"][place]
        mixed += sum(w * q for w, q in zip(part["query.weight"][place], query, strict=True))
        mixed += sum(w * k for w, k in zip(part["key.weight"][place], key, strict=True))
        total += out * math.tanh(mixed)
    return total


def product_of(matrix: Matrix, vector: Vector) -> Vector:
    return [sum(w * x for w, x in zip(row, vector, strict=True)) for row in matrix]


def multiplicative(query: Vector, key: Vector, place: int, part: Parts) -> float:
    return dot(product_of(part["query.weight"], query), product_of(part["key.weight"], key), place, part)


def concat(query: Vector, key: Vector, place: int, part: Parts) -> float:
    inner = product_of(part["weight.weight"], [*query, *key])
    return sum(out * math.tanh(mixed) for out, mixed in zip(part["out.weight"][0], inner, strict=True))


def linear_concat(query: Vector, key: Vector, place: int, part: Parts) -> float:
    return product_of(part["weight.weight"], [*query, *key])[0]


def cosine(query: Vector, key: Vector, place: int, part: Parts) -> float:
    return math.exp(part["weight"]) * dot(query, key, place, part) / math.hypot(*query) / math.hypot(*key)


def gaussian(query: Vector, key: Vector, place: int, part: Parts) -> float:
    bandwidth = (2 * len(key)) ** 0.25 * math.exp(-part["weight"])
    return -sum((q - k) ** 2 for q, k in zip(query, key, strict=True)) / (2 * bandwidth**2)


def location(query: Vector, key: Vector, place: int, part: Parts) -> float:
    return dot(query, part["query.weight"][place], place, part)


EQUATIONS = {
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
    """Where the falling `total` is one, by halving."""
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
    return [float(place == best) for place in range(len(scores))]


NORMALIZED = {"softmax": softmax, "sparsemax": sparsemax, "entmax15": entmax15, "sigmoid": sigmoid, "hard": hard}


class KeyValues(NamedTuple):
    """The keys that a query sees, and what their normalised weights are multiplied by."""

    keys: list[int]
    factors: Vector


def everywhere(query: Vector, at: int, allowed: list[int], part: Parts) -> KeyValues:
    return KeyValues(allowed, [1.0] * len(allowed))


def local_m(query: Vector, at: int, allowed: list[int], part: Parts) -> KeyValues:
    near = [key for key in allowed if at - WINDOW <= key <= at + WINDOW]
    return KeyValues(near, [1.0] * len(near))


def local_p(query: Vector, at: int, allowed: list[int], part: Parts) -> KeyValues:
    inner = [math.tanh(each) for each in product_of(part["query.weight"], query)]
    centre = len(allowed) / (1 + math.exp(-product_of(part["out.weight"], inner)[0]))
    near = [key for key in allowed if centre - WINDOW <= key <= centre + WINDOW]
    deviation = WINDOW / 2
    return KeyValues(near, [math.exp(-((key - centre) ** 2) / (2 * deviation**2)) for key in near])


SEEN = {
    "global": everywhere,
    "local_m": local_m,
    "local_p": local_p,
    "coverage": everywhere,  # before the first look; what comes after is told where decoders are
    "location_aware": everywhere,
}


def retold(
    variant: Variant,
    part: Parts,
    queries: Matrix,
    keys: Matrix,
    values: Matrix,
    mask: list[list[bool]],
    start: int,
    bias: Matrix | None = None,
) -> tuple[Matrix, Matrix]:
    """Weights and contexts of one sentence and one head, straight from the equations."""
    scored = {name.removeprefix("score."): each for name, each in part.items() if name.startswith("score.")}
    weights, contexts = [], []
    for row, (query, allowed) in enumerate(zip(queries, mask, strict=True)):
        seen, factors = SEEN[variant.scope](query, start + row, [key for key, may in enumerate(allowed) if may], part)
        shares = [0.0] * len(keys)
        if seen:
            added = [0.0] * len(keys) if bias is None else bias[row]
            scores = [EQUATIONS[variant.score](query, keys[key], key, scored) + added[key] for key in seen]
            normalized = NORMALIZED[variant.normalizer](scores)
            for key, weight, factor in zip(seen, normalized, factors, strict=True):
                shares[key] = weight * factor
        weights.append(shares)
        contexts.append(product_of([list(column) for column in zip(*values, strict=True)], shares))
    return weights, contexts


# Where a token stands: what it adds to the word's vector, how it turns queries and keys, what it adds to a score.


def angle(place: int, pair: int, width: int) -> float:
    return place / 10000 ** (2 * pair / width)


def waves(place: int, width: int) -> Vector:
    """Both numbers of a pair share its angle."""
    both = [(math.sin(angle(place, pair, width)), math.cos(angle(place, pair, width))) for pair in range(width)]
    return [number for pair in both for number in pair][:width]


def turned(vector: Vector, place: int) -> Vector:
    said = []
    for pair in range(len(vector) // 2):
        sine, cosine = math.sin(angle(place, pair, len(vector))), math.cos(angle(place, pair, len(vector)))
        even, odd = vector[2 * pair : 2 * pair + 2]
        said += [cosine * even - sine * odd, sine * even + cosine * odd]
    return said


def bucket(ahead: int, causal: bool) -> int:
    """Raffel et al. 2020, 2.1: of 32, half for near distances, the others by logarithms up to 128; in whole numbers.

    The step n of the far half is floor(far log(away / near) / log(128 / near)), so it is the largest with
    (128 / near)^n <= (away / near)^far.
    """
    size, first = (32, 0) if causal else (16, 16 * (ahead > 0))
    away = max(0, -ahead) if causal else abs(ahead)
    near = far = size // 2
    if away < near:
        return first + away
    steps = [n for n in range(far) if 128**n * near**far <= away**far * near**n]
    return first + near + steps[-1]


def slope(head: int, heads: int) -> float:
    """Press et al. 2022, 3: a geometric sequence that starts at its own ratio, 2^(-8 / heads)."""
    return (2 ** (-8 / heads)) ** (head + 1)


class Places(NamedTuple):
    """One way to tell positions; `part` is what it has learned."""

    adds: Callable[[int, int, Parts], Vector] = lambda place, width, part: [0.0] * width
    turns: Callable[[Vector, int], Vector] = lambda vector, place: vector
    favours: Callable[[int, int, int, bool, Parts], float] = lambda ahead, head, heads, causal, part: 0.0


PLACES = {
    "none": Places(),
    "sinusoidal": Places(adds=lambda place, width, part: waves(place, width)),
    "learned": Places(adds=lambda place, width, part: part["table.weight"][place]),
    "rotary": Places(turns=turned),
    "relative": Places(
        favours=lambda ahead, head, heads, causal, part: part["weight.weight"][bucket(ahead, causal)][head]
    ),
    "alibi": Places(favours=lambda ahead, head, heads, causal, part: -slope(head, heads) * abs(ahead)),
}
