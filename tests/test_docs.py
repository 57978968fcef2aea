"""The documentation agrees with the code, and its code blocks run."""

import re
import runpy
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import regard
from regard import recipe as recipes
from regard.analysis.alignment import READINGS
from regard.analysis.doctor import EXTRAS
from regard.attention import NORMALIZERS, POSITIONS, SCOPES, SCORES, attend, masks
from regard.attention.gates import SqueezeExcite
from regard.attention.record import record
from regard.data.batching import pad
from regard.decoders import ORDERS, STARTS
from regard.encoders import RecurrentEncoder
from regard.errors import RecipeError
from regard.layers.recurrence import CELLS, Recurrence
from regard.sources import TokenEmbedding
from regard.training.loop import check
from regard.types import Recurrent

ROOT = Path(__file__).parent.parent
ANSWER = re.compile(r"`(src/[\w/]+\.py)`, `(\w+)[\w.]*`")


def test_the_page_of_recipes_is_made_from_the_source() -> None:
    page = runpy.run_path(str(ROOT / "docs/recipes.py"))["page"]
    assert page() == (ROOT / "docs/recipes.md").read_text(encoding="utf-8"), "run `make docs`"


def test_both_readings_of_an_alignment_are_explained() -> None:
    for page in ("index.md", "words.md"):
        text = (ROOT / "docs" / page).read_text(encoding="utf-8")
        assert all(f"**{reading}**" in text for reading in READINGS)


def test_the_quiz_has_ten_questions_each_with_one_file() -> None:
    quiz = (ROOT / "docs/quiz.md").read_text(encoding="utf-8")
    questions = re.split(r"\n(?=\d+\. )", quiz)[1:]
    assert len(questions) == 10
    for question in questions:
        answers = ANSWER.findall(question)
        assert len(answers) == 1, question
        path, name = answers[0]
        assert re.search(rf"^(class|def) {name}\b", (ROOT / path).read_text(encoding="utf-8"), re.M), name


def test_the_quiz_names_the_orders_that_read_a_whole_target_at_once() -> None:
    answer = re.search(r"`parallel = True` \((.*?):", (ROOT / "docs/quiz.md").read_text(encoding="utf-8"), re.S)
    assert answer is not None
    named = set(re.findall(r"`(\w+)`", answer[1]))
    assert named & set(ORDERS) == {name for name, order in ORDERS.items() if order.parallel}


# ---- sweep.md

REFUSED = re.findall(r"^\| `([^`]*=[^`]*)` \| .+ \|$", (ROOT / "docs/sweep.md").read_text(encoding="utf-8"), re.M)


@pytest.mark.parametrize("line", REFUSED)
def test_what_the_page_calls_refused_is_refused(line: str) -> None:
    name, *changes = line.split()
    recipe = recipes.load(name, changes)
    with pytest.raises(RecipeError):
        check(recipe)
    check(recipes.load(name))


def test_the_page_lists_what_is_refused() -> None:
    assert len(REFUSED) == 26


# ---- mechanisms.md


@pytest.fixture(scope="module")
def mechanisms() -> dict[str, Any]:
    return runpy.run_path(str(ROOT / "docs/mechanisms.py"))


@pytest.fixture(scope="module")
def made(mechanisms: dict[str, Any]) -> tuple[str, dict[str, str]]:
    return mechanisms["make_all"]()


def test_the_page_of_mechanisms_is_made_from_the_source(made: tuple[str, dict[str, str]]) -> None:
    assert made[0] == (ROOT / "docs/mechanisms.md").read_text(encoding="utf-8"), "run `make docs`"


def test_the_pictures_of_mechanisms_are_made_from_the_source(made: tuple[str, dict[str, str]]) -> None:
    figures = {path.stem: path.read_text(encoding="utf-8") for path in (ROOT / "docs/figures/mechanisms").iterdir()}
    assert figures == made[1], "run `make docs`"
    for name, svg in figures.items():
        assert len(svg) < 20_000, name
        assert f"(figures/mechanisms/{name}.svg)" in made[0], f"the page does not show {name}"


