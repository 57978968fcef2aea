"""Language models: windows of a stream, the cost of a text, and continuations of a prompt."""

import gzip
import json
import math
import random
import signal
import time
from collections import Counter
from pathlib import Path

import pytest
import torch
from torch import Tensor

import regard
from commands import printed
from regard import recipe as recipes
from regard import storage
from regard.data.batching import Batches
from regard.data.corpora import sentences
from regard.data.corpora.sentences import ADJECTIVES, VERBS
from regard.errors import DataError, RecipeError, RegardError, StoppedError
from regard.metrics import Cost, bits_per_character, perplexity
from regard.models import LanguageModel
from regard.recipe import Recipe
from regard.tasks import TASKS
from regard.tasks.language_model import LanguageModelling, Rows, Written
from regard.training import validation
from regard.training.engine import eager
from regard.training.stopping import Stopper
from regard.types import BEGIN, END, PAD, Example, Memory

TEXT = "First line.\n\nÉtait-ce le second?\r\nthird\tand last"  # 47 characters, if \r\n counts as one
RECURRENT = ("model.decoder.order=none", "model.decoder.start=zeros", "model.embedding=5", "model.decoder.dim=7")
TRANSFORMER = ("model.decoder.kind=transformer", "model.attention.score=scaled_dot", "model.decoder.dim=6")
MODELS = pytest.mark.parametrize("model", [RECURRENT, TRANSFORMER], ids=["recurrent", "transformer"])
TINY = ("train.device=cpu", "train.updates=6", "train.validate=3", "train.batch_tokens=40", "search.max_extra=4")


def write(path: Path, text: str) -> str:
    path.write_bytes(text.encode())
    return str(path)


def recipe_of(*keys: str) -> Recipe:
    return recipes.parse("", "it", ["name=it", "task=language_model", "metric=perplexity", *RECURRENT, *TINY, *keys])


def learned(recipe: Recipe) -> tuple[LanguageModelling, Rows, Rows]:
    """The task, and its rows of train and dev."""
    examples = LanguageModelling.examples(recipe)
    task = LanguageModelling.learn(recipe, examples.train)
    return task, task.within_length(task.encode(examples.train)), task.encode(examples.dev)


def text_of(examples: list[Example]) -> str:
    return "".join(example.target for example in examples)


def uniform(task: LanguageModelling) -> LanguageModel:
    """A model that gives every token the same probability."""
    model = task.build()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    return model


# From files to rows


def test_a_stream_is_the_text_of_all_its_files(tmp_path: Path) -> None:
    names = (write(tmp_path / "a.txt", "\ufeff" + TEXT), str(tmp_path / "b.txt.gz"))
    (tmp_path / "b.txt.gz").write_bytes(gzip.compress(b"more\n"))
    examples = LanguageModelling.read(names).examples
    assert text_of(examples) == TEXT.replace("\r\n", "\n") + "more\n"
    assert [example.origin.rpartition("/")[2] for example in examples] == [
        *(f"a.txt:{number}" for number in (1, 2, 3, 4)),
        "b.txt.gz:1",
    ]
    assert {example.source for example in examples} == {""}


@pytest.mark.parametrize("length", [10, 11, 12, 13, 19, 20, 21, 40])
@pytest.mark.parametrize("stride", [0, 1, 3, 9, 10])
def test_windows_cover_the_stream(tmp_path: Path, length: int, stride: int) -> None:
    text = "".join(random.Random(length).choices("abcdefgh\n", k=length))
    train, dev = write(tmp_path / "train.txt", text), write(tmp_path / "dev.txt", text)
    task, data, dev_rows = learned(
        recipe_of(
            f"data.train={train}", f"data.dev={dev}", "language_model.window=10", f"language_model.stride={stride}"
        )
    )
    ids = task.source.encode(text)
    assert [token for start, end in zip(dev_rows.starts, dev_rows.ends, strict=True) for token in ids[start:end]] == ids
    assert [length for _, length in dev_rows.lengths()][:-1] == [10] * (math.ceil(length / 10) - 1)
    assert data.starts.tolist() == [(stride or 10) * number for number in range(len(data.starts))]
    assert data.ends.tolist() == [min(length, start + 10) for start in data.starts.tolist()]
    assert data.ends[-1] == length
    assert (data.ends[:-1] < length).all()  # no window lies entirely in the one before it
    covered = {index for start, end in zip(data.starts, data.ends, strict=True) for index in range(start, end)}
    assert covered == set(range(length))


