"""The masked language model: which tokens are masked, the loss, and how blanks are filled."""

import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load as load_tensors
from torch import Tensor

import regard
from commands import printed
from regard import Predictor, Run, storage
from regard import recipe as recipes
from regard.data import batching
from regard.data.corpora import clues
from regard.data.tokenizers import SentencePiece, Word
from regard.errors import DataError, RecipeError, StoppedError
from regard.recipe import Recipe
from regard.tasks import MaskedText
from regard.tasks.masked_lm import _chances
from regard.training import loop, resume, train
from regard.training.stopping import Stopper
from regard.types import END, PAD, SPECIALS, UNKNOWN, Example

WALL_CLOCK = {"tokens_per_second", "seconds", "train_seconds"}
ENCODERS = {
    "transformer": ["model.encoder.kind=transformer", "model.attention.score=scaled_dot", "model.attention.heads=2"],
    "recurrent": ["model.embedding=6", "model.encoder.kind=recurrent"],
}


def tiny(*overrides: str) -> Recipe:
    data = ["name=tiny", "task=masked_lm", "metric=perplexity", "data.corpus=clues", "data.size=60"]
    sizes = ["tokens.source=word", *ENCODERS["transformer"], "model.encoder.dim=8", "model.longest=40"]
    settings = ["train.updates=4", "train.validate=2", "train.batch_tokens=200", "train.device=cpu"]
    return recipes.parse("", "tiny", [*data, *sizes, *settings, *overrides])


def a_task(*overrides: str) -> MaskedText:
    recipe = tiny(*overrides)
    return MaskedText.learn(recipe, clues(seed=1, size=300).train)


def encode_texts(task: MaskedText, texts: Sequence[str], *, fresh: bool = True):
    """Encoded texts: `fresh` as in training, with new masks in every batch; otherwise as in dev, with fixed ones."""
    data = task.encode([Example(text, text) for text in texts])
    return task.within_length(data) if fresh else data


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    changes = ["train.updates=250", "train.validate=125", "train.device=cpu"]
    return train(recipes.load("clues", changes), runs=tmp_path_factory.mktemp("runs"), quiet=True)


@pytest.fixture(scope="module")
def predictor(run: Run) -> Predictor:
    return regard.load(run)


# Masks


def test_the_largest_seed_gives_fixed_masks() -> None:
    task = a_task(f"masked_lm.mask_seed={2**63 - 1}")
    data = encode_texts(task, ["the red box is big"] * 3, fresh=False)
    first, second = (task.collate(data, range(3)) for _ in range(2))
    assert torch.equal(first.wanted, second.wanted)


def test_of_the_selected_tokens_80_percent_are_masked_10_random_10_unchanged() -> None:
    task = a_task()
    words = [task.source.piece(token) for token in range(4, 64)]
    data = encode_texts(task, [" ".join(words)] * 400)
    batch = task.collate(data, range(400))
    original = batching.pad([[*row, END] for row in data.rows]).ids
    selected = batch.wanted != PAD
    count = int(selected.sum())
    assert count / (400 * 60) == pytest.approx(0.15, abs=0.01)
    assert torch.equal(batch.wanted[selected], original[selected])
    assert torch.equal(batch.source.ids[~selected], original[~selected])
    inputs = batch.source.ids[selected]
    same_by_chance = 0.1 / (task.source.size - len(SPECIALS))
    assert (inputs == task.mask).sum() / count == pytest.approx(0.8, abs=0.02)
    assert (inputs == original[selected]).sum() / count == pytest.approx(0.1 + same_by_chance, abs=0.02)
    random_tokens = inputs[(inputs != task.mask) & (inputs != original[selected])]
    assert len(random_tokens) / count == pytest.approx(0.1 - same_by_chance, abs=0.02)
    assert random_tokens.min() >= len(SPECIALS)
    assert random_tokens.max() < task.source.size
    assert len(random_tokens.unique()) > task.source.size / 2  # any token of the vocabulary, not only those of the text


