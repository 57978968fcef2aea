"""Recipes: writing and reading TOML, overrides, and error messages for everything that is refused."""

import dataclasses
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard import catalogue
from regard import recipe as recipes
from regard.attention import NORMALIZERS, SCOPES, SCORES
from regard.data.corpora import CORPORA
from regard.data.tokenizers import TOKENIZERS
from regard.decoders import ORDERS
from regard.errors import (
    HINTS,
    LISTS,
    RecipeError,
    UnknownNameError,
    did_you_mean,
    names_all,
    pick,
    plural,
    quantity,
)
from regard.layers.recurrence import CELLS
from regard.metrics import METRICS
from regard.recipe import ELSEWHERE, Recipe, load, override, parse, to_toml
from regard.tasks import TASKS
from regard.training.loop import check
from regard.training.schedules import SCHEDULES


def values_of(section: type, prefix: str = "") -> dict[str, st.SearchStrategy]:
    """A strategy of allowed values for every key of a recipe, by its name `a.b.c`."""
    strategies: dict[str, st.SearchStrategy] = {}
    for item in dataclasses.fields(section):
        default, least, most = item.default, item.metadata.get("least"), item.metadata.get("most")
        name = prefix + item.name
        if default is None:  # an optional key
            default = {"str | None": "", "int | None": 0, "float | None": 0.0}[str(item.type)]
        if dataclasses.is_dataclass(default):
            strategies |= values_of(type(default), name + ".")
        elif isinstance(default, bool):
            strategies[name] = st.booleans()
        elif isinstance(default, int):
            strategies[name] = st.integers(least, most)
        elif isinstance(default, float):
            strategies[name] = st.floats(least, most)
        elif isinstance(default, tuple):
            numbers = st.floats(1e-300, 1e36)
            items = numbers if item.type in ("tuple[float, ...]", tuple[float, ...]) else texts
            strategies[name] = st.lists(items, max_size=3).map(tuple)
        else:
            strategies[name] = texts
    return strategies


texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x7f"), max_size=12)
KEYS = values_of(Recipe)


def value_at(recipe: Recipe, name: str) -> object:
    value: object = recipe
    for part in name.split("."):
        value = getattr(value, part)
    return value


def changed(section: object, name: str, value: object) -> object:
    """The recipe with one key replaced, without the code under test."""
    first, _, rest = name.partition(".")
    return dataclasses.replace(section, **{first: changed(getattr(section, first), rest, value) if rest else value})


def refused(text: str, *overrides: str) -> str:
    """The message of the error that this recipe raises."""
    with pytest.raises(RecipeError) as caught:
        parse(text, "mine.toml", overrides)
    message = str(caught.value)
    assert "\n" not in message
    assert caught.value.exit_code == 2
    return message


def test_the_default_recipe_is_restored_from_toml() -> None:
    assert parse(to_toml(Recipe()), "it") == Recipe()


def test_every_key_with_a_value_is_written() -> None:
    written = [name for name in KEYS if value_at(Recipe(), name) is not None]
    assert to_toml(Recipe()).count(" = ") == len(written) + 1  # and the key `format`


@pytest.mark.parametrize("format", ["0", str(recipes.FORMAT + 1), "true", '"2"'])
def test_a_format_of_another_version_is_refused(format: str) -> None:
    assert "mine.toml is of format" in refused(f"format = {format}")


def test_gnmt_in_the_first_format_is_read_as_gnmt_v2() -> None:
    texts = {number: f'format = {number}\n[model.decoder]\norder = "gnmt"' for number in (1, 2)}
    assert [parse(text, "it").model.decoder.order for text in texts.values()] == ["gnmt_v2", "gnmt"]
    assert parse('[model.decoder]\norder = "gnmt"', "it").model.decoder.order == "gnmt"


def test_an_empty_recipe_is_the_default() -> None:
    assert parse("", "it") == Recipe()


@given(st.data())
def test_a_changed_recipe_is_restored_from_toml(data: st.DataObject) -> None:
    names = data.draw(st.lists(st.sampled_from(sorted(KEYS)), min_size=1, max_size=6, unique=True))
    recipe: object = Recipe()
    for name in names:
        recipe = changed(recipe, name, data.draw(KEYS[name], name))
    restored = parse(to_toml(recipe), "it")
    assert restored == recipe
    for name in names:
        assert type(value_at(restored, name)) is type(value_at(recipe, name))


