"""Every packaged recipe says where its data comes from; the commands that prepare data are those of the scripts."""

import re
import runpy
from pathlib import Path

import pytest

from regard import recipe as recipes
from regard.data.corpora import CORPORA
from regard.data.origins import ORIGINS, origins

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", recipes.names())
def test_every_packaged_recipe_has_an_origin_for_each_folder_of_its_files(name: str) -> None:
    recipe = recipes.load(name)
    data = recipe.data
    folders = {file.partition("/")[0] for file in (*data.train, *data.dev, *data.test)}
    assert set(origins(recipe)) == folders or {data.corpus} & set(CORPORA)
    for origin in origins(recipe).values():
        assert origin.source
        assert origin.licence


@pytest.mark.parametrize("origin", [*ORIGINS.values(), *origins(recipes.load("dates")).values()])
def test_an_origin_is_lines_of_text_and_its_commands_are_those_of_the_script(origin: tuple[str, ...]) -> None:
    *texts, commands = origin
    for text in (*texts, *commands):
        assert text.isprintable()
        assert len(text) < 250
    for command in commands:
        python, script, *arguments = command.split()
        usage = re.search(rf"python {script} (.+?) OUT ", (ROOT / script).read_text(encoding="utf-8"))
        assert python == "python"
        assert usage
        assert [word for word in usage[1].split() if word.islower()] == arguments[: usage[1].startswith("prepare")]


def test_every_corpus_has_a_command_that_prepares_its_folder() -> None:
    corpora = runpy.run_path(str(ROOT / "benchmarks/prepare.py"))["CORPORA"]
    used = set()
    for folder, origin in ORIGINS.items():
        commands = [command.split() for command in origin.commands]
        assert f"${{REGARD_DATA:-data}}/{folder}" in [command[-1] for command in commands]
        used |= {command[2] for command in commands if command[1] == "benchmarks/prepare.py"}
    assert used == set(corpora)


def test_files_outside_of_known_folders_have_no_origin_and_a_generated_corpus_names_its_seed() -> None:
    own = recipes.load("dates", ["data.train=own/pairs.tsv", "data.test=/data/sst2/test.tsv.gz"])
    assert origins(own) == {"sst2": ORIGINS["sst2"]}
    assert "the seed 7 " in origins(recipes.load("dates", ["train.seed=7"]))["dates"].source