@pytest.mark.parametrize(
    "table", [SCORES, NORMALIZERS, SCOPES, ORDERS, STARTS, CELLS], ids=lambda table: "-".join(table)
)
def test_every_entry_of_every_table_has_its_place(table: dict[str, Any]) -> None:
    page = (ROOT / "docs/mechanisms.md").read_text(encoding="utf-8")
    for name in table:
        assert f"\n### `{name}`\n" in page


def test_a_page_can_fail_a_law(mechanisms: dict[str, Any]) -> None:
    """The page tests the laws instead of declaring them: a score that ignores its query is detected."""
    page = mechanisms["scores"]({})
    entries = {part.split("`")[0]: part for part in page.split("\n### `")[1:]}
    assert {name for name, part in entries.items() if "depend on the query: no" in part} == {"linear_concat"}
    unequal = {name for name, part in entries.items() if "different widths: no" in part}
    assert unequal == {"dot", "scaled_dot", "cosine", "gaussian"}
    assert {name for name, part in entries.items() if "length of a key: no" in part} == {"cosine", "location"}
    assert all("finite differences: yes" in part for part in entries.values())


def test_the_slips_name_tests_that_are_there(mechanisms: dict[str, Any]) -> None:
    assert len(mechanisms["SLIPS"]) == 13
    for slip in mechanisms["SLIPS"]:
        assert slip.tests
        for test in slip.tests:
            path, name = test.split("::")
            assert re.search(rf"^def {name}\(", (ROOT / path).read_text(encoding="utf-8"), re.M), test


# ---- pages that run


@pytest.fixture
def tables_restored() -> Iterator[None]:
    tables: list[dict[str, Any]] = [SCORES, NORMALIZERS, SCOPES, POSITIONS, ORDERS]
    before = [dict(table) for table in tables]
    yield
    for table, entries in zip(tables, before, strict=True):
        table.clear()
        table.update(entries)


@pytest.mark.parametrize("name", ["journey", "extend"])
def test_the_code_of_a_page_runs(name: str, tables_restored: None) -> None:
    text = (ROOT / f"docs/{name}.md").read_text(encoding="utf-8")
    blocks = list(re.finditer(r"^```python\n(.*?)^```$", text, re.M | re.S))
    assert len(blocks) > 5
    assert sum("assert " in block[1] for block in blocks) > len(blocks) / 2
    namespace: dict[str, Any] = {"__name__": name}
    for block in blocks:
        above = text.count("\n", 0, block.start(1))  # so that a failure names the line of the page
        exec(compile("\n" * above + block[1], f"docs/{name}.md", "exec"), namespace)


def test_the_callback_of_the_page_on_training_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (ROOT / "docs/training.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"^```python\n(.*?)^```$", text, re.M | re.S)
    assert len([line for line in block.split("\n") if line.strip()]) <= 12
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, Any] = {"__name__": "training"}
    sizes = ["model.encoder.dim=8", "model.decoder.dim=8", "model.embedding=8"]
    small = [*sizes, "search.max_ratio=0", "train.device=cpu"]
    words = ", ".join(f'"{override}"' for override in small)
    exec(block.replace("callbacks=", f"{words}, quiet=True, callbacks="), namespace)
    assert [len(point) for point in namespace["curve"].points] == [3, 3]


def test_a_new_score_takes_about_fifteen_lines() -> None:
    text = (ROOT / "docs/extend.md").read_text(encoding="utf-8")
    (block,) = [block for block in re.findall(r"```python\n(.*?)```", text, re.S) if "class Laplace" in block]
    lines = [line for line in block[block.index("class") :].split("\n") if line.strip()]
    assert len(lines) <= 15


# ---- the index


def test_the_index_links_every_page_and_lesson() -> None:
    linked = set(re.findall(r"\]\(([^)#]+)", (ROOT / "docs/index.md").read_text(encoding="utf-8")))
    pages = [*ROOT.glob("docs/*.md"), *ROOT.glob("docs/lessons/*.py")]
    assert {page.relative_to(ROOT / "docs").as_posix() for page in pages} - {"index.md"} <= linked


PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("benchmarks/*.md")]
LESSONS = list(ROOT.glob("docs/lessons/lesson_*.py"))


