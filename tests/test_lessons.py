"""Every lesson runs and saves its pictures; every exercise accepts right answers and names the mistake in others."""

import ast
import importlib
import os
import re
import subprocess
import sys
from dataclasses import fields
from itertools import groupby
from pathlib import Path
from types import ModuleType

import pytest
import torch

from regard.attention import SCORES, attend
from regard.types import BEGIN, END, Step

ROOT = Path(__file__).parent.parent
LESSONS = sorted((ROOT / "docs/lessons").glob("lesson_*.py"), key=lambda path: int(path.stem.split("_")[1]))
SECONDS = 240  # a lesson takes far less than a minute, but the machine may be busy
QUIZ_FILE = ROOT / "docs/lessons/quiz_attention.py"
DIFFERS = "differs from the definition"


def import_lesson_module(name: str) -> ModuleType:
    sys.path.insert(0, str(ROOT / "docs/lessons"))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.pop(0)


@pytest.fixture(scope="module")
def exercises() -> ModuleType:
    return import_lesson_module("exercises")


@pytest.fixture(scope="module")
def marks() -> ModuleType:
    return import_lesson_module("quiz_marks")


def test_there_are_sixteen_lessons_each_with_exercises(exercises: ModuleType) -> None:
    assert [path.stem.split("_")[1] for path in LESSONS] == [str(number) for number in range(1, 17)]
    exercise_names = []
    for lesson in LESSONS:
        names = re.findall(r'^print\(check\("(\w+)", \w+\)\)$', lesson.read_text("utf-8"), re.M)
        assert 2 <= len(names) <= 3, lesson.name
        exercise_names += names
    assert exercise_names == list(exercises.EXERCISES)


REPEATED_OUTPUT = {  # output that the text of the lesson repeats
    "lesson_5_three_words": "6 maps: cross, global; cross, local_m; cross, local_p; self, global; self, local_m; self,",
    "lesson_8_words_and_positions": "same mean: True; same maximum: False",
    "lesson_9_self_attention": "symmetric: True",
}


@pytest.mark.parametrize("lesson", LESSONS, ids=lambda path: path.stem)
def test_no_lesson_compares_a_product_with_its_transpose_exactly(lesson: Path) -> None:
    """CPUs differ in the order of summation: `torch.equal(x @ x.T, (x @ x.T).T)` is False on some."""
    assert not re.search(r"torch\.equal\([^\n]*@[^\n]*\.T", lesson.read_text("utf-8"))


@pytest.mark.parametrize("lesson", LESSONS, ids=lambda path: path.stem)
def test_a_lesson_prints_a_line_before_each_training(lesson: Path) -> None:
    """Some trainings take ten seconds, which are silent otherwise."""
    lines = lesson.read_text("utf-8").splitlines()
    for number, line in enumerate(lines):
        if re.search(r"regard\.train\(|^    .* = learn\((model|count)\)", line):
            assert any("print(" in before and '"training: ' in before for before in lines[number - 2 : number]), line


def test_the_exercise_of_greedy_decoding_names_the_parts_of_a_step() -> None:
    lesson = LESSONS[0].read_text("utf-8")
    names = set(re.findall(r"`step\.(\w+)`", lesson))
    assert names == {"logits", "state"}
    assert names <= {field.name for field in fields(Step)}


SLOW = (  # other lessons cover parts of them
    *("lesson_1_bottleneck", "lesson_4_bahdanau_luong", "lesson_11_transformer", "lesson_12_bert_and_since"),
    *("lesson_13_lab", "lesson_14_captions", "lesson_15_listening", "lesson_16_forecasting"),
)
RUNNABLE = [pytest.param(path, marks=[pytest.mark.slow] if path.stem in SLOW else []) for path in LESSONS]


@pytest.mark.parametrize("lesson", RUNNABLE, ids=lambda path: path.stem)
def test_a_lesson_runs_and_saves_its_pictures(lesson: Path, tmp_path: Path) -> None:
    environment = os.environ | {"REGARD_LESSON_OUT": str(tmp_path / "out"), "OMP_NUM_THREADS": "1"}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-W", "error", str(lesson)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    expected_pictures = set(re.findall(r'keep\(.*, "(\w+)"\)$', lesson.read_text("utf-8"), re.M))
    assert expected_pictures
    pictures = {path.stem: path.read_bytes() for path in (tmp_path / "out").glob("*.png")}
    assert set(pictures) == expected_pictures
    for content in pictures.values():
        assert content.startswith(b"\x89PNG")
        assert len(content) > 1000
    assert (tmp_path / "out/.gitignore").read_text() == "*\n"
    assert [path.name for path in tmp_path.iterdir()] == ["out"], "a lesson writes nowhere else"
    assert REPEATED_OUTPUT.get(lesson.stem, "") in done.stdout
    titles = re.findall(r"^# #+ (.+)$", lesson.read_text("utf-8"), re.M)
    printed = re.findall(r"^\n(.+)\n-+$", "\n" + done.stdout, re.M)
    assert printed == [title for title in titles if title in printed]
    assert printed[0] == titles[0]
    assert {title for title in titles if title.startswith("Exercise")} <= set(printed)
    assert "False" not in done.stdout.replace(REPEATED_OUTPUT.get(lesson.stem, "\0"), "")
    exercise_names = re.findall(r'check\("(\w+)"', lesson.read_text("utf-8"))
    assert [line for line in done.stdout.splitlines() if ": not yet: nothing returned." in line] == [
        f"{name}: not yet: nothing returned. Fill the function in, then run the lesson again."
        for name in exercise_names
    ]


def test_in_a_notebook_an_exercise_speaks_of_its_cell() -> None:
    code = "from exercises import check; print(check('teacher_forcing', lambda target: None))"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT / "docs/lessons")])}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.endswith("nothing returned. Fill the function in, then run this cell again.\n")


def run_elsewhere(script: Path, folder: Path) -> str:
    """The output of a script that is run with another current folder, without REGARD_LESSON_OUT."""
    environment = {name: value for name, value in os.environ.items() if name != "REGARD_LESSON_OUT"}
    environment |= {"PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1", "TMPDIR": str(folder)}
    command = [sys.executable, "-W", "error", str(script)]
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=SECONDS, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_pictures_go_to_the_current_folder(tmp_path: Path) -> None:
    printed = run_elsewhere(ROOT / "docs/lessons/lesson_2_query_key_value.py", tmp_path)
    pictures = re.findall(r"^picture: (.+)$", printed, re.M)
    assert pictures
    assert {Path(picture).parent for picture in pictures} == {Path("lessons-out")}
    assert all((tmp_path / picture).exists() for picture in pictures)
    assert [path.name for path in tmp_path.iterdir()] == ["lessons-out"]


def test_pictures_go_to_a_temporary_folder_if_the_current_one_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "lessons-out").write_text("a file in the way, since root may write to every folder")
    printed = run_elsewhere(ROOT / "docs/lessons/lesson_2_query_key_value.py", tmp_path)
    pictures = [Path(picture) for picture in re.findall(r"^picture: (.+)$", printed, re.M)]
    assert len({picture.parent for picture in pictures}) == 1
    assert all(picture.exists() and picture.parent.name.startswith("lessons-out-") for picture in pictures)


def test_every_import_of_a_lesson_resolves_from_another_folder(tmp_path: Path) -> None:
    """The long lessons run in `make slow` alone; here only their imports do, with the search path that a script has."""
    imports = tmp_path / "imports.py"
    lines = [f"import sys; sys.path[0] = {str(ROOT / 'docs/lessons')!r}"]
    for path in (*LESSONS, QUIZ_FILE):
        text = path.read_text("utf-8")
        nodes = [node for node in ast.parse(text).body if isinstance(node, ast.Import | ast.ImportFrom)]
        lines += [ast.unparse(node) for node in nodes]
        assert not re.search(r"__file__|getcwd|chdir|[\"']docs/|\bopen\(", text), "a path that depends on the folder"
    imports.write_text("\n".join([*lines, "import quiz_marks", "print('all')"]), "utf-8")
    assert run_elsewhere(imports, tmp_path) == "all\n"


def test_the_quiz_runs_from_another_folder(tmp_path: Path) -> None:
    assert "\n0 of 10\n" in run_elsewhere(QUIZ_FILE, tmp_path)


# ---- right answers


def teacher_forcing(target):
    return target[:, :-1], target[:, 1:]


def greedy(decoder, memory, limit):
    prepared = decoder.prepare(memory)
    state, token, written = decoder.start(prepared), BEGIN, []
    while len(written) < limit:
        step = decoder.step(torch.tensor([[token]]), state, prepared)
        state, token = step.state, int(step.logits[0, -1].argmax())
        if token == END:
            break
        written.append(token)
    return written


def look(query, keys, values, mask):
    attended = attend(query, keys, values, score=lambda query, keys: query @ keys.T, mask=mask)
    return attended.context, attended.weights


def self_attention(x):
    weights = torch.softmax(x @ x.T, dim=-1)
    return weights @ x, weights


