"""Training on the metric: rewards equal metrics, and the loss has the gradient of the expected reward."""

from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
import torch
from torch import Tensor

from regard import recipe as recipes
from regard.data.corpora import shapes
from regard.errors import RecipeError
from regard.metrics import METRICS, better, cider_d
from regard.metrics.rewards import reward, scorer
from regard.models import Seq2Seq
from regard.tasks import Transduce
from regard.tasks.rewards import Drawn, Rewards, generator_of
from regard.training import loop
from regard.types import BEGIN, END, PAD, UNKNOWN, Example

EXAMPLES = [
    Example("ab", "b a"),
    Example("ba", "a b a"),
    Example("ab", "a a"),
    Example("bba", "a b b"),
    Example("a", "a"),
]
SIZES = ("model.embedding=3", "model.encoder.dim=4", "model.decoder.dim=5", "model.attention.dim=7")
KEYS = (*SIZES, "train.device=cpu", "train.keep=last", "train.reward=character_errors", "tokens.target=word")
MODELS = {
    "bahdanau": (),
    "luong_feeding": ("model.decoder.order=luong_feeding", "model.decoder.cell=lstm"),
    "coverage": ("model.attention.scope=coverage", "model.decoder.gated_context=true"),
    "transformer": (
        *("model.encoder.kind=transformer", "model.decoder.kind=transformer", "model.attention.score=scaled_dot"),
        *("model.encoder.dim=6", "model.decoder.dim=6", "model.attention.heads=2"),
    ),
}
CPU = torch.device("cpu")


def make(*keys: str) -> tuple[Transduce, Seq2Seq, Rewards]:
    """A task, a model in float64 whose predictions differ from word to word, and the rewards of all examples."""
    recipe = recipes.parse("", "rewards", [*KEYS, *keys])
    task = Transduce.learn(recipe, EXAMPLES)
    torch.manual_seed(5)
    model = task.build().double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.3 * torch.randn_like(parameter)
    return task, model, task.rewards(task.encode(EXAMPLES))


def gradient(value: Tensor, model: Seq2Seq) -> list[Tensor]:
    parameters = list(model.parameters())
    found = torch.autograd.grad(value, parameters, allow_unused=True)
    return [torch.zeros_like(own) if grown is None else grown for own, grown in zip(parameters, found, strict=True)]


# Rewards


OUTPUTS = ("a dog runs on grass", "the dog runs , fast !", "", "a a a", "a black dog")
REFERENCES = [
    ["a dog runs on the grass", "a black dog"],
    ["two children play", "children , outside", "kids"],
    ["a cat"],
]


@pytest.mark.parametrize("metric", Transduce.metrics)
def test_a_reward_is_the_metric_of_the_output_alone(metric: str) -> None:
    sign = 1 if better(metric) == "higher is better" else -1
    score = reward([metric], REFERENCES)
    values = [score(OUTPUTS, references) for references in REFERENCES]
    assert len({*values[0]}) > 1
    if metric == "cider_d":
        return  # the weights of n-grams are those of all references: see the next test
    for own, references in zip(values, REFERENCES, strict=True):
        expected = [sign * METRICS[metric]([output], [references]).value for output in OUTPUTS]
        assert own == pytest.approx(expected, abs=1e-12)


def test_the_mean_reward_by_cider_d_is_that_of_the_corpus() -> None:
    score = scorer("cider_d", REFERENCES)
    for outputs in product(OUTPUTS, repeat=3):
        mean = sum(score([output], own)[0] for output, own in zip(outputs, REFERENCES, strict=True)) / 3
        assert mean == pytest.approx(cider_d(outputs, REFERENCES).value, abs=1e-12)


def test_rewards_of_several_metrics_are_added_and_errors_subtracted() -> None:
    names = ["cider_d", "bleu_2", "word_errors", "bleu_2"]
    cider, bleu, errors, _ = (scorer(name, REFERENCES)(OUTPUTS, REFERENCES[0]) for name in names)
    expected = [one + 2 * two - three for one, two, three in zip(cider, bleu, errors, strict=True)]
    assert reward(names, REFERENCES)(OUTPUTS, REFERENCES[0]) == pytest.approx(expected, abs=1e-12)