def test_a_row_of_a_batch_is_begin_and_its_window(tmp_path: Path) -> None:
    name = write(tmp_path / "it.txt", TEXT)
    task, data, _ = learned(recipe_of(f"data.train={name}", f"data.dev={name}", "language_model.window=10"))
    batch = task.collate(data, [1, 4])
    ids = data.stream.tolist()
    assert batch.target.ids.tolist() == [[BEGIN, *ids[10:20]], [BEGIN, *ids[40:], *[PAD] * 3]]
    assert batch.target.mask.sum(1).tolist() == [11, 8]
    assert batch.source.ids.shape == (2, 0)
    assert task.tokens(batch) == 17
    assert [data.examples[index].origin[-1] for index in batch.examples.tolist()] == ["1", "4"]


def test_without_a_window_each_line_is_a_text(tmp_path: Path) -> None:
    name = write(tmp_path / "it.txt", TEXT)
    recipe = recipe_of(f"data.train={name}", f"data.dev={name}")
    task, data, _ = learned(recipe)
    assert LanguageModelling.examples(recipe).notes == [f"{name}: 1 blank line dropped"] * 2  # of train and dev
    assert [example.target for example in data.examples] == ["First line.", "Était-ce le second?", "third\tand last"]
    batch = task.collate(data, [2, 0])
    assert [task.source.decode(row) for row in batch.target.ids.tolist()] == ["third\tand last", "First line."]
    assert batch.target.ids[0, -1] == END
    assert batch.target.ids[1].tolist()[-4:] == [END, PAD, PAD, PAD]
    assert data.lengths().tolist() == [[0, 12], [0, 20], [0, 15]]


def test_long_lines_are_dropped(tmp_path: Path) -> None:
    name = write(tmp_path / "it.txt", TEXT)
    _, data, dev = learned(recipe_of(f"data.train={name}", f"data.dev={name}", "data.max_length=14"))
    assert [example.target for example in data.examples] == ["First line.", "third\tand last"]
    assert len(dev.examples) == 3
    assert data.row_examples.tolist() == [0, 1]


def test_the_last_tenth_of_a_stream_is_dev(tmp_path: Path) -> None:
    text = "".join(random.Random(3).choices("abcdefgh \n", k=1237))
    recipe = recipe_of(
        f"data.train={write(tmp_path / 'it.txt', text)}", "language_model.window=50", "language_model.stride=7"
    )
    examples = LanguageModelling.examples(recipe)
    assert (text_of(examples.train), text_of(examples.dev)) == (text[:1113], text[1113:])
    assert examples.notes[-1] == "no data.dev given: the last tenth, 124 characters, is split off for it"
    task, data, dev = learned(recipe)
    assert task.source.decode(data.stream.tolist()) == text[:1113]
    assert task.source.decode(dev.stream.tolist()) == text[1113:]


def test_no_line_of_dev_is_in_train(tmp_path: Path) -> None:
    lines = [f"line {number % 40}" for number in range(100)]
    recipe = recipe_of(f"data.train={write(tmp_path / 'it.txt', chr(10).join(lines))}")
    examples = LanguageModelling.examples(recipe)
    train, dev = ({example.target for example in part} for part in (examples.train, examples.dev))
    assert dev
    assert not train & dev
    assert Counter(example.target for example in [*examples.train, *examples.dev]) == Counter(lines)
    assert examples.notes[-1] == f"no data.dev given: {len(examples.dev)} lines are split off for it"


