"""The tagger: file formats, letters of words, the best path of tags, metrics, and training."""

import gzip
import itertools
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

import regard
from commands import printed
from regard import recipe as recipes
from regard.attention.record import record
from regard.data import tagged
from regard.data.corpora import parts
from regard.data.files import Loaded
from regard.errors import DataError, RecipeError
from regard.kernels.choose import capturable, count_answers
from regard.metrics import entity_f1, spans, tag_accuracy
from regard.models.letters import LETTERS, Spelled
from regard.models.tagger import Tagger
from regard.predict import load
from regard.recipe import Recipe
from regard.search.path import FORBIDDEN, Rules, best_path, bio
from regard.tasks.tag import LONGEST_WORD, Tag
from regard.types import BEGIN, END, PAD, SPECIALS, UNKNOWN, Example

ENCODERS = {
    "recurrent": ["model.encoder.cell=lstm", "model.encoder.layers=2", "model.encoder.dropout=0.1"],
    "transformer": [
        *("model.encoder.kind=transformer", "model.attention.score=scaled_dot"),
        *("model.attention.heads=2", "model.encoder.layers=2"),
    ],
}


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before, set_threads = torch.get_num_threads(), torch.set_num_threads
    set_threads(1)
    yield
    set_threads(before)


def tiny(*overrides: str) -> Recipe:
    sizes = ["model.embedding=12", "model.encoder.dim=16", "tag.letters.embedding=6", "tag.letters.dim=10"]
    tokens = ["tokens.source=word", "tokens.target=word", "tag.least=2", "tokens.lower=true"]
    data = ["name=tiny", "task=tag", "metric=tag_accuracy", "data.corpus=parts", "data.size=200", "train.device=cpu"]
    settings = ["train.updates=20", "train.validate=10", "train.batch_tokens=200", "train.learning_rate=0.01"]
    return recipes.parse("", "tiny", [*sizes, *tokens, *data, *settings, "train.word_dropout=0.1", *overrides])


def a_task(*overrides: str) -> Tag:
    return Tag.learn(tiny(*overrides), parts(1, 200).train)


def a_tagger(encoder: str, *overrides: str) -> tuple[Tag, Tagger]:
    task = a_task(*ENCODERS[encoder], *overrides)
    return task, task.build().eval()


def fields_of(loaded: Loaded) -> list[tuple[str, str, str]]:
    """Source, target and origin of every example."""
    return [(example.source, example.target, example.origin) for example in loaded.examples]


def write(folder: Path, name: str, text: str) -> str:
    path = folder / name
    path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    return str(path)


# Files

CONLLU = """# sent_id = one
# text = Don't go
1-2\tDon't\t_\t_\t_\t_\t_\t_\t_\t_
1\tDo\tdo\tAUX\tVB\t_\t3\taux\t_\t_
2\tn't\tnot\tPART\tRB\t_\t3\tadvmod\t_\t_
3\tgo\tgo\tVERB\tVB\t_\t0\troot\t_\t_
3.1\tnow\tnow\tADV\tRB\t_\t_\t_\t_\t_

# sent_id = two
1\t10 000\t10000\tNUM\tCD\t_\t0\troot\t_\t_
"""


@pytest.mark.parametrize("name", ["some.conllu", "some.conllu.gz"])
def test_conllu_gives_words_and_universal_tags(tmp_path: Path, name: str) -> None:
    file = write(tmp_path, name, CONLLU)
    assert fields_of(tagged.conllu((file,))) == [
        ("Do n't go", "AUX PART VERB", f"{file}:4"),
        ("10_000", "NUM", f"{file}:10"),
    ]


def test_a_line_of_conllu_has_ten_fields(tmp_path: Path) -> None:
    file = write(tmp_path, "bad.conllu", "1\tDo\tdo\tAUX\n")
    with pytest.raises(DataError, match=r"bad\.conllu:1: 4 fields, expected the 10 of CoNLL-U"):
        tagged.conllu((file,))