def test_each_source_is_there_once_and_all_its_targets_are_references() -> None:
    task, model, rewards = make("train.reward=exact_match", "train.reward_samples=40", "search.max_extra=2")
    assert [example.source for example in rewards.data.examples] == ["ab", "ba", "bba", "a"]
    assert rewards.references == [["b a", "a a"], ["a b a"], ["a b b"], ["a"]]
    drawn = rewards.draw(model, task.collate(rewards.data, [3, 0]), generator_of(1, 2, CPU))
    assert drawn.examples.tolist() == [3, 0]
    for place, rows, own in zip([3, 0], drawn.ids.tolist(), drawn.rewards.tolist(), strict=True):
        texts = [task.target.decode([token for token in row if token not in (PAD, BEGIN, END)]) for row in rows]
        assert own == [float(text in rewards.references[place]) for text in texts]
    assert {0.0, 1.0} == {*drawn.rewards.flatten().tolist()}


def test_unknown_words_of_outputs_earn_nothing() -> None:
    recipe = recipes.parse("", "rewards", [*KEYS, "tokens.size=1", "train.reward=exact_match"])
    task = Transduce.learn(recipe, EXAMPLES)  # it knows `a` alone
    rewards = task.rewards(task.encode(EXAMPLES))
    known = task.target.encode("a")
    assert task.target.encode("b a") == [UNKNOWN, *known]
    assert rewards._rewards([0], [[[BEGIN, UNKNOWN, *known, END], [BEGIN, *known, *known, END]]]) == [[0.0, 1.0]]


def test_advantages_are_over_the_mean_of_the_other_outputs() -> None:
    values = torch.tensor([[1.0, 4.0, 7.0, 0.0], [2.0, 2.0, 2.0, 2.0]])
    ids = torch.zeros(2, 4, 1, dtype=torch.long)
    drawn = Drawn(None, ids, ids > 0, values, torch.arange(2))
    expected = [[1 - 11 / 3, 4 - 8 / 3, 7 - 5 / 3, 0 - 12 / 3], [0, 0, 0, 0]]
    torch.testing.assert_close(drawn.advantages(), torch.tensor(expected))


# The gradient


def all_outputs(task: Transduce, limit: int) -> list[list[int]]:
    """All rows that may be drawn with at most `limit` tokens: they end with END, or are cut."""
    words = [token for token in range(task.target.size) if token not in (PAD, BEGIN, END)]
    ended = [[BEGIN, *tokens, END] for length in range(limit) for tokens in product(words, repeat=length)]
    return ended + [[BEGIN, *tokens] for tokens in product(words, repeat=limit)]


def padded(rows: list[list[int]]) -> Tensor:
    return torch.nn.utils.rnn.pad_sequence([torch.tensor(row) for row in rows], batch_first=True, padding_value=PAD)


def log_probability(model: Seq2Seq, source: object, row: list[int]) -> Tensor:
    """The log-probability of one output, step by step, among the words that may be drawn."""
    memory = model.read(source)
    total = torch.zeros((), dtype=torch.float64)
    for place in range(1, len(row)):
        logits = model.decoder(torch.tensor([row[:place]]), memory).logits[0, -1]
        allowed = [token for token in range(len(logits)) if token not in (PAD, BEGIN)]
        total = total + logits[row[place]] - logits[allowed].logsumexp(0)
    return total


