"""Where corpora come from, under which licence, and how their files are made: a table by the name of a folder."""

from pathlib import Path
from typing import NamedTuple

from regard.recipe import Recipe


class Origin(NamedTuple):
    """Where a corpus comes from, and how to get its files."""

    name: str  # of the corpus
    source: str  # project or site that publishes it
    licence: str
    reference: str = ""  # the usual one, for a paper
    files: str = ""  # what the files hold, and how they were made from those of the source
    commands: tuple[str, ...] = ()  # that make them from what was downloaded, in a clone of regard


DATA = "${REGARD_DATA:-data}"  # for a shell: the folder that is searched, whether it is named or not

MULTI30K = Origin(
    "Multi30k, task 1: captions of photographs in English, German, French and Czech",
    "https://github.com/multi30k/dataset, folder data/task1/raw",
    "for non-commercial research and education only, as the captions come from Flickr30K",
    "Elliott et al. 2016",
    "train, val, test_2016_flickr and test_2017_flickr as published: one sentence on each line, gzip",
    (f"python benchmarks/prepare.py multi30k dataset/data/task1/raw {DATA}/multi30k",),
)
CMUDICT = Origin(
    "CMUdict, the pronouncing dictionary of Carnegie Mellon University",
    "https://github.com/cmusphinx/cmudict, cmudict.dict",
    "of CMU, similar to BSD",
    files="word<TAB>phonemes on each line, without comments; drawn at random by word, ours 105,352, 2,700 and 12,000, "
    "all pronunciations of a word in one part",
    commands=(f"python benchmarks/prepare.py cmudict cmudict.dict {DATA}/cmudict-g2p",),
)
WITHOUT_STRESS = (f"python benchmarks/g2p.py {DATA}/cmudict-g2p {DATA}/cmudict-g2p-plain",)
ORIGINS = {
    "tatoeba-eng-fra": Origin(
        "Tatoeba, English and French: short sentences and their translations",
        "https://www.manythings.org/anki (fra-eng.zip; ours is of 2019-04-07), an export of https://tatoeba.org",
        "CC BY 2.0; name both sites",
        files="English<TAB>French on each line, ours 161,130, 2,000 and 2,000 pairs; the export has no parts, so pairs "
        "that share a sentence, but for case and punctuation, are put into the same one",
        commands=(f"python benchmarks/prepare.py tatoeba fra-eng.zip {DATA}/tatoeba-eng-fra",),
    ),
    "multi30k": MULTI30K,
    "multi30k-tokenised": MULTI30K._replace(
        files="normalised, lower-cased and cut into tokens, in a clone of regard with pip install 'regard[papers]'",
        commands=(
            *MULTI30K.commands,
            f"python benchmarks/multi30k.py prepare {DATA}/multi30k {DATA}/multi30k-tokenised",
        ),
    ),
    "cmudict-g2p": CMUDICT._replace(
        files=f"{CMUDICT.files}; the second command makes another folder, without stress digits",
        commands=CMUDICT.commands + WITHOUT_STRESS,
    ),
    "cmudict-g2p-plain": CMUDICT._replace(
        files="the parts of cmudict-g2p without stress digits",
        commands=CMUDICT.commands + WITHOUT_STRESS,
    ),
    "an4-pairs": Origin(
        "an4, recordings of Carnegie Mellon University, 1991: spelled names, addresses, dates and control words",
        "https://github.com/cmusphinx/an4",
        "of CMU, similar to BSD",
        "Acero 1990",
        "recording<TAB>text, and a tar file of WAV at 16 kHz beside each table, ours 743, 104 and 130; test is as "
        "published, dev is of other speakers than train",
        (f"python benchmarks/prepare.py an4 an4 {DATA}/an4-pairs",),
    ),
    "fsdd-pairs": Origin(
        "FSDD, the Free Spoken Digit Dataset: six speakers say each digit fifty times",
        "https://github.com/Jakobovski/free-spoken-digit-dataset, folder recordings",
        "CC BY-SA 4.0",
        files="recording<TAB>digits, WAV at 8 kHz; test are takes 0 to 4 as published, dev 5 to 9; strings joins 3 to "
        "7 digits of test takes, and train and dev have such strings of their own takes, too",
        commands=(f"python benchmarks/prepare.py fsdd free-spoken-digit-dataset/recordings {DATA}/fsdd-pairs",),
    ),
    "sst2": Origin(
        "SST-2, the Stanford Sentiment Treebank with two classes: sentences of film reviews",
        "https://gluebenchmark.com/tasks, SST-2.zip; ours was divided by https://github.com/forest-snow/alps",
        "none is stated for the data",
        "Socher et al. 2013",
        "sentence<TAB>label after a line of names, 1 is positive; train and valid are GLUE's training data, divided at "
        "random; test is GLUE's dev data",
        (f"python benchmarks/prepare.py sst2 SST-2.zip {DATA}/sst2",),
    ),
    "ud-english-ewt": Origin(
        "Universal Dependencies, English Web Treebank",
        "https://github.com/UniversalDependencies/UD_English-EWT (May 2025)",
        "CC BY-SA 4.0",
        "Silveira et al. 2014",
        "the three CoNLL-U files as published, gzip",
        (f"python benchmarks/prepare.py ewt UD_English-EWT {DATA}/ud-english-ewt",),
    ),
    "wikiann-en": Origin(
        "WikiANN, English: names in sentences of Wikipedia, labelled by links, so with errors",
        "https://github.com/davidsbatista/NER-datasets, folder WikiANN/en",
        "none is stated; the text is Wikipedia's, which is CC BY-SA",
        "Pan et al. 2017, in the parts of Rahimi et al. 2019",
        "token<TAB>tag on each line, a blank line after each sentence, without the en: before tokens; our dev is half "
        "of the published one",
        (f"python benchmarks/prepare.py wikiann NER-datasets/WikiANN/en {DATA}/wikiann-en",),
    ),
    "brown": Origin(
        "Brown corpus: a million words of American English of 1961",
        "https://github.com/nltk/nltk_data, packages/corpora/brown.zip",
        "for non-commercial use only",
        "Francis and Kucera 1964",
        "a sentence of tokens on each line, without tags; 25 documents in valid, the others in train (ours: 450)",
        (f"python benchmarks/prepare.py brown brown.zip {DATA}/brown",),
    ),
    "flickr8k": Origin(
        "Flickr8k: 8,000 photographs, each with five captions in English",
        "University of Illinois, on request: Flickr8k_Dataset.zip and Flickr8k_text.zip",
        "for non-commercial research and education only; the photographs belong to their authors on Flickr",
        "Hodosh et al. 2013",
        "picture<TAB>number<TAB>caption on each line, and the pictures in tar files; train and test are the published "
        "6,000 and 1,000 pictures; ours are at most 232 pixels wide and high, and our dev is half of the published one",
        (f"python benchmarks/prepare.py flickr8k Flickr8k_text.zip Flickr8k_Dataset.zip {DATA}/flickr8k",),
    ),
    "tinyshakespeare": Origin(
        "Tiny Shakespeare: plays as one text of 1.1 million characters",
        "https://github.com/karpathy/char-rnn, data/tinyshakespeare/input.txt",
        "none is stated; the text is in the public domain",
        files="as published",
        commands=(f"python benchmarks/prepare.py tinyshakespeare input.txt {DATA}/tinyshakespeare",),
    ),
    "m4-hourly": Origin(
        "M4 competition, hourly: 414 series of 700 to 960 values, and the 48 values after each of them",
        "https://github.com/Mcompetitions/M4-methods, Dataset/Train and Dataset/Test (ours is of commit 6c1067e)",
        "none is stated",
        "Makridakis et al. 2020",
        "as published, gzip: the name of a series, then its values, without times; short rows end in empty cells",
        (f"python benchmarks/prepare.py m4_hourly M4-methods/Dataset/Train M4-methods/Dataset/Test {DATA}/m4-hourly",),
    ),
    "exchange-rate": Origin(
        "Exchange rates of 8 currencies: 7,588 days, 1990 to 2016",
        "https://github.com/laiguokun/multivariate-time-series-data, folder exchange_rate (ours is of commit 7f402f1)",
        "none is stated",
        "Lai et al. 2018",
        "as published, gzip: a row per day, a column per currency, without names and times",
        (
            "python benchmarks/prepare.py exchange_rate multivariate-time-series-data/exchange_rate "
            f"{DATA}/exchange-rate",
        ),
    ),
    "ett": Origin(
        "ETTh1: load and oil temperature of an electricity transformer, hourly from July 2016 to July 2018",
        "https://github.com/zhouhaoyi/ETDataset, folder ETT-small (ours is of commit 1d16c8f)",
        "CC BY-ND 4.0: it may not be passed on in a changed form",
        "Zhou et al. 2021",
        "ETTh1.csv as published, gzip: the date and seven columns, 17,420 rows",
        (f"python benchmarks/prepare.py ett ETDataset/ETT-small {DATA}/ett",),
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