@pytest.mark.parametrize("share", [0.05, 0.4])
def test_the_share_of_selected_tokens_is_that_of_the_recipe(share: float) -> None:
    task = a_task(f"masked_lm.masked={share}")
    data = encode_texts(task, ["anna says that one cat meows and two dogs bark " * 5] * 200)
    batch = task.collate(data, range(200))
    places = (batch.source.mask & (batch.wanted != UNKNOWN)).sum() - 200 - count_unknown(data.rows)
    assert task.tokens(batch) / int(places) == pytest.approx(share, abs=0.02)


def count_unknown(rows: Sequence[Sequence[int]]) -> int:
    return sum(token == UNKNOWN for row in rows for token in row)


def test_every_position_is_selected_equally_often() -> None:
    task = a_task()
    data = encode_texts(task, ["anna says that one cat meows"] * 4000)
    shares = (task.collate(data, range(4000)).wanted != PAD).float().mean(0)
    assert shares[-1] == 0  # END
    torch.testing.assert_close(shares[:-1], shares[:-1].mean().expand(6), atol=0.03, rtol=0)


def test_at_least_one_token_of_every_text_is_selected() -> None:
    task = a_task("masked_lm.masked=0.01")
    data = encode_texts(task, ["one", "one cat", "one cat meows", "unheardof", "unheardof unheardof"])
    for _ in range(20):
        batch = task.collate(data, range(5))
        assert torch.equal((batch.wanted != PAD).sum(1), torch.ones(5, dtype=torch.long))


def test_unknown_tokens_are_selected_only_if_a_text_has_no_others() -> None:
    task = a_task("masked_lm.masked=0.9")
    data = encode_texts(task, ["unheardof one unheardof", "unheardof unheardof"])
    wanted = task.collate(data, [0, 1]).wanted
    assert wanted[0].tolist() == [PAD, task.source.encode("one")[0], PAD, PAD]
    assert UNKNOWN in wanted[1].tolist()


def pieces_task(*overrides: str) -> MaskedText:
    texts = ["unbelievable grandmothers understand misunderstandings", "believe mother understanding under grand"] * 3
    recipe = tiny("tokens.source=sentencepiece", *overrides)
    return MaskedText(recipe, SentencePiece.build(texts, 45))


@pytest.mark.parametrize("share", [0.15, 0.5])
def test_with_whole_words_all_pieces_of_a_word_are_selected_or_none(share: float) -> None:
    text = "unbelievable grandmothers understand misunderstandings believe"
    task = pieces_task("masked_lm.whole_words=true", f"masked_lm.masked={share}")
    row = task.source.encode(text)
    word_of = torch.tensor([task.source.begins(token) for token in row]).cumsum(0)
    assert len(row) > 5
    assert word_of[-1] == 5
    batch = task.collate(encode_texts(task, [text] * 500), range(500))
    selected = batch.wanted[:, : len(row)] != PAD
    for word in range(1, 6):
        pieces = selected[:, word_of == word]
        assert torch.equal(pieces.all(1), pieces.any(1))
    piecewise = pieces_task(f"masked_lm.masked={share}")
    selected_pieces = piecewise.collate(encode_texts(piecewise, [text] * 500), range(500)).wanted[:, : len(row)] != PAD
    pieces = selected_pieces[:, word_of == 1]
    assert not torch.equal(pieces.all(1), pieces.any(1))


def test_pieces_of_a_selected_word_are_masked_independently() -> None:
    task = pieces_task("masked_lm.whole_words=true", "masked_lm.masked=0.9")
    text = "misunderstandings"
    batch = task.collate(encode_texts(task, [text] * 300), range(300))
    hidden = (batch.source.ids == task.mask).sum(1)
    assert len(Counter(hidden.tolist())) > 2


def test_training_draws_new_masks_from_the_generator_of_torch() -> None:
    task = a_task()
    data = encode_texts(task, ["anna says that after monday comes tuesday"] * 50)
    first, second = task.collate(data, range(50)), task.collate(data, range(50))
    assert not torch.equal(first.wanted, second.wanted)
    torch.manual_seed(7)
    seeded = task.collate(data, range(50))
    torch.manual_seed(7)
    assert torch.equal(seeded.source.ids, task.collate(data, range(50)).source.ids)