@pytest.mark.parametrize("name", MODELS)
def test_the_expected_gradient_is_that_of_the_expected_reward(name: str) -> None:
    """Over all pairs of outputs: each is a source with two samples, whose rewards are weighted by its probability."""
    task, model, rewards = make(*MODELS[name], "search.max_ratio=0", "search.max_extra=2")
    model.train()
    place = 2
    source = task.collate(rewards.data, [place]).source
    rows = all_outputs(task, limit=2)
    assert len(rows) == 1 + 3 + 9
    values = torch.tensor(rewards._rewards([place], [rows])[0], dtype=torch.float64)
    probabilities = torch.stack([log_probability(model, source, row) for row in rows]).exp()
    assert probabilities.sum().item() == pytest.approx(1, abs=1e-12)
    expected = gradient(-(probabilities * values).sum(), model)

    one, other = torch.tensor(list(product(range(len(rows)), repeat=2))).T
    chances = (probabilities[one] * probabilities[other]).detach().unsqueeze(1)
    ids = padded(rows)[torch.stack([one, other], dim=1)]
    weighted = chances * values[torch.stack([one, other], dim=1)]
    copies = source.select(torch.zeros(len(one), dtype=torch.long))
    drawn = Drawn(copies, ids, ids != PAD, weighted, torch.zeros(len(one), dtype=torch.long))
    assert any(grown.abs().max() > 1e-3 for grown in expected)
    for mine, right in zip(gradient(rewards.loss(model, drawn), model), expected, strict=True):
        torch.testing.assert_close(mine, 2 * right, rtol=0.0, atol=1e-12)  # there are two samples


@pytest.mark.parametrize("name", MODELS)
def test_the_loss_of_drawn_outputs_is_reinforce_by_hand(name: str) -> None:
    task, model, rewards = make(*MODELS[name], "search.max_ratio=1", "search.max_extra=2", "train.reward_samples=3")
    drawn = rewards.draw(model, task.collate(rewards.data, [2, 3, 0, 1]), generator_of(4, 9, CPU))
    model.train()
    assert drawn.rewards.std(1).max() > 0
    total = torch.zeros((), dtype=torch.float64)
    for number, place in enumerate([2, 3, 0, 1]):
        source = task.collate(rewards.data, [place]).source
        for sample, row in enumerate(drawn.ids[number].tolist()):
            others = [drawn.rewards[number, other].item() for other in range(3) if other != sample]
            advantage = drawn.rewards[number, sample].item() - sum(others) / 2
            output = [token for token in row if token != PAD]
            assert len(output) - 1 == drawn.mask[number, sample, 1:].sum()
            total = total - advantage * log_probability(model, source, output)
    loss = rewards.loss(model, drawn)
    assert loss.item() == pytest.approx(total.item(), abs=1e-10)
    for mine, right in zip(gradient(loss, model), gradient(total, model), strict=True):
        torch.testing.assert_close(mine, right, rtol=0.0, atol=1e-10)
    assert rewards.tokens(drawn) == sum(len(row) - row.count(PAD) - 1 for rows in drawn.ids.tolist() for row in rows)


def test_a_part_of_the_sources_has_its_part_of_the_loss() -> None:
    task, model, rewards = make("search.max_extra=3")
    drawn = rewards.draw(model, task.collate(rewards.data, range(4)), generator_of(1, 1, CPU))
    parts = [drawn.select(torch.tensor(rows)) for rows in ([3, 1], [0, 2])]
    whole = rewards.loss(model, drawn).item()
    assert sum(rewards.loss(model, part).item() for part in parts) == pytest.approx(whole, abs=1e-12)
    assert sum(map(rewards.tokens, parts)) == rewards.tokens(drawn)


def test_outputs_are_drawn_without_dropout_by_the_seed_and_the_update() -> None:
    outputs = {}
    for dropout, seed, update in product((0.0, 0.5), (1, 2), (7, 8)):
        task, model, rewards = make(f"model.encoder.dropout={dropout}", f"model.decoder.dropout={dropout}")
        model.train()
        state = torch.get_rng_state()
        drawn = rewards.draw(model, task.collate(rewards.data, range(4)), generator_of(seed, update, CPU))
        assert torch.equal(state, torch.get_rng_state())
        outputs[dropout, seed, update] = drawn.ids.tolist()
    for seed, update in product((1, 2), (7, 8)):
        assert outputs[0.0, seed, update] == outputs[0.5, seed, update]
    assert len({str(rows) for (dropout, _, _), rows in outputs.items() if dropout}) == 4


