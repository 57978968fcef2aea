"""Laws of the Transformer: its equations, its positions, its fused path, its tied weights, and language models."""

import math
from collections.abc import Callable
from dataclasses import replace
from itertools import product

import pytest
import torch
from equations import PLACES, bucket, retold, slope, waves
from safetensors.torch import load, save
from small import (
    BATCH,
    KEY,
    LEARNED,
    QUERY,
    TRANSFORMERS,
    Case,
    Variant,
    every_transformer,
    leaves,
    make_batch,
    make_model,
    make_recipe,
    make_score,
    make_sources,
    near,
    same,
    spread,
    transformer,
)
from torch import Tensor, nn
from torch.nn import functional

from regard import recipe as recipes
from regard.attention import NORMALIZERS, POSITIONS, SCOPES, SCORES, MultiHead, SelfAttention, attend, fused, masks
from regard.attention.masks import Causal
from regard.attention.positions import Positions, sinusoids
from regard.decoders import ORDERS, STARTS
from regard.errors import DataError, RecipeError
from regard.kernels.choose import are_definitions_only
from regard.layers.transformer import ACTIVATIONS, INITS, NORMS, FeedForward, Shape, Site
from regard.models import build, load_weights, weights
from regard.models.language import LanguageModel
from regard.models.language import build as build_language_model
from regard.search import beam, sample
from regard.types import BEGIN, Memory, Padded
from shapes import unchecked

LENGTHS = (7, 4, 2)
TARGET = 6
HEADS, PART = 3, 6
every_position = pytest.mark.parametrize("name", POSITIONS)