@pytest.mark.parametrize("kind", ["character", "sentencepiece"])
def test_a_stream_comes_back_from_its_tokens(tmp_path: Path, kind: str) -> None:
    text = TEXT.replace("\r\n", "\n") * 3
    name = write(tmp_path / "it.txt", text)
    keys = (
        f"data.train={name}",
        f"data.dev={name}",
        "language_model.window=16",
        f"tokens.source={kind}",
        "tokens.size=60",
    )
    task, data, _ = learned(recipe_of(*keys))
    assert task.source.decode(data.stream.tolist()) == text


def test_batches_of_many_windows_are_planned_in_seconds() -> None:
    stream, first = torch.arange(1_100_000) % 60 + 4, torch.zeros(1, dtype=torch.long)
    rows = Rows([Example("", "x" * len(stream))], stream, first, first, first).windows(256, stride=16)
    began = time.process_time()
    batches = Batches(rows.lengths(), 16_384, seed=1)
    batch = LanguageModelling.collate(None, rows, batches[0])
    assert time.process_time() - began < 5
    assert len(rows.starts) == 68_735
    assert batches.per_epoch == 1_074
    assert batch.target.ids.shape == (64, 257)


@pytest.mark.parametrize(
    ("text", "keys", "message"),
    [
        ("", (), "it.txt is empty; give a file with at least one line"),
        ("", ("language_model.window=5",), "it.txt is empty; give a file with at least one line"),
        ("\n \n", (), "it.txt: no line is left, for all 2 are blank"),
        ("alone\n", (), "no dev part can be split off a single line; give more of them, or data.dev=FILE"),
        (
            "a longer text",
            ("language_model.window=12",),
            "the training text has 11 tokens, fewer than one window of 12;",
        ),
        ("ab\ncd\n", ("data.max_length=1",), "every line is longer than 1 tokens; raise data.max_length"),
        (
            "text",
            ("language_model.window=3", "language_model.stride=4"),
            "language_model.stride is at most language_model.window = 3, not 4",
        ),
        ("text", ("language_model.stride=4",), "language_model.stride is at most language_model.window = 0, not 4"),
        ("text", ("train.sampling=0.5",), "task = language_model does not use train.sampling; leave it out"),
        ("text", ("model.decoder.order=luong",), "a language model has no source to attend to"),
        ("text", ("metric=bleu",), "the metric 'bleu' does not fit this task; choose from perplexity"),
        (
            "text",
            ("language_model.window=9", *TRANSFORMER, "model.positions=learned", "model.longest=8"),
            "model.longest = 8 positions are learned, but 9 tokens are read at once; raise it",
        ),
    ],
)
def test_unusable_data_or_keys_are_refused_and_no_run_is_written(
    tmp_path: Path, text: str, keys: tuple[str, ...], message: str
) -> None:
    recipe = recipe_of(f"data.train={write(tmp_path / 'it.txt', text)}", *keys)
    with pytest.raises(RegardError) as caught:
        regard.train(recipe, runs=tmp_path / "runs", quiet=True)
    assert message in str(caught.value)
    assert not (tmp_path / "runs").exists()


# The cost of a text


def test_perplexity_and_bits_per_character_equal_their_formulas() -> None:
    cost = Cost(texts=2, tokens=8, characters=6, unknown=2, nats=8 * math.log(5))
    assert perplexity(cost, "lines").value == pytest.approx(5)
    assert perplexity(cost, "lines").signature == "perplexity|n:2|tokens:8|unknown:25.00%|nats:1.6094|lines"
    assert bits_per_character(cost, "lines").value == pytest.approx(8 * math.log2(5) / 6)
    assert bits_per_character(cost, "lines").signature == (
        "bits_per_character|n:2|tokens:8|unknown:25.00%|characters:6|lines"
    )