def padded_mean(states, lengths):
    mask = torch.arange(states.shape[1]) < lengths.unsqueeze(-1)
    return (states * mask.unsqueeze(-1)).sum(1) / lengths.unsqueeze(-1)


def additive_from_concat(W, v, queries, keys):
    width = queries.shape[-1]
    return torch.tanh((queries @ W[:, :width].T).unsqueeze(1) + keys @ W[:, width:].T) @ v


def bilinear(W_q, W_k):
    return W_q.T @ W_k


def which_weight(x, W_q, W_k):
    return torch.softmax((x @ W_q.T) @ (x @ W_k.T).T, dim=-1)


def bahdanau_step(state, word, look, cell):
    context = look(state)
    return cell(torch.cat([word, context]), state), context


def luong_step(state, word, look, cell, W):
    state = cell(word, state)
    return state, torch.tanh(W @ torch.cat([look(state), state]))


def causal(length):
    return torch.ones(length, length).tril().bool()


def local_m(queries, keys, window, start):
    return (torch.arange(keys) - torch.arange(start, start + queries).unsqueeze(-1)).abs() <= window


def local_p(weights, centre, window):
    places = torch.arange(len(weights))
    return weights * torch.exp(-((places - centre) ** 2) / (2 * (window / 2) ** 2))


def kernel_regression(x, places, heights, bandwidth):
    return torch.softmax(-((x.unsqueeze(-1) - places) ** 2) / (2 * bandwidth**2), dim=-1) @ heights


def leave_one_out(places, heights, bandwidth):
    scores = -((places.unsqueeze(-1) - places) ** 2) / (2 * bandwidth**2)
    weights = torch.softmax(scores.fill_diagonal_(-torch.inf), dim=-1)
    return (weights @ heights - heights).square().mean()


def lstm_step(x, h, c, W, U, b):
    input_gate, forget_gate, candidate, output_gate = (W @ x + U @ h + b).chunk(4)
    c = torch.sigmoid(forget_gate) * c + torch.sigmoid(input_gate) * torch.tanh(candidate)
    return torch.sigmoid(output_gate) * torch.tanh(c), c


def squeeze_excite(x, V, c, W, b):
    return x * torch.sigmoid(W @ torch.relu(V @ x.mean(0) + c) + b)


def sinusoids(length, dim):
    angles = torch.arange(length).unsqueeze(-1) / 10000 ** (torch.arange(0, dim, 2) / dim)
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(-2)


def rotary(x):
    sine, cosine = sinusoids(*x.shape).unflatten(-1, (-1, 2)).unbind(-1)
    even, odd = x[:, 0::2], x[:, 1::2]
    return torch.stack([even * cosine - odd * sine, even * sine + odd * cosine], dim=-1).flatten(-2)


def weighted_self_attention(x, W_q, W_k, W_v):
    weights = torch.softmax((x @ W_q) @ (x @ W_k).T / W_k.shape[1] ** 0.5, dim=-1)
    return weights @ x @ W_v, weights


def softmax_slopes(a):
    return torch.diag(a) - torch.outer(a, a)


def multi_head(x, W_q, W_k, W_v, W_o, heads):
    query, key, value = ((x @ W).unflatten(-1, (heads, -1)).transpose(0, 1) for W in (W_q, W_k, W_v))
    contexts = torch.softmax(query @ key.mT / key.shape[-1] ** 0.5, dim=-1) @ value
    return contexts.transpose(0, 1).flatten(-2) @ W_o