def test_masks_of_dev_depend_on_the_seed_alone_and_draw_no_random_numbers() -> None:
    task = a_task()
    dev = encode_texts(
        task, ["anna says that after monday comes tuesday", "one cat meows", "two cats meow"], fresh=False
    )
    before = torch.get_rng_state()
    first = task.collate(dev, [0, 1, 2])
    assert torch.equal(before, torch.get_rng_state())
    again = task.collate(dev, [0, 1, 2])
    assert torch.equal(first.source.ids, again.source.ids)
    assert torch.equal(first.wanted, again.wanted)
    alone = task.collate(dev, [1])  # in another batch it has the same masks
    assert torch.equal(alone.source.ids[0], first.source.ids[1][: alone.source.ids.shape[1]])
    many = ["anna says that after monday comes tuesday"] * 30
    seeded = [recipes.override(task.recipe, f"{key}=2") for key in ("train.seed", "masked_lm.mask_seed")]
    first_masks, same, other = (
        masked_text.collate(encode_texts(masked_text, many, fresh=False), range(30)).wanted
        for masked_text in (task, *(MaskedText(recipe, task.source) for recipe in seeded))
    )
    assert torch.equal(first_masks, same)  # runs of several seeds are compared on the same tokens
    assert not torch.equal(first_masks, other)


def test_random_numbers_of_a_text_do_not_depend_on_the_padding() -> None:
    chances = _chances([3, 5], [1, 2])
    assert tuple(chances.shape) == (2, 5, 3)
    assert (chances[0, 3:] == 0).all()
    assert torch.equal(_chances([3], [1])[0], chances[0, :3])


# The loss


@pytest.mark.parametrize("encoder", ENCODERS)
@pytest.mark.parametrize("tied", ["true", "false"])
def test_the_loss_is_the_cross_entropy_of_the_selected_tokens(encoder: str, tied: str) -> None:
    task = a_task(*ENCODERS[encoder], f"model.tied={tied}")
    model = task.build().eval()
    data = encode_texts(task, ["anna says that after monday comes tuesday", "one cat meows"])
    batch = task.collate(data, [0, 1])
    selected = batch.wanted != PAD
    states = model.encoder.read(model.embed(batch.source.ids), batch.source.mask).states
    expected = 0.0
    for row, position in selected.nonzero().tolist():
        logits = model.predict(model.norm(torch.nn.functional.gelu(model.inner(states[row, position])))[None])[0]
        expected -= logits.log_softmax(-1)[batch.wanted[row, position]].item()
    assert task.loss(model, batch).item() == pytest.approx(expected, rel=1e-4)
    assert logits.shape == (task.source.size,)  # MASK cannot be predicted
    assert task.tokens(batch) == int(selected.sum())


def test_the_vector_of_mask_has_a_gradient_and_that_of_pad_has_none() -> None:
    task = a_task("model.tied=false")
    model = task.build()
    task.loss(model, task.collate(encode_texts(task, ["one cat meows", "two"] * 20), range(40))).backward()
    assert model.mask.grad.abs().sum() > 0
    assert model.encoder.embedding.weight.grad[PAD].abs().sum() == 0


def test_tied_embeddings_share_one_matrix() -> None:
    tied, free = (a_task(f"model.tied={tied}").build() for tied in ("true", "false"))
    assert "out.weight" not in dict(tied.named_parameters())
    assert dict(free.named_parameters())["out.weight"].shape == tied.encoder.embedding.weight.shape


def test_the_loss_of_a_batch_is_the_sum_over_its_texts() -> None:
    task = a_task()
    model = task.build().eval()
    dev = encode_texts(task, ["anna says that after monday comes tuesday", "one cat meows"], fresh=False)
    together = task.loss(model, task.collate(dev, [0, 1]))
    apart = sum(task.loss(model, task.collate(dev, [index])) for index in (0, 1))
    torch.testing.assert_close(together, apart, rtol=1e-5, atol=1e-5)


# Training, scoring and filling blanks


