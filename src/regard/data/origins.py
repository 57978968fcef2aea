"""Where corpora come from, under which licence, and how their files are made: a table by the name of a folder."""

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from regard import recipe as recipes
from regard.data.paths import find
from regard.errors import DataError
from regard.recipe import Recipe


class Origin(NamedTuple):
    """Where a corpus comes from, and how to get its files."""

    name: str  # of the corpus
    source: str  # project or site that publishes it
    licence: str
    reference: str = ""  # the usual one, for a paper
    files: str = ""  # what the files hold, and how they were made from those of the source
    commands: tuple[str, ...] = ()  # that make them, if there are any


MULTI30K = Origin(
    "Multi30k, task 1: captions of photographs in English, German, French and Czech",
    "https://github.com/multi30k/dataset, folder data/task1/raw",
    "for non-commercial research and education only, as the captions come from Flickr30K",
    "Elliott et al. 2016",
    "train, val, test_2016_flickr and test_2017_flickr as published: one sentence on each line, gzip",
)
CMUDICT = Origin(
    "CMUdict, the pronouncing dictionary of Carnegie Mellon University",
    "https://github.com/cmusphinx/cmudict",
    "of CMU, similar to BSD",
    files="word<TAB>phonemes on each line, without comments; drawn at random by word, 105,352, 2,700 and 12,000 words, "
    "all pronunciations of a word in one part",
)
ORIGINS = {
    "tatoeba-eng-fra": Origin(
        "Tatoeba, English and French: short sentences and their translations",
        "https://www.manythings.org/anki (fra-eng.zip of 2019-04-07), an export of https://tatoeba.org",
        "CC BY 2.0; name both sites",
        files="English<TAB>French on each line, 161,130, 2,000 and 2,000 pairs; the export has no parts, so pairs that "
        "share a sentence, but for case and punctuation, were put into the same one",
    ),
    "multi30k": MULTI30K,
    "multi30k-tokenised": MULTI30K._replace(
        files="normalised, lower-cased and cut into tokens, in a clone of regard with pip install 'regard[papers]'",
        commands=("python benchmarks/multi30k.py prepare $REGARD_DATA/multi30k $REGARD_DATA/multi30k-tokenised",),
    ),
    "cmudict-g2p": CMUDICT._replace(
        files=f"{CMUDICT.files}; the command makes another folder, without stress digits",
        commands=("python benchmarks/g2p.py $REGARD_DATA/cmudict-g2p $REGARD_DATA/cmudict-g2p-plain",),
    ),
    "cmudict-g2p-plain": CMUDICT._replace(
        files="the parts of cmudict-g2p without stress digits, made in a clone of regard",
        commands=("python benchmarks/g2p.py $REGARD_DATA/cmudict-g2p $REGARD_DATA/cmudict-g2p-plain",),
    ),
    "sst2": Origin(
        "SST-2, the Stanford Sentiment Treebank with two classes: sentences of film reviews",
        "https://github.com/forest-snow/alps, folder data/SST-2; also https://gluebenchmark.com",
        "none is stated for the data",
        "Socher et al. 2013",
        "sentence<TAB>label after a line of names, 1 is positive; train and valid are GLUE's training data, divided at "
        "random; test is GLUE's dev data",
    ),
    "ud-english-ewt": Origin(
        "Universal Dependencies, English Web Treebank",
        "https://github.com/UniversalDependencies/UD_English-EWT (May 2025)",
        "CC BY-SA 4.0",
        "Silveira et al. 2014",
        "the three CoNLL-U files as published, gzip",
    ),
    "wikiann-en": Origin(
        "WikiANN, English: names in sentences of Wikipedia, labelled by links, so with errors",
        "https://github.com/davidsbatista/NER-datasets, folder WikiANN/en",
        "none is stated; the text is Wikipedia's, which is CC BY-SA",
        "Pan et al. 2017, in the parts of Rahimi et al. 2019",
        "token<TAB>tag on each line, a blank line after each sentence, without the en: before tokens; dev is half of "
        "the published one",
    ),
    "brown": Origin(
        "Brown corpus: a million words of American English of 1961",
        "https://github.com/nltk/nltk_data, packages/corpora/brown.zip",
        "for non-commercial use only",
        "Francis and Kucera 1964",
        "a sentence of tokens on each line, without tags; 450 documents in train, 25 in valid",
    ),
    "tinyshakespeare": Origin(
        "Tiny Shakespeare: plays as one text of 1.1 million characters",
        "https://github.com/karpathy/char-rnn, data/tinyshakespeare/input.txt",
        "none is stated; the text is in the public domain",
        files="as published",
    ),
}


def origins(recipe: Recipe) -> dict[str, Origin]:
    """The origins of a recipe's data, by folder or embedded corpus, as far as they are known."""
    data = recipe.data
    folders = dict.fromkeys(Path(name).parent.name for name in (*data.train, *data.dev, *data.test))
    known = {folder: ORIGINS[folder] for folder in folders if folder in ORIGINS}
    if data.corpus and not data.train:
        known[data.corpus] = Origin(
            "a generated corpus",
            f"regard generates it from the seed {recipe.train.seed} (train.seed); "
            "dev and test are the same for any seed",
            "Apache 2.0, as regard itself",
        )
    return known


def check_found(recipe: Recipe, names: Iterable[str]) -> None:
    """Raise DataError if a file is missing; if its corpus is known, it names the command that says where it is from."""
    for name in names:
        try:
            find(name)
        except DataError as error:
            if Path(name).parent.name not in ORIGINS:
                raise
            own = recipe.name if recipe.name in recipes.names() else "RECIPE"
            end = "" if str(error).endswith("?") else ";"
            raise DataError(f"{error}{end} `regard data {own}` says where the data comes from") from None