def keys_for_heads(keys, heads):
    return keys.repeat_interleave(heads // len(keys), dim=0)


def target_mask(lengths, longest):
    real = torch.arange(longest) < lengths.view(-1, 1, 1)
    return torch.ones(longest, longest).tril().bool() & real


def pre_norm(x, f, norm):
    return x + f(norm(x))


def hide(ids, asked, luck, others, mask_id):
    read = torch.where(asked & (luck < 0.9), others, ids)
    return torch.where(asked & (luck < 0.8), mask_id, read)


def masked_loss(logits, ids, asked):
    return torch.nn.functional.cross_entropy(logits[asked], ids[asked])


def pad_and_mask(rows, pad):
    longest = max(map(len, rows))
    ids = torch.tensor([row + [pad] * (longest - len(row)) for row in rows])
    return ids, torch.arange(longest) < torch.tensor([[len(row)] for row in rows])


def take_over(theirs, ours):
    return {name: theirs[name] if fits(theirs, name, tensor) else tensor for name, tensor in ours.items()}


def fits(theirs, name, tensor):
    return name in theirs and theirs[name].shape == tensor.shape


def attend_to_cells(a, h, W, U, v):
    weights = torch.softmax(torch.tanh(W @ h + a @ U.T) @ v, dim=0)
    return weights @ a, weights


def heaviest_cells(weights, width):
    cells = weights.argmax(-1)
    return torch.stack([cells // width, cells % width], dim=-1)


def doubly_stochastic(weights):
    return (1 - weights.sum(0)).square().sum()


def join_pairs(states):
    padded = torch.cat([states, states.new_zeros(len(states) % 2, states.shape[1])])
    return padded.view(-1, 2 * states.shape[1])


def token_seconds(weights, seconds):
    return weights.argmax(-1) * seconds


def collapse(labels, blank):
    return [label for label, _ in groupby(labels) if label != blank]


def windows_of(history, width, horizon, bandwidth):
    windows = history.unfold(0, width + horizon, 1)
    distances = (windows[:, :width] - history[-width:]).square().sum(-1)
    return torch.exp(-distances / (2 * bandwidth**2)), windows


def kernel_forecast(history, width, horizon, bandwidth):
    weights, windows = windows_of(history, width, horizon, bandwidth)
    return weights / weights.sum() @ windows[:, width:]


def quantile_loss(observed, predicted, level):
    difference = observed - predicted
    return torch.maximum(level * difference, (level - 1) * difference).mean()


def interval_coverage(paths, observed, share):
    return covered(observed, paths.quantile((1 - share) / 2, dim=0), paths.quantile((1 + share) / 2, dim=0))


def covered(observed, low, high):
    return ((low <= observed) & (observed <= high)).double().mean()


RIGHT = {
    each.__name__: each
    for each in (
        *(teacher_forcing, greedy, look, self_attention, padded_mean, additive_from_concat, bilinear, which_weight),
        *(bahdanau_step, luong_step, causal, local_m, local_p, kernel_regression, leave_one_out),
        *(lstm_step, squeeze_excite, sinusoids, rotary, weighted_self_attention, softmax_slopes),
        *(multi_head, keys_for_heads, target_mask, pre_norm, hide, masked_loss),
        *(pad_and_mask, take_over),
        *(attend_to_cells, heaviest_cells, doubly_stochastic, join_pairs, token_seconds, collapse),
        *(kernel_forecast, quantile_loss, interval_coverage),
    )
}


def test_right_answers_pass(exercises: ModuleType) -> None:
    assert list(RIGHT) == list(exercises.EXERCISES)
    for name, answer in RIGHT.items():
        verdict = exercises.check(name, answer)
        assert verdict.failed is None, str(verdict)
        assert str(verdict) == f"{name}: right."


# ---- wrong answers, each with the name of its mistake


def greedy_with(*, first=BEGIN, carry=True, feed=True, limited=True, keep_end=False, stop=True):
    """Greedy decoding with one mistake."""

    def answer(decoder, memory, limit):
        prepared = decoder.prepare(memory)
        state, token, written = decoder.start(prepared), first, []
        while len(written) < (limit if limited else 40):
            step = decoder.step(torch.tensor([[token if feed else BEGIN]]), state, prepared)
            state, token = (step.state if carry else state), int(step.logits[0, -1].argmax())
            if token == END and stop:
                return [*written, token] if keep_end else written
            if token != END:
                written.append(token)
        return written

    return answer


def masked_after(query, keys, values, mask):
    weights = torch.softmax(query @ keys.T, dim=-1) * mask
    return weights @ values, weights


def unmasked(query, keys, values, mask):
    weights = torch.softmax(query @ keys.T, dim=-1)
    return weights @ values, weights


def minus_infinity(query, keys, values, mask):
    weights = torch.softmax((query @ keys.T).masked_fill(~mask, -torch.inf), dim=-1)
    return weights @ values, weights


def over_queries(query, keys, values, mask):
    weights = torch.softmax((query @ keys.T).masked_fill(~mask, -1e9), dim=0)
    return weights @ values, weights


def unnormalised(query, keys, values, mask):
    weights = (query @ keys.T).exp() * mask
    return weights @ values, weights


def keys_for_values(query, keys, values, mask):
    _, weights = look(query, keys, values, mask)
    return weights @ keys, weights


def padding_summed(query, keys, values, mask):
    _, weights = look(query, keys, values, mask)
    return torch.softmax(query @ keys.T, dim=-1) @ values, weights


def scaled(query, keys, values, mask):
    return look(query / 2, keys, values, mask)


def without_itself(x):
    scores = (x @ x.T).fill_diagonal_(-torch.inf)
    weights = torch.softmax(scores, dim=-1)
    return weights @ x, weights


def without_first_word(x):
    weights = torch.softmax(x @ x.T, dim=-1)
    return weights[:, 1:] @ x[1:], weights


def softmax_over_columns(x):
    weights = torch.softmax(x @ x.T, dim=0)
    return weights @ x, weights


def cell_first(state, word, look, cell):
    after = cell(torch.cat([word, word[:2]]), state)
    return after, look(after)


def state_as_input(state, word, look, cell):
    context = look(state)
    return cell(torch.cat([context, state]), state), context


def no_context(state, word, look, cell):
    context = look(state)
    return cell(torch.cat([word, state]), state), context


def context_before_word(state, word, look, cell):
    context = look(state)
    return cell(torch.cat([context, word]), state), context


def old_state(state, word, look, cell):
    context = look(state)
    cell(torch.cat([word, context]), state)
    return state, context


def zeros_as_query(state, word, look, cell):
    context = look(torch.zeros_like(state))
    return cell(torch.cat([word, context]), state), context


def look_first(state, word, look, cell, W):
    context = look(state)
    after = cell(word, state)
    return after, torch.tanh(W @ torch.cat([context, after]))


def old_state_as_query(state, word, look, cell, W):
    after = cell(word, state)
    return after, torch.tanh(W @ torch.cat([look(state), after]))


def state_as_cell_input(state, word, look, cell, W):
    after = cell(torch.cat([word, state]), state)
    return after, torch.tanh(W @ torch.cat([look(after), after]))


def without_tanh(state, word, look, cell, W):
    after = cell(word, state)
    return after, W @ torch.cat([look(after), after])


def state_before_context(state, word, look, cell, W):
    after = cell(word, state)
    return after, torch.tanh(W @ torch.cat([after, look(after)]))


def kernel(x, places, bandwidth):
    return torch.exp(-((x.unsqueeze(-1) - places) ** 2) / (2 * bandwidth**2))


def lstm_with(order=(0, 1, 2, 3), squash=torch.sigmoid, shown=torch.tanh):
    def answer(x, h, c, W, U, b):
        chunks = (W @ x + U @ h + b).chunk(4)
        input_gate, forget_gate, candidate, output_gate = (chunks[index] for index in order)
        c = squash(forget_gate) * c + squash(input_gate) * torch.tanh(candidate)
        return squash(output_gate) * shown(c), c

    return answer


def excite_with(inner=torch.relu, outer=torch.sigmoid):
    return lambda x, V, c, W, b: x * outer(W @ inner(V @ x.mean(0) + c) + b)


def cosine_with_own_exponent(length, dim):
    angles = torch.arange(length).unsqueeze(-1) / 10000 ** (torch.arange(dim) / dim)
    return torch.where(torch.arange(dim) % 2 == 0, angles.sin(), angles.cos())


def sinusoids_added(x):
    return x + sinusoids(*x.shape) - sinusoids(1, x.shape[1])


def rotated_by(x, angles):
    even, odd = x[:, 0::2], x[:, 1::2]
    rotated = [even * angles.cos() - odd * angles.sin(), even * angles.sin() + odd * angles.cos()]
    return torch.stack(rotated, dim=-1).flatten(-2)


def squared_positions(x):
    places = torch.arange(len(x)).unsqueeze(-1) ** 2
    return rotated_by(x, places / 10000 ** (torch.arange(0, x.shape[1], 2) / x.shape[1]))


def in_halves(x):
    first, second = x.chunk(2, dim=-1)
    sine, cosine = sinusoids(*x.shape).unflatten(-1, (-1, 2)).unbind(-1)
    return torch.cat([first * cosine - second * sine, first * sine + second * cosine], dim=-1)


def self_attention_with(x, W_q, W_k, W_v, scale=6**0.5, values=None, dim=-1):
    weights = torch.softmax((x @ W_q) @ (x @ W_k).T / scale, dim=dim)
    return weights @ (x @ W_v if values is None else values), weights


def heads_with(*, scale=None, mixed=True, split=lambda wide, heads: wide.unflatten(-1, (heads, -1)).transpose(0, 1)):
    def answer(x, W_q, W_k, W_v, W_o, heads):
        query, key, value = (split(x @ W, heads) for W in (W_q, W_k, W_v))
        contexts = torch.softmax(query @ key.mT / (scale or key.shape[-1] ** 0.5), dim=-1) @ value
        joined = torch.cat(list(contexts), dim=-1)
        return joined @ W_o if mixed else joined

    return answer


def interleaved_heads(x, W_q, W_k, W_v, W_o, heads):
    query, key, value = ((x @ W).unflatten(-1, (-1, heads)).permute(2, 0, 1) for W in (W_q, W_k, W_v))
    contexts = torch.softmax(query @ key.mT / key.shape[-1] ** 0.5, dim=-1) @ value
    return contexts.permute(1, 2, 0).flatten(-2) @ W_o


def rows_hidden(lengths, longest):
    return target_mask(lengths, longest) & (torch.arange(longest) < lengths.unsqueeze(-1)).unsqueeze(-1)


def hide_with(low=0.8, high=0.9, everywhere=False):
    def answer(ids, asked, luck, others, mask_id):
        asked = asked | everywhere
        read = torch.where(asked & (luck < high), others, ids)
        return torch.where(asked & (luck < low), mask_id, read)

    return answer


def token_losses(logits, ids):
    return torch.nn.functional.cross_entropy(logits.mT, ids, reduction="none")


def cut_short(rows, pad):
    return torch.tensor([[row[0]] + [pad] * 4 for row in rows]), pad_and_mask(rows, pad)[1]


def padded_left(rows, pad):
    ids = torch.tensor([[pad] * (5 - len(row)) + row for row in rows])
    return ids, pad_and_mask(rows, pad)[1].flip(1)


def mask_by_id(rows, pad):
    ids, _ = pad_and_mask(rows, pad)
    return ids, ids != pad


def taken_over_in_place(theirs, ours):
    for name, tensor in ours.items():
        ours[name] = theirs[name] if fits(theirs, name, tensor) else tensor
    return ours


def mask_inverted(query, keys, values, mask):
    return look(query, keys, values, ~mask)


def greedy_by(*, memory_for_ready=False, whole_prefix=False, fewer=0, rank=0):
    """Greedy decoding with a mistake that only a decoder which checks its inputs detects."""

    def answer(decoder, memory, limit):
        prepared = decoder.prepare(memory)
        state, read, written = decoder.start(prepared), [BEGIN], []
        while len(written) < limit - fewer:
            tokens = torch.tensor([read if whole_prefix else read[-1:]])
            step = decoder.step(tokens, state, memory if memory_for_ready else prepared)
            ranked = step.logits[0, -1].argsort(descending=True)
            state, token = step.state, int(ranked[0])
            if token == END:
                break
            read.append(int(ranked[rank]))
            written.append(read[-1])
        return written

    return answer


def state_forgotten(state, word, look, cell):
    context = look(state)
    return cell(torch.cat([word, context]), torch.zeros_like(state)), context


def luong_state_forgotten(state, word, look, cell, W):
    after = cell(word, torch.zeros_like(state))
    return after, torch.tanh(W @ torch.cat([look(after), after]))


def left_out_by_place(places, heights, bandwidth):
    """All points with the same x are masked, not only the point itself."""
    scores = -((places.unsqueeze(-1) - places) ** 2) / (2 * bandwidth**2)
    weights = torch.softmax(scores.masked_fill(scores == 0, -torch.inf), dim=-1)
    return (weights @ heights - heights).square().mean()


def cells_with(normalize=lambda scores: scores.softmax(0), squash=torch.tanh):
    """Attention to cells with one mistake."""

    def answer(a, h, W, U, v):
        weights = normalize(squash(W @ h + a @ U.T) @ v)
        return weights @ a, weights

    return answer


def halves_joined(states):
    first, second = join_pairs(states).view(2, 4, 3)
    return torch.cat([first, second], dim=-1)


def unnormalised_windows(history, width, horizon, bandwidth):
    weights, windows = windows_of(history, width, horizon, bandwidth)
    return weights @ windows[:, width:]


def averaged_windows(history, width, horizon, bandwidth):
    weights, windows = windows_of(history, width, horizon, bandwidth)
    return weights / weights.sum() @ windows[:, :horizon]


WRONG = [
    ("teacher_forcing", "the model can read the word it should predict", lambda target: (target, target)),
    ("teacher_forcing", "wrong order", lambda target: (target[:, 1:], target[:, :-1])),
    ("teacher_forcing", "<s> is missing", lambda target: (target[:, 1:-1], target[:, 2:])),
    (
        "teacher_forcing",
        "</s> is never to be predicted",
        lambda target: (target[:, :-2], target[:, 1:].clamp(min=4)[:, :-1]),
    ),
    ("teacher_forcing", DIFFERS, lambda target: (target, target[:, 1:])),
    ("greedy", "<s> is missing", greedy_with(first=END)),
    ("greedy", "the memory is not prepared", greedy_by(memory_for_ready=True)),
    ("greedy", "the state is not passed on", greedy_with(carry=False)),
    ("greedy", "a token is read twice", greedy_by(whole_prefix=True)),
    ("greedy", "the limit is ignored", greedy_with(limited=False)),
    ("greedy", "ends before the limit", greedy_by(fewer=1)),
    ("greedy", "the output is not fed back", greedy_with(feed=False)),
    ("greedy", "</s> is part of the output", greedy_with(keep_end=True)),
    ("greedy", "does not stop at </s>", greedy_with(stop=False)),
    ("greedy", DIFFERS, greedy_by(rank=1)),
    ("look", "wrong order", lambda *given: look(*given)[::-1]),
    ("look", "mask inverted", mask_inverted),
    ("look", "softmax over the wrong axis", over_queries),
    ("look", "weights not summing to one", unnormalised),
    ("look", "mask ignored", unmasked),
    ("look", "masked after the softmax", masked_after),
    ("look", "NaN if all keys are masked", minus_infinity),
    ("look", "keys returned in place of values", keys_for_values),
    ("look", "padding seen", padding_summed),
    ("look", DIFFERS, scaled),
    ("self_attention", "wrong order", lambda x: self_attention(x)[::-1]),
    ("self_attention", "softmax over the wrong axis", softmax_over_columns),
    ("self_attention", "weights not summing to one", lambda x: (x @ x.T @ x, x @ x.T)),
    ("self_attention", "a word does not attend to itself", without_itself),
    ("self_attention", DIFFERS, lambda x: (x, self_attention(x / 2)[1])),
    ("self_attention", "a word is missing from the sum", without_first_word),
    ("padded_mean", "wrong shape", lambda states, lengths: states.mean()),
    ("padded_mean", "padding seen", lambda states, lengths: states.mean(1)),
    ("padded_mean", "divided by the padded length", lambda s, n: padded_mean(s, n) * n.unsqueeze(-1) / s.shape[1]),
    ("padded_mean", DIFFERS, lambda states, lengths: 2 * padded_mean(states, lengths)),
    (
        "additive_from_concat",
        "v forgotten",
        lambda W, v, q, k: torch.tanh((q @ W[:, :3].T).unsqueeze(1) + k @ W[:, 3:].T),
    ),
    ("additive_from_concat", "wrong shape", lambda W, v, q, k: additive_from_concat(W, v, q, k).T),
    (
        "additive_from_concat",
        "tanh forgotten",
        lambda W, v, q, k: ((q @ W[:, :3].T).unsqueeze(1) + k @ W[:, 3:].T) @ v,
    ),
    (
        "additive_from_concat",
        "W split at the wrong column",
        lambda W, v, q, k: torch.tanh((q @ W[:, 5:].T).unsqueeze(1) + k @ W[:, :5].T) @ v,
    ),
    ("bilinear", "transposed", lambda W_q, W_k: W_k.T @ W_q),
    ("bilinear", "wrong shape", lambda W_q, W_k: W_q.T @ W_q),
    ("bilinear", DIFFERS, lambda W_q, W_k: W_q.T @ W_k / 2),
    ("bilinear", "an error was raised", lambda W_q, W_k: W_q @ W_k),
    ("bahdanau_step", "wrong order", cell_first),
    ("bahdanau_step", "wrong query", zeros_as_query),
    ("bahdanau_step", "the word does not enter the cell", state_as_input),
    ("bahdanau_step", "the context does not enter the cell", no_context),
    ("bahdanau_step", "wrong input of the cell", context_before_word),
    ("bahdanau_step", "wrong state of the cell", state_forgotten),
    ("bahdanau_step", "wrong result", old_state),
    ("luong_step", "wrong order", look_first),
    ("luong_step", "wrong query", old_state_as_query),
    ("luong_step", "wrong input of the cell", state_as_cell_input),
    ("luong_step", "wrong state of the cell", luong_state_forgotten),
    ("luong_step", "tanh forgotten", without_tanh),
    ("luong_step", "wrong result", state_before_context),
    ("causal", "not boolean", lambda length: torch.ones(length, length).tril()),
    ("causal", "wrong shape", lambda length: causal(length + 1)),
    ("causal", "mask inverted", lambda length: ~causal(length)),
    ("causal", "the future is seen", lambda length: causal(length).T),
    ("causal", "own position masked", lambda length: causal(length).tril(-1)),
    ("causal", DIFFERS, lambda length: torch.eye(length).bool()),
    ("local_m", "not boolean", lambda *given: local_m(*given).float()),
    ("local_m", "wrong shape", lambda *given: local_m(*given).T),
    ("local_m", "start ignored", lambda queries, keys, window, start: local_m(queries, keys, window, 0)),
    ("local_m", "window too narrow", lambda queries, keys, window, start: local_m(queries, keys, window - 1, start)),
    ("local_m", "window too wide", lambda queries, keys, window, start: local_m(queries, keys, window + 1, start)),
    ("local_m", DIFFERS, lambda queries, keys, window, start: local_m(queries, keys, 2, start)),
    ("local_p", "weights normalised again", lambda *given: local_p(*given) / local_p(*given).sum()),
    ("local_p", "wrong width of the Gaussian", lambda weights, p, window: local_p(weights, p, 2 * window)),
    ("local_p", DIFFERS, lambda weights, p, window: local_p(weights, p + 1, window)),
    ("kernel_regression", "wrong shape", lambda x, places, heights, h: heights),
    ("kernel_regression", "weights not summing to one", lambda x, places, heights, h: kernel(x, places, h) @ heights),
    ("kernel_regression", "bandwidth ignored", lambda x, places, heights, h: kernel_regression(x, places, heights, 1)),
    (
        "kernel_regression",
        "bandwidth inverted",
        lambda x, places, heights, h: kernel_regression(x, places, heights, 1 / h),
    ),
    ("kernel_regression", DIFFERS, lambda x, places, heights, h: kernel_regression(x, places, heights, h**0.5)),
    (
        "leave_one_out",
        "each point predicts itself",
        lambda places, heights, h: (kernel_regression(places, places, heights, h) - heights).square().mean(),
    ),
    ("leave_one_out", "summed, not averaged", lambda places, heights, h: 7 * leave_one_out(places, heights, h)),
    ("leave_one_out", DIFFERS, lambda places, heights, h: leave_one_out(places, heights, h).sqrt()),
    ("leave_one_out", "another point at the same place is masked", left_out_by_place),
    ("lstm_step", "wrong order", lambda *given: lstm_step(*given)[::-1]),
    ("lstm_step", "input and forget gate swapped", lstm_with(order=(1, 0, 2, 3))),
    ("lstm_step", "a gate that is not between 0 and 1", lstm_with(squash=torch.tanh)),
    ("lstm_step", "the tanh of the cell is missing", lstm_with(shown=lambda c: c)),
    ("lstm_step", DIFFERS, lstm_with(order=(0, 1, 3, 2))),
    ("squeeze_excite", "the gate itself returned", lambda x, *parts: squeeze_excite(x, *parts)[0] / x[0]),
    ("squeeze_excite", "wrong shape", lambda x, *parts: squeeze_excite(x, *parts).T),
    (
        "squeeze_excite",
        "each position has its own gate",
        lambda x, V, c, W, b: x * torch.sigmoid(torch.relu(x @ V.T + c) @ W.T + b),
    ),
    ("squeeze_excite", "relu forgotten", excite_with(inner=lambda x: x)),
    ("squeeze_excite", "channels compete", excite_with(outer=lambda x: x.softmax(-1))),
    ("squeeze_excite", DIFFERS, excite_with(outer=torch.tanh)),
    ("sinusoids", "wrong shape", lambda length, dim: sinusoids(length, dim).T),
    ("sinusoids", "starts at position 1", lambda length, dim: sinusoids(length + 1, dim)[1:]),
    (
        "sinusoids",
        "sines and cosines do not alternate",
        lambda n, dim: torch.cat([sinusoids(n, dim)[:, k::2] for k in (0, 1)], 1),
    ),
    ("sinusoids", "the cosine has an exponent of its own", cosine_with_own_exponent),
    ("sinusoids", DIFFERS, lambda length, dim: sinusoids(length, 2 * dim)[:, :dim]),
    ("rotary", "wrong shape", lambda x: rotary(x).T),
    ("rotary", "position 0 is rotated", lambda x: rotary(torch.cat([x[:1], x]))[1:]),
    ("rotary", "lengths change", sinusoids_added),
    ("rotary", "depends on more than the distance", squared_positions),
    (
        "rotary",
        "rotated in the wrong direction",
        lambda x: rotary(x.view(7, 3, 2).flip(-1).flatten(1)).view(7, 3, 2).flip(-1).flatten(1),
    ),
    ("rotary", "other numbers are paired", in_halves),
    ("rotary", DIFFERS, lambda x: rotated_by(x, torch.arange(7).unsqueeze(-1) / torch.tensor([1.0, 2.0, 3.0]))),
    ("weighted_self_attention", "wrong order", lambda *given: weighted_self_attention(*given)[::-1]),
    ("weighted_self_attention", "softmax over the wrong axis", lambda *given: self_attention_with(*given, dim=0)),
    ("weighted_self_attention", "weights not summing to one", lambda x, q, k, v: (x @ v, (x @ q) @ (x @ k).T / 2)),
    ("weighted_self_attention", "scale forgotten", lambda *given: self_attention_with(*given, scale=1.0)),
    (
        "weighted_self_attention",
        "divided by d_k, not by its root",
        lambda *given: self_attention_with(*given, scale=6.0),
    ),
    ("weighted_self_attention", "scaled by the wrong width", lambda *given: self_attention_with(*given, scale=3**0.5)),
    ("weighted_self_attention", "query and key swapped", lambda x, q, k, v: weighted_self_attention(x, k, q, v)),
    ("weighted_self_attention", "W_v forgotten", lambda *given: self_attention_with(*given, values=given[0])),
    ("weighted_self_attention", DIFFERS, lambda x, q, k, v: self_attention_with(x, q, k, 2 * v)),
    ("softmax_slopes", "wrong shape", lambda a: a * (1 - a)),
    ("softmax_slopes", "the other weights do not change", lambda a: torch.diag(a * (1 - a))),
    ("softmax_slopes", "weights would not sum to one any more", lambda a: torch.diag(a) - torch.outer(a, a) / 2),
    ("softmax_slopes", "wrong sign", lambda a: -softmax_slopes(a)),
    ("softmax_slopes", DIFFERS, lambda a: softmax_slopes(a) / 2),
    ("multi_head", "wrong shape", lambda x, *rest: multi_head(x, *rest).T),
    ("multi_head", "heads ignored", lambda x, q, k, v, o, heads: multi_head(x, q, k, v, o, 1)),
    ("multi_head", "W_o forgotten", heads_with(mixed=False)),
    ("multi_head", "scaled by the whole width", heads_with(scale=6**0.5)),
    ("multi_head", "scale forgotten", heads_with(scale=1.0)),
    ("multi_head", DIFFERS, interleaved_heads),
    (
        "multi_head",
        "heads split across words",
        heads_with(split=lambda wide, heads: wide.reshape(heads, *[len(wide), -1])),
    ),
    ("keys_for_heads", "wrong shape", lambda keys, heads: keys),
    ("keys_for_heads", "groups interleaved", lambda keys, heads: keys.repeat(heads // len(keys), 1, 1)),
    ("keys_for_heads", DIFFERS, lambda keys, heads: keys_for_heads(keys, heads).flip(0)),
    ("target_mask", "not boolean", lambda *given: target_mask(*given).float()),
    ("target_mask", "wrong shape", lambda lengths, longest: target_mask(lengths, longest)[0]),
    ("target_mask", "mask inverted", lambda *given: ~target_mask(*given)),
    (
        "target_mask",
        "the future is seen",
        lambda lengths, longest: (torch.arange(6) < lengths.view(-1, 1, 1)).expand(3, 6, 6),
    ),
    ("target_mask", "padding seen", lambda lengths, longest: torch.ones(3, 6, 6).tril().bool()),
    ("target_mask", "rows masked, not columns", rows_hidden),
    ("target_mask", DIFFERS, lambda *given: target_mask(*given).tril(-1)),
    ("pre_norm", "wrong shape", lambda x, f, norm: (x + f(norm(x))).mean()),
    ("pre_norm", "the residual is missing", lambda x, f, norm: f(norm(x))),
    ("pre_norm", "that is post-norm", lambda x, f, norm: norm(x + f(x))),
    ("pre_norm", "the residual is normalised", lambda x, f, norm: norm(x) + f(norm(x))),
    ("pre_norm", "the input of f is not normalised", lambda x, f, norm: x + f(x)),
    ("pre_norm", DIFFERS, lambda x, f, norm: norm(x + f(norm(x)))),
    ("hide", "wrong shape", lambda ids, *rest: hide(ids, *rest)[0]),
    ("hide", "a token that is not asked for is changed", hide_with(everywhere=True)),
    ("hide", "every asked token is masked", hide_with(low=1.0)),
    ("hide", "not masked where luck is below 0.8", hide_with(low=0.7)),
    ("hide", "not replaced where luck is from 0.8 to 0.9", hide_with(low=0.8, high=0.81)),
    ("hide", DIFFERS, hide_with(high=1.0)),
    ("masked_loss", "wrong shape", lambda logits, ids, asked: token_losses(logits, ids)[asked]),
    ("masked_loss", "all positions are counted", lambda logits, ids, asked: token_losses(logits, ids).mean()),
    ("masked_loss", "divided by all positions", lambda logits, ids, asked: (token_losses(logits, ids) * asked).mean()),
    ("masked_loss", "summed, not averaged", lambda logits, ids, asked: token_losses(logits, ids)[asked].sum()),
    (
        "masked_loss",
        "a mean of means",
        lambda logits, ids, asked: ((token_losses(logits, ids) * asked).sum(1) / asked.sum(1)).mean(),
    ),
    ("masked_loss", DIFFERS, lambda logits, ids, asked: 2 * masked_loss(logits, ids, asked)),
    ("pad_and_mask", "wrong order", lambda *given: pad_and_mask(*given)[::-1]),
    ("pad_and_mask", "not boolean", lambda *given: (pad_and_mask(*given)[0], pad_and_mask(*given)[1].int())),
    ("pad_and_mask", "wrong shape", lambda *given: tuple(each.T for each in pad_and_mask(*given))),
    ("pad_and_mask", "padded on the left", padded_left),
    ("pad_and_mask", "tokens lost", cut_short),
    ("pad_and_mask", "pad ignored", lambda rows, pad: pad_and_mask(rows, 0)),
    ("pad_and_mask", "mask inverted", lambda *given: (pad_and_mask(*given)[0], ~pad_and_mask(*given)[1])),
    ("pad_and_mask", "a real token is taken for padding", mask_by_id),
    ("pad_and_mask", DIFFERS, lambda *given: (pad_and_mask(*given)[0], torch.ones(3, 5, dtype=torch.bool))),
    ("take_over", "a name that ours does not have", lambda theirs, ours: ours | theirs),
    ("take_over", "a name is missing", lambda theirs, ours: {name: theirs[name] for name in ours if name in theirs}),
    ("take_over", "shapes do not fit", lambda theirs, ours: {name: theirs.get(name, ours[name]) for name in ours}),
    ("take_over", "nothing is taken over", lambda theirs, ours: dict(ours)),
    ("take_over", "the inputs are changed", taken_over_in_place),
    ("take_over", DIFFERS, lambda theirs, ours: take_over(theirs, {name: 2 * each for name, each in ours.items()})),
    ("attend_to_cells", "wrong order", lambda *given: attend_to_cells(*given)[::-1]),
    ("attend_to_cells", "weights not summing to one", cells_with(lambda scores: scores.sigmoid())),
    ("attend_to_cells", "the tanh is missing", cells_with(squash=lambda x: x)),
    ("attend_to_cells", "the state is ignored", lambda a, h, W, U, v: attend_to_cells(a, 0 * h, W, U, v)),
    (
        "attend_to_cells",
        "projected cells are summed",
        lambda a, h, W, U, v: (attend_to_cells(a, h, W, U, v)[1] @ a @ U.T, attend_to_cells(a, h, W, U, v)[1]),
    ),
    ("attend_to_cells", "all cells count alike", lambda a, *rest: (a.mean(0), attend_to_cells(a, *rest)[1])),
    ("attend_to_cells", DIFFERS, cells_with(lambda scores: (scores / 2).softmax(0))),
    ("heaviest_cells", "wrong shape", lambda weights, width: weights.argmax(-1)),
    ("heaviest_cells", "row and column exchanged", lambda weights, width: heaviest_cells(weights, width).flip(-1)),
    (
        "heaviest_cells",
        "cells counted column by column",
        lambda weights, width: torch.stack([weights.argmax(-1) % 2, weights.argmax(-1) // 2], dim=-1),
    ),
    ("heaviest_cells", DIFFERS, lambda weights, width: heaviest_cells(-weights, width)),
    ("doubly_stochastic", "not one number", lambda weights: (1 - weights.sum(0)).square()),
    ("doubly_stochastic", "summed over the cells of a word", lambda weights: doubly_stochastic(weights.T)),
    ("doubly_stochastic", "not squared", lambda weights: (1 - weights.sum(0)).abs().sum()),
    ("doubly_stochastic", "averaged", lambda weights: (1 - weights.sum(0)).square().mean()),
    ("doubly_stochastic", DIFFERS, lambda weights: weights.sum(0).square().sum()),
    ("join_pairs", "the last frame is lost", lambda states: states[:-1].view(3, 6)),
    ("join_pairs", "not half as many", lambda states: torch.cat([states[:-1], states[1:]], dim=-1)),
    ("join_pairs", "added, not joined", lambda states: join_pairs(states).unflatten(-1, (2, 3)).sum(1)),
    ("join_pairs", "frames that are no neighbours", halves_joined),
    (
        "join_pairs",
        "the later frame first",
        lambda states: join_pairs(states).unflatten(-1, (2, 3)).flip(1).flatten(1),
    ),
    ("join_pairs", DIFFERS, lambda states: 2 * join_pairs(states)),
    ("token_seconds", "wrong shape", lambda weights, seconds: weights.argmax(0) * seconds),
    ("token_seconds", "positions, not seconds", lambda weights, seconds: weights.argmax(-1)),
    (
        "token_seconds",
        "a mean of times",
        lambda weights, seconds: weights @ (torch.arange(weights.shape[1]).double() * seconds),
    ),
    ("token_seconds", DIFFERS, lambda weights, seconds: (weights.argmax(-1) + 1) * seconds),
    ("collapse", "blanks stay", lambda labels, blank: [label for label, _ in groupby(labels)]),
    ("collapse", "repeats stay", lambda labels, blank: [label for label in labels if label != blank]),
    (
        "collapse",
        "double letters are lost",
        lambda labels, blank: [label for label, _ in groupby(each for each in labels if each != blank)],
    ),
    ("collapse", DIFFERS, lambda labels, blank: collapse(labels, blank)[::-1]),
    ("kernel_forecast", "wrong shape", lambda *given: kernel_forecast(*given)[:1]),
    ("kernel_forecast", "weights not summing to one", unnormalised_windows),
    (
        "kernel_forecast",
        "the windows are averaged, not what followed them",
        averaged_windows,
    ),
    (
        "kernel_forecast",
        "all windows count equally",
        lambda history, width, horizon, bandwidth: history.unfold(0, width + horizon, 1)[:, width:].mean(0),
    ),
    (
        "kernel_forecast",
        DIFFERS,
        lambda history, width, horizon, bandwidth: kernel_forecast(history, width, horizon, 2 * bandwidth),
    ),
    ("quantile_loss", "negative", lambda observed, predicted, level: (level * (observed - predicted)).mean()),
    (
        "quantile_loss",
        "both sides cost the same",
        lambda observed, predicted, level: (observed - predicted).abs().mean(),
    ),
    ("quantile_loss", "sides exchanged", lambda observed, predicted, level: quantile_loss(predicted, observed, level)),
    ("quantile_loss", "a sum", lambda observed, *given: len(observed) * quantile_loss(observed, *given)),
    ("quantile_loss", DIFFERS, lambda *given: 2 * quantile_loss(*given)),
    (
        "interval_coverage",
        "wrong shape",
        lambda paths, observed, share: (paths.quantile(0.1, dim=0) < observed).double(),
    ),
    (
        "interval_coverage",
        "one interval for all steps",
        lambda paths, observed, share: covered(
            observed, paths.quantile((1 - share) / 2), paths.quantile((1 + share) / 2)
        ),
    ),
    (
        "interval_coverage",
        "open below",
        lambda paths, observed, share: (observed <= paths.quantile(share, dim=0)).double().mean(),
    ),
    (
        "interval_coverage",
        "too narrow",
        lambda paths, observed, share: covered(
            observed, paths.quantile(1 - share, dim=0), paths.quantile(share, dim=0)
        ),
    ),
    ("interval_coverage", DIFFERS, lambda *given: interval_coverage(*given) / 2),
]

QUIZ = [
    ("scores, not weights", lambda x, W_q, W_k: (x @ W_q.T) @ (x @ W_k.T).T),
    ("query and key swapped", lambda x, W_q, W_k: which_weight(x, W_k, W_q)),
    ("softmax over the wrong axis", lambda x, W_q, W_k: torch.softmax((x @ W_q.T) @ (x @ W_k.T).T, dim=0)),
    ("weights not summing to one", lambda x, W_q, W_k: torch.sigmoid((x @ W_q.T) @ (x @ W_k.T).T)),
    (DIFFERS, lambda x, W_q, W_k: which_weight(x, W_q / 2, W_k)),
]


@pytest.mark.parametrize(("name", "wrong", "answer"), WRONG, ids=lambda part: part if isinstance(part, str) else "")
def test_the_mistake_in_a_wrong_answer_is_named(exercises: ModuleType, name: str, wrong: str, answer) -> None:
    verdict = exercises.check(name, answer)
    assert verdict.failed == wrong, str(verdict)
    assert str(verdict) == f"{name}: not yet: {wrong}. {verdict.hint}"
    assert verdict.hint


@pytest.mark.parametrize(("wrong", "answer"), QUIZ, ids=lambda part: part if isinstance(part, str) else "")
def test_the_quiz_names_the_usual_wrong_choices(exercises: ModuleType, wrong: str, answer) -> None:
    assert exercises.check("which_weight", answer).failed == wrong


def test_every_checked_property_has_a_wrong_answer(exercises: ModuleType) -> None:
    tried = {(name, wrong) for name, wrong, _ in WRONG} | {("which_weight", wrong) for wrong, _ in QUIZ}
    for name, properties in exercises.EXERCISES.items():
        for checked_property in properties:
            assert (name, checked_property.name) in tried


def test_an_answer_that_returns_nothing_is_reported(exercises: ModuleType) -> None:
    for name in exercises.EXERCISES:
        assert exercises.check(name, lambda *given: None).failed == "nothing returned"


def test_an_unknown_exercise_is_an_error_with_suggestions(exercises: ModuleType) -> None:
    with pytest.raises(ValueError, match="there is no exercise 'lok'; choose from teacher_forcing"):
        exercises.check("lok", look)


def test_the_additive_score_of_regard_is_a_right_answer(exercises: ModuleType) -> None:
    def scored(W, v, queries, keys):
        score = SCORES["additive"](query_dim=3, key_dim=5, dim=4).double()
        parts = {"query.weight": W[:, :3], "key.weight": W[:, 3:], "key.bias": torch.zeros(4), "out.weight": v[None]}
        score.load_state_dict(parts)
        return score(queries, score.project(keys)).detach()

    assert exercises.check("additive_from_concat", scored).failed is None


# ---- more wrong answers, which must be refused; the name of the mistake is not checked


def shared_by_all(query, keys, values, mask):
    """The first query's mask for every query."""
    context, weights = look(query, keys, values, mask[:1].expand_as(mask) & mask.any(-1, keepdim=True))
    return context, weights


def hidden_by_zero(query, keys, values, mask):
    weights = torch.softmax((query @ keys.T) * mask, dim=-1)
    return weights @ values, weights


def gaussian_with(variance):
    """The Gaussian of local-p, with twice the variance as a function of the window."""
    return lambda weights, p, window: weights * torch.exp(-((torch.arange(len(weights)) - p) ** 2) / variance(window))


def regression_of(divisor):
    """Kernel regression that divides the squared distance by a function of the bandwidth."""
    return lambda x, at, y, h: torch.softmax(-((x.unsqueeze(-1) - at) ** 2) / divisor(h), dim=-1) @ y


def left_out_of(divisor):
    def answer(places, heights, bandwidth):
        scores = -((places.unsqueeze(-1) - places) ** 2) / divisor(bandwidth)
        weights = torch.softmax(scores.fill_diagonal_(-torch.inf), dim=-1)
        return (weights @ heights - heights).square().mean()

    return answer


def left_out_after(places, heights, bandwidth):
    """The point itself is masked after the softmax, so that the weights do not sum to one."""
    scores = -((places.unsqueeze(-1) - places) ** 2) / (2 * bandwidth**2)
    weights = torch.softmax(scores, dim=-1).fill_diagonal_(0.0)
    return (weights @ heights - heights).square().mean()


def excite_pooled(pool, inner_bias=True, outer_bias=True):
    def answer(x, V, c, W, b):
        hidden = torch.relu(V @ pool(x) + inner_bias * c)
        return x * torch.sigmoid(W @ hidden + outer_bias * b)

    return answer


def sinusoids_with(*, base=10000, exponent=lambda dim: torch.arange(0, dim, 2) / dim):
    def answer(length, dim):
        angles = torch.arange(length).unsqueeze(-1) / base ** exponent(dim)
        return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(-2)

    return answer


def mask_from_first_pad(rows, pad):
    ids, _ = pad_and_mask(rows, pad)
    return ids, (ids == pad).cumsum(1) == 0


def cut_to_longest_sentence(lengths, longest):
    return target_mask(lengths, int(lengths.max()))


ALSO_WRONG = [
    ("teacher_forcing", "wanted is given twice", lambda target: (target[:, 1:], target[:, 1:])),
    ("teacher_forcing", "shifted by two", lambda target: (target[:, :-2], target[:, 2:])),
    ("teacher_forcing", "shifted the wrong way round", lambda target: (target.roll(1, 1), target)),
    ("greedy", "writes one more than the limit", greedy_by(fewer=-1)),
    ("look", "hidden scores are 0", hidden_by_zero),
    ("look", "one mask for all queries", shared_by_all),
    ("self_attention", "scaled", lambda x: self_attention(x / 3**0.25)),
    ("self_attention", "summed over the wrong axis", lambda x: (self_attention(x)[1].T @ x, self_attention(x)[1])),
    ("padded_mean", "mean over sentences", lambda states, lengths: states.mean(0)),
    ("padded_mean", "one word too few", lambda states, lengths: padded_mean(states, (lengths - 1).clamp(min=1))),
    ("padded_mean", "summed", lambda states, lengths: padded_mean(states, lengths) * lengths.unsqueeze(-1)),
    (
        "additive_from_concat",
        "v inside of the tanh",
        lambda W, v, q, k: torch.tanh((q @ W[:, :3].T @ v).unsqueeze(1) + k @ W[:, 3:].T @ v),
    ),
    (
        "additive_from_concat",
        "tanh of each part",
        lambda W, v, q, k: (torch.tanh(q @ W[:, :3].T).unsqueeze(1) + torch.tanh(k @ W[:, 3:].T)) @ v,
    ),
    ("bilinear", "twice", lambda W_q, W_k: 2 * W_q.T @ W_k),
    ("which_weight", "scaled", lambda x, W_q, W_k: which_weight(x, W_q / 2, W_k)),
    ("bahdanau_step", "results exchanged", lambda *given: bahdanau_step(*given)[::-1]),
    ("luong_step", "results exchanged", lambda *given: luong_step(*given)[::-1]),
    ("causal", "one of the future is seen", lambda length: torch.ones(length, length).tril(1).bool()),
    ("causal", "nothing is hidden", lambda length: torch.ones(length, length).bool()),
    ("local_m", "only the past half", lambda q, k, w, s: local_m(q, k, w, s) & local_m(q, k, k + q, s).tril(s)),
    ("local_m", "start counted twice", lambda q, k, w, s: local_m(q, k, w, 2 * s)),
    ("local_m", "half the window on each side", lambda q, k, w, s: local_m(q, k, w // 2, s)),
    ("local_p", "unit variance", gaussian_with(lambda window: 2)),
    ("local_p", "standard deviation not squared", gaussian_with(lambda window: 2 * (window / 2))),
    ("local_p", "the 2 of the bell forgotten", gaussian_with(lambda window: (window / 2) ** 2)),
    ("local_p", "divided by the window", gaussian_with(lambda window: window)),
    ("local_p", "divided by the window squared", gaussian_with(lambda window: window**2)),
    ("local_p", "the window as standard deviation", gaussian_with(lambda window: 2 * window**2)),
    (
        "local_p",
        "distance not squared",
        lambda w, p, window: w * torch.exp(-(torch.arange(len(w)) - p).abs() / (window**2 / 2)),
    ),
    ("local_p", "around the nearest word", lambda w, p, window: local_p(w, round(p), window)),
    ("kernel_regression", "divided by h", regression_of(lambda h: h)),
    ("kernel_regression", "divided by 2 h", regression_of(lambda h: 2 * h)),
    ("kernel_regression", "divided by h^2", regression_of(lambda h: h**2)),
    ("kernel_regression", "divided by 4 h^2", regression_of(lambda h: 4 * h**2)),
    ("kernel_regression", "the wrong sign", regression_of(lambda h: -2 * h**2)),
    (
        "kernel_regression",
        "distance not squared",
        lambda x, at, y, h: torch.softmax(-(x.unsqueeze(-1) - at).abs() / (2 * h**2), -1) @ y,
    ),
    ("leave_one_out", "divided by h", left_out_of(lambda h: h)),
    ("leave_one_out", "divided by 2 h", left_out_of(lambda h: 2 * h)),
    ("leave_one_out", "divided by h^2", left_out_of(lambda h: h**2)),
    ("leave_one_out", "hidden after the softmax", left_out_after),
    (
        "leave_one_out",
        "divided by the number of others",
        lambda at, y, h: leave_one_out(at, y, h) * len(at) / (len(at) - 1),
    ),
    ("lstm_step", "bias forgotten", lambda x, h, c, W, U, b: lstm_step(x, h, c, W, U, 0 * b)),
    ("lstm_step", "last state forgotten", lambda x, h, c, W, U, b: lstm_step(x, 0 * h, c, W, U, b)),
    ("lstm_step", "last cell forgotten", lambda x, h, c, W, U, b: lstm_step(x, h, 0 * c, W, U, b)),
    (
        "lstm_step",
        "output gate on the old cell",
        lambda x, h, c, W, U, b: ((W @ x + U @ h + b).chunk(4)[3].sigmoid() * c.tanh(), lstm_step(x, h, c, W, U, b)[1]),
    ),
    ("squeeze_excite", "summed, not averaged", excite_pooled(lambda x: x.sum(0))),
    ("squeeze_excite", "the largest, not the mean", excite_pooled(lambda x: x.amax(0))),
    ("squeeze_excite", "the first bias forgotten", excite_pooled(lambda x: x.mean(0), inner_bias=False)),
    ("squeeze_excite", "the second bias forgotten", excite_pooled(lambda x: x.mean(0), outer_bias=False)),
    ("sinusoids", "exponent i / dim", sinusoids_with(exponent=lambda dim: torch.arange(dim // 2) / dim)),
    ("sinusoids", "base 1000", sinusoids_with(base=1000)),
    ("sinusoids", "cosine first", lambda n, dim: sinusoids(n, dim).unflatten(-1, (-1, 2)).flip(-1).flatten(-2)),
    ("rotary", "every position turned one step more", lambda x: rotary(torch.cat([x[:1], x]))[1:]),
    (
        "rotary",
        "turned twice as fast",
        lambda x: rotated_by(x, 2 * torch.arange(7).unsqueeze(-1) / 10000 ** (torch.arange(0, 6, 2) / 6)),
    ),
    ("rotary", "nothing is turned", lambda x: x),
    ("weighted_self_attention", "divided by d_v", lambda x, q, k, v: self_attention_with(x, q, k, v, scale=v.shape[1])),
    (
        "weighted_self_attention",
        "divided by d_k / 2",
        lambda x, q, k, v: self_attention_with(x, q, k, v, scale=q.shape[1] / 2),
    ),
    (
        "weighted_self_attention",
        "multiplied by the root",
        lambda x, q, k, v: self_attention_with(x, q, k, v, scale=q.shape[1] ** -0.5),
    ),
    (
        "weighted_self_attention",
        "scaled after the softmax",
        lambda x, q, k, v: self_attention_with(x, q, k, v / q.shape[1] ** 0.5, scale=1.0),
    ),
    ("softmax_slopes", "the diagonal twice", lambda a: 2 * torch.diag(a) - torch.outer(a, a)),
    ("softmax_slopes", "a^2 on the diagonal", lambda a: torch.diag(a * a) - torch.outer(a, a)),
    ("multi_head", "divided by the width of a head", heads_with(scale=2.0)),
    ("multi_head", "divided by the root of the heads", heads_with(scale=3**0.5)),
    (
        "multi_head",
        "heads averaged",
        lambda x, q, k, v, o, heads: (
            multi_head(x, q, k, v, torch.eye(6).double(), heads).unflatten(-1, (3, 2)).mean(1).repeat(1, 3) @ o
        ),
    ),
    ("multi_head", "W_o transposed", lambda x, q, k, v, o, heads: multi_head(x, q, k, v, o.T, heads)),
    ("multi_head", "all matrices transposed", lambda x, q, k, v, o, heads: multi_head(x, q.T, k.T, v.T, o, heads)),
    ("keys_for_heads", "repeated along the words", lambda keys, heads: keys.repeat(1, heads // len(keys), 1)),
    ("keys_for_heads", "as often as a part is wide", lambda keys, heads: keys.repeat_interleave(keys.shape[-1], dim=0)),
    ("keys_for_heads", "as often as there are words", lambda keys, heads: keys.repeat_interleave(keys.shape[1], dim=0)),
    (
        "target_mask",
        "one padding is seen",
        lambda lengths, longest: target_mask((lengths + 1).clamp(max=longest), longest),
    ),
    ("target_mask", "as wide as the longest sentence here", cut_to_longest_sentence),
    ("target_mask", "the past is hidden", lambda *given: target_mask(*given).mT),
    ("pre_norm", "residual of what is normalised", lambda x, f, norm: norm(x) + f(x)),
    ("pre_norm", "norm of f", lambda x, f, norm: x + norm(f(norm(x)))),
    (
        "hide",
        "0.8 is hidden",
        lambda ids, asked, luck, others, mask: torch.where(
            asked & (luck <= 0.8), mask, hide(ids, asked, luck, others, mask)
        ),
    ),
    (
        "hide",
        "0.9 is exchanged",
        lambda ids, asked, luck, others, mask: torch.where(
            asked & (luck == 0.9), others, hide(ids, asked, luck, others, mask)
        ),
    ),
    ("hide", "shares exchanged", hide_with(low=0.1, high=0.9)),
    ("masked_loss", "bits, not nats", lambda *given: masked_loss(*given) / torch.tensor(2.0).log()),
    ("masked_loss", "of what is not asked", lambda logits, ids, asked: masked_loss(logits, ids, ~asked)),
    ("masked_loss", "over sentences", lambda logits, ids, asked: token_losses(logits, ids)[asked].sum() / len(ids)),
    ("pad_and_mask", "up to the first pad", mask_from_first_pad),
    ("pad_and_mask", "ids != 0", lambda rows, pad: (pad_and_mask(rows, pad)[0], pad_and_mask(rows, pad)[0] != 0)),
    (
        "take_over",
        "as many numbers are enough",
        lambda theirs, ours: {
            name: theirs[name].reshape(each.shape) if name in theirs and theirs[name].numel() == each.numel() else each
            for name, each in ours.items()
        },
    ),
    (
        "take_over",
        "ours where it fits",
        lambda theirs, ours: {
            name: each if fits(theirs, name, each) else torch.zeros_like(each) for name, each in ours.items()
        },
    ),
    ("attend_to_cells", "over the hidden units", cells_with(lambda scores: scores / scores.sum())),
    ("attend_to_cells", "W and U of other signs", lambda a, h, W, U, v: attend_to_cells(a, h, -W, U, v)),
    ("heaviest_cells", "divided by the height", lambda weights, width: heaviest_cells(weights, 2)),
    ("doubly_stochastic", "the root", lambda weights: doubly_stochastic(weights).sqrt()),
    ("doubly_stochastic", "mean attention, not its sum", lambda weights: (1 - weights.mean(0)).square().sum()),
    ("join_pairs", "zeros at the front", lambda states: torch.cat([0 * states[:1], states]).view(4, 6)),
    ("join_pairs", "the last frame twice", lambda states: torch.cat([states, states[-1:]]).view(4, 6)),
    ("token_seconds", "the middle of a position", lambda weights, seconds: (weights.argmax(-1) + 0.5) * seconds),
    ("token_seconds", "divided by the seconds", lambda weights, seconds: weights.argmax(-1) / seconds),
    ("collapse", "a set", lambda labels, blank: sorted({label for label in labels if label != blank})),
    ("kernel_forecast", "a bandwidth that is not squared", lambda *given: kernel_forecast(*given[:3], given[3] ** 0.5)),
    ("quantile_loss", "the level of the other side", lambda *given: quantile_loss(*given[:2], 1 - given[2])),
    ("interval_coverage", "outside", lambda *given: 1 - interval_coverage(*given)),
]


@pytest.mark.parametrize(
    ("name", "answer"), [pytest.param(name, answer, id=f"{name}-{slip}") for name, slip, answer in ALSO_WRONG]
)
def test_a_plausible_wrong_answer_is_refused(exercises: ModuleType, name: str, answer) -> None:
    verdict = exercises.check(name, answer)
    assert verdict.failed not in (None, "an error was raised"), str(verdict)


# ---- the quiz on attention

RIGHT_LETTERS = {
    "score": "b",
    "weight": "d",
    "sum": "a",
    "roles": "c",
    "shapes": "b",
    "additive": "a",
    "scale": "c",
    "bottleneck": "d",
    "order": "a",
    "picture": "c",
}
MISTAKES = [  # question, letter, how the sentence begins
    ("score", "a", "Query and key are exchanged"),
    ("score", "c", "That is the weight already"),
    ("score", "d", "There is no output in self-attention"),
    ("weight", "a", "That is the score"),
    ("weight", "b", "That sums to one over the queries"),
    ("weight", "c", "Each key is judged by itself"),
    ("sum", "b", "Keys decide the weights"),
    ("sum", "c", "That is a hard choice"),
    ("sum", "d", "That runs over the queries"),
    ("roles", "a", "The other way round"),
    ("roles", "b", "The decoder cannot use target words"),
    ("roles", "d", "That is self-attention of the decoder"),
    ("shapes", "a", "q is a column"),
    ("shapes", "c", "W_q has to be transposed"),
    ("shapes", "d", "That is a vector"),
    ("additive", "b", "A matrix times [q; k] is the sum of two products"),
    ("additive", "c", "Each width has its own columns"),
    ("additive", "d", "The input of the tanh is the same already"),
    ("scale", "a", "The softmax does that"),
    ("scale", "b", "With independent numbers of mean zero"),
    ("scale", "d", "It is one more division"),
    ("bottleneck", "a", "A decoder writes until it writes </s>"),
    ("bottleneck", "b", "The encoder reads every word"),
    ("bottleneck", "c", "It does"),
    ("order", "b", "That is Bahdanau's order"),
    ("order", "c", "That is Luong's order"),
    ("order", "d", "The states differ"),
    ("picture", "a", "That is a caption without attention"),
    ("picture", "b", "These are the decoder's own words"),
    ("picture", "d", "No objects are named in advance"),
]


def quiz(text: str, folder: Path) -> list[str]:
    """The lines that the quiz prints if its script has this text."""
    script = folder / "quiz.py"
    script.write_text(text, "utf-8")
    environment = os.environ | {"PYTHONPATH": str(QUIZ_FILE.parent)}
    command = [sys.executable, "-W", "error", str(script)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_every_question_of_the_quiz_has_a_key(marks: ModuleType) -> None:
    text = QUIZ_FILE.read_text("utf-8")
    questions = {part.split("\n")[0]: part for part in text.split("\n# ## ")[1:]}
    assert list(questions) == list(marks.KEYS) == re.findall(r'^    "(\w+)": "",$', text, re.M)
    for name, part in questions.items():
        key = marks.KEYS[name]
        assert re.findall(r"^# - (\w): ", part, re.M) == sorted([key.right, *key.wrong]) == list("abcd")


def test_right_letters_pass(marks: ModuleType) -> None:
    assert list(RIGHT_LETTERS) == list(marks.KEYS)
    for question, letter in RIGHT_LETTERS.items():
        assert str(marks.mark(question, letter)) == f"{question}: right."
        assert marks.mark(question, f" {letter.upper()} ").right


@pytest.mark.parametrize(("question", "letter", "begins"), MISTAKES)
def test_a_wrong_letter_gets_an_explanation(marks: ModuleType, question: str, letter: str, begins: str) -> None:
    mark = marks.mark(question, letter)
    assert not mark.right
    assert str(mark).startswith(f"{question}: not {letter}: {begins}")
    assert mark.why.endswith(".")
    assert mark.why.count(". ") == 0, "one sentence"


def test_every_wrong_letter_is_tried(marks: ModuleType) -> None:
    wrong = {(question, letter) for question, key in marks.KEYS.items() for letter in key.wrong}
    assert wrong == {(question, letter) for question, letter, _ in MISTAKES}


def test_missing_and_unknown_letters_are_reported(marks: ModuleType) -> None:
    assert str(marks.mark("sum", "")) == "sum: no letter yet."
    assert str(marks.mark("sum", "e")) == "sum: not e: There is no such letter; choose from a, b, c, d."
    with pytest.raises(ValueError, match="there is no question 'some'; choose from score, weight"):
        marks.mark("some", "a")


def test_the_quiz_runs_as_it_is_and_counts_what_is_right(tmp_path: Path) -> None:
    text = QUIZ_FILE.read_text("utf-8")
    assert quiz(text, tmp_path) == [
        *(f"{name}: no letter yet." for name in RIGHT_LETTERS),
        "0 of 10",
        "Write your letters into ANSWERS at the top of this file, then run it again.",
    ]
    filled = text
    for name, letter in RIGHT_LETTERS.items():
        filled = filled.replace(f'"{name}": ""', f'"{name}": "{letter}"')
    assert quiz(filled, tmp_path) == [*(f"{name}: right." for name in RIGHT_LETTERS), "10 of 10"]
    lines = quiz(filled.replace('"score": "b"', '"score": "c"'), tmp_path)
    assert lines[0] == "score: not c: That is the weight already; a score is the input of the softmax."
    assert lines[-1] == "9 of 10"


def test_what_the_quiz_calls_right_is_what_attend_does() -> None:
    """With numbers: the formulas marked right agree with `attend`, the others do not."""
    x, to_query, to_key, to_value = (torch.randn(*shape).double() for shape in ((5, 3), (4, 3), (4, 3), (2, 3)))
    q, k, v = x @ to_query.T, x @ to_key.T, x @ to_value.T
    attended = attend(q, k, v, score=SCORES["dot"](query_dim=4, key_dim=4, dim=None))
    scores = torch.tensor([[query @ key for key in k] for query in q])
    weights = {"a": scores, "b": scores.softmax(0), "c": scores.sigmoid(), "d": scores.softmax(1)}
    right = weights["d"]
    summed = {"a": right @ v, "c": v[right.argmax(1)], "d": right.T @ v}  # b has another width
    assert [letter for letter, result in weights.items() if torch.allclose(result, attended.weights)] == [
        RIGHT_LETTERS["weight"]
    ]
    assert [letter for letter, result in summed.items() if torch.allclose(result, attended.context)] == [
        RIGHT_LETTERS["sum"]
    ]
    assert torch.allclose((to_query @ x[0]) @ (to_key @ x[1]), x[0] @ (to_query.T @ to_key) @ x[1])
    assert torch.allclose((to_query @ x[0]) @ (to_key @ x[1]), scores[0, 1])