@pytest.mark.parametrize(
    "character", ["\x00", "\t", "\r\n", "\x1f", "\x7f", "\x85", '"', "\\", "\u2028", "\ufeff", "日", "🗓"]
)
def test_special_characters_are_restored_from_toml(character: str) -> None:
    recipe = changed(Recipe(), "data.train", (f"a{character}b",))
    assert parse(to_toml(recipe), "it") == recipe


@pytest.mark.parametrize("name", recipes.names())
def test_an_embedded_recipe_names_existing_entries_and_passes_the_checks(name: str) -> None:
    recipe = load(name)
    assert recipe.name == name
    assert recipe.task in TASKS
    assert recipe.metric in METRICS
    assert recipe.data.corpus in CORPORA or recipe.data.train
    assert {recipe.tokens.source, recipe.tokens.target} <= set(TOKENIZERS)
    assert {recipe.model.encoder.cell, recipe.model.decoder.cell} <= set(CELLS)
    assert recipe.model.attention.score in SCORES
    assert recipe.model.attention.normalizer in NORMALIZERS
    assert recipe.model.attention.scope in SCOPES
    assert recipe.model.decoder.order in ORDERS
    assert recipe.train.schedule in SCHEDULES
    check(recipe)


@pytest.mark.parametrize("name", recipes.names())
def test_an_embedded_recipe_begins_with_a_sentence_about_it(name: str) -> None:
    first, *_ = recipes.comment(name)
    assert 20 < len(first) <= 120
    assert first.endswith(".")


def test_the_comment_of_a_recipe_ends_where_its_keys_begin(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text('# One.\n#Two\nname = "mine"\n# Three.\n', encoding="utf-8")
    assert recipes.comment(tmp_path / "mine.toml") == ["One.", "Two"]
    (tmp_path / "mine.toml").write_text("", encoding="utf-8")
    assert recipes.comment(tmp_path / "mine.toml") == []


def test_dates_is_embedded() -> None:
    assert "dates" in recipes.names()


@pytest.mark.parametrize(
    ("text", "name", "value"),
    [
        ("train.seed=7", "train.seed", 7),
        (" train.seed =7", "train.seed", 7),
        ("train.updates=1_000", "train.updates", 1000),
        ("train.learning_rate=0.5", "train.learning_rate", 0.5),
        ("train.learning_rate=3e-4", "train.learning_rate", 3e-4),
        ("train.clip=2", "train.clip", 2.0),
        ("tokens.shared=true", "tokens.shared", True),
        ("model.attention.score=dot", "model.attention.score", "dot"),
        ('model.attention.score="dot"', "model.attention.score", "dot"),
        ("name=2026", "name", "2026"),
        ("name=true", "name", "true"),
        ("name=", "name", ""),
        ("name=a=b", "name", "a=b"),
        ("data.train=pairs.tsv", "data.train", ("pairs.tsv",)),
        ("data.train=7", "data.train", ("7",)),
        ("data.train=a.en,a.de", "data.train", ("a.en", "a.de")),
        ('data.train=["a.en", "a,b.de"]', "data.train", ("a.en", "a,b.de")),
        ("data.train=[]", "data.train", ()),
        ("data.train=", "data.train", ()),
    ],
)
def test_an_override_is_converted_to_the_type_of_its_key(text: str, name: str, value: object) -> None:
    converted = value_at(override(Recipe(), text), name)
    assert converted == value
    assert type(converted) is type(value)


def test_an_override_changes_nothing_else_and_the_last_one_wins() -> None:
    recipe = parse("", "it", ["train.seed=7", "train.seed=8"])
    assert recipe == changed(Recipe(), "train.seed", 8)


def test_one_file_name_may_be_a_string_in_toml() -> None:
    assert parse('[data]\ntrain = "pairs.tsv"', "it").data.train == ("pairs.tsv",)
    assert parse('[data]\ntrain = ["a", "b"]', "it").data.train == ("a", "b")


@pytest.mark.parametrize("text", ["train=7", "model.attention=dot", "model="])
def test_a_section_is_not_a_value(text: str) -> None:
    message = refused("", text)
    name = text.partition("=")[0]
    assert f"{name} in the overrides is a section" in message
    assert f"{name}.KEY=VALUE" in message


def test_a_value_is_not_a_section() -> None:
    assert "train.seed" in refused("", "train.seed.more=7")
    assert "train.seed in mine.toml is a whole number" in refused("[train.seed]\nmore = 7")


def test_an_override_needs_an_equals_sign() -> None:
    assert refused("", "train.seed") == "an override is KEY=VALUE, such as train.seed=7, not 'train.seed'"


@pytest.mark.parametrize(
    ("misspelled", "similar"),
    [
        ("train.sed", "train.seed"),
        ("model.attention.scor", "model.attention.score"),
        ("nam", "name"),
        ("trian.seed", "train"),
    ],
)
def test_the_error_for_an_unknown_key_suggests_a_similar_one(misspelled: str, similar: str) -> None:
    unknown = misspelled if similar != "train" else "trian"
    expected = f"unknown key {unknown!r} in the overrides; did you mean {similar!r}?"
    assert refused("", f"{misspelled}=1") == expected


def test_the_error_for_an_unknown_key_in_a_file_names_the_file() -> None:
    assert refused("[train]\nlearning_rat = 1") == (
        "unknown key 'train.learning_rat' in mine.toml; did you mean 'train.learning_rate'?"
    )


def test_the_error_for_an_unknown_key_without_similar_ones_lists_all_keys() -> None:
    message = refused("", "search.zzzzzzzz=1")
    assert "did you mean" not in message
    assert "there are beam, length_penalty, coverage_penalty, no_repeat, ends_in_beam" in message


@pytest.mark.parametrize(
    ("text", "limits"),
    [
        ("train.updates=0", "1 and at most 1,000,000,000, not 0"),
        ("train.clip=-1", "0.0 and at most 1e+37, not -1"),
        ("train.learning_rate=inf", "0.0 and at most 1e+37, not inf"),
        ("train.learning_rate=nan", "0.0 and at most 1e+37, not nan"),
        ("train.smoothing=1", "0.0 and at most 0.95, not 1"),
        ("search.beam=0", "1 and at most 1,000, not 0"),
        ("train.threads=513", "0 and at most 512, not 513"),
        ("model.encoder.layers=1_000_000", "1 and at most 256, not 1000000"),
        ("train.clip=0x" + "f" * 5000, "0.0 and at most 1e+37, not a number of 20,000 bits"),
    ],
)
def test_a_number_out_of_range_is_refused(text: str, limits: str) -> None:
    key = text.partition("=")[0]
    assert refused("", text) == f"{key} in the overrides is at least {limits}"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("train.seed=seven", "train.seed in the overrides is a whole number, not 'seven'"),
        ("train.seed=7.0", "train.seed in the overrides is a whole number, not 7.0"),
        ("train.seed=true", "train.seed in the overrides is a whole number, not True"),
        ("train.clip=much", "train.clip in the overrides is a number, not 'much'"),
        ("train.clip=true", "train.clip in the overrides is a number, not True"),
        ("tokens.shared=1", "tokens.shared in the overrides is true or false, not 1"),
        ("tokens.shared=yes", "tokens.shared in the overrides is true or false, not 'yes'"),
        ("data.train=[1, 2]", "data.train in the overrides is a name or a list of names, not [1, 2]"),
    ],
)
def test_a_value_of_the_wrong_kind_is_refused(text: str, message: str) -> None:
    assert refused("", text) == message


