"""Forced decoding: equals search on its outputs, merges tokens to words, and aligns toy sentences."""

import random
from pathlib import Path

import pytest
import torch

import regard
from regard import Predictor
from regard import recipe as recipes
from regard.analysis.forced import align, force, word_maps, words_of
from regard.data.gold import Gold
from regard.data.tokenizers import TOKENIZERS
from regard.errors import DataError, RecipeError
from regard.maps import AttentionMap
from regard.show.maps import draw
from regard.types import Example, Prediction
from wordpieces import build

SOURCES = ["ab ba", "b a b ab", "a", "bab ab ba a", "ba b"]
SIZES = ["model.embedding=12", "model.encoder.dim=16", "model.decoder.dim=12", "model.attention.dim=8", "name=tiny"]
SHORT = ["train.updates=100", "train.validate=100", "train.batch_tokens=300", "train.learning_rate=0.01"]
KINDS = {
    "bahdanau": ["model.decoder.order=bahdanau"],
    "luong": ["model.decoder.order=luong_feeding", "tokens.source=word", "tokens.target=sentencepiece"],
    "transformer": ["model.decoder.kind=transformer", "model.encoder.kind=transformer", "model.attention.heads=2"],
}


def trained(folder: Path, *overrides: str) -> Predictor:
    pairs = [f"{text}\t{text.upper()}" for text in SOURCES * 4]
    (folder / "pairs.tsv").write_text("\n".join(pairs), encoding="utf-8")
    data = [f"data.train={folder / 'pairs.tsv'}", "tokens.size=20", "train.device=cpu", "search.length_penalty=0"]
    settings = recipes.parse("", "it", [*SIZES, *SHORT, *data, *overrides])
    return regard.load(regard.train(settings, runs=folder / "runs", quiet=True))