def test_columns_take_the_first_and_the_last_between_tabs_or_spaces(tmp_path: Path) -> None:
    tabs = write(tmp_path, "tabs.tsv", "\n\nRobert\tB-PER\r\nGittings\tI-PER\r\n\r\n \n,\tO")
    spaces = write(tmp_path, "spaces.txt.gz", "Rockwell NNP B-NP\n's POS B-NP\n")
    assert fields_of(tagged.columns((tabs, spaces))) == [
        ("Robert Gittings", "B-PER I-PER", f"{tabs}:3"),
        (",", "O", f"{tabs}:7"),
        ("Rockwell 's", "B-NP B-NP", f"{spaces}:1"),
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("one O\ntwo\n", "bad:2: one field, expected a word and its tag"),
        ("one O\n \tO\n", "bad:2: a word or its tag is blank"),
        ("one\t\n", "bad:1: a word or its tag is blank"),
        ("\n\n", "no sentence is in it"),
    ],
)
def test_bad_columns_are_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        tagged.columns((write(tmp_path, "bad", text),))


def test_a_sentence_with_more_words_than_tags_is_refused(tmp_path: Path) -> None:
    file = write(tmp_path, "bad.tsv", "a dog\tDET NOUN\na dog barks\tDET NOUN\n")
    with pytest.raises(DataError, match=r"bad\.tsv:2: 3 words but 2 tags"):
        Tag.reader(tiny())((file,))
    with pytest.raises(DataError, match=r"bad\.tsv:2: 3 words but 2 tags"):
        regard.train(tiny(f"data.train={file}"), runs=tmp_path / "runs", quiet=True)
    assert not (tmp_path / "runs").exists()


def test_parallel_files_of_words_and_tags_are_read(tmp_path: Path) -> None:
    words, tags = write(tmp_path, "a.txt", "a dog\nno\n"), write(tmp_path, "a.tags", "DET NOUN\nINTJ\n")
    assert fields_of(Tag.reader(tiny())((words, tags)))[1][:2] == ("no", "INTJ")


def test_an_unknown_format_and_a_format_for_another_task_are_refused(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"unknown format 'conlu'; choose from pairs, conllu, columns"):
        Tag.check(tiny("tag.format=conlu"))
    other = recipes.parse("", "other", ["tag.format=conllu", "data.corpus=reverse"])
    with pytest.raises(RecipeError, match=r"tag.format is a key of task = tag, not of translate"):
        regard.train(other, runs=tmp_path, quiet=True)