def test_a_value_of_the_wrong_kind_in_a_file_is_refused() -> None:
    assert refused("name = 7") == "name in mine.toml is a text, not 7"
    assert refused("data = 7").startswith("data in mine.toml is a section")


@pytest.mark.parametrize("text", ["name=a\udcff", "data.train=a\udcff.tsv"])
def test_a_text_that_is_not_utf8_is_refused(text: str) -> None:
    """Python decodes bytes of the command line that are not UTF-8 to surrogates; TOML cannot hold them."""
    assert "UTF-8" in refused("", text)


def test_the_error_for_invalid_toml_names_file_and_line() -> None:
    message = refused('name = "mine"\n[train]\nseed = = 7\n')
    assert message.startswith("mine.toml is not valid TOML: ")
    assert "line 3" in message


def test_a_transformer_with_several_heads_trains_on_a_generated_corpus() -> None:
    recipe = load("transformer_small")
    assert (recipe.model.encoder.kind, recipe.model.decoder.kind) == ("transformer", "transformer")
    assert recipe.model.attention.heads > 1 < recipe.model.decoder.layers
    assert recipe.data.corpus in CORPORA
    assert not recipe.data.train


def test_the_error_for_an_unknown_recipe_suggests_a_similar_one() -> None:
    how = " `regard list recipes` names all; or give a .toml file"
    for name, near in {
        "datse": "; did you mean 'dates'?",
        "multi30k": "; did you mean 'multi30k_bahdanau', 'multi30k_small' or 'multi30k_tiny'?",
        "xyzzy": ";",
    }.items():
        with pytest.raises(RecipeError) as caught:
            load(name)
        assert str(caught.value) == f"no recipe {name!r}{near}{how}"
    with pytest.raises(RecipeError, match=r"^'data.train=x.csv' changes a recipe; name one before it, such as dates$"):
        load("data.train=x.csv")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("train.epochs=3", "; regard counts updates, not epochs: train.updates=N"),
        ("epochs=3", "; regard counts updates, not epochs: train.updates=N"),
        ("batch-size=3", "; regard counts tokens, not pairs: train.batch_tokens=N"),
        ("train.lr=3", "; write train.learning_rate=X"),
        ("model.hidden_size=3", "; write model.encoder.dim=N model.decoder.dim=N"),
        ("model.score=dot", "; did you mean 'model.attention.score'?"),
        ("dropout=0", "; did you mean 'model.encoder.dropout', 'model.attention.dropout' or 'model.decoder.dropout'?"),
    ],
)
def test_names_of_other_toolkits_and_of_other_sections_are_answered_with_ours(text: str, message: str) -> None:
    assert refused("", text) == f"unknown key {text.partition('=')[0]!r} in the overrides{message}"


