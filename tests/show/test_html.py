"""Laws of the HTML page: it is self-contained, and labels cannot run code; `test_viewer` opens it in a browser."""

import json
import re
from html import unescape
from html.parser import HTMLParser

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