def test_a_short_training_learns_the_clues(predictor: Predictor) -> None:
    blanks = ["leo says that after monday comes ___", "leo says that before july comes ___"]
    blanks += ["sara says that the hat is not hot but ___", "sara thinks that leo lost ___ cup and he found it again"]
    blanks += ["sara thinks that one ___ barks"]
    texts = [prediction.text.split() for prediction in predictor.predict(blanks)]
    assert [texts[0][-1], texts[2][-1], texts[3][5], texts[4][4]] == ["tuesday", "cold", "his", "dog"]


def test_a_run_is_scored_by_perplexity_and_accuracy(predictor: Predictor) -> None:
    test = clues(seed=1, size=1).test
    accuracy = predictor.score(test)
    assert accuracy.measured.value > 0.5
    assert set(accuracy.groups) == {"order", "contrast", "person", "number"}
    assert re.fullmatch(
        r"masked_accuracy\|tokens:\d+\|masked:0\.15\|whole_words:no\|seed:1", accuracy.measured.signature
    )
    perplexity = predictor.score(test, metric="perplexity").measured
    assert 1 < perplexity.value < 10
    assert perplexity.signature.startswith("perplexity|n:1000|tokens:")
    assert accuracy.others == {"perplexity": perplexity}


def test_perplexity_is_that_of_the_dev_loss(run: Run, predictor: Predictor) -> None:
    lowest = min(entry["dev_loss"] for entry in run.metrics() if "dev_loss" in entry)
    perplexity = predictor.score(clues(seed=1, size=1).dev, metric="perplexity").measured.value
    assert perplexity == pytest.approx(torch.tensor(lowest).exp().item(), rel=1e-4)


def test_alternatives_are_the_next_best_fillings(predictor: Predictor) -> None:
    [best] = predictor.predict(["leo says that the ___ is not hot but ___"], n_best=5)
    ranked = [best, *best.alternatives]
    scores = [prediction.score for prediction in ranked]
    assert len(ranked) == 5
    assert scores == sorted(scores, reverse=True)
    assert sum(torch.tensor(scores).exp()) < 1
    assert len({prediction.tokens for prediction in ranked}) == 5
    for prediction in ranked:
        assert prediction.text == "leo says that the {} is not hot but {}".format(*prediction.tokens)


def test_the_best_pair_of_fillings_is_the_best_of_all_pairs() -> None:
    task = a_task()
    log_probs = torch.randn(2, task.source.size).log_softmax(-1)
    sums = (log_probs[0].unsqueeze(1) + log_probs[1])[4:, 4:]
    expected = sums.flatten().topk(7).values
    best = task.guesses(log_probs, [True, True], 7)
    torch.testing.assert_close(torch.tensor([guess.score for guess in best]), expected)
    assert all(min(guess.tokens) >= len(SPECIALS) for guess in best)


def test_the_map_has_one_row_of_weights_for_every_blank(predictor: Predictor) -> None:
    [prediction] = predictor.predict(["leo says that after ___ comes ___"])
    assert prediction.map is not None
    assert prediction.map.rows == prediction.tokens
    assert prediction.map.columns == ("leo", "says", "that", "after", "<mask>", "comes", "<mask>", "</s>")
    torch.testing.assert_close(prediction.map.weights.sum(-1), torch.ones(2))


def test_texts_without_blanks_empty_texts_and_a_single_blank(predictor: Predictor) -> None:
    plain, blank, only = predictor.predict(["leo says nothing", " ", "___"])
    assert (plain.text, plain.score, plain.tokens, plain.map) == ("leo says nothing", 0.0, (), None)
    assert (blank.text, blank.map) == ("", None)
    assert only.text == only.tokens[0]


def test_other_texts_of_a_batch_change_nothing(predictor: Predictor) -> None:
    texts = ["leo says that after monday comes ___", "one ___", "sara thinks that ___ dogs bark and ___"]
    for text, among in zip(texts, predictor.predict(texts), strict=True):
        [alone] = predictor.predict([text])
        assert alone.text == among.text
        assert alone.score == pytest.approx(among.score, abs=1e-5)