def test_every_key_has_a_meaning() -> None:
    assert [key for key, meaning in catalogue.meanings().items() if not meaning.strip()] == []


def test_every_key_that_is_suggested_for_one_of_another_toolkit_exists() -> None:
    keys = {*catalogue.meanings()}
    for hint in ELSEWHERE.values():
        suggested = re.findall(r"[a-z]+(?:\.[a-z_]+)+", hint)
        assert suggested, hint
        assert {*suggested} <= keys, hint
    assert not {*ELSEWHERE} & {key.rpartition(".")[2] for key in keys}


def test_the_place_of_overrides_is_named() -> None:
    for place in ("the overrides", "the command line"):
        with pytest.raises(RecipeError, match=f"train.seed in {place} is a whole number"):
            load("dates", ["train.seed=seven"], place)


@pytest.mark.parametrize(
    ("name", "choices", "suggestion"),
    [
        ("runs/nothing", ["runs/mine"], ""),
        ("one.tsv", ["empty.tsv"], ""),
        ("runs/dats", ["runs/mine", "runs/dates"], "; did you mean 'runs/dates'?"),
        ("pairs.tvs", ["pairs.tsv"], "; did you mean 'pairs.tsv'?"),
        ("a", ["ab"], "; did you mean 'ab'?"),
        ("x", [], ""),
    ],
)
def test_only_similar_names_are_suggested(name: str, choices: list[str], suggestion: str) -> None:
    """A folder, a section or an ending that both names have does not make them similar."""
    assert did_you_mean(name, choices) == suggestion


def test_a_long_table_is_not_listed_in_a_message() -> None:
    few, many = {f"n{number}": 0 for number in range(12)}, {f"n{number}": 0 for number in range(13)}
    with pytest.raises(UnknownNameError) as caught:
        pick(few, "zzzz", "metric")
    assert str(caught.value) == f"unknown metric 'zzzz'; choose from {', '.join(few)}"
    with pytest.raises(UnknownNameError) as caught:
        pick(many, "n99", "corpus")
    assert str(caught.value) == "unknown corpus 'n99'; did you mean 'n9'? `regard list corpora` names all"


@pytest.mark.parametrize("what", [*LISTS, "metric", "score", "task", "schedule", "order", "recipe"])
def test_the_command_that_lists_a_table_exists(what: str) -> None:
    command = names_all(what).split("`")[1]
    assert command == "regard list" or command.removeprefix("regard list ") in catalogue.tables()


def test_the_scores_of_a_paper_are_named() -> None:
    with pytest.raises(UnknownNameError, match=r"; Bahdanau's score is additive; Luong's are dot, general and concat$"):
        pick(SCORES, "Bahdanau", "score")
    for hint in HINTS["score"].values():
        assert set(re.findall(r"\w+", hint)) & SCORES.keys(), hint


def test_a_recipe_file_is_loaded_with_overrides(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text("[train]\nseed = 7\n", encoding="utf-8")
    assert load(tmp_path / "mine.toml", ["name=ours"]) == parse("", "it", ["train.seed=7", "name=ours"])


def test_a_missing_or_unreadable_recipe_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"missing\.toml cannot be read"):
        load(tmp_path / "missing.toml")
    (tmp_path / "latin.toml").write_bytes(b'name = "\xe9"\n')
    with pytest.raises(RecipeError, match=r"latin\.toml cannot be read"):
        load(tmp_path / "latin.toml")


