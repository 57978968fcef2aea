"""Interventions on predictions: of every task, by numbers and words, as short texts, and on the command line."""

import json
from functools import cache
from pathlib import Path

import pytest
import torch

import regard
from commands import printed, shared_commands
from regard import Erase, Feed, Force, Permute, Prediction, Predictor, Silence, Swap, Uniform
from regard import recipe as recipes
from regard.attention.intervene import EXAMPLES, INTERVENTIONS, parse
from regard.errors import RecipeError
from regard.models import ENCODER_SELF, sites
from regard.tasks import Transduce, intervened
from regard.tasks.intervened import TokenChange, compare, find
from shapes import unchecked

GOLDEN = Path(__file__).parent / "golden" / "runs"
NAMES = sorted(path.name for path in GOLDEN.iterdir())
TRANSLATIONS = [name for name in NAMES if name.startswith("translate")]
CROSS = "decoder.cross_attention"


@cache
def golden(name: str) -> tuple[Predictor, list[str]]:
    """A stored run, and texts for it."""
    answers = json.loads((GOLDEN / name / "expected.json").read_text(encoding="utf-8"))["answers"]
    return regard.load(GOLDEN / name / "finished", device="cpu"), [answer["source"] for answer in answers[:4]]


# ---- short texts


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("silence decoder.cross_attention layer=2 head=3", Silence(CROSS, 2, 3)),
        ("silence", Silence()),
        ("silence head=1", Silence(head=1)),
        ("uniform encoder.self_attention", Uniform(ENCODER_SELF)),
        ("permute decoder.cross_attention seed=4", Permute(CROSS, seed=4)),
        ("force row=4 column=2", Force(4, 2)),
        ('force row="4" column=Mai decoder.cross_attention head=2', Force("4", "Mai", CROSS, head=2)),
        ("erase 3", Erase(3)),
        ("erase 3-11", Erase(3, 11)),
        ("erase 14 juillet", Erase("14 juillet")),
        ("erase l'an", Erase("l'an")),
        ('erase "16"', Erase("16")),
        ("erase 1,2", Erase("1,2")),
        ("swap 2 5", Swap(2, 5)),
        ('swap "2" c', Swap("2", "c")),
    ],
)
def test_short_texts_are_read_and_written(text: str, expected: regard.Silence) -> None:
    assert parse(text) == expected
    assert parse(f"  {text} ") == expected
    assert parse(str(expected)) == expected


def test_a_source_to_feed_is_read_whole() -> None:
    assert parse('feed "1 May 1986"').source == parse("feed 1 May 1986").source == "1 May 1986"


@pytest.mark.parametrize(
    "text",
    [
        *("erase", "erase 0", "erase 5-3", 'erase ""', "swap 1", "swap 1 2 3", "swap 1 0", "force 1 2", "force row=1"),
        *("force row=1 column=0", "silence a b", "silence row=3", "silence layer=x", "silence layer=-1", "feed"),
        *("permute seed=" + "9" * 5000, "silence layer=" + "9" * 5000, 'swap "a b', "force row= column=2"),
    ],
)
def test_a_text_that_is_no_intervention_gets_a_sentence(text: str) -> None:
    with pytest.raises(RecipeError, match=r"write |counted from 1|smaller one first"):
        parse(text)


def test_mistakes_get_the_sentence_that_helps() -> None:
    with pytest.raises(RecipeError, match=r"write erase 3, erase 3-5, or erase WORD$"):
        parse("erase 3 5")
    assert parse('erase "3 5"').first == "3 5"
    with pytest.raises(RecipeError, match=r"^the seed of permute is a whole number from 0 to 1,000,000,000, not -1$"):
        parse("permute seed=-1")
    for wrong in (
        lambda: regard.Permute(seed=1.5),
        lambda: regard.Silence(head=True),
        lambda: regard.Silence(layer=1.0),
        lambda: regard.Force(1, 2, head="1"),
        lambda: regard.Silence(site=3),
        lambda: regard.Erase(1, 2.5),
        lambda: regard.Erase("a", 3),
    ):
        with pytest.raises(RecipeError):
            wrong()


def test_unknown_names_get_a_sentence() -> None:
    with pytest.raises(RecipeError, match=r"unknown intervention 'silense'.*did you mean 'silence'"):
        parse("silense head=2")
    assert list(EXAMPLES) == list(INTERVENTIONS)
    predictor, texts = golden("translate_luong")
    for wrong, message in {(): "there is no intervention", (3,): "3 is no intervention; give one of Silence"}.items():
        with unchecked(), pytest.raises(RecipeError, match=message):
            predictor.intervene(texts[0], wrong)