@pytest.mark.parametrize(
    ("text", "pieces", "opening"),
    [
        ("under___", ["▁under", None], [False]),
        ("under ___", ["▁under", None], [True]),
        ("___stand", [None, "stand"], [True]),
        ("under ___ grand", ["▁under", None, "▁grand"], [True]),
        ("______", [None, None], [True, False]),
        ("___ ___", [None, None], [True, True]),
    ],
)
def test_a_blank_is_one_mask_and_opens_a_word_only_after_a_space(
    text: str, pieces: list[str | None], opening: list[bool]
) -> None:
    task = pieces_task()
    task = MaskedText(task.recipe, SentencePiece.build(["under stand", "understand grand"] * 9, 40))
    encoded = task.encode_blanks(text)
    expected = [token for piece in pieces for token in ([task.mask] if piece is None else encode_piece(task, piece))]
    assert encoded.ids == expected
    assert encoded.opening == opening
    assert [encoded.ids[place] for place in encoded.places] == [task.mask] * len(opening)


def encode_piece(task: MaskedText, piece: str) -> list[int]:
    return task.source.encode(piece[1:]) if piece.startswith("▁") else task.source.encode_continuation(piece)


def test_a_blank_after_a_space_begins_a_word_and_one_without_a_space_continues_it() -> None:
    task = pieces_task()
    model = task.build()
    settings = task.recipe.search
    spaced, joined, between = task.answer(model, ["grand ___", "grand___", "under ___ grand"], settings, n_best=3)
    for prediction in (spaced, *spaced.alternatives, between, *between.alternatives):
        assert prediction.tokens[0].startswith("▁")
    for prediction in (joined, *joined.alternatives):
        assert not prediction.tokens[0].startswith("▁")
        assert prediction.text == "grand" + prediction.tokens[0]
    assert spaced.text == "grand " + spaced.tokens[0][1:]
    assert between.text == f"under {between.tokens[0][1:]} grand"


# Files, recipes and the command line


def test_files_are_plain_texts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "texts.txt"
    path.write_text("one cat meows\n\n" * 12, encoding="utf-8")
    run = train(tiny(f"data.train={path}"), runs=tmp_path)
    messages = capsys.readouterr().err
    assert f"{path}: 12 texts with an empty side dropped" in messages
    assert "15% of the tokens are masked and predicted" in messages
    assert Word.from_bytes(run.read("source.tokens")).size == 7
    path.write_text("\n\n", encoding="utf-8")
    with pytest.raises(DataError, match="no text is left, because all 2 lines are blank"):
        MaskedText.read((str(path),))


def test_texts_of_a_corpus_for_language_models_are_read_too(tmp_path: Path) -> None:
    run = train(tiny("data.corpus=sentences", "tokens.source=character"), runs=tmp_path, quiet=True)
    assert run.metrics()[-1]["perplexity"] > 1


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("metric=bleu", "the metric 'bleu' does not fit this task; choose from perplexity, masked_accuracy"),
        ("masked_lm.masked=0", "masked_lm.masked in the overrides is at least 0.01 and at most 0.95, not 0"),
        (
            "masked_lm.whole_words=true",
            "masked_lm.whole_words is for words in pieces: it needs tokens.source = sentencepiece, ",
        ),
        ("model.attention.heads=3", "3 heads share a width of 8 evenly only if 3 divides it"),
    ],
)
def test_what_does_not_fit_is_refused_before_data_is_read(override: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=f"^{re.escape(message)}"):
        train(tiny(), "data.train=nowhere.txt", override, runs=tmp_path, quiet=True)
    assert list(tmp_path.iterdir()) == []