@MODELS
@pytest.mark.parametrize("window", [0, 7])
def test_the_perplexity_of_a_uniform_model_is_the_size_of_the_vocabulary(
    tmp_path: Path, model: tuple[str, ...], window: int
) -> None:
    name = write(tmp_path / "it.txt", TEXT)
    task, _, _ = learned(recipe_of(f"data.train={name}", f"data.dev={name}", *model, f"language_model.window={window}"))
    examples = task.reader(task.recipe)((name,)).examples
    tokens, characters = 47, 47 if window else 44  # as lines: three END tokens are counted, three newlines are not
    scored = task.measure(uniform(task), examples, "perplexity", task.recipe.search)
    assert scored.measured.value == pytest.approx(task.source.size, rel=1e-6)
    assert f"|tokens:{tokens}|" in scored.measured.signature
    bits = scored.others["bits_per_character"]
    assert bits.value == pytest.approx(tokens * math.log2(task.source.size) / characters, rel=1e-6)
    assert f"|characters:{characters}|" in bits.signature


@MODELS
@pytest.mark.parametrize("window", [0, 7])
def test_the_perplexity_is_that_of_the_dev_loss_and_each_window_is_scored_alone(
    tmp_path: Path, model: tuple[str, ...], window: int
) -> None:
    name = write(tmp_path / "it.txt", TEXT)
    task, _, dev = learned(
        recipe_of(f"data.train={name}", f"data.dev={name}", *model, f"language_model.window={window}")
    )
    network = task.build().eval()
    mean, _ = validation.evaluate(task, network, dev, Stopper())
    scored = task.measure(network, dev.examples, "perplexity", task.recipe.search)
    assert math.log(scored.measured.value) == pytest.approx(mean, rel=1e-5)
    rows = [[BEGIN, *dev.stream[start:end].tolist()] for start, end in zip(dev.starts, dev.ends, strict=True)]
    nats = -sum(float(log_probabilities(network, row).sum()) for row in rows)
    assert nats / len(dev.stream) == pytest.approx(mean, rel=1e-5)


def log_probabilities(model: LanguageModel, row: list[int]) -> Tensor:
    """Log-probabilities of all tokens after the first, from one pass over this row alone."""
    with torch.no_grad():
        logits = model.decoder(torch.tensor([row[:-1]]), Memory.none(1, torch.device("cpu"))).logits[0]
    return logits.log_softmax(-1).gather(-1, torch.tensor(row[1:]).unsqueeze(-1)).squeeze(-1)


def test_lines_are_scored_by_group_and_an_empty_list_is_refused(tmp_path: Path) -> None:
    name = write(tmp_path / "it.txt", TEXT)
    task, _, _ = learned(recipe_of(f"data.train={name}", f"data.dev={name}"))
    model = task.build()
    examples = [Example("", "First", "short"), Example("", "second", "short"), Example("", "third and last", "long")]
    scored = task.measure(model, examples, "perplexity", task.recipe.search)
    assert list(scored.groups) == ["short", "long"]
    short = task.measure(model, examples[:2], "perplexity", task.recipe.search)
    assert scored.groups["short"] == pytest.approx(short.measured.value)
    with pytest.raises(DataError, match="there is no text to score"):
        task.measure(model, [], "perplexity", task.recipe.search)


# Continuations of a prompt


@pytest.fixture(scope="module")
def window_run(tmp_path_factory: pytest.TempPathFactory) -> storage.Run:
    folder = tmp_path_factory.mktemp("window")
    name = write(folder / "it.txt", TEXT * 4)
    keys = ("language_model.window=12", *TRANSFORMER, "model.positions=learned", "model.longest=12")
    return regard.train(recipe_of(f"data.train={name}", *keys), runs=folder / "runs", quiet=True)


@pytest.fixture(scope="module")
def line_run(tmp_path_factory: pytest.TempPathFactory) -> storage.Run:
    folder = tmp_path_factory.mktemp("line")
    return regard.train(recipe_of(f"data.train={write(folder / 'it.txt', TEXT)}"), runs=folder / "runs", quiet=True)