# ---- words


LABELS = {
    "characters": (*"on May 1, May be", "</s>"),
    "words": ("the", "red", "red", "cat", "</s>"),
    "pieces": ("▁a", "▁small", "est", "▁est", "ate", "</s>"),
}


@pytest.mark.parametrize(
    ("labels", "word", "place"),
    [
        ("characters", "on", (1, 2)),
        ("characters", "1", (8, 8)),
        ("characters", "1, May", (8, 13)),
        ("characters", "</s>", (17, 17)),
        ("words", "cat", (4, 4)),
        ("words", "red cat", (3, 4)),
        ("pieces", "smallest", (2, 3)),
        ("pieces", "estate", (4, 5)),
        ("pieces", "a", (1, 1)),
        ("pieces", "ate", (5, 5)),
    ],
)
def test_a_word_is_found_among_tokens(labels: str, word: str, place: tuple[int, int]) -> None:
    assert find(word, LABELS[labels], "position", Erase(word)) == place


@pytest.mark.parametrize(
    ("labels", "word", "message"),
    [
        ("characters", "May", "'May' is there several times, at the positions 4, 11; give a number"),
        ("words", "red", "positions 2, 3"),
        ("words", "ca", "there is no position 'ca'.*did you mean 'cat'"),
        ("words", "dog", "there is no position 'dog'; the positions are 'the', 'red'"),
        ("pieces", "mall", "there is no position"),
    ],
)
def test_a_word_that_is_not_there_once_gets_a_sentence(labels: str, word: str, message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        find(word, LABELS[labels], "position", Erase(word))


# ---- differences


def said(text: str) -> Prediction:
    return Prediction("", text, 0.0, tuple(text), None)


def test_outputs_are_compared_token_by_token() -> None:
    kinds = [(one.kind, one.before, one.after) for one in compare(said("1986-05"), said("198-015"))]
    assert kinds == [
        *(("same", token, token) for token in "198"),
        ("removed", "6", ""),
        *(("same", token, token) for token in "-0"),
        ("added", "", "1"),
        ("same", "5", "5"),
    ]
    assert [one.kind for one in compare(said("abc"), said("bca"), aligned=True)] == ["replaced"] * 3
    assert TokenChange("same", "a", "a", -0.5, -2.0).change == -1.5
    assert TokenChange("added", "", "a").change is None


def sequences(*parts: str, many: int) -> tuple[str, ...]:
    """Tokens, each part repeated that often."""
    return tuple(token for part in parts for token in part * many)


LARGE = {
    "another phase": (sequences("ab", many=1400), sequences("aab", many=930)),
    "another length": (sequences("abcdefg", many=400), sequences("cdefgab", many=380)),
    "one token": (sequences("a", many=2000), sequences("ba", many=1000)),
    "no equal runs": (
        tuple(token for number in range(900) for token in ("x", f"a{number}")),
        tuple(token for number in range(900) for token in ("x", f"b{number}")),
    ),
}


@pytest.mark.parametrize(("before", "after"), LARGE.values(), ids=LARGE)
def test_large_outputs_are_not_matched_but_paired(
    monkeypatch: pytest.MonkeyPatch, before: tuple[str, ...], after: tuple[str, ...]
) -> None:
    monkeypatch.setattr(intervened, "SequenceMatcher", None)  # its work is cubic: 20 seconds for 1,000 tokens
    diff = compare(Prediction("", "", 0.0, before, None), Prediction("", "", 0.0, after, None))
    assert tuple(one.before for one in diff if one.kind != "added") == before
    assert tuple(one.after for one in diff if one.kind != "removed") == after
    assert all((one.before == one.after) == (one.kind == "same") for one in diff)


def test_a_small_change_of_a_large_output_is_matched_without_its_ends() -> None:
    prefix, suffix = sequences("ab", many=600), sequences("ba", many=500)
    before, after = (*prefix, *"xyz", *suffix), (*prefix, *"xz", *suffix)
    diff = compare(Prediction("", "", 0.0, before, None), Prediction("", "", 0.0, after, None))
    assert [(place, *one[:3]) for place, one in enumerate(diff) if one.kind != "same"] == [(1201, "removed", "y", "")]
    assert tuple(one.before for one in diff) == before


# ---- predictions


@pytest.mark.parametrize("name", TRANSLATIONS)
def test_before_and_after_are_the_predictions_without_and_with_the_block(name: str) -> None:
    predictor, texts = golden(name)
    for text in texts[:1]:
        for change in (Erase(2), Swap(1, 3), Silence(), Force(2, 1), Uniform(), Permute(seed=3)):
            result = predictor.intervene(text, change, beam=2)
            plain = predictor.predict([text], beam=2)[0]
            with regard.intervene(predictor, change):
                expected = predictor.predict([text], beam=2)[0]
            assert (result.before.tokens, result.before.score) == (plain.tokens, plain.score)
            assert (result.after.tokens, result.after.score) == (expected.tokens, expected.score)
            assert result.after.map == expected.map
            assert result.changed == (plain.text != expected.text)
            assert [one.before for one in result.diff if one.before] == list(plain.tokens)
            assert [one.after for one in result.diff if one.after] == list(expected.tokens)
            if result.forced is not None:
                changes = [one.change for one in result.diff if one.change is not None]
                assert len(changes) == len(plain.tokens)
                scored = regard.force(predictor, [(text, plain.text)])[0]
                assert result.forced.score - scored.score == pytest.approx(
                    sum(changes) + result.forced.token_scores[-1] - scored.token_scores[-1], abs=1e-4
                )
            again = predictor.predict([text], beam=2)[0]
            assert again == plain
    assert not any(part._forward_hooks or part._forward_pre_hooks for part in predictor.model.modules())


def test_the_maps_are_those_under_the_intervention() -> None:
    predictor, texts = golden("translate_transformer")
    result = predictor.intervene(texts[0], [Force(2, 1), Silence(ENCODER_SELF)])
    assert result.after.map.weights[1].tolist()[:2] == [1.0, 0.0]
    assert not result.after.maps.pick(ENCODER_SELF).weights.any()
    assert result.before.maps.pick(ENCODER_SELF).weights.any()
    assert result.forced.map.weights[1, 0] == 1.0
    word = predictor.task.positions(texts[0])[2]
    erased = predictor.intervene(texts[0], Erase(word))
    assert erased.interventions == (Erase(3),)
    assert not erased.after.map.weights[:, 2].any()
    assert len(erased.after.map.columns) == len(erased.before.map.columns)
    page = result._repr_html_()
    assert page is not None
    assert page.count("<iframe") == 2
    assert "silence" in repr(result)


def test_a_given_output_is_forced_both_times() -> None:
    predictor, texts = golden("translate_luong")
    result = predictor.intervene(texts[0], "erase 1", target="DET VERB")
    scored = regard.force(predictor, [(texts[0], "DET VERB")])[0]
    assert result.before.token_scores == scored.token_scores
    assert not result.changed
    assert {one.kind for one in result.diff} == {"same"}
    assert any(one.change for one in result.diff)
    with pytest.raises(RecipeError, match="leave one of them out"):
        predictor.intervene(texts[0], "erase 1", target="DET", beam=2)


def test_a_fed_source_is_read_in_place_of_the_input() -> None:
    predictor, texts = golden("translate_bahdanau")
    result = predictor.intervene(texts[0], [Feed(texts[1]), Erase(2)])
    with regard.intervene(predictor, Erase(2)):
        other = predictor.predict([texts[1]])[0]
    assert result.after.text == other.text
    assert result.after.map == other.map
    with pytest.raises(RecipeError, match="can be fed one other source"):
        golden("classify")[0].intervene("a good day", Feed("a bad day"))


TASKS = {
    "answer": ("erase 2", "swap 1 2", "silence", "force row=20 column=1", "uniform", "permute"),
    "classify": ("erase 2", "swap 1 2", "silence", "force row=1 column=1", "uniform", "permute"),
    "forecast": ("silence", "force row=2 column=1", "uniform", "permute"),
    "language_model_lines": ("erase 2", "silence", "force row=2 column=1", "uniform", "permute"),
    "masked_lm": ("erase 2", "swap 1 2", "silence", "force row=3 column=1", "uniform", "permute"),
    "tag": ("erase 2", "swap 1 2"),
}


@pytest.mark.parametrize("name", TASKS)
def test_interventions_act_in_every_task(name: str) -> None:
    predictor, texts = golden(name)
    for change in TASKS[name]:
        result = predictor.intervene(texts[0], change)
        plain = predictor.predict([texts[0]])[0]
        assert (result.before.text, result.before.score) == (plain.text, plain.score)
        assert result.before.score != result.after.score
        if result.after.maps is not None and change.startswith(("silence", "force")):
            weights = result.after.maps.pick().weights
            row = parse(change).row - 1 if change.startswith("force") else None
            assert weights[row, 0] == 1.0 if row is not None else not weights.any()


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("forecast", "erase 2", "each step of a forecast reads earlier values directly"),
        ("language_model_lines", "erase 4", "the first new token is predicted from this one"),
        ("language_model_lines", "swap 2 3", "no encoder; change the text itself"),
        ("language_model_lines", "force row=1 column=5", "sees the columns up to"),
        ("language_model_window", "erase 2", "no attention that could skip"),
        ("language_model_window", "silence", "has no attention"),
        ("tag", "silence", "has no attention"),
        ("classify", "force row=2 column=1", "there is no row 2; rows are counted from 1 to 1"),
        ("translate_luong", "force row=99 column=1", "there is no row 99; rows are counted from 1 to"),
        ("translate_luong", "force row=1 column=99", "there is no column 99; columns are counted from 1 to 5, '</s>'"),
        ("translate_luong", "erase 9", "there is no position 9"),
        ("translate_luong", "erase 1-5", "nothing is left"),
        ("translate_luong", "erase <unk>", "several times, at the positions 2, 3"),
        ("translate_luong", "silence encoder.self_attention", "is not in this model, which has decoder.cross"),
        ("translate_luong", "silence layer=2", "layer 2 is not there"),
        ("translate_luong", "silence head=2", "head 2 is not there"),
    ],
)
def test_what_makes_no_sense_gets_a_sentence(name: str, change: str, message: str) -> None:
    predictor, texts = golden(name)
    with pytest.raises(RecipeError, match=message):
        predictor.intervene(texts[0], change)
    assert not any(part._forward_hooks or part._forward_pre_hooks for part in predictor.model.modules())


