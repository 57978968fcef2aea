"""The table of fast paths: all names in it exist, no other code chooses paths, and twins equal their definitions."""

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from itertools import cycle, product
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import pytest
import torch
from torch import Tensor

from regard import models
from regard import recipe as recipes
from regard.data.batching import pad
from regard.decoders import ORDERS
from regard.kernels import choose, gpu
from regard.kernels.choose import PATHS, count_answers, definitions_only, takes
from regard.kernels.linear import linear
from regard.layers.recurrence import CELLS
from regard.models import Seq2Seq
from regard.recipe import Attention, Decoder, Encoder
from regard.search import beam
from regard.types import BEGIN, END

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "regard"
every_path = pytest.mark.parametrize("name", PATHS)


def resolve(name: str) -> Any:
    """The object of a dotted name; if Triton is missing, a function of a Triton module is found in its source text."""
    parts = name.split(".")
    if name.startswith("regard.kernels.gpu.") and not gpu.AVAILABLE:
        spec = find_spec(".".join(parts[:-1]))
        assert spec is not None
        return re.search(rf"^def {parts[-1]}\(", Path(str(spec.origin)).read_text(encoding="utf-8"), re.M)
    return resolve_name(name)


# ---- the table


@every_path
def test_definition_and_twin_exist(name):
    path = PATHS[name]
    assert resolve(path.definition) is not None
    assert resolve(path.twin) is not None
    assert path.definition != path.twin
    assert path.when


@every_path
def test_the_test_that_holds_both_equal_names_the_path(name):
    assert f'"{name}"' in (ROOT / PATHS[name].test).read_text(encoding="utf-8")


@every_path
def test_the_source_calls_takes_with_the_path(name):
    call = re.compile(rf'takes\(\s*"{name}"')
    assert any(call.search(path.read_text(encoding="utf-8")) for path in SOURCE.rglob("*.py"))


@every_path
def test_definitions_only_takes_no_twin(name):
    with definitions_only():
        assert not takes(name)


def test_regard_plain_in_the_environment_turns_all_twins_off():
    program = "from regard.kernels.choose import PATHS, takes; print(any(map(takes, PATHS)))"
    environment = os.environ | {"REGARD_PLAIN": "1", "PYTHONPATH": str(SOURCE.parent)}
    process = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
    )
    assert process.stdout == "False\n"


@pytest.mark.takes("one_row")
def test_count_answers_counts_and_restores_the_conditions():
    states, weight, before = torch.randn(1, 3), torch.randn(2, 3), dict(choose._conditions)
    with count_answers() as answers:
        with torch.no_grad():
            linear(states, weight, None)
            linear(states.expand(4, -1), weight, None)
        with definitions_only():
            linear(states, weight, None)
    assert (answers["one_row"].taken, answers["one_row"].against) == (1, {"there are several rows": 1})
    assert "dropout" not in answers
    assert choose._conditions == before


# ---- no other code chooses paths

CHOOSING_NAMES = {
    *("is_cuda", "is_cpu", "device.type", "is_grad_enabled", "AVAILABLE"),
    *("is_transformed", "is_autocast", "_capturable", "is_hooked"),
}
DEVICES = {"'cpu'", "'cuda'"}  # other things have a type, too
ALLOWED = {  # files that choose a device, or that need it for optimizer and loop; none of them chooses a path
    *("device.py", "training/loop.py", "training/session.py"),
    "analysis/doctor.py",
    "attention/foreign.py",  # records nothing inside torch's transforms
}


def path_choices(root: Path) -> Iterator[str]:
    """Each use, outside of `kernels`, of a property that chooses a path: device, gradients, autocast, hooks."""
    for path in sorted(root.rglob("*.py")):
        name = path.relative_to(root).as_posix()
        if name.startswith("kernels/") or name in ALLOWED:
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            used = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
            if isinstance(node, ast.Compare):
                sides = [ast.unparse(side) for side in (node.left, *node.comparators)]
                types = [side for side in sides if side.endswith(".type")]
                of_device = any(side.endswith("device.type") for side in types) or not DEVICES.isdisjoint(sides)
                used = "device.type" if types and of_device else ""
            if used in CHOOSING_NAMES:
                yield f"{name}:{node.lineno} uses {used}"


def test_only_kernels_choose_paths():
    assert list(path_choices(SOURCE)) == []


