"""Laws of the HTML page: it is self-contained, labels cannot run code, and a real browser draws all of it."""

import json
import re
import shutil
import subprocess
from html import unescape
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch

from regard.errors import RecipeError
from regard.maps import AttentionMap, AttentionMaps, LayerMaps
from regard.show import viewer_data as pages
from regard.show.html import framed, html_of_all, script, viewer_file
from regard.show.html import page as page_of
from regard.show.maps import html
from regard.show.ramp import RAMP

VIEWER = {"viewer.js": script(), "viewer.css": viewer_file("viewer.css")}
POLICY = re.compile('<meta http-equiv="Content-Security-Policy" content="(.*?)">')
NAMESPACES = {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xhtml"}
HOSTILE = (
    "</script><script>document.title='owned'</script>",
    "<!--<script>",
    "<img src=x onerror=\"document.title='owned'\">",
    "\u2028\u2029",
    "]]>&amp;",
    "\ud800",
    "'\"`${1}",
)
PIECES = AttentionMap(
    torch.tensor([[0.9, 0.06, 0.04, 0.0], [0.25, 0.625, 0.125, 0.0], [0.005, 0.3, 0.445, 0.25]]),
    ("▁un", "▁mo", "t"),
    ("▁a", "▁wo", "rd", "</s>"),
)

chromium = shutil.which("chromium")
in_a_browser = pytest.mark.skipif(chromium is None, reason="chromium is not on the PATH: no browser to draw the page")


class Page(HTMLParser):
    """The elements of a page in order, with their attributes and the text before their first inner element."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None], list[str]]] = []
        self.inside = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs), []))
        self.inside = True

    def handle_endtag(self, tag: str) -> None:
        self.inside = False

    def handle_data(self, data: str) -> None:
        if self.inside:
            self.elements[-1][2].append(data)

    def all(self, tag: str, **wanted: str) -> list[tuple[dict[str, str | None], str]]:
        elements = [(attributes, "".join(text)) for name, attributes, text in self.elements if name == tag]
        return [pair for pair in elements if all(wanted[key] in (pair[0].get(key) or "").split() for key in wanted)]


def content(page: bytes) -> dict:
    [(_, text)] = Page(page.decode()).all("script", type="application/json")
    return json.loads(text)


def test_the_page_contains_the_map() -> None:
    page = content(html(PIECES, "a title"))
    assert page["title"] == "a title"
    tokens, words = page["maps"]
    for name, stored, attention in (("tokens", tokens, PIECES), ("words", words, PIECES.words())):
        assert stored["name"] == name
        assert (tuple(stored["rows"]), tuple(stored["columns"])) == (attention.rows, attention.columns)
        torch.testing.assert_close(torch.tensor(stored["weights"]), attention.weights)
        torch.testing.assert_close(torch.tensor(stored["entropy"]), attention.entropy())
        torch.testing.assert_close(torch.tensor(stored["coverage"]), attention.coverage())
        assert stored["monotonicity"] == attention.monotonicity()


def test_a_map_of_words_is_added_only_if_it_differs() -> None:
    assert len(content(html(AttentionMap(torch.eye(3), tuple("abc"), tuple("def"))))["maps"]) == 1


def test_weights_that_are_not_finite_are_null() -> None:
    weights = torch.tensor([[float("nan"), 1.0], [0.5, 0.5]])
    assert content(html(AttentionMap(weights, tuple("ab"), tuple("cd"))))["maps"][0]["weights"][0] == [None, 1.0]


def test_a_page_that_is_filled_map_by_map_keeps_no_more_numbers_than_it_shows() -> None:
    page, size = pages.Page(("Pair",)), 700
    stack = torch.rand(4, size, size).softmax(-1)
    labels = tuple(map(str, range(size)))
    for number in range(40):
        page.add((f"pair {number}",), AttentionMap(stack[number % 4], labels, labels))
        kept = [entry.pooled.weights for entry in page._entries]
        assert 5 * sum(map(torch.numel, kept)) <= pages.NUMBERS
        assert all(weights.untyped_storage().nbytes() == 4 * weights.numel() for weights in kept)  # no views
    shown_maps = content(page_of(page.data()))["maps"]
    assert len(shown_maps) == 40
    for number, shown_map in enumerate(shown_maps):
        entry = page._entries[number].pooled
        assert shown_map["note"] == entry.describe().partition("; ")[2]
        steps = entry.rows.step, entry.columns.step
        assert max(entry.rows.dots, entry.columns.dots) <= size / max(steps) + 1
        by_hand = torch.nn.functional.max_pool2d(stack[number % 4][None], steps, steps, ceil_mode=True)[0]
        assert shown_map["weights"] == (by_hand * 1000).round().long().tolist()


def test_the_page_needs_nothing_from_outside() -> None:
    page = html(PIECES, "a title").decode()
    assert set(re.findall(r"https?://[^\s\"'<>`]+", page)) <= NAMESPACES
    assert not re.search(r"\b(src|href|srcset|action)\s*=|@import|url\(|\bimport\b[^a-z]|\bfetch\b", page)
    [policy] = POLICY.findall(page)
    assert policy.startswith("default-src 'none';")
    assert "unsafe" not in policy


def test_labels_cannot_close_the_script_element() -> None:
    harmless = Page(html(AttentionMap(torch.eye(7), tuple("abcdefg"), tuple("abcdefg")), "t").decode())
    page = html(AttentionMap(torch.eye(7), HOSTILE, HOSTILE), HOSTILE[0])
    hostile = Page(page.decode())
    assert [(tag, sorted(attributes)) for tag, attributes, _ in hostile.elements] == [
        (tag, sorted(attributes)) for tag, attributes, _ in harmless.elements
    ]
    assert content(page)["maps"][0]["rows"][0] == HOSTILE[0].replace(" ", "␣")
    assert "\u2028" not in page.decode()


def test_the_viewer_never_inserts_markup_and_can_be_embedded() -> None:
    assert not re.search(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function", VIEWER["viewer.js"]
    )
    assert "</script" not in VIEWER["viewer.js"]
    assert "</style" not in VIEWER["viewer.css"]


def test_the_page_has_the_colour_scale_of_the_other_pictures() -> None:
    light, *_ = VIEWER["viewer.css"].split("@media")
    assert re.findall(r"--ramp-\d: (#\w+);", light) == [f"#{red:02x}{green:02x}{blue:02x}" for red, green, blue in RAMP]


def stack(rows: int = 3, columns: int = 4, heads: int = 2, layers: int = 2) -> AttentionMaps:
    """Maps of two sites, each with several layers and heads, and with pieces of words as labels."""
    sides = tuple(f"▁x{row}" if row % 2 else f"y{row}" for row in range(max(rows, columns)))
    own = [(site, size) for site, size in (("decoder.cross_attention", columns), ("encoder.self_attention", rows))]
    return AttentionMaps(
        tuple(
            LayerMaps(site, layer + 1, torch.rand(heads, rows, size).softmax(-1), sides[:rows], sides[:size])
            for site, size in own
            for layer in range(layers)
        )
    )


def test_a_page_of_all_maps_has_each_with_its_labels_and_place() -> None:
    maps = stack()
    page = content(html_of_all(maps, "t"))
    assert page["choices"] == ["Site", "Layer", "Head"]
    assert page["start"] == ["decoder.cross_attention", "layer 2", "mean of heads"]
    assert [(tuple(own["path"]), own["name"]) for own in page["maps"]] == [
        (attention.place.names(), unit) for attention in maps for unit in ("tokens", "words") if attention.place
    ]
    for attention, own in zip(maps, page["maps"][::2], strict=True):
        labels = (tuple(page["labels"][own[axis]]) for axis in ("rows", "columns"))
        assert tuple(labels) == (attention.rows, attention.columns)
        weights = torch.tensor(own["weights"]) * own["unit"]
        torch.testing.assert_close(weights, attention.weights, atol=0.00051, rtol=0)
    assert len(page["labels"]) == 4  # equal axes are stored once: two lengths, by tokens and by words


@pytest.mark.parametrize(("rows", "columns", "heads"), [(300, 300, 16), (1500, 2, 4), (20, 20, 300)])
def test_a_page_of_all_maps_is_bounded(monkeypatch: pytest.MonkeyPatch, rows: int, columns: int, heads: int) -> None:
    """With limits that are a tenth of the real ones, so that the test is quick."""
    monkeypatch.setattr(pages, "NUMBERS", pages.NUMBERS // 10)
    monkeypatch.setattr(pages, "LETTERS", pages.LETTERS // 10)
    page = html_of_all(stack(rows, columns, heads, 1))
    assert len(page) < 1_000_000
    shown = content(page)["maps"][0]
    assert shown["size"] == [rows, columns]
    assert "each dot is the largest of" in shown["note"]


def test_a_page_refuses_more_maps_than_anybody_can_choose_from(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "MOST_MAPS", 11)
    with pytest.raises(RecipeError, match=r"^a page has at most 11 maps, not 12; choose a site, layer or head$"):
        html_of_all(stack())


def test_a_notebook_gets_the_page_in_a_sandbox_that_needs_no_server() -> None:
    frame = Page(framed(PIECES, HOSTILE[0]))
    [(attributes, _)] = frame.all("iframe")
    assert attributes["sandbox"] == "allow-scripts allow-downloads"  # no access to the notebook around it
    assert attributes["srcdoc"] == html(PIECES, HOSTILE[0]).decode()
    assert len(frame.elements) == 1
    assert PIECES._repr_html_() == framed(PIECES)
    maps = stack()
    assert unescape(maps._repr_html_()).count('"Site"') == 1


# In a real browser.


def browse(folder: Path, page: bytes, *flags: str, after: str = "", place: str = "") -> str:
    """The output of chromium after it loaded the page; `after` is a script that runs at the end of the page."""
    assert chromium is not None
    text = page.decode()
    if after:  # the page's Content-Security-Policy forbids added scripts, so this copy goes without it
        text = POLICY.sub("", text).replace("</body>", f'<script type="module">{after}</script></body>')
    file = folder / "map.html"
    file.write_text(text, "utf-8")
    startup = ("--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking")
    isolation = ("--disable-component-update", "--disable-sync", f"--user-data-dir={folder / 'profile'}")
    time = "--virtual-time-budget=2000"
    command = [chromium, "--headless", *startup, *isolation, time, *flags, file.as_uri() + place]
    return subprocess.run(command, capture_output=True, check=True, timeout=120, text=True).stdout


@in_a_browser
def test_a_browser_draws_every_cell_word_and_line(tmp_path: Path) -> None:
    page = Page(browse(tmp_path, html(PIECES, "a <title>"), "--dump-dom", place="#lines"))
    assert [text for _, text in page.all("h1")] == ["a <title>"]
    assert [text for _, text in page.all("td") if text] == [f"{weight:.3f}" for weight in PIECES.weights.flatten()]
    assert [text for _, text in page.all("th")] == [*PIECES.columns, *PIECES.rows]
    labels = [text for attributes, text in page.all("text") if "word" not in (attributes.get("class") or "")]
    assert [label for label in labels if label][:7] == [*PIECES.rows, *PIECES.columns]
    assert [text for _, text in page.all("text", **{"class": "word"})] == [*PIECES.columns, *PIECES.rows]
    lines = {
        (int(line["data-row"] or ""), int(line["data-column"] or "")): float(line["stroke-width"] or "")
        for line, _ in page.all("path")
    }
    visible = {(row, column): PIECES.weights[row, column].item() for row in range(3) for column in range(4)}
    visible = {place: weight for place, weight in visible.items() if weight >= 0.01}
    assert sorted(visible, key=visible.__getitem__) == sorted(lines, key=lines.__getitem__) == list(lines)
    assert len(set(lines.values())) == len(set(visible.values()))
    assert all(("hidden" in figure) == (figure["data-view"] != "lines") for figure, _ in page.all("figure"))
    [(canvas, _)] = page.all("canvas")
    assert canvas["role"] == "img"
    assert "3 outputs over 4 sources" in (canvas["aria-label"] or "")


@in_a_browser
def test_a_browser_runs_no_code_from_labels(tmp_path: Path) -> None:
    attention = AttentionMap(torch.eye(7), HOSTILE, HOSTILE)
    page = Page(browse(tmp_path, html(attention, HOSTILE[0]), "--dump-dom"))
    assert [text for _, text in page.all("title")] == [HOSTILE[0]]
    assert page.all("img") == []
    assert len(page.all("script")) == 2
    assert page.all("th")[0][1] == HOSTILE[0].replace(" ", "␣")


HOVER = """
const shown = [], note = () => shown.push(document.querySelector(".readout").textContent);
const point = (target, box = {left: 0, top: 0}) => {
  target.dispatchEvent(new PointerEvent("pointermove", {bubbles: true, clientX: box.left + 1, clientY: box.top + 1}));
  note();
};
const press = (key) => {
  document.activeElement.dispatchEvent(new KeyboardEvent("keydown", {key, bubbles: true}));
  note();
};
const noteHidden = () => shown.push([...document.querySelectorAll("figure")].map((item) => item.hidden).join());
const canvas = document.querySelector("canvas"), box = canvas.getBoundingClientRect();
point(canvas, {left: box.left + 2 * box.width / 4, top: box.top + box.height / 3});
shown.push(document.querySelector(".tip").textContent);
point(document.querySelector(".labels text[data-row='1']"));
document.querySelector(".picture").focus();
press("Escape"), press("ArrowDown"), press("ArrowDown"), press("ArrowRight");
noteHidden();
document.querySelector("button[value='lines']").click();
noteHidden();
point(document.querySelector(".word[data-column='1']"));
shown.push([...document.querySelectorAll(".lines .number")].map((item) => item.textContent).filter(Boolean).join());
shown.push([...document.querySelectorAll("path.on")].map((item) => item.dataset.row).sort().join());
document.querySelectorAll(".picture")[1].focus();
press("ArrowRight"), press("ArrowDown");
document.querySelector("button[value='1']").click();
shown.push([...document.querySelectorAll(".word")].map((item) => item.textContent).join());
document.body.append(Object.assign(document.createElement("pre"), {textContent: JSON.stringify(shown)}));
"""


@in_a_browser
def test_pointer_and_keys_show_the_numbers(tmp_path: Path) -> None:
    page = Page(browse(tmp_path, html(PIECES, "t"), "--dump-dom", after=HOVER))
    [(_, shown)] = page.all("pre")
    hint = "Point at a cell or a word to see its numbers, or focus the picture and use the arrow keys."
    assert json.loads(shown) == [
        "▁mo ← rd 0.125",
        "0.125",
        "▁mo ←  ▁wo 0.625  ▁a 0.250  rd 0.125  </s> 0.000  · entropy 0.900",
        hint,
        "▁un ← ▁a 0.900",
        "▁mo ← ▁a 0.250",
        "▁mo ← ▁wo 0.625",
        "false,true",
        "true,false",
        "▁wo →  ▁mo 0.625  t 0.300  ▁un 0.060  · coverage 0.985",
        "0.060,0.625,0.300",
        "0,1,2",
        "▁mo ←  ▁wo 0.625  ▁a 0.250  rd 0.125  </s> 0.000  · entropy 0.900",
        "t ←  rd 0.445  ▁wo 0.300  </s> 0.250  ▁a 0.005  · entropy 1.095",
        "a,word,</s>,un,mot",
    ]


@in_a_browser
@pytest.mark.parametrize(("scheme", "deepest"), [(1, "#143e7d"), (0, "#dceeff")], ids=["light", "dark"])
@pytest.mark.parametrize(("scale", "largest"), [("one", 1.0), ("map", 0.2), ("row", 0.2)])
def test_the_canvas_shows_the_weights_in_light_and_dark(
    tmp_path: Path, scheme: int, deepest: str, scale: str, largest: float
) -> None:
    image = pytest.importorskip("matplotlib.image")
    attention = AttentionMap(torch.eye(5)[:3] * largest, tuple("abc"), tuple("defgh"))
    picture = tmp_path / "map.png"
    flags = (f"--screenshot={picture}", "--window-size=900,700", "--force-device-scale-factor=1")
    browse(tmp_path, html(attention, scale=scale), *flags, f"--blink-settings=preferredColorScheme={scheme}")
    colour = torch.tensor([int(deepest[place : place + 2], 16) for place in (1, 3, 5)])
    pixels = (torch.from_numpy(image.imread(picture))[..., :3] * 255).round().int()
    deep = (pixels == colour).all(-1)
    inner = deep.nonzero()
    rows, columns = inner[:, 0].unique(), inner[:, 1].unique()
    assert 3 * 30 * 30 <= len(inner) <= 3 * 32 * 32 + 200  # three cells, and the end of the legend
    assert len(rows) >= 90 <= len(columns)  # they lie on a diagonal


CHOOSE = """
const shown = [], [site, layer, head] = document.querySelectorAll("select");
const note = () => {
  const options = (box) => [...box.options].map((option) => option.value).join();
  const weight = document.querySelector("td:nth-child(3)").textContent;
  shown.push([[site, layer, head].map((box) => box.value).join(), options(head), weight]);
};
const choose = (box, value) => {
  box.value = value;
  box.dispatchEvent(new Event("change"));
  note();
};
note();
choose(head, "head 2"), choose(site, "encoder.self_attention"), choose(layer, "layer 1");
document.querySelector("button[value='1']").click();
note();
shown.push([...document.querySelectorAll("th")].map((item) => item.textContent).join());
choose(site, "classify.pooling");
document.body.append(Object.assign(document.createElement("pre"), {textContent: JSON.stringify(shown)}));
"""


@in_a_browser
def test_site_layer_and_head_are_chosen_on_the_page(tmp_path: Path) -> None:
    pooling = LayerMaps("classify.pooling", 1, torch.rand(1, 1, 3), ("x",), ("a", "b", "c"))
    maps = AttentionMaps((*stack(3, 3).layers, pooling))
    page = Page(browse(tmp_path, html_of_all(maps, "t"), "--dump-dom", after=CHOOSE))
    heads = "mean of heads,head 1,head 2"
    cross, encoder = "decoder.cross_attention", "encoder.self_attention"

    def second(*place: object) -> str:
        return f"{maps.pick(*place).weights[0, 1]:.3f}"

    [(_, shown)] = page.all("pre")
    assert json.loads(shown) == [
        [f"{cross},layer 2,mean of heads", heads, second(cross)],
        [f"{cross},layer 2,head 2", heads, second(cross, 2, 2)],
        [f"{encoder},layer 2,head 2", heads, second(encoder, 2, 2)],
        [f"{encoder},layer 1,head 2", heads, second(encoder, 1, 2)],
        [f"{encoder},layer 1,head 2", heads, f"{maps.pick(encoder, 1, 2).words().weights[0, 1]:.3f}"],
        "y0,x1y2,y0,x1y2",
        ["classify.pooling,layer 1,head 1", "head 1", second("classify.pooling")],
    ]


FIT = """
const shown = [];
for (const button of document.querySelectorAll("button[value]")) {
  button.click();
  const scroll = document.querySelector("figure:not([hidden]) .scroll");
  shown.push([button.value, scroll.firstChild.offsetWidth <= scroll.clientWidth]);
}
shown.push(document.documentElement.scrollWidth <= innerWidth);
document.body.append(Object.assign(document.createElement("pre"), {textContent: JSON.stringify(shown)}));
"""


@in_a_browser
def test_a_narrow_window_shows_the_whole_of_a_sentence(tmp_path: Path) -> None:
    attention = AttentionMap(torch.rand(11, 18).softmax(-1), (*"2026-03-04", "</s>"), (*"Wed, 4 March 2026", "</s>"))
    page = Page(browse(tmp_path, html(attention, "t"), "--dump-dom", "--window-size=500,900", after=FIT))
    [(_, shown)] = page.all("pre")
    assert json.loads(shown) == [["heat", True], ["lines", True], True]


@in_a_browser
def test_arrow_keys_bring_the_chosen_cell_into_view(tmp_path: Path) -> None:
    script = """
    const picture = document.querySelector(".picture"), band = picture.querySelector(".band"), shown = [];
    const note = () => {
      const [room, box] = [picture.parentElement, band].map((part) => part.getBoundingClientRect());
      const inside = room.left <= box.left && box.right <= room.right;
      shown.push([document.querySelector(".readout").textContent, inside]);
    };
    const press = (key, times) => {
      while (times--) picture.dispatchEvent(new KeyboardEvent("keydown", {key, bubbles: true}));
      note();
    };
    press("ArrowRight", 61), press("ArrowLeft", 60);
    document.body.append(Object.assign(document.createElement("pre"), {textContent: JSON.stringify(shown)}));
    """
    attention = AttentionMap(torch.zeros(2, 70), ("a", "b"), tuple(f"w{column}" for column in range(70)))
    page = Page(browse(tmp_path, html(attention, "t"), "--dump-dom", "--window-size=500,900", after=script))
    [(_, shown)] = page.all("pre")
    assert json.loads(shown) == [["a ← w60 0.000", True], ["a ← w0 0.000", True]]


@in_a_browser
def test_labels_from_right_to_left_stay_on_their_side_of_the_arrow(tmp_path: Path) -> None:
    script = """
    const picture = document.querySelector(".picture"), readout = document.querySelector(".readout");
    picture.dispatchEvent(new KeyboardEvent("keydown", {key: "ArrowRight", bubbles: true}));
    const places = [...readout.querySelectorAll("bdi, .number")].map((part) => [part.textContent, part.offsetLeft]);
    places.sort(([, one], [, other]) => one - other);
    const text = places.map(([label]) => label).join();
    document.body.append(Object.assign(document.createElement("pre"), {textContent: text}));
    """
    attention = AttentionMap(torch.ones(1, 1), ("ספר",), ("كتاب",))
    [(_, shown)] = Page(browse(tmp_path, html(attention, "t"), "--dump-dom", after=script)).all("pre")
    assert shown == "ספר,كتاب,1.000"


@in_a_browser
def test_the_ends_of_the_scale_stay_beside_it(tmp_path: Path) -> None:
    script = """
    const scale = document.querySelector(".scale"), units = document.querySelector(".bar").lastChild;
    scale.parentElement.style.width = "10px";
    const text = `${scale.textContent} ${scale.offsetHeight < 30} ${units.offsetParent}`;
    document.body.append(Object.assign(document.createElement("pre"), {textContent: text}));
    """
    attention = AttentionMap(torch.eye(3), tuple("abc"), tuple("def"))
    [(_, shown)] = Page(browse(tmp_path, html(attention, "t"), "--dump-dom", after=script)).all("pre")
    assert shown == "01 true null"  # the empty choice of units takes no room