def test_pictures_are_encoded_once_each_with_all_captions_as_references(tmp_path: Path) -> None:
    scenes = [example.source for example in shapes(seed=1, size=5).train]
    file = tmp_path / "captions.tsv"
    lines = [f"{scene}\t{number}\tA Scene , number {number} !" for number in range(3) for scene in scenes]
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    small = ("picture.channels=3", "picture.blocks=4", "model.embedding=12", "train.device=cpu", "train.keep=last")
    keys = ("model.encoder.kind=none", "model.encoder.dim=12", "model.decoder.kind=recurrent", "model.decoder.dim=12")
    more = ("model.attention.heads=1", "data.normalize=captions", "train.reward=cider_d", "train.updates=9")
    recipe = recipes.load("shapes", [*small, *keys, *more, f"data.train={file}", "search.max_extra=3"])
    Transduce.check(recipe)
    examples = Transduce.reader(recipe)(recipe.data.train).examples
    task = Transduce.learn(recipe, examples)
    rewards, model = task.rewards(task.encode(examples)), task.build()
    assert rewards.references == [["a scene number 0", "a scene number 1", "a scene number 2"]] * 5
    batch = task.collate(rewards.data, range(5))
    assert len(batch.source.mask) == 5
    encoded: list[int] = []
    model.encoder.register_forward_hook(lambda _, inputs, memory: encoded.append(len(memory.mask)))
    drawn = rewards.draw(model, batch, generator_of(1, 1, CPU))
    assert drawn.ids.shape[:2] == (5, 5)
    rewards.loss(model, replace(drawn, rewards=torch.rand(5, 5))).backward()
    assert encoded == [5, 5]
    assert all(parameter.grad is not None for parameter in model.encoder.parameters())


# Recipes


REFUSED = {
    ("train.reward=bleu_4,bleu_5",): r"unknown metric 'bleu_5'; did you mean 'bleu_4'\?",
    ("train.reward=accuracy",): r"the metric 'accuracy' does not fit this task; choose from exact_match, ",
    ("train.reward=perplexity",): r"the metric 'perplexity' does not fit this task; choose from exact_match, ",
    ("train.reward_after=1000",): r"train.reward_after is 1,000, and there are 1,000 updates, so that none is left",
    ("train.keep=best",): r"the last validation before it would stay the best; add train.best_by=metric, or train.keep",
    ("source=speech", "tokens.target=word", "train.ctc=0.3"): r"train.ctc and train.reward do not go together",
    ("model.attention.normalizer=hard",): r"hard attention and train.reward do not go together",
}


@pytest.mark.parametrize("keys", REFUSED, ids=" ".join)
def test_a_reward_that_does_not_fit_is_refused(keys: tuple[str, ...]) -> None:
    Transduce.check(recipes.parse("", "rewards", [*KEYS, "train.reward_after=999"]))
    with pytest.raises(RecipeError, match=REFUSED[keys]):
        Transduce.check(recipes.parse("", "rewards", [*KEYS, *keys]))


@pytest.mark.parametrize("key", ["reward_after=3", "reward_samples=4", "reward_rate=0.1"])
def test_keys_of_a_reward_without_one_are_refused(key: str) -> None:
    name = key.partition("=")[0]
    with pytest.raises(RecipeError, match=rf"train.{name} is for train.reward=METRIC, which is not set; leave it out"):
        Transduce.check(recipes.parse("", "rewards", [f"train.{key}"]))


def test_fewer_than_two_samples_are_refused() -> None:
    with pytest.raises(
        RecipeError, match=r"train.reward_samples in the overrides is at least 2 and at most 1,000, not 1"
    ):
        recipes.parse("", "rewards", [*KEYS, "train.reward_samples=1"])


@pytest.mark.parametrize("name", ["moods", "sentences", "parts", "clues", "facts"])
def test_other_tasks_have_no_outputs_to_reward(name: str) -> None:
    with pytest.raises(RecipeError, match=r"does not use train.reward; leave it out"):
        loop.check(recipes.load(name, ["train.reward=exact_match"]))