def test_predict_score_and_train_on_the_command_line(run: Run, tmp_path: Path) -> None:
    text = "leo says that after monday comes ___\n\n"
    assert (
        printed(tmp_path, "predict", str(run.path), "-q", stdin=text) == "leo says that after monday comes tuesday\n\n"
    )
    prediction = json.loads(
        printed(tmp_path, "predict", str(run.path), "--text", text.strip(), "--n-best", "2", "--json", "-q")
    )
    assert [prediction["tokens"], len(prediction["alternatives"])] == [["tuesday"], 1]
    (tmp_path / "texts.txt").write_text("leo says that after monday comes tuesday\n", encoding="utf-8")
    assert printed(tmp_path, "score", str(run.path), "texts.txt").startswith("masked_accuracy ")
    options = ["data.train=texts.txt", "data.dev=texts.txt", "train.updates=1", "train.device=cpu"]
    assert printed(tmp_path, "train", "clues", *options, "-q") == "runs/clues\n"


# Resuming and fine-tuning


class Counting(Stopper):
    """Raises at its `last`-th check."""

    last = checks = 0

    def check(self) -> None:
        Counting.checks += 1
        if Counting.checks == Counting.last:
            raise StoppedError(15)


def outcome(run: Run) -> tuple[bytes, list[dict[str, object]]]:
    """The stored weights, and the metrics without times."""
    metrics = [{key: value for key, value in entry.items() if key not in WALL_CLOCK} for entry in run.metrics()]
    return run.read(storage.MODEL), metrics


@pytest.mark.parametrize("check", [2, 3, 4, 6])
def test_a_stopped_and_resumed_run_ends_with_the_same_bits(
    check: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = tiny("model.encoder.dropout=0.1", "train.threads=1", "train.accumulate=2")
    expected = outcome(train(recipe, runs=tmp_path / "whole", quiet=True))
    with monkeypatch.context() as patch:
        patch.setattr(Counting, "last", check)
        patch.setattr(Counting, "checks", 0)
        patch.setattr(loop, "Stopper", Counting)
        with pytest.raises(StoppedError):
            train(recipe, runs=tmp_path, quiet=True)
    assert outcome(resume(tmp_path / "tiny", quiet=True)) == expected


def weights(run: Run) -> dict[str, Tensor]:
    return load_tensors(run.read(storage.MODEL))


def fine_tuned(task: str, origin: Run | None, *overrides: str) -> Recipe:
    """The recipe of a classifier or tagger with the same vocabulary and encoder."""
    data = {
        "classify": ["data.corpus=moods", "metric=accuracy"],
        "tag": ["data.corpus=parts", "metric=tag_accuracy", "tokens.target=word"],
    }
    start = [f"train.start_from={origin.path}"] if origin else []
    return replace(tiny(f"task={task}", *data[task], *start, *overrides), name="tuned")


@pytest.mark.parametrize("task", ["classify", "tag"])
def test_fine_tuning_starts_from_the_whole_encoder(task: str, tmp_path: Path) -> None:
    corpus = {"classify": "moods", "tag": "parts"}[task]
    origin = train(tiny(f"data.corpus={corpus}"), runs=tmp_path, quiet=True)
    tuned = train(fine_tuned(task, origin, "train.learning_rate=0"), runs=tmp_path, quiet=True)
    old, new = weights(origin), weights(tuned)
    encoder = {name for name in new if name.startswith("encoder.")}
    assert encoder == {name for name in old if name.startswith("encoder.")}
    assert all(torch.equal(old[name], new[name]) for name in encoder)
    assert tuned.read("source.tokens") == origin.read("source.tokens")


@pytest.mark.slow
def test_pretraining_on_texts_improves_a_classifier_with_few_labels(tmp_path: Path) -> None:
    """With many texts but few labels, an encoder pretrained on the texts has a higher accuracy."""
    size = ["model.encoder.dim=32", "train.batch_tokens=1000"]
    texts = ["data.corpus=moods", "data.size=4000", "train.updates=200", "train.validate=200"]
    origin = train(tiny(*size, *texts, "masked_lm.masked=0.3", "train.learning_rate=0.005"), runs=tmp_path, quiet=True)
    few = [*size, "data.size=200", "train.updates=30", "train.validate=5", "train.learning_rate=0.001"]
    from_scratch, pretrained = (
        train(fine_tuned("classify", start, *few), runs=tmp_path, quiet=True).metrics()[-1]["accuracy"]
        for start in (None, origin)
    )
    assert pretrained > from_scratch