# Keys of one task, and keys that a task ignores


def test_the_error_for_a_moved_key_names_the_new_key() -> None:
    for old, new in recipes.MOVED.items():
        message = refused("", f"{old}=1")
        assert f"{old} in the overrides is now called {new}" in message
        value_at(Recipe(), new)


@pytest.mark.parametrize("format", [1, 2])
def test_an_older_recipe_is_read_into_the_sections_of_its_task(format: int) -> None:
    text = "[data]\nheader = true\nwindow = 7\n[model]\npooling = 'max'\n[model.letters]\ndim = 8\n"
    assert parse(f"format = {format}\ntask = 'classify'\n{text}", "it") == parse(
        "task = 'classify'\n[classify]\nheader = true\npooling = 'max'\n", "it"
    )
    tagger = parse(f"format = {format}\ntask = 'tag'\n{text}", "it")
    assert tagger == parse("task = 'tag'\n[tag.letters]\ndim = 8\n", "it")
    assert parse(to_toml(tagger), "it") == tagger


@pytest.mark.parametrize("format", [1, 2])
@pytest.mark.parametrize("text", ["model = 7", "model.decoder = 7", "data = []"])
def test_an_older_recipe_that_is_wrong_is_refused_like_a_new_one(text: str, format: int) -> None:
    assert "is a section of keys" in refused(f"format = {format}\n{text}")


@pytest.mark.parametrize(
    ("task", "key", "message"),
    [
        ("translate", "classify.pooling=max", "classify.pooling is a key of task = classify, not of translate"),
        ("tag", "language_model.window=8", "language_model.window is a key of task = language_model, not of tag"),
        ("translate", "tokens.lower=true", "task = translate does not use tokens.lower; leave it out"),
        ("classify", "model.decoder.order=luong", "task = classify does not use model.decoder.order"),
        ("classify", "search.beam=4", "task = classify does not use search.beam"),
        ("masked_lm", "model.decoder.cross_attention.heads=2", "does not use model.decoder.cross_attention.heads"),
        ("language_model", "model.encoder.dim=12", "task = language_model does not use model.encoder.dim"),
        ("answer", "search.beam=4", "task = answer does not use search.beam"),
    ],
)
def test_a_key_that_a_task_ignores_is_refused(task: str, key: str, message: str) -> None:
    with pytest.raises(RecipeError, match=re.escape(message)):
        TASKS[task].check_keys(parse("", "it", [f"task={task}", key]))


@pytest.mark.parametrize("task", TASKS)
def test_keys_that_a_task_ignores_exist_and_defaults_are_never_refused(task: str) -> None:
    for name in TASKS[task].ignores:
        value_at(Recipe(), name)
    TASKS[task].check_keys(parse("", "it", [f"task={task}"]))


@pytest.mark.parametrize("format", [1, 2, 3, 4])
def test_in_an_older_recipe_masks_are_drawn_with_the_seed_of_training(format: int) -> None:
    masked = "task = 'masked_lm'\n[train]\nseed = 7\n[data]\ncorpus = 'clues'\n"
    assert parse(f"format = {format}\n{masked}", "it").masked_lm.mask_seed == 7
    assert parse(masked, "it").masked_lm.mask_seed == 1
    other = masked.replace("masked_lm", "translate")
    assert parse(f"format = {format}\n{other}", "it") == parse(other, "it")


@pytest.mark.parametrize("format", [1, 2, 3])
def test_in_an_older_recipe_the_dev_part_is_split_off_with_the_seed_of_training(format: int) -> None:
    seed = "[train]\nseed = 7\n"
    split = f"{seed}[data]\ntrain = 'a.tsv'\n"
    assert parse(f"format = {format}\n{split}", "it").data.split_seed == 7
    assert parse(split, "it").data.split_seed == 1
    for text in (seed, f"{split}dev = 'b.tsv'\n", f"{seed}[data]\ncorpus = 'dates'\n"):  # nothing is split off
        assert parse(f"format = {format}\n{text}", "it") == parse(text, "it")


@pytest.mark.parametrize(
    ("number", "noun", "words"),
    [
        (0, "pair", "0 pairs"),
        (1, "pair", "1 pair"),
        (1200, "dev pair", "1,200 dev pairs"),
        (1, "series", "1 series"),
        (2, "dev series", "2 dev series"),
    ],
)
def test_a_noun_agrees_with_its_number(number: int, noun: str, words: str) -> None:
    assert quantity(number, noun) == words
    assert plural(noun) == quantity(2, noun).removeprefix("2 ")