def greedy(model: LanguageModel, context: list[int], limit: int) -> list[int]:
    """Greedy search without a cache: each new token is computed from the whole row."""
    new: list[int] = []
    while len(new) < limit:
        tokens = torch.tensor([[BEGIN, *context, *new]])
        with torch.no_grad():
            logits = model.decoder(tokens, Memory.none(1, torch.device("cpu"))).logits[0, -1]
        logits[[PAD, BEGIN]] = -torch.inf
        new.append(int(logits.argmax()))
        if new[-1] == END:
            return new[:-1]
    return new


@pytest.mark.parametrize("prompt", ["", "F", "thi", "line.\n\nÉta"])
def test_a_greedy_continuation_equals_a_loop_without_a_cache(window_run: storage.Run, prompt: str) -> None:
    predictor = regard.load(window_run)
    source, model = predictor.task.source, predictor.model
    prediction = predictor.predict([prompt], search={"max_extra": 2})[0]
    ids = source.encode(prompt)
    new = greedy(model, ids, 2)
    assert prediction.text == prompt + source.decode(new)
    assert prediction.tokens == tuple(source.piece(token) for token in new)
    assert prediction.source == prompt
    assert prediction.score == pytest.approx(
        float(log_probabilities(model, [BEGIN, *ids, *new])[len(ids) :].sum()), rel=1e-4
    )


def test_a_full_window_continues_from_its_latter_half(window_run: storage.Run) -> None:
    predictor = regard.load(window_run)
    source, model = predictor.task.source, predictor.model
    prompt = "First line.\n\nÉtait-ce"
    expected = source.encode(prompt)
    # The window holds 12 tokens. Of a long prompt the last 11 are kept, so that one new token fits; each time the
    # window is full, its latter half is kept.
    for count, context in ((1, 11), (6, 6), (6, 6), (3, 6)):
        expected += greedy(model, expected[-context:], count)
    prediction = predictor.predict(["x", prompt], search={"max_extra": 16})[1]
    assert prediction.text == source.decode(expected)
    assert len(prediction.tokens) == 16


@pytest.mark.parametrize("run", ["window_run", "line_run"])
@pytest.mark.parametrize("search", [{}, {"beam": 3}, {"temperature": 1.0}, {"temperature": 0.7, "top_k": 5}])
def test_every_continuation_begins_with_its_prompt(
    request: pytest.FixtureRequest, run: str, search: dict[str, float]
) -> None:
    predictor = regard.load(request.getfixturevalue(run))
    prompts = ["", "th", "F", "Zürich", " ", "third\tand", "th"]
    together = predictor.predict(prompts, search={"max_extra": 15, **search}, n_best=2, seed=5)
    for prompt, best in zip(prompts, together, strict=True):
        for prediction in (best, *best.alternatives):
            assert prediction.text.startswith(prompt)
            assert len(prediction.tokens) <= 15
            assert prediction.score < 0
        assert len(best.alternatives) == 1
    # Other prompts of the batch change nothing.
    for index, (prompt, best) in enumerate(zip(prompts, together, strict=True)):
        alone = predictor.predict([prompt], search={"max_extra": 15, **search}, n_best=2, seed=5 + index)[0]
        assert (alone.text, alone.tokens) == (best.text, best.tokens)
        assert [prediction.text for prediction in alone.alternatives] == [
            prediction.text for prediction in best.alternatives
        ]


def test_successive_windows_of_one_sample_draw_different_tokens(window_run: storage.Run) -> None:
    predictor = regard.load(window_run)
    for parameter in predictor.model.parameters():
        parameter.data.zero_()
    bias = predictor.model.decoder.out.bias.data
    bias[END] = -torch.inf
    text = predictor.predict([""], search={"temperature": 1.0, "max_extra": 36})[0].text
    assert len(text) == 36
    assert text[12:18] != text[18:24] != text[24:30]