# Recipes that are refused


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("tokens.source=character", "a tagger reads words and writes tags"),
        ("tokens.target=sentencepiece", "a tagger reads words and writes tags"),
        ("tag.letters.dim=7", "tag.letters.dim is split in two halves, so it must be even, not 7"),
        ("tag.letters.kind=recurent", "unknown reader of letters 'recurent'.*did you mean 'recurrent'"),
        ("model.encoder.dim=15", "split between two directions"),
    ],
)
def test_a_recipe_that_does_not_fit_is_refused(override: str, message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        Tag.check(tiny(override))


# Words and letters


def test_rare_words_are_unknown_and_letters_keep_their_case() -> None:
    examples = [Example("The Dog the dog", "D N D N"), Example("A CAT", "D N"), Example("a cow", "D N")]
    task = Tag.learn(tiny(), examples)
    vocabulary = {task.words.piece(index) for index in range(len(SPECIALS), task.words.size)}
    assert vocabulary == {"the", "dog", "a"}
    data = task.encode(examples)
    assert data.words[1] == [task.encode_words("a")[0], UNKNOWN]
    assert data.letters[1].tolist() == [
        [BEGIN, *task.letters.encode("A"), END, PAD, PAD],
        [BEGIN, *task.letters.encode("CAT"), END],
    ]
    assert task.names == ["D", "N"]


def test_a_long_word_is_read_by_its_beginning_and_its_end() -> None:
    task = a_task()
    half = LONGEST_WORD // 2
    start, end = "b" * half, "d" * half
    assert torch.equal(task.spell(start + "k" * 99 + end), task.spell(start + end))
    assert len(task.spell("b" * LONGEST_WORD)) == LONGEST_WORD + 2


def test_a_batch_pads_words_letters_and_tags() -> None:
    task = a_task()
    data = task.encode([Example("This gorb mivs .", "DET NOUN VERB PUNCT"), Example("Miv", "VERB")])
    batch = task.collate(data, [1, 0])
    assert batch.source.ids.shape == batch.tags.shape == (2, 4)
    assert batch.source.letters.shape == (2, 4, 6)
    assert batch.source.mask.tolist() == [[True, False, False, False], [True] * 4]
    assert (batch.tags[0, 1:] == PAD).all()
    assert (batch.source.letters[0, 1:] == PAD).all()
    assert batch.source.letters[0, 0].tolist() == [BEGIN, *task.letters.encode("Miv"), END, PAD]
    assert task.tokens(batch) == 5
    assert batch.examples.tolist() == [1, 0]
    assert data.lengths().tolist() == [[5, 5], [2, 2]]


@pytest.mark.parametrize("kind", LETTERS)
def test_padding_changes_no_vector_of_letters(kind: str) -> None:
    reader = LETTERS[kind](11, embedding=5, dim=6).double()
    letters = torch.randint(4, 11, (2, 3, 7), dtype=torch.int32)
    letters[0, 0, 2:] = PAD
    letters[1, 2] = PAD
    mask = letters[..., 0] != PAD
    ids = torch.zeros(2, 3, dtype=torch.long)
    vectors = reader(Spelled(ids, mask, letters))
    assert vectors.shape == (2, 3, 6)
    assert (vectors[1, 2] == 0).all()
    longer = torch.nn.functional.pad(letters, (0, 4))
    assert torch.allclose(reader(Spelled(ids, mask, longer)), vectors, atol=1e-12)
    alone = reader(Spelled(ids[:1, :1], mask[:1, :1], letters[:1, :1, :2]))
    assert torch.allclose(alone[0, 0], vectors[0, 0], atol=1e-12)
    changed = letters.clone()
    changed[0, 1, 6] = 4 if letters[0, 1, 6] != 4 else 5
    others = reader(Spelled(ids, mask, changed))
    assert torch.equal(others[1], vectors[1])
    assert torch.equal(others[0, 0], vectors[0, 0])


@pytest.mark.takes("padded_letters")
@pytest.mark.parametrize("kind", LETTERS)
def test_letters_of_padded_rows_have_the_same_vectors_and_gradients(kind: str) -> None:
    """So they are read in updates that a CUDA graph may capture, if no hook is there to see the words alone."""
    reader = LETTERS[kind](11, embedding=5, dim=6).double()
    letters = torch.randint(4, 11, (2, 3, 7), dtype=torch.int32)
    letters[0, 0, 2:] = PAD
    letters[1, 1:] = PAD
    source = Spelled(torch.zeros(2, 3, dtype=torch.long), letters[..., 0] != PAD, letters)
    weights = torch.randn(2, 3, 6, dtype=torch.float64)
    answers = []
    for read_padded in (False, True):
        reader.zero_grad()
        with capturable(read_padded), count_answers() as counted:
            vectors = reader(source)
        assert counted["padded_letters"].taken == int(read_padded)
        (vectors * weights).sum().backward()
        answers.append([vectors, *(parameter.grad.clone() for parameter in reader.parameters())])
    assert (answers[1][0][1, 1:] == 0).all()
    for plain, padded in zip(*answers, strict=True):
        torch.testing.assert_close(padded, plain, rtol=0.0, atol=1e-12)
    next(reader.children()).register_forward_hook(lambda *call: None)
    with capturable(), count_answers() as counted:
        reader(source)
    assert counted["padded_letters"].taken == 0


@pytest.mark.parametrize("encoder", ENCODERS)
@pytest.mark.parametrize("kind", LETTERS)
def test_letters_distinguish_unknown_words(encoder: str, kind: str) -> None:
    task, model = a_tagger(encoder, f"tag.letters.kind={kind}")
    one, other = (task.collate(task.encode([Example(text, "X X")]), [0]).source for text in ("gnu zob", "gnu zobly"))
    assert one.ids.tolist() == other.ids.tolist() == [[UNKNOWN, UNKNOWN]]
    assert not torch.allclose(model(one), model(other), atol=1e-6)
    _, model = a_tagger(encoder, "tag.letters.dim=0")
    assert torch.equal(model(one), model(other))
    assert not any("letters" in name or "spelling" in name for name, _ in model.named_parameters())


@pytest.mark.parametrize("encoder", ENCODERS)
def test_other_sentences_of_a_batch_change_no_logits(encoder: str) -> None:
    task, model = a_tagger(encoder)
    model.double()
    data = task.encode(parts(1, 6).train)
    whole = task.collate(data, range(6))
    logits = model(whole.source)
    for row in range(6):
        own = model(task.collate(data, [row]).source)
        assert torch.allclose(logits[row, : own.shape[1]], own[0], atol=1e-9)


def test_word_dropout_replaces_words_in_training_only() -> None:
    task, model = a_tagger("recurrent", "model.encoder.dropout=0", "train.word_dropout=0.5")
    batch = task.collate(task.encode(parts(1, 6).train), range(6))
    inputs: list[Tensor] = []
    model.encoder.embedding.register_forward_hook(lambda module, arguments, output: inputs.append(arguments[0]))
    dev_loss = task.dev_loss(model, batch).loss
    assert torch.equal(inputs[0], batch.source.ids)
    assert torch.equal(dev_loss, task.loss(model, batch))
    model.train()
    task.loss(model, batch)
    hidden = inputs[-1] != batch.source.ids
    assert hidden.any()
    assert (inputs[-1][hidden] == UNKNOWN).all()
    assert (inputs[-1][~batch.source.mask] == PAD).all()


def test_the_loss_is_the_sum_over_words() -> None:
    task, model = a_tagger("recurrent")
    data = task.encode(parts(1, 3).train)
    alone = sum(task.loss(model, task.collate(data, [row])) for row in range(3))
    together = task.loss(model, task.collate(data, [0, 1, 2]))
    assert torch.allclose(together, torch.as_tensor(alone), atol=1e-4)


# The best path


def allowed(path: tuple[int, ...], rules: Rules) -> bool:
    transitions = all(rules.after[one, other] for one, other in itertools.pairwise(path))
    return bool(rules.first[path[0]]) and transitions


NAMES = ["I-PER", "O", "B-LOC", "I-LOC", "B-PER"]


def test_bio_rules_allow_an_inner_tag_only_after_a_tag_of_its_entity() -> None:
    rules = bio(NAMES)
    assert rules is not None
    permitted = {(one, other) for one in range(5) for other in range(5) if rules.after[one, other]}
    forbidden = {(NAMES[one], NAMES[other]) for one in range(5) for other in range(5)}
    forbidden -= {(NAMES[one], NAMES[other]) for one, other in permitted}
    assert forbidden == {
        *(("O", "I-PER"), ("B-LOC", "I-PER"), ("I-LOC", "I-PER")),
        *(("O", "I-LOC"), ("B-PER", "I-LOC"), ("I-PER", "I-LOC")),
    }
    assert rules.first.tolist() == [False, True, True, False, True]


@pytest.mark.parametrize(
    "names", [["NOUN", "VERB"], ["O"], [], ["O", "I-PER"], ["B-PER", "S-PER", "O"], ["O", "B-PER", "I-LOC"], ["B", "O"]]
)
def test_other_tags_have_no_rules(names: list[str]) -> None:
    assert bio(names) is None


def test_the_best_path_has_the_highest_score_of_all_allowed_paths() -> None:
    rules = bio(NAMES)
    assert rules is not None
    lengths = (1, 2, 3, 5)
    scores = torch.randn(40, 5, len(NAMES)).double().log_softmax(-1)
    for length in lengths:
        mask = torch.zeros(40, 5, dtype=torch.bool)
        mask[:, :length] = True
        searched = best_path(scores.masked_fill(~mask.unsqueeze(-1), float("nan")), mask, rules)
        paths = [path for path in itertools.product(range(len(NAMES)), repeat=length) if allowed(path, rules)]
        sums = torch.stack([scores[:, range(length), path].sum(-1) for path in paths], dim=-1)
        best = sums.max(-1)
        assert torch.allclose(searched.scores, best.values, atol=1e-12)
        assert searched.tags[:, :length].tolist() == [list(paths[index]) for index in best.indices]


def test_padding_does_not_change_the_best_path() -> None:
    rules = bio(NAMES)
    scores = torch.randn(7, 6, len(NAMES)).double()
    mask = torch.arange(6) < torch.tensor([1, 2, 3, 4, 5, 6, 6]).unsqueeze(1)
    together = best_path(scores, mask, rules)
    for row in range(7):
        length = int(mask[row].sum())
        alone = best_path(scores[row : row + 1, :length], mask[row : row + 1, :length], rules)
        assert together.tags[row, :length].tolist() == alone.tags[0].tolist()
        assert torch.allclose(together.scores[row], alone.scores[0], atol=1e-12)
        assert together.scores[row] > FORBIDDEN


def test_without_rules_each_word_gets_its_likeliest_tag() -> None:
    scores, mask = torch.randn(3, 5, 7), torch.ones(3, 5, dtype=torch.bool)
    searched = best_path(scores, mask, None)
    assert torch.equal(searched.tags, scores.argmax(-1))
    free = Rules(torch.ones(7, dtype=torch.bool), torch.ones(7, 7, dtype=torch.bool))
    assert torch.equal(best_path(scores, mask, free).tags, searched.tags)
    assert torch.allclose(best_path(scores, mask, free).scores, searched.scores, atol=1e-5)


# Metrics


@pytest.mark.parametrize(
    ("tags", "entities"),
    [
        ("", []),
        ("O O", []),
        ("B-PER I-PER O B-LOC", [(0, 2, "PER"), (3, 4, "LOC")]),
        ("B-PER B-PER I-PER", [(0, 1, "PER"), (1, 3, "PER")]),
        ("O I-PER I-PER", [(1, 3, "PER")]),  # conlleval: I-X without a beginning begins an entity
        ("B-PER I-LOC I-LOC O", [(0, 1, "PER"), (1, 3, "LOC")]),
        ("I-LOC B-LOC", [(0, 1, "LOC"), (1, 2, "LOC")]),
        ("B-A-B I-A-B", [(0, 2, "A-B")]),
        ("NOUN VERB", []),
    ],
)
def test_spans_are_the_entities_of_the_tags(tags: str, entities: list[tuple[int, int, str]]) -> None:
    assert spans(tags.split()) == entities


def test_entity_f1_counts_whole_entities() -> None:
    references = ["B-PER I-PER O B-LOC", "O O", "B-ORG I-ORG"]
    outputs = ["B-PER I-PER O B-ORG", "B-LOC O", "B-ORG O"]  # one entity of four is correct; there are three to find
    measured = entity_f1(outputs, references)
    assert measured.value == pytest.approx(2 * (1 / 4) * (1 / 3) / (1 / 4 + 1 / 3))
    assert measured.signature == "entity_f1|n:3|entities:3|average:micro|rule:conlleval"
    assert entity_f1(references, references).value == 1.0
    assert entity_f1(["O"], ["O"]).value == 0.0  # conlleval: 0 without any entities
    assert entity_f1(["", ""], ["B-X", "O B-X"]).value == 0.0


def test_entity_f1_of_the_example_of_conlleval() -> None:
    """Tjong Kim Sang and Buchholz 2000: He reckons the current account deficit; one chunk cut short."""
    references = ["B-NP B-VP B-NP I-NP I-NP I-NP"]
    assert entity_f1(["B-NP B-VP B-NP I-NP I-NP B-NP"], references).value == pytest.approx(2 * 2 / (4 + 3))


def test_tag_accuracy_counts_words() -> None:
    measured = tag_accuracy(["A B", "C", ""], ["A B", "D", "A A"])
    assert measured.value == pytest.approx(2 / 5)
    assert measured.signature == "tag_accuracy|n:3|words:5"


# Answers


@pytest.mark.parametrize("encoder", ENCODERS)
def test_an_answer_has_a_tag_for_every_word(encoder: str) -> None:
    task, model = a_tagger(encoder)
    texts = ["This gorb  mivs .", "", "Miv", "   ", "uncommon 日本 ."]
    answers = task.answer(model, texts, task.recipe.search)
    assert [answer.source for answer in answers] == texts
    assert [len(answer.tokens) for answer in answers] == [4, 0, 1, 0, 3]
    assert all(answer.text == " ".join(answer.tokens) for answer in answers)
    assert {tag for answer in answers for tag in answer.tokens} <= set(task.names)
    assert all(answer.source_tokens == tuple(answer.source.split()) for answer in answers)
    alone = task.answer(model, texts[:1], task.recipe.search)[0]
    assert alone.tokens == answers[0].tokens
    assert alone.score == pytest.approx(answers[0].score, abs=1e-4)
    assert answers[0].score < 0


def test_the_map_of_a_transformer_is_the_attention_of_its_last_layer() -> None:
    task, model = a_tagger("transformer")
    long, short = task.answer(model, ["This gorb mivs .", "Miv ."], task.recipe.search)
    assert short.map is not None
    assert short.map.rows == short.tokens
    assert short.map.columns == ("Miv", ".")
    assert long.map is not None
    assert torch.allclose(long.map.weights.sum(-1), torch.ones(4), atol=1e-5)
    source = task.collate(task.encode([Example("Miv .", "VERB PUNCT")]), [0]).source
    with record(model) as recorded:
        model(source)
    last = list(recorded.weights.values())[-1]
    assert last.shape == (1, 2, 2, 2)  # two heads
    assert torch.allclose(short.map.weights, last[0].mean(0), atol=1e-5)
    assert task.answer(*a_tagger("recurrent")[1:], ["Miv"], task.recipe.search)[0].map is None


def test_predicted_bio_tags_follow_the_rules() -> None:
    examples = [Example("in Kobe City Hall", "O B-LOC I-LOC I-LOC"), Example("Ann Lee", "B-PER I-PER")]
    task = Tag.learn(tiny("metric=entity_f1"), examples)
    assert task.rules is not None
    model = task.build()
    with torch.no_grad():  # without rules it would predict I-PER most of the time
        model.tags.bias[len(SPECIALS) + task.names.index("I-PER")] = 2.0
    texts = [" ".join(["Ann", "Kobe", "in", "Hall", "Lee"] * count) for count in range(1, 20)]
    answers = task.answer(model, texts, task.recipe.search)
    assert all(task.lawful(task.tags.encode(answer.text)) for answer in answers)
    greedy = without_rules(task).answer(model, texts, task.recipe.search)
    assert not all(task.lawful(task.tags.encode(answer.text)) for answer in greedy)


def test_a_tag_that_is_not_in_the_vocabulary_follows_no_bio_rules() -> None:
    task = Tag.learn(tiny("metric=entity_f1"), [Example("Kobe City", "B-LOC I-LOC")])
    assert task.lawful(task.tags.encode("B-LOC I-LOC"))
    assert not task.lawful(task.tags.encode("B-PER B-LOC"))  # a stored run of other tags than its data


def without_rules(task: Tag) -> Tag:
    free = Tag(task.recipe, task.words, task.letters, task.tags)
    free.rules = None
    return free


def test_the_description_of_bio_tags_counts_sentences_that_break_the_rules() -> None:
    good, bad = Example("Ann Lee", "B-PER I-PER"), Example("a Lee", "O I-PER")
    task = Tag.learn(tiny(), [good, bad])
    data = task.encode([good, bad])
    *_, rules = task.describe(data, data)
    assert rules == "the tags are BIO: in answers, I-X comes only after B-X or I-X (not so in 1 training sentences)"
    *_, rules = task.describe(task.encode([good]), data)
    assert rules.endswith("B-X or I-X")


def test_a_line_that_is_too_long_gets_a_blank_answer() -> None:
    task, model = a_tagger("recurrent")
    text = "Miv " * 5001
    assert task.too_long(text)
    assert task.answer(model, [text], task.recipe.search)[0].text == ""
    assert not task.too_long("Miv " * 5000)


# The corpus


def test_words_of_the_corpus_are_ambiguous_but_sentences_are_not() -> None:
    splits = parts(1, 3000)
    tags: dict[str, set[str]] = {}
    for example in splits.train:
        words, targets = example.source.split(), example.target.split()
        assert len(words) == len(targets)
        assert targets[-1] == "PUNCT"
        for word, tag in zip(words, targets, strict=True):
            tags.setdefault(word, set()).add(tag)
            assert not word.endswith("ly") or tag == "ADV"
            assert not word.endswith("ish") or tag == "ADJ"
            assert not word.endswith("ed") or tag in ("ADJ", "VERB")
    ambiguous = [word for word, word_tags in tags.items() if len(word_tags) > 1]
    assert len(ambiguous) > 100
    assert {"NOUN", "VERB"} in [tags[word] for word in ambiguous]
    assert {"PROPN", "VERB"} in [tags[word] for word in ambiguous]
    readings: dict[str, str] = {}
    for example in splits.train + splits.dev + splits.test:
        assert readings.setdefault(example.source, example.target) == example.target


def test_no_new_stem_is_shared_between_splits() -> None:
    splits = parts(1, 3000)

    def new_words(examples: list[Example]) -> set[str]:
        words = {word.lower() for example in examples if example.group == "new" for word in example.source.split()}
        known = {
            word.lower() for example in splits.train if example.group == "known" for word in example.source.split()
        }
        return words - known - {str(number) for number in range(100)}

    train, dev, test = map(new_words, (splits.train, splits.dev, splits.test))
    assert len(test) > 500
    assert not train & dev
    assert not train & test
    assert not dev & test


# From training to predictions


@pytest.mark.parametrize("encoder", ENCODERS)
def test_a_tagger_trains_is_stored_scored_and_fine_tuned(tmp_path: Path, encoder: str) -> None:
    run = regard.train(tiny(*ENCODERS[encoder]), runs=tmp_path, quiet=True)
    losses = [entry["dev_loss"] for entry in run.metrics() if "dev_loss" in entry]
    assert losses[-1] < losses[0]
    predictor = load(run, device="cpu")
    scored = predictor.score(parts(1, 1).dev)
    assert scored.measured.value == run.metrics()[-1]["tag_accuracy"]
    assert set(scored.groups) == {"known", "new"}
    assert predictor.score(parts(1, 1).dev, metric="exact_match").metric == "exact_match"
    with pytest.raises(RecipeError, match="does not fit this task"):
        predictor.score(parts(1, 1).dev, metric="bleu")
    tuned = regard.train(tiny(*ENCODERS[encoder], f"train.start_from={run.path}"), runs=tmp_path, quiet=True)
    for name in ("source.tokens", "letters.tokens", "target.tokens"):
        assert tuned.read(name) == run.read(name)
    file = write(tmp_path, "names.tsv", "this gorb\tO B-PER\n" * 3)
    others = tiny(*ENCODERS[encoder], f"train.start_from={run.path}", f"data.train={file}", "train.updates=1")
    task = load(regard.train(others, runs=tmp_path, quiet=True), device="cpu").task
    assert task.names == ["O", "B-PER"]  # the tags are those of the new data; the letters are those of the first run
    assert task.files()["letters.tokens"] == run.read("letters.tokens")


def test_the_recipe_learns_from_endings_and_context(tmp_path: Path) -> None:
    """The recipe with a shorter training: new words are tagged by letters and context."""
    recipe = recipes.load("parts", ["data.size=2000", "train.updates=150", "train.validate=75", "train.device=cpu"])
    scored = load(regard.train(recipe, runs=tmp_path, quiet=True), device="cpu").score(parts(1, 1).test)
    assert scored.groups["new"] > 0.93
    assert scored.groups["known"] > 0.93


def test_the_command_line_prints_words_and_tags_and_reads_the_format_of_the_run(tmp_path: Path) -> None:
    sentences = "Ann\tB-PER\nLee\tI-PER\nslept\tO\n\nin\tO\nKobe\tB-LOC\n\n"
    train, test = write(tmp_path, "train.tsv", sentences * 5), write(tmp_path, "test.tsv", sentences)
    files = [f"data.train={train}", f"data.dev={test}", "tag.format=columns", "metric=entity_f1", "train.updates=60"]
    run = str(regard.train(tiny(*files), runs=tmp_path, quiet=True).path)
    answer = json.loads(printed(tmp_path, "predict", run, "--text", "in Kobe", "--json"))
    assert answer["source_tokens"] == ["in", "Kobe"]
    assert answer["tokens"] == ["O", "B-LOC"]
    assert answer["text"] == "O B-LOC"
    assert json.loads(printed(tmp_path, "score", run, test, "--json"))["entity_f1"] == 1.0