@pytest.fixture(scope="module", params=KINDS)
def predictor(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Predictor:
    return trained(tmp_path_factory.mktemp("forced"), *KINDS[request.param])


def test_forcing_the_outputs_of_a_search_gives_their_scores_and_maps(predictor: Predictor) -> None:
    """Although search decodes step by step, and forced decoding all tokens at once."""
    answers = predictor.predict(SOURCES, beam=2)
    assert all(0 < len(answer.tokens) < 20 for answer in answers)  # finished: a score without END would differ
    forced = force(predictor, [Example(answer.source, answer.text) for answer in answers])
    same = [(answer, again) for answer, again in zip(answers, forced, strict=True) if answer.tokens == again.tokens]
    assert same  # the model may write a word in other pieces than the tokenizer does
    for answer, again in same:
        assert (again.source, again.text) == (answer.source, answer.text)
        assert again.score == pytest.approx(answer.score, abs=1e-4)
        assert answer.map is not None
        assert again.map is not None
        assert again.map.rows == (*answer.tokens, "</s>")
        assert again.map.columns == answer.map.columns
        torch.testing.assert_close(again.map.weights[:-1], answer.map.weights, atol=1e-5, rtol=1e-5)


def test_the_rest_and_order_of_a_batch_change_nothing(predictor: Predictor, monkeypatch: pytest.MonkeyPatch) -> None:
    examples = [Example(text, text.upper()) for text in SOURCES]
    together = force(predictor, examples)
    monkeypatch.setattr("regard.tasks.transduce.FORCED_TOKENS", 1)
    for example, among in zip(examples, force(predictor, examples[::-1])[::-1], strict=True):
        assert among.source == example.source
    for alone, among in zip(force(predictor, examples), together, strict=True):
        assert alone.score == pytest.approx(among.score, abs=1e-4)
        assert alone.map is not None
        assert among.map is not None
        torch.testing.assert_close(alone.map.weights, among.map.weights, atol=1e-5, rtol=1e-5)
    assert force(predictor, []) == []


def test_maps_of_words_have_their_labels_and_rows_that_sum_to_one(predictor: Predictor) -> None:
    examples = [Example("ab zz ba", "AB Z BA A"), Example("a", "B")]  # z is unknown
    for maps in word_maps(predictor, examples).values():
        assert [(attention.rows, attention.columns) for attention in maps] == [
            (("AB", "Z", "BA", "A"), ("ab", "zz", "ba", "</s>")),
            (("B",), ("a", "</s>")),
        ]
        for attention in maps:
            torch.testing.assert_close(attention.weights.sum(-1), torch.ones(len(attention.rows)))


def test_the_input_step_is_one_row_later_and_that_of_the_last_token_is_end(predictor: Predictor) -> None:
    example = Example("ab ba", "A B")
    [forced] = force(predictor, [example])
    assert forced.map is not None
    words = words_of(predictor.task.target, example.target)
    for shift, maps in enumerate(word_maps(predictor, [example]).values()):
        for word in range(2):
            rows = [forced.map.weights[place + shift] for place, home in enumerate(words.home) if home == word]
            ends = torch.stack(rows).mean(0)[-1]
            torch.testing.assert_close(maps[0].weights[word, -1], ends)


@pytest.mark.parametrize("kind", TOKENIZERS)
@pytest.mark.parametrize("text", ["ab ba", "a", "ab日 本c ▁ a", "日 日本 a", "a\u3000b c", "x\u00a0y <s> z"])
def test_every_token_belongs_to_the_word_that_contains_it(kind: str, text: str) -> None:
    tokenizer = build(kind, ["ab ba a b c", "a b <s>"], 24)
    words = words_of(tokenizer, text)
    assert words.labels == tuple(text.split(" "))
    assert len(words.home) == len(tokenizer.encode(text))
    assert list(words.home) == sorted(words.home)
    starts = [sum(map(len, words.labels[:index])) + index for index in range(len(words.labels))]
    for (begin, end), home in zip(tokenizer.offsets(text), words.home, strict=True):
        start = starts[home]
        assert max(0, start - 1) <= begin
        assert end <= start + len(words.labels[home])
    assert set(words.home) == set(range(len(words.labels)))


@pytest.mark.parametrize("text", ["ab ba", "a", "ab日 本c  a", "日 日本 a", "b <s> z"])
def test_maps_of_pieces_merge_to_the_words_of_the_text(text: str) -> None:
    """Drawings and exports of an answer count the same words as `align`."""
    tokenizer = TOKENIZERS["sentencepiece"].build(["ab ba a b c", "a b <s>"], 24)
    pieces = tuple(tokenizer.piece(token) for token in tokenizer.encode(text))
    columns = torch.eye(len(pieces), dtype=torch.float64)
    words = AttentionMap(columns, ("x",) * len(pieces), pieces).words()
    assert tuple(words.weights.argmax(-1).tolist()) == words_of(tokenizer, text).home


def test_the_pharaoh_file_of_an_answer_has_the_links_that_align_counts(tmp_path: Path) -> None:
    predictor = trained(tmp_path, *KINDS["luong"], "tokens.source=sentencepiece", "tokens.size=30")
    answers = predictor.predict([*SOURCES, "ab zz ba"])  # z is unknown
    examples = [Example(answer.source, answer.text) for answer in answers]
    for answer, example, again in zip(answers, examples, force(predictor, examples), strict=True):
        assert answer.map is not None
        assert again.tokens == answer.tokens
        pairs = [pair.split("-") for pair in draw(answer.map, ".pharaoh").decode().split()]
        links = {(int(source), int(target)) for source, target in pairs}
        assert align(predictor, Gold([example], [links], [set()], 0))["output step"].value == 0


class FakeMaps:
    """Replaces forced decoding: returns maps with known peaks."""

    def __init__(self, peaks: list[list[int]]) -> None:
        self.peaks = peaks

    def __call__(self, task: object, model: object, examples: list[Example]) -> list[Prediction]:
        forced = []
        for example, peaks in zip(examples, self.peaks, strict=True):
            columns = (*example.source.split(" "), "</s>")
            weights = torch.full((len(peaks), len(columns)), 0.1)
            for row, peak in enumerate(peaks):
                weights[row, peak] = 0.9
            tokens = tuple(example.target.split(" "))
            attention = AttentionMap(weights, (*tokens, "</s>"), columns)
            forced.append(Prediction(example.source, example.target, 0.0, tokens, attention))
        return forced


def test_the_alignment_error_rate_of_toy_gold_by_hand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    predictor = trained(tmp_path, "tokens.source=word", "tokens.target=word", "train.updates=1")
    fake_maps = FakeMaps([[1, 0, 2, 3], [0, 1, 2]])  # a row for each target word, and one for END
    monkeypatch.setattr("regard.tasks.Transduce.force", lambda *arguments, **_: fake_maps(*arguments))
    gold = Gold(
        [Example("a b c", "B A C"), Example("a b", "A B")],
        sure=[{(1, 0), (0, 1)}, {(0, 0)}],
        possible=[{(2, 2)}, {(0, 1)}],
        skipped=1,
    )
    measured = align(predictor, gold)
    assert list(measured) == ["output step", "input step", "diagonal"]
    # at the output step 1-0 0-1 2-2 and 0-0 1-1: three sure, four possible, five found
    assert measured["output step"].value == pytest.approx(1 - (3 + 4) / (5 + 3))
    # one row later 0-0 2-1 and, because END's column is no word, the first of equals, 0-2; then 1-0 and likewise 0-1
    assert measured["input step"].value == pytest.approx(1 - (0 + 1) / (5 + 3))
    # 0-0 1-1 2-2 and 0-0 1-1: one sure, two possible
    assert measured["diagonal"].value == pytest.approx(1 - (1 + 2) / (5 + 3))
    signature = "alignment_error_rate|n:2|sure:3|possible:2|skipped:1"
    assert measured["input step"].signature == f"{signature}|forced|read:input step|words merged|links:argmax"
    assert measured["diagonal"].signature == f"{signature}|links:diagonal"


@pytest.mark.parametrize("order", [pytest.param("bahdanau", marks=pytest.mark.slow), "luong"])
def test_a_run_that_learned_to_reverse_sentences_aligns_them_in_reverse(tmp_path: Path, order: str) -> None:
    """The source is in words, the target in pieces: the attention of the output step finds the links, others do not."""
    generator = random.Random(3)

    def pair() -> tuple[Example, set[tuple[int, int]]]:
        words = generator.choices(["red", "blue", "old", "new", "cat", "dog", "sun", "sea"], k=generator.randint(2, 5))
        links = {(len(words) - 1 - place, place) for place in range(len(words))}
        return Example(" ".join(words), " ".join(word.upper() for word in reversed(words))), links

    training, test = [pair()[0] for _ in range(1500)], [pair() for _ in range(50)]
    lines = "".join(f"{example.source}\t{example.target}\n" for example in training)
    (tmp_path / "reversed.tsv").write_text(lines, "utf-8")
    data = [f"data.train={tmp_path / 'reversed.tsv'}", "tokens.source=word", "tokens.target=sentencepiece"]
    sizes = ["tokens.size=60", "model.embedding=24", "model.encoder.dim=48", "model.decoder.dim=32"]
    settings = ["train.updates=200", "train.validate=200", "train.batch_tokens=600", "train.learning_rate=0.01"]
    kind = [f"model.decoder.order={order}", "model.attention.dim=24", "train.device=cpu", "name=reversed"]
    run = regard.train(recipes.parse("", "it", [*data, *sizes, *settings, *kind]), runs=tmp_path / "runs", quiet=True)
    examples, links = zip(*test, strict=True)
    rates = align(regard.load(run), Gold(list(examples), list(links), [set() for _ in links], 0))
    assert rates["output step"].value < 0.1
    assert rates["input step"].value > 0.5
    assert rates["diagonal"].value > 0.5


def test_runs_and_examples_that_cannot_be_aligned_are_refused(tmp_path: Path) -> None:
    without_attention = trained(tmp_path, "model.decoder.order=none", "train.updates=1")
    assert force(without_attention, [Example("a", "A")])[0].map is None
    with pytest.raises(RecipeError, match="has no attention to the source, so it aligns nothing; use a run whose"):
        word_maps(without_attention, [Example("a", "A")])
    with pytest.raises(DataError, match="here:7: a side has more than 5,000 tokens; take the pair out"):
        force(without_attention, [Example("a", "A" * 5001, origin="here:7")])
    classifier = regard.load(regard.train("moods", "train.updates=1", "data.size=50", runs=tmp_path, quiet=True))
    with pytest.raises(RecipeError, match="is a run of the task 'classify'; only runs of translate"):
        force(classifier, [Example("a", "A")])
