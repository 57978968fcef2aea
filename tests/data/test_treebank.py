"""English text that was split as in the Penn Treebank, and is rejoined for models that know it as it is printed."""

import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import regard
from regard import recipe as recipes
from regard.data.corpora import moods
from regard.data.treebank import rejoin
from regard.tasks import Classify

PRINTED = {  # as the Treebank splits it: as it is printed
    "it does n't believe ... it 's just plain bored .": "it doesn't believe... it's just plain bored.",
    "I Ca N'T say they 're bad , or we 've seen it ; I 'll": "I CaN'T say they're bad, or we've seen it; I'll",
    "we can not see it , but you can not only see it": "we cannot see it, but you can not only see it",
    "he says `` go '' -lrb- twice -RRB- !": 'he says "go" (twice)!',
    "`` really ? '' , she said": '"really?", she said',
    "a ` small ' film , ` but fine . '": "a 'small' film, 'but fine.'",
    "the actors ' work in the '70s": "the actors' work in the '70s",
    "'t is gon na be $ 5 or 50 % , gim me": "'tis gonna be $5 or 50%, gimme",
    "-lsb- sic -rsb- -lcb- x -rcb- ( y )": "[sic] {x} (y)",
    "( assayas ' ) homage": "(assayas') homage",
    "what it is n't is funny , and it ca n't was": "what it isn't is funny, and it can't was",
}


@pytest.mark.parametrize(("split", "printed"), PRINTED.items())
def test_the_pieces_of_the_treebank_are_put_together(split: str, printed: str) -> None:
    assert rejoin(split) == printed


AS_THEY_ARE = (
    *("the 'strong' man's idea", "what it isn't is funny", "L'm n'tx", "", " ", "été — naïve…", "the letter 's' is"),
    *("Thanks :) or sad :( but", "use `ls` to list", "```code```", "he said 're-do it'", "in 's-Hertogenbosch"),
    *("the cannot-do man", "f(x) = (a) [b]", "C# 5 and A$ 7", "it can not only be"),
)


@pytest.mark.parametrize("printed", [*PRINTED.values(), *AS_THEY_ARE])
def test_printed_text_is_not_changed(printed: str) -> None:
    assert rejoin(printed) == printed


@given(st.lists(st.sampled_from([*"a,.!?()[]'`$%5:;", "...", "``", "''", "n't", "'s", "can", "not", "-lrb-", "-rrb-"])))
def test_only_spaces_brackets_and_quotes_change(pieces: list[str]) -> None:
    text = " ".join(pieces)
    plain = text.replace("-lrb-", "(").replace("-rrb-", ")").replace("``", '"').replace("''", '"').replace("`", "'")
    assert rejoin(text).replace(" ", "") == plain.replace(" ", "")


@pytest.mark.parametrize("piece", ["` ( can gon 't ''' -l . . . ", " ", "`", "'", "( ", " )", ". ", "-lrb-"])
def test_the_time_grows_with_the_length_of_a_text(piece: str) -> None:
    """A quadratic pattern would take minutes for a million characters."""
    began = time.process_time()
    rejoin(piece * (1_000_000 // len(piece)))
    assert time.process_time() - began < 20


def test_a_classifier_reads_split_and_printed_text_alike(tmp_path: Path) -> None:
    settings = ["tokens.rejoin=true", "train.updates=2", "train.validate=2", "data.size=40", "train.device=cpu"]
    run = regard.train("moods", *settings, runs=tmp_path, quiet=True)
    split, printed = "the soup was n't great , not bad", "the soup wasn't great, not bad"
    one, other = regard.load(run).predict([split, printed])
    assert one.score == other.score
    assert one.map is not None
    assert other.map is not None
    assert one.map.columns == other.map.columns
    task = Classify.learn(recipes.load("moods"), moods(1, 5).train)
    assert task.ids(split) != task.ids(printed)