def test_blank_and_too_long_inputs_get_a_sentence() -> None:
    predictor, _ = golden("translate_luong")
    for text, message in {" ": "the input is blank", "a " * 5001: "more than 5,000 tokens"}.items():
        with pytest.raises(RecipeError, match=message):
            predictor.intervene(text, "silence")


@pytest.mark.parametrize("name", ["shapes", "tones"])
def test_cells_of_pictures_and_frames_of_recordings_are_erased(name: str) -> None:
    if name == "shapes":
        pytest.importorskip("PIL")
    recipe = recipes.load(name)
    examples = Transduce.examples(recipes.override(recipe, "data.size=3"))
    torch.manual_seed(0)
    task = Transduce.learn(recipe, examples.train[:3])
    predictor = Predictor(golden("translate_luong")[0].run, task, task.build().eval())
    source = examples.dev[0].source
    label = task.positions(source)[3]
    result = predictor.intervene(source, [Erase(label), Force(1, 2)], beam=1)
    assert result.interventions == (Erase(4), Force(1, 2))
    assert not result.after.map.weights[:, 3].any()
    assert result.after.map.weights[0, 1] == 1.0
    assert result.after.map.columns == result.before.map.columns
    with torch.no_grad(), regard.intervene(predictor, Erase(4)):
        item = task.inputs.encode(source)
        memory = predictor.model.read(task.inputs.collate([item]))
        assert memory.mask[0].tolist() == [place != 3 for place in range(memory.mask.shape[1])]