def random(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def make_tokens(rows: int, length: int = TARGET) -> Tensor:
    tokens = torch.randint(4, 9, (rows, length))
    tokens[:, 0] = BEGIN
    return tokens


def place(name: str, *, dim: int = 10, heads: int = HEADS, longest: int = 29, causal: bool = False) -> Positions:
    """Positions whose learned numbers are spread."""
    positions = POSITIONS[name](dim=dim, heads=heads, longest=longest, causal=causal)
    for parameter in positions.parameters():
        nn.init.normal_(parameter)
    return positions.double()


# The whole encoder and decoder once more, one sentence at a time, head by head and token by token.


def gelu(value: Tensor) -> Tensor:
    return value * (1 + torch.erf(value / math.sqrt(2))) / 2


ACTIVATED: dict[str, Callable[[Tensor], Tensor]] = {"relu": lambda value: value.clamp(min=0), "gelu": gelu}


def affine(layer: nn.Linear, states: Tensor) -> Tensor:
    return states @ layer.weight.T + layer.bias


def normed(norm: nn.LayerNorm, states: Tensor) -> Tensor:
    middle = states - states.mean(-1, keepdim=True)
    return middle / (middle.square().mean(-1, keepdim=True) + norm.eps).sqrt() * norm.weight + norm.bias


class Retold:
    """A stack of layers told again from its parameters, for one sentence without padding."""

    def __init__(self, stack: nn.Module, case: Case, *, causal: bool) -> None:
        self.stack, self.case, self.causal = stack, case, causal
        self.places = PLACES[case.stack.positions]
        self.learned = {name: each.tolist() for name, each in stack.positions.state_dict().items()}
        self.map: Tensor | None = None

    def read(self, ids: Tensor, memory: Tensor | None = None) -> Tensor:
        """The states of the top layer; `memory` are the states that a decoder looks at."""
        words = self.stack.embedding.weight[ids] * math.sqrt(self.stack.embedding.embedding_dim)
        added = [self.places.adds(at, words.shape[-1], self.learned) for at in range(len(ids))]
        states = words + torch.tensor(added, dtype=torch.float64)
        for layer in self.stack.stack:
            states = self.around(layer.around_attention, states, lambda x, layer=layer: self.look(layer.attention, x))
            if memory is not None:
                states = self.around(
                    layer.around_cross, states, lambda x, layer=layer: self.look_at(layer.cross, x, memory)
                )
            states = self.around(layer.around_feed, states, lambda x, layer=layer: self.feed(layer.feed, x))
        return normed(self.stack.top.norm, states) if self.case.stack.norm == "pre" else states

    def around(self, around: nn.Module, states: Tensor, change: Callable[[Tensor], Tensor]) -> Tensor:
        if self.case.stack.norm == "pre":
            return states + change(normed(around.norm, states))
        return normed(around.norm, states + change(states))

    def feed(self, layer: nn.Module, states: Tensor) -> Tensor:
        return affine(layer.out, ACTIVATED[self.case.stack.activation](affine(layer.inner, states)))

    def look(self, attention: SelfAttention, states: Tensor) -> Tensor:
        heads = self.case.variant.heads
        groups = self.case.variant.groups or heads
        width = states.shape[-1] // heads
        all_of_it = affine(attention.all, states).split(width, dim=-1)
        asked, answered, said = all_of_it[:heads], all_of_it[heads:-groups], all_of_it[-groups:]
        asked, answered = (
            [[self.places.turns(vector, at) for at, vector in enumerate(head.tolist())] for head in all_heads]
            for all_heads in (asked, answered)
        )
        time = range(len(states))
        mask = [[key <= query or not self.causal for key in time] for query in time]
        bias = [
            [
                [self.places.favours(key - query, head, heads, self.causal, self.learned) for key in time]
                for query in time
            ]
            for head in range(heads)
        ]
        said = [head.tolist() for head in said]
        return affine(attention.out, self.heads(attention.attention, asked, answered, said, mask, bias))

    def look_at(self, attention: MultiHead, states: Tensor, memory: Tensor) -> Tensor:
        width = attention.query.out_features // self.case.variant.heads
        asked, answered, said = (
            [head.tolist() for head in affine(layer, given).split(width, dim=-1)]
            for layer, given in ((attention.query, states), (attention.key, memory), (attention.value, memory))
        )
        mask = [[True] * len(memory)] * len(states)
        return affine(attention.out, self.heads(attention.attention, asked, answered, said, mask, None))

    def heads(self, scope, asked, answered, said, mask, bias) -> Tensor:
        """All heads side by side; some may share a group's keys and values."""
        part = {name: each.tolist() for name, each in scope.state_dict().items()}
        told = []
        for head, query in enumerate(asked):
            group = head * len(answered) // len(asked)
            added = None if bias is None else bias[head]
            told.append(retold(self.case.variant, part, query, answered[group], said[group], mask, 0, added))
        self.map = torch.tensor([each[0] for each in told], dtype=torch.float64).mean(0)
        return torch.cat([torch.tensor(each[1], dtype=torch.float64) for each in told], dim=-1)


@every_transformer()
def test_a_transformer_is_its_equations(case):
    with torch.no_grad():
        model = make_model(case)
        source, tokens = make_sources(*LENGTHS), make_tokens(BATCH)
        memory = model.encoder(source)
        step = model.decoder(tokens, memory)
        for row, length in enumerate(LENGTHS):
            if case.encoder == "transformer":
                states = Retold(model.encoder, case, causal=False).read(source.ids[row, :length])
                near(memory.states[row, :length], states)
                near(memory.summary.hidden[row], states.mean(0, keepdim=True))
            if case.decoder == "transformer":
                again = Retold(model.decoder, case, causal=True)
                states = again.read(tokens[row], memory.states[row, :length])
                words = model.decoder.embedding if case.tied else model.decoder.out
                near(step.logits[row], states @ words.weight.T + getattr(words, "bias", 0.0))
                near(step.attention[row, :, :length], again.map)


def test_every_entry_meets_the_laws():
    assert set(PLACES) == set(POSITIONS) == set(STEPS) == set(EXTRA)
    assert set(ACTIVATED) == set(ACTIVATIONS)
    assert FUSED == ["dot", "scaled_dot", "general"]
    assert {case.stack.positions for case in LANGUAGE if case.decoder == "transformer"} == set(POSITIONS)
    assert {case.start for case in LANGUAGE if case.decoder == "recurrent"} == set(STARTS) - {"last"}


# Grouped heads


@pytest.mark.parametrize(("heads", "groups"), [(4, 2), (6, 3), (3, 1)])
def test_groups_are_heads_whose_keys_and_values_are_equal(heads, groups):
    """Ainslie et al. 2023, of self-attention and of a look at a memory."""
    width = heads * PART

    def make(width: int) -> nn.Module:
        return SCOPES["global"](make_score("scaled_dot", width, width)[0], query_dim=width, fused=True)

    shared = MultiHead(make, query_dim=11, key_dim=13, dim=width, heads=heads, groups=groups).double()
    apart = MultiHead(make, query_dim=11, key_dim=13, dim=width, heads=heads).double()
    alone, wide = (SelfAttention(make, dim=width, heads=heads, groups=some).double() for some in (groups, None))

    def for_each_head(wide: Tensor) -> Tensor:
        return wide.unflatten(0, (groups, PART)).repeat_interleave(heads // groups, dim=0).flatten(0, 1)

    with torch.no_grad():
        for mine, other in ((shared, apart), (alone, wide)):
            mine.out.bias.normal_()
            other.out.load_state_dict(mine.out.state_dict())
        apart.query.load_state_dict(shared.query.state_dict())
        for name, kind in product(("key", "value"), ("weight", "bias")):
            getattr(getattr(apart, name), kind).copy_(for_each_head(getattr(getattr(shared, name), kind)))
        for kind in ("weight", "bias"):
            query, keys, values = getattr(alone.all, kind).split([width, groups * PART, groups * PART])
            getattr(wide.all, kind).copy_(torch.cat([query, for_each_head(keys), for_each_head(values)]))
    query, states, own = random(BATCH, QUERY, 11), random(BATCH, KEY, 13), random(BATCH, QUERY, width)
    mask = masks.over_keys(masks.from_lengths(torch.tensor([7, 4, 2]), KEY))
    attended = [each(query, each.project(states), each.content(states), mask=mask) for each in (shared, apart)]
    near(attended[0].context, attended[1].context)
    near(attended[0].weights, attended[1].weights)
    positions = place("rotary", heads=heads)
    told = [each(own, mask=Causal(), bias=None, positions=positions) for each in (alone, wide)]
    near(told[0][0], told[1][0])
    assert told[0][1].keys.shape == (BATCH, groups, QUERY, PART)  # what is kept is as small as the groups


# The fused path


FUSED = [name for name in SCORES if make_score(name, 6, 6, 6)[0].dot_scale is not None]
MASKS: dict[str, Callable[[], object]] = {
    "none": lambda: None,
    "keys": lambda: masks.from_lengths(torch.tensor([7, 4, 0]), KEY)[:, None, None],
    "queries": lambda: _some_rows_see_nothing(BATCH, 1),
    "heads": lambda: _some_rows_see_nothing(BATCH, HEADS),
    "causal": lambda: Causal(),
    "causal_later": lambda: Causal(2),
    "causal_nearly": lambda: Causal(KEY - 2),
    "causal_last": lambda: Causal(KEY - 1),
}


def _some_rows_see_nothing(*axes: int) -> Tensor:
    mask = torch.rand(*axes, QUERY, KEY) < 0.6
    mask[0, ..., 2, :] = False
    mask[1, ..., 3] = False
    return mask


def looks_alike(
    score: nn.Module, query: Tensor, keys: Tensor, values: Tensor, mask: object, bias: Tensor | None
) -> None:
    """Fused and by definition: the same contexts, the same gradients, and nothing that is no number."""
    told = []
    for look in ("attend", "fused"):
        given = [each.detach().clone().requires_grad_() for each in (query, keys, values, bias) if each is not None]
        added = given[3] if bias is not None else None
        with torch.autograd.set_detect_anomaly(True):  # no NaN on the way back either
            if look == "attend":
                context = attend(*given[:3], score=score, mask=mask, bias=added, cleared=True).context
            else:
                context = fused.dot(*given[:3], scale=score.dot_scale, mask=mask, bias=added)
            (context.square().sum() + context.sum()).backward()
        told.append([context.detach(), *(each.grad for each in given)])
    for mine, other in zip(*told, strict=True):
        assert mine.isfinite().all()
        near(other, mine)
    seen = masks.materialize(mask, query, keys)
    if seen is not None:
        blind = (~seen.any(-1)).expand(query.shape[:-1])
        assert (told[1][0][blind] == 0).all()
        assert (told[1][1][blind] == 0).all()


@pytest.mark.parametrize("name", FUSED)
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("square", [False, True])
def test_the_fused_dot_is_attend(name, mask, biased, square):
    score, _ = make_score(name, PART, PART)
    score.double()
    queries = KEY if square else QUERY
    hidden = MASKS[mask]()
    if isinstance(hidden, Tensor) and hidden.shape[-2] > 1:
        hidden = torch.cat([hidden] * 2, dim=-2)[..., :queries, :]
    bias = random(HEADS, queries, KEY) if biased else None
    keys, values = random(BATCH, HEADS, KEY, PART), random(BATCH, HEADS, KEY, PART + 2)
    looks_alike(score, random(BATCH, HEADS, queries, PART), keys, values, hidden, bias)


BEAMS = 2
SHARED: dict[str, Callable[[], object]] = {
    "none": lambda: None,
    "keys": lambda: masks.from_lengths(torch.tensor([7, 4, 0]), KEY)[:, None, None, None],
    "queries": lambda: _some_rows_see_nothing(BATCH, 1, 1),
    "beams": lambda: _some_rows_see_nothing(BATCH, BEAMS, 1),
    "alone": lambda: _some_rows_see_nothing(BATCH, BEAMS, HEADS),
    "causal": lambda: Causal(2),
}


@pytest.mark.parametrize("name", FUSED)
@pytest.mark.parametrize("mask", SHARED)
@pytest.mark.parametrize("biased", [False, True])
def test_the_fused_dot_is_attend_for_beams_that_share_their_keys(name, mask, biased):
    score, _ = make_score(name, PART, PART)
    score.double()
    bias = random(HEADS, QUERY, KEY) if biased else None
    query = random(BATCH, BEAMS, HEADS, QUERY, PART)
    keys, values = random(BATCH, 1, HEADS, KEY, PART), random(BATCH, 1, HEADS, KEY, PART + 2)
    looks_alike(score, query, keys, values, SHARED[mask](), bias)


@pytest.mark.takes("fused_attention")
def test_a_fused_scope_gives_no_weights():
    scope = SCOPES["global"](make_score("scaled_dot", PART, PART)[0], query_dim=PART, fused=True)
    given = (
        torch.randn(BATCH, HEADS, QUERY, PART),
        torch.randn(BATCH, HEADS, KEY, PART),
        torch.randn(BATCH, HEADS, KEY, 2),
    )
    quick, plain = (scope(*given, mask=None, cleared=cleared) for cleared in (True, False))
    assert quick.weights is None
    assert plain.weights is not None
    torch.testing.assert_close(quick.context, plain.context)


@pytest.mark.parametrize("fused_path", [False, True])
@pytest.mark.parametrize("normalizer", LEARNED)
def test_dropped_weights_are_lost_on_the_way_and_the_others_grow(normalizer, fused_path):
    """With one key's value for each axis a context is the row of weights that made it."""
    keys, values = random(200, HEADS, KEY, PART), torch.eye(KEY, dtype=torch.float64).expand(200, HEADS, -1, -1)
    query = random(200, HEADS, QUERY, PART)
    mask = (torch.rand(200, 1, 1, KEY) < 0.7).index_fill_(-1, torch.tensor([0]), True)
    scope = SCOPES["global"](
        make_score("scaled_dot", PART, PART)[0].double(),
        NORMALIZERS[normalizer].function,
        query_dim=PART,
        fused=fused_path,
        dropout=0.25,
    )

    def look() -> Tensor:
        return scope(query, keys, values, mask=mask, cleared=True).context

    whole, dropped = scope.eval() and look(), scope.train() and look()
    near(whole, scope.weigh(query, keys, mask=mask))
    held = whole > 0
    kept = dropped > 0
    assert not kept[~held].any()
    near(dropped[kept], whole[kept] / 0.75)
    assert kept[held].double().mean().item() == pytest.approx(0.75, abs=0.01)
    assert not torch.equal(dropped, look())


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_inner_states_of_feed_forward_layers_are_dropped_and_the_others_grow(activation):
    site = Site(lambda width: None, heads=1, groups=0)
    sizes = {"attention": site, "cross": site, "dim": 8, "layers": 1, "inner_dim": 4000, "longest": 8}
    shares = {"dropout": 0.0, "inner_dropout": 0.25}
    names = {"norm": "pre", "activation": activation, "positions": "none"}
    feed, read = FeedForward(Shape(**sizes, **shares, **names)), []
    feed.out.register_forward_pre_hook(lambda module, given: read.append(given[0].detach()))
    states = torch.randn(5, 3, 8)
    feed.eval()(states)
    feed.train()(states)
    whole, dropped = read
    kept = dropped != 0
    assert not kept[whole == 0].any()
    torch.testing.assert_close(dropped[kept], whole[kept] / 0.75, rtol=1e-4, atol=1e-6)
    assert kept[whole != 0].double().mean().item() == pytest.approx(0.75, abs=0.01)


@pytest.mark.parametrize("name", INITS)
def test_weights_begin_as_the_papers_say(name):
    torch.manual_seed(1)
    sides = {"kind": "transformer", "dim": 64, "layers": 2}
    model = build(
        recipes.Model(
            init=name,
            encoder=recipes.Encoder(**sides),
            decoder=recipes.Decoder(**sides),
            attention=recipes.Attention(score="scaled_dot", heads=2),
        ),
        source_size=3000,
        target_size=3000,
    )
    for part, layer in model.named_modules():
        if not isinstance(layer, nn.Linear) or part == "decoder.out":
            continue
        glorot = math.sqrt(2 / (layer.in_features + layer.out_features))
        small = 0.02 / 2 if part.endswith("out") else 0.02
        assert layer.weight.std().item() == pytest.approx({"glorot": glorot, "small": small}[name], rel=0.1)
        assert not layer.bias.any()
    words = model.encoder.embedding.weight
    size = {"glorot": 1.0, "small": 0.02}[name]  # after they are multiplied with the root of their width
    assert words[4:].std().item() * math.sqrt(64) == pytest.approx(size, rel=0.1)


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize(
    ("normalizer", "scope"),
    dict.fromkeys([*product(["softmax"], SCOPES), *product(NORMALIZERS, ["global"]), ("sparsemax", "local_p")]),
)
def test_the_weights_beside_a_fused_path_are_those_of_the_other(score, normalizer, scope):
    made, _ = make_score(score, PART, PART, PART)
    function = NORMALIZERS[normalizer].function
    quick, plain = (SCOPES[scope](made, function, query_dim=PART, window=2, fused=each) for each in (True, False))
    spread(quick, 0.5)
    plain.load_state_dict(quick.state_dict())
    for each in (quick, plain):
        each.double().eval()
    query, keys = random(BATCH, HEADS, QUERY, PART), quick.project(random(BATCH, HEADS, KEY, PART))
    values, bias = random(BATCH, HEADS, KEY, PART), random(HEADS, QUERY, KEY)
    for mask, added in product((None, MASKS["keys"](), Causal(2)), (None, bias)):
        given = {"mask": mask, "bias": added, "start": 2}
        expected = plain(query, keys, values, **given)
        same(quick.weigh(query, keys, **given), expected.weights)
        attended = quick(query, keys, values, cleared=True, **given)
        near(attended.context, expected.context)
        quickly = score in FUSED and normalizer == "softmax" and scope != "local_p" and not are_definitions_only()
        assert (attended.weights is None) == quickly


# Positions


def test_waves_are_the_formula():
    """Vaswani et al. 2017, 3.5; sine and cosine of a pair share the exponent 2i / dim."""
    for dim in (2, 6, 7, 10):
        table = sinusoids(torch.arange(40), dim)
        near(table, torch.tensor([waves(at, dim) for at in range(40)], dtype=torch.float64), 1e-12)


@pytest.mark.parametrize("dim", [6, 10])
def test_a_step_onward_is_one_matrix_for_all_places(dim):
    """Vaswani et al. 2017, 3.5: PE(pos + k) is a linear function of PE(pos): each pair is turned by k's angle."""
    table = sinusoids(torch.arange(200), dim)
    for step in range(60):
        matrix = torch.zeros(dim, dim, dtype=torch.float64)
        for pair in range(dim // 2):
            turn, both = step / 10000 ** (2 * pair / dim), slice(2 * pair, 2 * pair + 2)
            matrix[both, both] = torch.tensor(
                [[math.cos(turn), -math.sin(turn)], [math.sin(turn), math.cos(turn)]], dtype=torch.float64
            )
        near(table[: 200 - step] @ matrix, table[step:])


def test_wavelengths_run_from_two_pi_to_ten_thousand_times_as_much():
    dim = 6
    far = sinusoids(torch.arange(400_000), dim)[:, 0::2]
    for pair in range(dim // 2):
        wave = far[:, pair]
        up = ((wave[:-1] < 0) & (wave[1:] >= 0)).nonzero().flatten()
        length = (up[-1] - up[0]).item() / (len(up) - 1)
        expected = 2 * math.pi * 10000 ** (2 * pair / dim)
        assert length == pytest.approx(expected, rel=2e-5)
    assert expected == 2 * math.pi * 10000 ** ((dim - 2) / dim)


@pytest.mark.parametrize("start", [0, 5, 27, 40])
def test_waves_past_the_table_are_computed_anew(start):
    positions, words = place("sinusoidal"), random(BATCH, 4, 10)
    expected = torch.tensor([waves(at, 10) for at in range(start, start + 4)], dtype=torch.float64)
    near(positions.embed(words, start) - words, expected.expand(BATCH, -1, -1))


def test_learned_positions_are_a_row_of_their_table_and_end_with_it():
    positions, words = place("learned", longest=9), random(BATCH, 4, 10)
    near(positions.embed(words, 5) - words, positions.table.weight[5:9].expand(BATCH, -1, -1))
    said = (
        "a text of 10 tokens is longer than the 9 positions that were learned; "
        "raise model.longest and train again, or choose model.positions = sinusoidal"
    )
    with pytest.raises(DataError) as told:
        positions.embed(words, 6)
    assert str(told.value) == said
    model = make_model(transformer("learned"))
    with pytest.raises(DataError, match="a text of 30 tokens is longer than the 29"):
        model.encoder(make_sources(30))
    with pytest.raises(DataError, match="a text of 31 tokens is longer than the 29"):
        model.decoder(make_tokens(1, 31), model.encoder(make_sources(5)))


def test_turning_keeps_lengths_and_the_first_place():
    positions, vectors = place("rotary"), random(BATCH, HEADS, 40, PART)
    turned = positions.rotate(vectors, 0)
    near(turned.norm(dim=-1), vectors.norm(dim=-1))
    same(turned[:, :, 0], vectors[:, :, 0])
    near(positions.rotate(vectors[:, :, 13:17], 13), turned[:, :, 13:17])
    assert (turned[:, :, 1:] - vectors[:, :, 1:]).abs().amax(-1).min() > 1e-3
    coarse = vectors.to(torch.bfloat16)
    assert positions.rotate(coarse, 0).dtype == torch.bfloat16
    near(positions.rotate(coarse, 500).double(), positions.rotate(coarse.double(), 500), 0.03)  # its angles are not


def test_turned_products_depend_on_how_far_apart_alone():
    positions, query, key = place("rotary"), random(PART), random(PART)

    def product_at(asked: int, answered: int) -> Tensor:
        turned = [positions.rotate(each.unsqueeze(0), at)[0] for each, at in ((query, asked), (key, answered))]
        return turned[0] @ turned[1]

    for apart in (0, 1, 7, 50):
        for at in (1, 12, 300):
            near(product_at(at + apart, at), product_at(apart, 0))
            near(product_at(at, at + apart), product_at(0, apart))
    assert abs(product_at(3, 0) - product_at(0, 3)) > 1e-3  # before is not after
    near(product_at(5, 5), query @ key)


@pytest.mark.parametrize("causal", [True, False])
def test_buckets_are_those_of_the_paper(causal):
    positions = place("relative", causal=causal)
    ahead = range(-300, 301)
    expected = [bucket(each, causal) for each in ahead]
    assert positions.bucket(torch.tensor([list(ahead)]))[0].tolist() == expected
    assert set(expected) == set(range(32)) - (set() if causal else {16})  # 16 would be: ahead, and zero away
    bias = positions.bias(QUERY, KEY, 2)
    assert bias.shape == (HEADS, QUERY, KEY)
    for head, query, key in product(range(HEADS), range(QUERY), range(KEY)):
        near(bias[head, query, key], positions.weight.weight[bucket(key - query - 2, causal), head])


@pytest.mark.parametrize("heads", [1, 2, 3, 8])
def test_slopes_are_those_of_the_paper(heads):
    positions = POSITIONS["alibi"](dim=24, heads=heads, longest=29, causal=False)
    expected = torch.tensor([slope(head, heads) for head in range(heads)])
    torch.testing.assert_close(positions.slopes, expected, rtol=1e-6, atol=0.0)
    if heads == 8:
        assert positions.slopes.tolist() == [2.0**-head for head in range(1, 9)]
    bias = positions.bias(KEY, KEY, 0)
    same(bias, bias.transpose(1, 2))  # to both sides alike
    assert (bias.diagonal(dim1=1, dim2=2) == 0).all()
    for query, key in product(range(QUERY), range(KEY)):
        near(positions.bias(QUERY, KEY, 2)[:, query, key], -positions.slopes * abs(key - query - 2), 1e-6)
    assert not list(positions.parameters())


@every_position
@pytest.mark.parametrize("causal", [True, False])
def test_a_later_start_is_a_later_part(name, causal):
    """Whatever positions do, tokens read from the middle on are where they stand in the whole."""
    positions, words, vectors = place(name, causal=causal), random(BATCH, 8, 10), random(BATCH, HEADS, 8, PART)
    near(positions.embed(words[:, 3:], 3), positions.embed(words, 0)[:, 3:])
    near(positions.rotate(vectors[:, :, 3:], 3), positions.rotate(vectors, 0)[:, :, 3:])
    whole, part = positions.bias(8, 8, 0), positions.bias(5, 8, 3)
    same(part, None if whole is None else whole[:, 3:])


# What a position changes: which of the three a new entry of the table moves, and what it learns.
STEPS = {
    "none": set(),
    "sinusoidal": {"embed"},
    "learned": {"embed"},
    "rotary": {"rotate"},
    "relative": {"bias"},
    "alibi": {"bias"},
}
EXTRA = {"none": 0, "sinusoidal": 0, "learned": 29 * 10, "rotary": 0, "relative": 32 * HEADS, "alibi": 0}


@every_position
def test_positions_change_what_they_say(name):
    positions, words, vectors = place(name), random(BATCH, 8, 10), random(BATCH, HEADS, 8, PART)
    moved = {
        "embed": not torch.equal(positions.embed(words, 0), words),
        "rotate": not torch.equal(positions.rotate(vectors, 0), vectors),
        "bias": positions.bias(8, 8, 0) is not None,
    }
    assert {each for each, did in moved.items() if did} == STEPS[name]
    assert sum(each.numel() for each in positions.parameters()) == EXTRA[name]
    assert all(each.endswith("weight") for each in positions.state_dict())  # what is not learned is not stored


@every_position
@pytest.mark.parametrize("norm", ["pre", "post"])
def test_an_encoder_without_positions_knows_no_order(name, norm):
    model = make_model(transformer(name, norm))
    order = torch.tensor([3, 0, 6, 1, 5, 2, 4])
    source = make_sources(7, 7)
    moved = Padded(source.ids[:, order], source.mask)
    states, again = (model.encoder(each).states for each in (source, moved))
    if name == "none":
        near(again, states[:, order])
    else:
        assert (again - states[:, order]).abs().max() > 1e-3


# What must not leak


@pytest.mark.parametrize("case", [case for case in TRANSFORMERS if case.decoder == "transformer"], ids=str)
def test_later_tokens_change_no_bit_of_earlier_predictions(case):
    model, tokens = make_model(case, dtype=torch.float32), make_tokens(BATCH, TARGET)
    memory = model.encoder(make_sources(*LENGTHS))
    expected = model.decoder(tokens, memory)
    for known in range(1, TARGET):
        other = tokens.clone()
        other[:, known:] = (tokens[:, known:] - 4 + torch.randint(1, 5, (BATCH, TARGET - known))) % 5 + 4
        assert (other[:, known:] != tokens[:, known:]).all()
        with unchecked():
            step = model.decoder(other, memory)
        same(step.logits[:, :known], expected.logits[:, :known])
        same(step.attention[:, :known], expected.attention[:, :known])
        assert not torch.equal(step.logits[:, known:], expected.logits[:, known:])


@every_transformer()
def test_a_one_hot_product_is_an_embedding(case):
    model, tokens = make_model(case), make_tokens(BATCH)
    table = model.decoder.embedding.weight
    hot = functional.one_hot(tokens, len(table)).double()
    near(hot @ table, model.decoder.embedding(tokens))
    source = make_sources(*LENGTHS)
    hot = functional.one_hot(source.ids, len(model.encoder.embedding.weight)).double()
    memory = model.encoder.read(hot @ model.encoder.embedding.weight, source.mask)
    for mine, other in zip(leaves(memory), leaves(model.encoder(source)), strict=True):
        near(mine, other) if mine.is_floating_point() else same(mine, other)


# Tied weights


TIED = [
    transformer(tied=True),
    transformer("relative", encoder="recurrent", tied=True),
    transformer("learned", decoder="recurrent", tied=True),
    Case(tied=True),
]


@pytest.mark.parametrize("case", TIED, ids=str)
def test_one_matrix_embeds_both_sides_and_predicts(case):
    model = make_model(case)
    assert model.encoder.embedding.weight is model.decoder.embedding.weight
    assert model.decoder.out is None
    apart = make_model(case._replace(tied=False))
    assert apart.encoder.embedding.weight is not apart.decoder.embedding.weight
    assert apart.decoder.out.weight is not apart.decoder.embedding.weight
    step = model.decoder(make_tokens(BATCH), model.encoder(make_sources(*LENGTHS)))
    step.logits.logsumexp(-1).sum().backward()
    gradient = model.decoder.embedding.weight.grad
    assert gradient.any(-1).all()  # of every word: at least as an output


@pytest.mark.parametrize("case", [*TIED, transformer("alibi"), Case(cell="lstm", layers=2)], ids=str)
def test_weights_go_to_a_file_and_back(case):
    model, other = make_model(case), make_model(case)
    kept = weights(model)
    pointers = [each.data_ptr() for each in kept.values()]
    assert len(set(pointers)) == len(pointers) == len(list(model.parameters()))
    source, tokens = make_sources(*LENGTHS), make_tokens(BATCH)
    expected = model.decoder(tokens, model.encoder(source)).logits
    assert not torch.equal(other.decoder(tokens, other.encoder(source)).logits, expected)
    load_weights(other, load(save(kept)))
    same(other.decoder(tokens, other.encoder(source)).logits, expected)
    if case.tied:
        assert other.encoder.embedding.weight is other.decoder.embedding.weight


def test_weights_that_do_not_fit_are_refused():
    model = make_model(transformer(tied=True))
    kept = weights(model)
    name = next(name for name in kept if name.endswith("embedding.weight"))
    with pytest.raises(RuntimeError, match=name):
        load_weights(model, {other: each for other, each in kept.items() if other != name})
    with pytest.raises(RuntimeError, match="surplus"):
        load_weights(model, kept | {"surplus": torch.zeros(3)})
    with pytest.raises(RuntimeError, match="size mismatch"):
        load_weights(model, kept | {name: torch.zeros(3, 5)})


def test_one_matrix_needs_one_width():
    with pytest.raises(RecipeError, match=r"model.tied with tokens.shared needs encoder and decoder of one width"):
        build(make_recipe(transformer(tied=True)), source_size=11, target_size=11, shared=True)


# Language models


LANGUAGE = [
    *(transformer(positions, NORMS[number % 2], layers=1) for number, positions in enumerate(POSITIONS)),
    transformer("rotary", variant=Variant("scaled_dot", "softmax", "local_m", 4, 2)),
    transformer("sinusoidal", tied=True),
    Case("none", "lstm", 2),
    Case("none", "gru", start="zeros"),
    Case("none", "rnn", tied=True),
]
every_language_model = pytest.mark.parametrize("case", LANGUAGE, ids=str)


def make_language_model(case: Case, dtype: torch.dtype = torch.float64) -> LanguageModel:
    model = build_language_model(make_recipe(case), size=11)
    spread(model, 0.5)
    return model.to(dtype).eval()


def nothing(rows: int, dtype: torch.dtype = torch.float64) -> Memory:
    return Memory.none(rows, torch.device("cpu"), dtype)


@every_language_model
@pytest.mark.parametrize("chunks", [(1,) * TARGET, (2, 1, 3)], ids=len)
def test_stepping_retells_forward_with_nothing_to_look_at(case, chunks):
    decoder, tokens, memory = make_language_model(case).decoder, make_tokens(BATCH), nothing(BATCH)
    expected = decoder(tokens, memory)
    assert expected.logits.shape == (BATCH, TARGET, 11)
    assert expected.attention is None
    prepared = decoder.prepare(memory)
    state = decoder.start(prepared)
    for chunk, wanted in zip(tokens.split(chunks, dim=1), expected.logits.split(chunks, dim=1), strict=True):
        step = decoder.step(chunk, state, prepared)
        near(step.logits, wanted)
        assert step.attention is None
        state = step.state
    for mine, other in zip(leaves(state), leaves(expected.state), strict=True):
        near(mine, other)


@every_language_model
def test_a_language_model_is_searched_like_any_other(case):
    with unchecked():
        decoder, memory = make_language_model(case).decoder, nothing(BATCH)
        prefix, limits = torch.tensor([[4, 5], [6, 4], [5, 5]]), [7, 5, 8]
        found = beam(decoder, memory, width=3, limits=limits, n_best=2, prefix=prefix)
        found += sample(decoder, memory, limits=limits, seeds=(1, 2, 3), prefix=prefix)
        for row, each in [(row % BATCH, each) for row, some in enumerate(found) for each in some]:
            assert each.tokens[:2] == prefix[row].tolist()
            assert each.map is None
            said = [*each.tokens, 3][: len(each.tokens) + each.finished]
            words = decoder(torch.tensor([[BEGIN, *said[:-1]]]), nothing(1)).logits.log_softmax(-1)[0]
            assert each.score == pytest.approx(sum(words[at, word].item() for at, word in enumerate(said)), abs=1e-9)


@every_language_model
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_language_model_predicts_each_token_from_those_before(case, dtype):
    model = make_language_model(case, dtype)
    batch = make_batch([[4]] * 3, [[4, 5, 6], [7, 5], [8]])
    logits = model(batch).logits
    assert logits.shape == (3, 4, 11)
    assert logits.dtype == dtype
    alone = model.decoder(batch.target.ids[:1, :3], nothing(1, dtype)).logits
    near(logits[0, :3], alone[0], 1e-10 if dtype == torch.float64 else 1e-5)


@pytest.mark.parametrize("order", [order for order in ORDERS if ORDERS[order].needs_source()])
def test_an_order_that_needs_a_source_is_no_language_model(order):
    said = f"a language model has no source to attend to; choose model.decoder.order = none, not {order}"
    with pytest.raises(RecipeError, match=said):
        make_language_model(Case(order))


def test_what_needs_a_source_says_so():
    assert [order for order in ORDERS if not ORDERS[order].needs_source()] == ["none"]
    with pytest.raises(RecipeError, match="the start 'last' hands the encoder's state over as it is"):
        make_language_model(Case("none", start="last"))


def test_rotary_positions_need_even_heads():
    recipe = make_recipe(transformer("rotary"))
    odd = replace(recipe, decoder=replace(recipe.decoder, dim=10))
    with pytest.raises(RecipeError, match=r"rotary positions rotate pairs of numbers, so the width .* must be even"):
        build_language_model(odd, size=11)
