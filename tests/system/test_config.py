"""`regard config`: the file that it writes means what the recipe means, and explains every key."""

import re
import tomllib
import warnings
from pathlib import Path

import pytest

from commands import printed, shared_commands
from regard import recipe as recipes
from regard.catalogue import meanings

with warnings.catch_warnings():  # typer uses names that click 8.5 deprecates
    warnings.simplefilter("ignore", DeprecationWarning)
    from regard.cli.config import commented

KEY = re.compile(r"^(# )?(\w+) = ", re.M)


def text_of(name: str, *overrides: str) -> str:
    chosen = set(recipes.origins(name, overrides))
    return "\n".join(commented(recipes.load(name, overrides), chosen, recipes.comment(name))) + "\n"


def sections(text: str) -> list[str]:
    """The text of each section, with its heading."""
    return re.split(r"^(?=\[)", text, flags=re.M)


@pytest.mark.parametrize("name", recipes.names())
def test_it_loads_back_equal_as_it_is_and_with_every_key_set(name: str) -> None:
    text = text_of(name)
    assert recipes.parse(text, name) == recipes.load(name)
    without_sites = (part for part in sections(text) if not re.match(r"\[.*(self|cross)_attention\]", part))
    everything = re.sub(r"^# (\w+ = )", r"\1", "".join(without_sites), flags=re.M)
    sites = "".join(part for part in sections(text) if re.match(r"\[.*(self|cross)_attention\]", part))
    assert recipes.parse(everything + sites, name) == recipes.load(name)


def test_every_key_is_there_with_its_meaning_and_commented_out_unless_it_is_set() -> None:
    text = text_of("dates", "train.seed=1", "model.encoder.self_attention.score=dot")
    named = dict[str, bool]()
    for part in sections(text):
        heading = re.match(r"\[(.*)\]", part)
        for comment, key in KEY.findall(part):
            if heading or key != "format":  # of the file
                named[f"{heading[1]}.{key}" if heading else key] = not comment
    assert named.keys() == meanings().keys()
    paragraphs = re.sub(r"\n# ", " ", text)
    assert all(meaning in paragraphs for meaning in meanings().values())
    overridden = {"train.seed", "model.encoder.self_attention.score"}
    assert {key for key, is_set in named.items() if is_set} == {*recipes.origins("dates"), *overridden}
    assert "from 1 to 1,000,000,000; default 1000\nupdates = " in paragraphs
    assert re.search(r"one of dot, scaled_dot, .*; default \"additive\"|one of dot, scaled_dot, ", paragraphs)
    assert max(map(len, text.split("\n"))) <= 120


def test_the_command_writes_a_file_that_can_be_trained(tmp_path: Path) -> None:
    result = shared_commands()("config", "copy", "train.updates=7", "-o", "mine.toml", folder=tmp_path)
    assert result.code == 0, result.error
    assert result.error.endswith("train it with: regard train mine.toml\n")
    assert recipes.load(tmp_path / "mine.toml") == recipes.load("copy", ["train.updates=7"])
    again = printed(tmp_path, "config", "mine.toml", "train.seed=5")
    assert recipes.parse(again, "again") == recipes.load("copy", ["train.updates=7", "train.seed=5"])
    refused = shared_commands()("config", "mine.toml", "-o", "mine.toml", folder=tmp_path)
    assert (refused.code, "would replace" in refused.error) == (2, True)
    edited = (tmp_path / "mine.toml").read_text("utf-8") + "# edited\n"
    (tmp_path / "mine.toml").write_text(edited, "utf-8")
    refused = shared_commands()("config", "reverse", "-o", "mine.toml", folder=tmp_path)
    assert (refused.code, "exists, and may have been edited" in refused.error) == (2, True)
    assert (tmp_path / "mine.toml").read_text("utf-8") == edited


def test_without_a_recipe_all_keys_have_their_defaults(tmp_path: Path) -> None:
    text = printed(tmp_path, "config")
    assert recipes.parse(text, "it") == recipes.Recipe()
    assert next(iter(tomllib.loads(text))) == "format"
    assert recipes.parse(printed(tmp_path, "config", "train.seed=3"), "it").train.seed == 3