def read_prose(page: Path) -> str:
    """The text of a page without its code blocks; of a lesson, its comments."""
    prose = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    if page.suffix == ".py":
        prose = "\n".join(line.removeprefix("# ") for line in prose.split("\n") if line.startswith("# "))
    return prose


def list_anchors(page: Path) -> set[str]:
    """The anchors of the headings of a page, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", read_prose(page), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", [*PAGES, *LESSONS], ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for link, anchor in re.findall(r"\]\((?!https?:)([^)#]*)(?:#([^)]*))?\)", read_prose(page)):
        target = page.parent / link if link else page
        assert target.exists(), f"{page.name} links to {link}"
        assert not anchor or anchor in list_anchors(target), f"{page.name} links to {link}#{anchor}"


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_page_has_a_placeholder(page: Path) -> None:
    assert re.findall(r"@[A-Z][A-Z0-9]+", page.read_text(encoding="utf-8")) == []


def test_anchors_are_those_of_github(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# A page\n\n```\n# no heading\n```\n\n## `softmax`: the usual, x_i\n", encoding="utf-8")
    assert list_anchors(page) == {"a-page", "softmax-the-usual-x_i"}


def test_the_readme_links_the_lessons_and_the_pages_for_a_beginner() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    linked = set(re.findall(r"\]\(docs/(\w+)\.md", readme))
    assert {"index", "training", "looking", "mechanisms", "compare", "mistakes", "reading", "words", "data"} <= linked
    assert "\npython docs/lessons/lesson_1_bottleneck.py\n" in readme


def test_what_the_readme_trains_is_what_it_looks_at() -> None:
    """`make demo` has taken `runs/dates`, so a training of the same name would go to `runs/dates-2`."""
    block = re.search(r"^```\n(regard list .*?)^```$", (ROOT / "README.md").read_text(encoding="utf-8"), re.M | re.S)
    assert block is not None
    (name,) = re.findall(r"^regard train dates .*name=(\w+)", block[1], re.M)
    commands = re.findall(r"^regard (?:look|force|predict|score|doctor|train --resume) (runs/\w+)", block[1], re.M)
    assert len(commands) > 5
    assert set(commands) == {f"runs/{name}"}


def test_the_tests_that_the_readme_names_are_there() -> None:
    names = re.findall(r"`(tests/[\w/]+\.py)`", (ROOT / "README.md").read_text(encoding="utf-8"))
    assert names
    for name in names:
        assert (ROOT / name).exists(), name


def test_the_tests_that_reliability_names_are_there() -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", (ROOT / "docs/reliability.md").read_text(encoding="utf-8"))
    assert len(named) > 50
    for path, name in named:
        source = (ROOT / path).read_text(encoding="utf-8")
        assert re.search(rf"^def {name}\(", source, re.M) or not name, (path, name)


# ---- pictures


FIGURES = sorted([*ROOT.glob("docs/figures/**/*.svg"), *ROOT.glob("docs/figures/**/*.png")])


@pytest.mark.parametrize("figure", FIGURES, ids=lambda path: path.name)
def test_a_picture_is_small_and_loads_nothing(figure: Path) -> None:
    content = figure.read_bytes()
    assert len(content) < 150_000
    if figure.suffix == ".svg":
        links = rb"(?:href|src)=\"(?!#|data:image/png;)"
        elsewhere = re.findall(rb"@font-face|@import|<script|url\([^#)]+\)|" + links, content)
        assert elsewhere == []


def test_the_readme_shows_a_map_the_terminal_and_the_page() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    shown = re.findall(r"!\[[^\]]{20,}\]\(([^)]+)\)", readme)  # each with a description for those who cannot see it
    assert shown == ["docs/figures/walk.gif", "docs/figures/terminal.svg", "docs/figures/page.png"]


def test_the_picture_of_a_terminal_shows_what_stays_there() -> None:
    screen = runpy.run_path(str(ROOT / "docs/figures/screens.py"))["screen"]
    bar = "\x1b[?25l\r\x1b[2K\x1b[1mloading\x1b[0m ━━  "
    assert screen(f"{bar}{bar}\r\nnext\r\n\x1b[1A\x1b[1A\r\x1b[2Kdone\r\n\x1b[2K\x1b[?25hafter\r\n") == "done\nafter"
    assert screen("plain \x1b[1;32mgreen\x1b[0m") == "plain " + "".join(f"\x1b[1;32m{each}\x1b[0m" for each in "green")


def test_make_figures_runs_every_script_that_needs_no_run() -> None:
    """A script with arguments draws a run that is trained elsewhere."""
    scripts = {path.name: path.read_text(encoding="utf-8") for path in (ROOT / "docs/figures").glob("*.py")}
    target = (ROOT / "Makefile").read_text(encoding="utf-8").partition("\nfigures:")[2].partition("\n\n")[0]
    drawn = set(re.findall(r"python docs/figures/(\w+\.py)\n", f"{target}\n"))
    assert drawn == {name for name, text in scripts.items() if "sys.argv" not in text}


# ---- how to install, and the commands


def test_the_readme_lists_the_extras_as_pyproject_has_them() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = {
        name: {re.split(r"[<>=[]", package)[0] for package in packages}
        for name, packages in project["optional-dependencies"].items()
    }
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    table = readme[readme.index("| extra |") :].split("\n\n")[0]
    rows = re.findall(r"^\| `(\w+)` \| ([^|]+) \| [^|]+ \|$", table, re.M)
    assert {name: set(packages.split(", ")) for name, packages in rows} == extras
    assert set(extras) - {"dev"} == set(EXTRAS)


def test_the_readme_names_the_torch_and_the_wheel_that_are_there() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    pinned = re.findall(r"^torch==[\d.]+", (ROOT / "constraints-torch.txt").read_text(encoding="utf-8"), re.M)
    assert re.findall(r"torch==[\d.]+", readme) == pinned
    assert set(re.findall(r"regard-[\d.]+-py3", readme)) == {f"regard-{regard.__version__}-py3"}


def test_the_index_lists_every_command_and_the_pages_name_no_other() -> None:
    from regard.cli import COMMANDS

    index, readme, changes = (
        (ROOT / page).read_text(encoding="utf-8") for page in ("docs/index.md", "README.md", "CHANGELOG.md")
    )
    table = index[index.index("| command |") :].split("\n\n")[0]
    rows = re.findall(r"^\| (`[^|]+`) \|", table, re.M)
    assert [name for row in rows for name in re.findall(r"`(\w+)`", row)] == list(COMMANDS)
    (listed,) = re.findall(r"^- `regard (demo(?: \| \w+)+)`", changes, re.M)
    assert listed.split(" | ") == list(COMMANDS)
    blocks = "".join(re.findall(r"^```\w*\n(.*?)^```$", readme, re.M | re.S))
    used = set(re.findall(r"^regard ([a-z]+)", blocks, re.M))
    assert len(used) > 5
    assert used <= set(COMMANDS)


# ---- words and slips, settled: each test is named by a row of the last table of mechanisms.md

BATCH, QUERY, KEY = 2, 3, 5


def weights_of(name: str, query: Tensor, states: Tensor, **settings: int | None) -> Tensor:
    score = SCORES[name](query_dim=query.shape[-1], key_dim=states.shape[-1], dim=4, **settings).to(query.dtype)
    weights = attend(query, score.project(states), states, score=score).weights
    assert weights is not None
    return weights.detach()


def test_linear_concat_ignores_its_query_and_concat_does_not() -> None:
    query, states = torch.randn(BATCH, QUERY, 6).double(), torch.randn(BATCH, KEY, 7).double()
    linear, concat = weights_of("linear_concat", query, states), weights_of("concat", query, states)
    assert torch.allclose(linear, linear[:, :1].expand_as(linear), atol=1e-12)
    assert not torch.allclose(concat, concat[:, :1].expand_as(concat), atol=1e-3)


def test_the_context_is_a_sum_over_the_source_and_nothing_else_happens(capfd: pytest.CaptureFixture[str]) -> None:
    query, states = torch.randn(BATCH, QUERY, 6), torch.randn(BATCH, KEY, 6)
    score = SCORES["dot"](query_dim=6, key_dim=6, dim=None)
    copies = query.clone(), states.clone()
    context, weights, _ = attend(query, states, states, score=score)
    assert weights is not None
    summed = sum(weights[..., key, None] * states[:, key, None] for key in range(KEY))  # sum over h, not over s
    assert torch.allclose(context, torch.as_tensor(summed), atol=1e-6)
    assert torch.equal(query, copies[0])
    assert torch.equal(states, copies[1])
    assert capfd.readouterr() == ("", "")


def small_decoder(order: str) -> tuple[RecurrentEncoder, Any]:
    encoder = RecurrentEncoder(TokenEmbedding(11, 6), Recurrence(nn.GRU, input_dim=6, dim=8, bidirectional=True))
    score = SCORES["additive"](query_dim=10, key_dim=8, dim=4)
    attention = SCOPES["global"](score, query_dim=10)
    return encoder, ORDERS[order](
        TokenEmbedding(11, 5), attention, encoder=encoder.recurrence, cell=nn.GRU, dim=10, layers=1
    )


@pytest.mark.parametrize("order", [name for name, order in ORDERS.items() if order.attends()])
def test_padding_gets_no_attention(order: str) -> None:
    encoder, decoder = small_decoder(order)
    source = pad([[4, 5, 6, 7, 3], [8, 9, 3]])
    weights = decoder(torch.randint(4, 11, (2, QUERY)), encoder(source)).attention
    assert (weights[1, :, 3:] == 0).all()
    assert torch.allclose(weights.sum(-1), torch.ones(2, QUERY))


def test_the_three_starts_are_three() -> None:
    assert set(STARTS) == {"zeros", "last", "bridge"}
    reader, writer = (Recurrence(nn.GRU, input_dim=6, dim=8) for _ in range(2))
    summary = Recurrent(torch.randn(BATCH, 1, 8), None)
    first = {name: start(writer, reader)(summary).hidden for name, start in STARTS.items()}
    assert (first["zeros"] == 0).all()
    assert torch.equal(first["last"], summary.hidden)
    assert not torch.allclose(first["bridge"], summary.hidden)
    assert first["bridge"].abs().max() < 1  # a tanh
    with pytest.raises(RecipeError, match="the start 'last' hands the encoder's state over as it is"):
        STARTS["last"](Recurrence(nn.GRU, input_dim=6, dim=9), reader)


def test_multiplicative_is_bilinear() -> None:
    query, states = torch.randn(BATCH, QUERY, 6).double(), torch.randn(BATCH, KEY, 7).double()
    score: Any = SCORES["multiplicative"](query_dim=6, key_dim=7, dim=4).double()
    matrix = score.query.weight.T @ score.key.weight  # query_dim, key_dim
    bilinear = torch.einsum("bqi,ij,bkj->bqk", query, matrix, states)
    assert torch.allclose(score(query, score.project(states)), bilinear, atol=1e-12)
    general: Any = SCORES["general"](query_dim=6, key_dim=7, dim=None).double()
    general.key.weight.data.copy_(matrix)
    assert torch.allclose(general(query, general.project(states)), bilinear, atol=1e-12)


@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("source", ["self", "cross"])
def test_scope_and_source_are_independent(scope: str, source: str) -> None:
    states = torch.randn(BATCH, KEY, 6)
    query = states if source == "self" else torch.randn(BATCH, QUERY, 6)
    attention = SCOPES[scope](SCORES["dot"](query_dim=6, key_dim=6, dim=None), query_dim=6, window=1)
    weights = attention(query, attention.project(states), attention.content(states), mask=None).weights
    assert weights.shape == (BATCH, query.shape[1], KEY)
    assert bool((weights == 0).any()) == scope.startswith("local_")


def test_bahdanau_feeds_word_and_context() -> None:
    encoder, decoder = small_decoder("bahdanau")
    cell_inputs: list[tuple[Tensor, Tensor]] = []
    decoder.recurrence.rnn.register_forward_hook(lambda module, inputs, _: cell_inputs.append(inputs))
    prepared = decoder.prepare(encoder(pad([[4, 5, 6, 3]])))
    state = decoder.start(prepared)
    decoder.step(torch.tensor([[7]]), state, prepared)
    before = state.recurrent.hidden
    context = attend(
        before, prepared.keys, prepared.values, score=decoder.attention.score, mask=masks.over_keys(prepared.mask)
    ).context
    word = decoder.embedding(torch.tensor([[7]]))
    assert torch.allclose(cell_inputs[0][0], torch.cat([word, context], dim=-1), atol=1e-6)
    assert torch.equal(cell_inputs[0][1].transpose(0, 1), before)


@pytest.mark.parametrize("name", SCORES)
def test_a_score_is_one_number_for_each_query_and_key(name: str) -> None:
    score = SCORES[name](query_dim=6, key_dim=6, dim=4)
    query, states = torch.randn(BATCH, QUERY, 6), torch.randn(BATCH, KEY, 6)
    assert score(query, score.project(states)).shape == (BATCH, QUERY, KEY)


def test_shared_keys_and_values_are_not_self_attention() -> None:
    states, query = torch.randn(1, KEY, 6), torch.randn(1, QUERY, 6)
    score = SCORES["dot"](query_dim=6, key_dim=6, dim=None)
    shared = attend(query, states, states, score=score)  # keys = values, queries of another sequence: cross-attention
    own = attend(states, states, states, score=score)  # the same states as queries: self-attention
    assert shared.context.shape == (1, QUERY, 6)
    assert own.context.shape == states.shape
    assert shared.weights is not None
    assert shared.weights.is_floating_point()  # soft, not boolean
    assert ((shared.weights > 0) & (shared.weights < 1)).all()


def sinusoids(exponents_of_cosine: Tensor, exponents_of_sine: Tensor, positions: Tensor) -> Tensor:
    sine, cosine = (positions[:, None] / 10000.0**each for each in (exponents_of_sine, exponents_of_cosine))
    return torch.cat([sine.sin(), cosine.cos()], dim=-1)


def test_a_shift_of_sinusoids_is_linear_only_with_the_shared_exponent() -> None:
    dim, shift = 8, 3
    pairs = torch.arange(0, dim, 2).double()
    positions = torch.arange(50).double()

    def unexplained(exponents_of_cosine: Tensor) -> float:
        """The error of the best linear map from the encoding of each position to that of the position `shift` later."""
        here = sinusoids(exponents_of_cosine, pairs / dim, positions)
        there = sinusoids(exponents_of_cosine, pairs / dim, positions + shift)
        turn = torch.linalg.lstsq(here, there).solution
        return (here @ turn - there).abs().max().item()

    assert unexplained(pairs / dim) < 1e-8
    assert unexplained((pairs + 1) / dim) > 1e-2
    longest = 2 * torch.pi * 10000 ** ((dim - 2) / dim)
    assert abs(2 * torch.pi * 10000 ** (pairs[-1].item() / dim) - longest) < 1e-6


@pytest.mark.parametrize("name", NORMALIZERS)
def test_what_is_weighed_is_what_is_summed(name: str) -> None:
    query, states = torch.randn(1, 1, 6), torch.randn(1, KEY, 6)
    values = torch.eye(KEY).unsqueeze(0)  # one-hot values: number j of the context is the weight of key j in the sum
    score = SCORES["dot"](query_dim=6, key_dim=6, dim=None)
    context, weights, _ = attend(query, states, values, score=score, normalize=NORMALIZERS[name].function)
    assert weights is not None
    assert torch.allclose(context, weights)


def test_gates_do_not_share_a_sum() -> None:
    squeeze = SqueezeExcite(channels=8, reduction=2)
    inputs = torch.randn(BATCH, 3, 5, 8)
    with record(squeeze) as recording:
        result = squeeze(inputs)
    (gate,) = recording.weights.values()
    assert torch.equal(result, squeeze(inputs))
    lstm = nn.LSTM(6, 8, batch_first=True)
    words = torch.randn(BATCH, KEY, 6)
    with record(lstm) as recording:
        lstm(words)
    for gates in (gate, *recording.weights.values()):
        assert ((gates > 0) & (gates < 1)).all()
        assert not torch.allclose(gates.sum(-1), torch.ones(()), atol=0.1)