@pytest.mark.parametrize(
    "line",
    [
        "if states.is_cuda:\n    pass",
        "fast = not torch.is_grad_enabled()",
        'if query.device.type == "cpu" and drop:\n    pass',
        'if device.type != "cuda":\n    pass',
        'fast = place().type == "cuda"',
        "if gpu.AVAILABLE:\n    pass",
        "from regard.kernels.choose import is_hooked\nis_hooked(module)",
    ],
)
def test_a_choice_outside_of_kernels_is_found(tmp_path, line):
    (tmp_path / "attention").mkdir()
    (tmp_path / "attention" / "core.py").write_text(line, encoding="utf-8")
    assert len(list(path_choices(tmp_path))) == 1
    (tmp_path / "kernels").mkdir()
    (tmp_path / "attention" / "core.py").rename(tmp_path / "kernels" / "core.py")
    assert list(path_choices(tmp_path)) == []


# ---- twins that no other test compares with their definitions

TOKENS = torch.tensor([[BEGIN, 5, 7, 4, 9], [BEGIN, 6, 6, 8, 4], [BEGIN, 9, 4, 5, 5]])
SIDES = {"kind": "transformer", "dim": 12, "layers": 2, "inner_dim": 20}
TRANSFORMER = recipes.Model(
    encoder=Encoder(**SIDES),
    decoder=Decoder(**SIDES),
    attention=Attention(score="scaled_dot", heads=2),
    positions="learned",
    longest=20,
)


def recurrent_recipe(order: str, cell: str, score: str) -> recipes.Model:
    layers = 2 if "gnmt" in order else 1
    return recipes.Model(
        embedding=6,
        encoder=Encoder(cell=cell, dim=8),
        decoder=Decoder(order=order, cell=cell, dim=8, layers=layers),
        attention=Attention(score=score, dim=6),
    )


CASES = {"transformer": TRANSFORMER, "tied": recipes.fill(TRANSFORMER, {"tied": True}, "", "")}
RECURRENT = zip(product(CELLS, ORDERS), cycle(("additive", "dot", "general", "concat")), strict=False)
CASES |= {f"{order}-{cell}-{score}": recurrent_recipe(order, cell, score) for (cell, order), score in RECURRENT}
# Twins that a model must take in training and search; otherwise the comparison below would prove nothing.
TAKEN = {
    "transformer": {
        *("joint_projection", "cache_buffer", "learned_positions", "fused_attention", "plain_transformer"),
        "whole_beams",
    },
    "recurrent": {"recurrent_gates", "plain_recurrent"},
    "all": {"linear_gradient", "columns"},
}


def outputs(model: Seq2Seq) -> list[Tensor]:
    """Logits, maps and gradients of teacher forcing, and scores, tokens and maps of searches."""
    sources = pad([[5, 6, 7, 4, 8, END], [6, 5, END], [4, 4, 8, END]])
    step = model.decoder(TOKENS, model.encoder(sources))
    total = (step.logits * torch.arange(step.logits.numel()).view_as(step.logits).sin()).sum()
    results = [step.logits.detach(), *torch.autograd.grad(total, list(model.parameters()), allow_unused=True)]
    models.store_by_columns(model)
    with torch.no_grad():
        memory = model.encoder(sources)
    for width in (1, 3):
        for best in beam(model.decoder, memory, width=width, limits=[9] * 3, n_best=width):
            for hypothesis in best:
                results += [torch.tensor(hypothesis.tokens), torch.tensor(hypothesis.score), hypothesis.map]
    return [result for result in results if result is not None]


@pytest.mark.takes("joint_projection", "cache_buffer", "learned_positions", "recurrent_gates", "whole_beams")
@pytest.mark.parametrize("case", CASES)
def test_training_and_search_equal_the_definitions(case):
    results = []
    for plain in (False, True):
        torch.manual_seed(2)
        model = models.build(CASES[case], source_size=11, target_size=13, shared=False).double().eval()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.normal_(std=0.4)
        with count_answers() as answers, definitions_only(plain):
            results.append(outputs(model))
        taken = {name for name, counts in answers.items() if counts.taken}
        kind = "transformer" if case in ("transformer", "tied") else "recurrent"
        assert taken >= TAKEN[kind] | TAKEN["all"] if not plain else not taken
    for actual, expected in zip(*results, strict=True):
        torch.testing.assert_close(actual, expected, rtol=0.0, atol=1e-10)