def test_a_line_that_is_too_long_is_not_answered(line_run: storage.Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("regard.tasks.core.LONGEST", 3)
    predictor = regard.load(line_run)
    long = "third " * 50
    assert [bool(prediction.text) for prediction in predictor.predict([long, "third"])] == [False, True]
    assert predictor.task.too_long(long)


def test_sub_words_and_words_are_joined_with_their_spaces(tmp_path: Path) -> None:
    name = write(tmp_path / "it.txt", "the cat sat on the mat\nthe dog sat on the cat\n" * 20)
    for kind in ("sentencepiece", "word"):
        recipe = recipe_of(f"data.train={name}", f"data.dev={name}", f"tokens.source={kind}", "tokens.size=25")
        task, _, _ = learned(recipe)
        prompt, more = task.source.encode("the cat"), task.source.encode("the cat sat on")
        continued = task.prediction("the cat", prompt, Written(more[len(prompt) :], -1.0, finished=True))
        assert continued.text == "the cat sat on"


# Whole trainings


def bits(text: str) -> float:
    """The information of a sentence in bits: 9 in any; 3 more for an adjective, 6 more for a prepositional phrase."""
    words = text.rstrip(".").split()
    return 9 + 3 * (words[1] in ADJECTIVES) + 6 * (words.count("the") == 2)


def test_sentences_have_the_documented_entropy_and_agreement() -> None:
    drawn = [example.target for example in sentences(seed=3, size=20_000).train]
    assert sum(map(bits, drawn)) / len(drawn) == pytest.approx(13.5, abs=0.1)
    plain = Counter(text for text in drawn if len(text.split()) == 3)
    assert len(plain) == 2**7  # 9 bits each, two of which encode that there is no adjective and no phrase
    assert sum(plain.values()) / len(drawn) == pytest.approx(1 / 4, abs=0.02)
    for text in drawn[:500]:
        first = text.split()[2 if text.split()[1] in ADJECTIVES else 1]
        assert (text.rstrip(".").split()[-1] in VERBS) == (not first.endswith("s"))


def test_the_recipe_of_sentences_comes_near_the_entropy(tmp_path: Path) -> None:
    run = regard.train("sentences", "train.device=cpu", runs=tmp_path, quiet=True)
    dev = sentences(seed=1, size=1).dev
    entropy = sum(bits(example.target) for example in dev) / sum(len(example.target) for example in dev)
    assert entropy < run.metrics()[-1]["bits_per_character"] < 1.05 * entropy
    predictor = regard.load(run)
    drawn = predictor.predict(["the old kings near the"] * 20 + [""] * 20, seed=3)
    texts = [prediction.text for prediction in drawn]
    assert len(set(texts)) > 25
    whole = [text for text in texts if text.endswith(".") and text.startswith("the ")]
    assert len(whole) >= 36
    verbs = [text.split()[-1] for text in texts[:20]]
    # The verb agrees with `kings`, not with the noun after `near`.
    assert sum(not verb.endswith("s.") for verb in verbs) >= 17


@MODELS
def test_a_periodic_text_is_learned_by_heart(tmp_path: Path, model: tuple[str, ...]) -> None:
    """In a periodic stream all tokens can be predicted, except the first of each window."""
    name = write(tmp_path / "it.txt", "abcdefgh\n" * 60)
    keys = ("language_model.window=18", "train.updates=150", "train.validate=150", "train.batch_tokens=180")
    sizes = ("model.decoder.dim=24", "model.embedding=16", "train.learning_rate=0.02", "search.max_extra=40")
    run = regard.train(recipe_of(f"data.train={name}", *model, *keys, *sizes), runs=tmp_path, quiet=True)
    assert math.log(run.metrics()[-1]["perplexity"]) < (math.log(9) + 1) / 18
    prediction = regard.load(run).predict(["cdef"])[0]
    assert prediction.text == ("abcdefgh\n" * 9)[2:46]


def test_a_stopped_and_resumed_run_ends_with_the_same_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = write(tmp_path / "it.txt", TEXT * 6)
    recipe = recipe_of(
        f"data.train={name}", "language_model.window=12", "language_model.stride=5", "model.decoder.dropout=0.2"
    )
    whole = regard.train(recipe, runs=tmp_path / "whole", quiet=True)
    learn_once, calls = eager.learn_once, []

    def stop_after_four(*arguments: object) -> None:
        learn_once(*arguments)
        calls.append(1)
        if len(calls) == 4:
            signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(eager, "learn_once", stop_after_four)
    with pytest.raises(StoppedError, match="4 updates are saved"):
        regard.train(recipe, runs=tmp_path / "stopped", quiet=True)
    monkeypatch.undo()
    resumed = regard.resume(tmp_path / "stopped" / "it", quiet=True)
    assert resumed.read(storage.MODEL) == whole.read(storage.MODEL)
    assert resumed.metrics()[-1]["perplexity"] == whole.metrics()[-1]["perplexity"]


def test_the_shakespeare_recipes_find_their_text_under_regard_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("REGARD_DATA", raising=False)
    for name in ("char_transformer", "char_lstm"):
        with pytest.raises(DataError, match=r"cannot find tinyshakespeare/input\.txt; .*REGARD_DATA is not set"):
            regard.train(name, "train.device=cpu", quiet=True)
    (tmp_path / "tinyshakespeare").mkdir()
    write(tmp_path / "tinyshakespeare" / "input.txt", "To be, or not to be: that is the question.\n" * 30)
    monkeypatch.setenv("REGARD_DATA", str(tmp_path))
    recipe = recipes.load("char_transformer")
    assert TASKS[recipe.task] is LanguageModelling
    task, data, _ = learned(recipe)
    assert data.lengths()[0].tolist() == [0, recipe.language_model.window]
    assert recipe.train.batch_tokens == 64 * recipe.language_model.window
    assert isinstance(task, LanguageModelling)


def test_sampling_is_refused_before_data_is_read() -> None:
    with pytest.raises(RecipeError, match=r"task = language_model does not use train.sampling"):
        LanguageModelling.check_keys(recipe_of("train.sampling=0.1"))


def test_train_predict_and_score_on_the_command_line(tmp_path: Path) -> None:
    def run(*arguments: object) -> list[str]:
        return printed(tmp_path, *arguments).split("\n")[:-1]

    train, test = write(tmp_path / "train.txt", TEXT * 4), write(tmp_path / "test.txt", "second line?\n")
    keys = [key for key in (*RECURRENT, *TINY) if not key.startswith("train.validate")]
    [path] = run(
        *("train", "sentences", "name=it", f"data.train={train}", "language_model.window=8", "tokens.source=character"),
        *("model.decoder.kind=recurrent", "search.temperature=0", *keys, "--runs", tmp_path / "runs", "-q"),
    )
    assert path == str(tmp_path / "runs" / "it")
    predictions = [json.loads(line) for line in run("predict", path, "--text", "sec", "--text", "", "--json")]
    assert [prediction["source"] for prediction in predictions] == ["sec", ""]
    assert predictions[0]["text"].startswith("sec")
    assert [len(prediction["text"]) for prediction in predictions] == [3 + 4, 4]
    assert [len(prediction["tokens"]) for prediction in predictions] == [4, 4]
    lines = run("score", path, test)
    assert [line.split()[0] for line in lines] == ["bits_per_character", "perplexity"]
    assert lines[1].endswith("|tokenizer:character|window:8")
    scored = json.loads(run("score", path, test, "--json", "--metric", "perplexity")[0])
    assert scored["bits_per_character"] == pytest.approx(math.log2(scored["perplexity"]))
    assert f"{scored['perplexity']:.4f}" == lines[1].split()[1]