# ---- the command


def test_the_command_prints_outputs_differences_and_maps(tmp_path: Path) -> None:
    run, text = GOLDEN / "translate_luong" / "finished", "A nakdret krurkdelts ."
    out = printed(tmp_path, "intervene", run, text, "erase A", "silence", "-o", "map.html", "-o", "map.csv")
    lines = out.split("\n")
    assert lines[0].startswith("before   DET NOUN PUNCT\t")
    assert lines[3] == "by       erase 1, silence"
    assert "\nbefore\n" in out
    assert "\nafter\n" in out
    assert sorted(path.name for path in tmp_path.iterdir()) == ["map-after.csv", "map-before.csv", "map.html"]
    given = printed(tmp_path, "intervene", run, text, "erase A", "silence", "--target", "DET NOUN")
    assert "\nafter    DET NOUN\t" in given
    assert "\nchanged  " not in given
    content = json.loads(printed(tmp_path, "intervene", run, text, "erase A", "--json"))
    assert content["interventions"] == ["erase 1"]
    assert content["before"]["text"] == "DET NOUN PUNCT"
    assert {"before", "after", "diff", "changed", "forced"} < content.keys()
    predictor, _ = golden("translate_luong")
    assert content == json.loads(json.dumps(predictor.intervene(text, "erase A").to_dict()))
    result = shared_commands()("intervene", run, text, "erase dog", folder=tmp_path)
    result.assert_behaved({2})
    assert "there is no position 'dog'" in result.error
    assert sites(predictor.model)
