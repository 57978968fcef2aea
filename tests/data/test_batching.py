"""Batches hold every example once, stay within the token budget, and depend only on seed, epoch and index."""

import random
import subprocess
import sys
import time
from collections import Counter
from itertools import combinations, pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regard.data.batching import Batches, Mixture, count_batches, length_array, pad, plan, shuffled, sorted_batches
from regard.errors import DataError, RecipeError
from regard.types import PAD

lengths_of_examples = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), max_size=60)
budgets = st.integers(1, 100)
seeds = st.integers(-5, 2**40)


def assert_complete_and_within_budget(batches, lengths, budget):
    assert sorted(index for batch in batches for index in batch) == list(range(len(lengths)))
    for batch in batches:
        longest = max(max(lengths[index]) for index in batch)
        assert len(batch) == 1 or len(batch) * longest <= budget


@given(lengths_of_examples, budgets, seeds, st.integers(0, 9))
def test_a_plan_holds_every_example_once_under_the_budget(lengths, budget, seed, epoch):
    assert_complete_and_within_budget(plan(lengths, budget, seed, epoch), lengths, budget)
    assert_complete_and_within_budget(sorted_batches(lengths, budget), lengths, budget)
    assert count_batches(lengths, budget) == len(sorted_batches(lengths, budget))


@given(lengths_of_examples, budgets, seeds, st.integers(0, 9))
def test_a_plan_depends_on_its_arguments_alone_and_changes_none(lengths, budget, seed, epoch):
    original = list(lengths)
    random.seed(1)
    first = plan(lengths, budget, seed, epoch)
    random.seed(2)
    assert plan(lengths, budget, seed, epoch) == first
    assert lengths == original


def plan_of_lists(lengths, budget, seed, epoch):
    """The definition of a plan, with lists of Python's integers; stored runs resume by the batches that it gives."""
    generator = random.Random(f"batches {seed} {epoch}")
    order = list(range(len(lengths)))
    generator.shuffle(order)
    batches = fill_lists(order, lengths, budget)
    generator.shuffle(batches)
    return batches


def fill_lists(order, lengths, budget):
    batches = []
    for index in sorted(order, key=lambda index: (max(lengths[index]), lengths[index][0])):
        longest = max(1, *lengths[index])
        if not batches or (len(batches[-1]) + 1) * longest > budget:
            batches.append([])
        batches[-1].append(index)
    return batches


@given(lengths_of_examples, budgets, seeds, st.integers(0, 9))
def test_a_plan_is_that_of_its_definition(lengths, budget, seed, epoch):
    assert plan(lengths, budget, seed, epoch) == plan_of_lists(lengths, budget, seed, epoch)
    assert sorted_batches(lengths, budget) == fill_lists(range(len(lengths)), lengths, budget)
    assert plan(length_array(lengths), budget, seed, epoch) == plan(lengths, budget, seed, epoch)


@given(lengths_of_examples, budgets, seeds)
def test_batches_do_not_overlap_in_length(lengths, budget, seed):
    spans = sorted(sorted(max(lengths[index]) for index in batch) for batch in plan(lengths, budget, seed, 0))
    assert [length for span in spans for length in span] == sorted(map(max, lengths))


@given(lengths_of_examples, budgets, seeds)
def test_no_two_neighbouring_batches_would_fit_into_one(lengths, budget, seed):
    batches = sorted(plan(lengths, budget, seed, 0), key=lambda batch: max(max(lengths[i]) for i in batch))
    by_length = sorted_batches(lengths, budget)
    assert sorted(map(len, batches)) == sorted(map(len, by_length))
    for batch, following in pairwise(by_length):
        assert (len(batch) + 1) * max(1, *lengths[following[0]]) > budget


def test_sorted_batches_go_from_short_to_long():
    lengths = [(3, 5), (9, 1), (2, 5), (1, 1), (5, 2), (3, 5)]
    assert sorted_batches(lengths, 10) == [[3, 2], [0, 5], [4], [1]]
    assert sorted_batches([], 10) == []


def test_epochs_and_seeds_differ():
    lengths = [(3, 5)] * 100 + [(7, 2)] * 100
    plans = [plan(lengths, 50, seed, epoch) for seed in (1, 2) for epoch in (0, 1)]
    as_sets = [{frozenset(batch) for batch in batches} for batches in plans]
    for first, second in combinations(range(4), 2):
        assert plans[first] != plans[second]
        assert len(as_sets[first] & as_sets[second]) < 3  # the batches hold other examples, not only in another order


def test_batches_are_not_sorted_by_length():
    lengths = [(length, length) for length in range(1, 200)]
    longest = [lengths[batch[0]][0] for batch in plan(lengths, 300, 1, 0)]
    assert longest != sorted(longest)
    assert longest != sorted(longest, reverse=True)


def test_another_process_makes_the_same_plan():
    script = "from regard.data.batching import plan; print(list(plan([(3, 5)] * 20 + [(4, 4)] * 9, 25, 7, 3)))"
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == str(list(plan([(3, 5)] * 20 + [(4, 4)] * 9, 25, 7, 3)))


def test_a_large_plan_is_quick():
    generator = random.Random(3)
    lengths = [(generator.randint(1, 60), generator.randint(1, 60)) for _ in range(200_000)]
    start = time.perf_counter()
    plan(lengths, 4_096, 1, 0)
    assert time.perf_counter() - start < 5  # about half a second on an idle machine


@pytest.mark.parametrize("budget", [0, -3])
def test_a_budget_below_one_token_is_refused(budget):
    with pytest.raises(RecipeError, match=f"^a batch of {budget} tokens holds nothing; give 1 or more$"):
        plan([(1, 1)], budget, 1, 0)


@given(lengths_of_examples.filter(len), budgets, seeds, st.lists(st.integers(0, 500), min_size=1))
def test_updates_can_be_read_in_any_order(lengths, budget, seed, updates):
    batches = Batches(lengths, budget, seed)
    for update in updates:
        assert batches[update] == Batches(lengths, budget, seed)[update]


@given(lengths_of_examples.filter(len), budgets, seeds)
def test_updates_follow_the_plans_of_the_epochs(lengths, budget, seed):
    expected = [
        ((epoch, index), batch) for epoch in range(3) for index, batch in enumerate(plan(lengths, budget, seed, epoch))
    ]
    batches = Batches(lengths, budget, seed)
    assert [(batches.locate(update), batches[update]) for update in range(len(expected))] == expected
    assert batches.per_epoch * 3 == len(expected)


def test_an_empty_list_of_examples_is_refused():
    with pytest.raises(DataError, match=r"^there are no examples to batch; "):
        Batches([], 10, 1)


def test_rows_are_padded_to_the_longest():
    padded = pad([[5, 6, 7], [], [8]])
    assert padded.ids.dtype == torch.long
    assert padded.ids.tolist() == [[5, 6, 7], [PAD, PAD, PAD], [8, PAD, PAD]]
    assert padded.mask.tolist() == [[True, True, True], [False, False, False], [True, False, False]]


def test_a_pad_id_inside_a_row_is_not_masked():
    assert pad([[PAD, 5], [6]]).mask.tolist() == [[True, True], [True, False]]


@pytest.mark.parametrize(("rows", "shape"), [([], (0, 0)), ([[], []], (2, 0))])
def test_padding_empty_rows_gives_empty_tensors(rows, shape):
    padded = pad(rows)
    assert tuple(padded.ids.shape) == tuple(padded.mask.shape) == shape
    assert padded.mask.dtype == torch.bool


@pytest.mark.parametrize(
    "count", [0, 1, 2, 999, 1001, 1002, 1023, 1024, 1025, 2047, 2049, 5000, 65_536, 65_537, 140_001]
)
def test_many_numbers_are_shuffled_as_the_standard_library_does_it(count):
    for seed in range(2):
        ours, theirs, numbers = random.Random(f"s{seed}"), random.Random(f"s{seed}"), list(range(count))
        theirs.shuffle(numbers)
        assert shuffled(count, ours).tolist() == numbers
        assert ours.getstate() == theirs.getstate()


@pytest.mark.parametrize(
    "longest", [5, 300, 2**31 - 1]
)  # sort keys of two bytes, of four, and too large for one number
@pytest.mark.parametrize("by_target", [False, True])
def test_batches_are_sorted_by_length_whatever_the_range(longest, by_target):
    generator = random.Random(3)
    lengths = [(generator.randint(0, longest), generator.randint(0, longest)) for _ in range(3000)]
    in_order = [index for batch in sorted_batches(lengths, 1000, by_target=by_target) for index in batch]
    keys = [(max(lengths[index]), *lengths[index][: 1 + by_target]) for index in range(len(lengths))]
    assert in_order == sorted(range(len(lengths)), key=keys.__getitem__)


def test_a_mixture_draws_each_corpus_with_its_share_and_all_its_examples_equally_often():
    mixture = Mixture([7, 30, 400], [1.0, 1.0, 2.0], seed=5)
    assert sum(mixture.counts) == 437
    draws = [mixture.draw(epoch).tolist() for epoch in range(9)]
    for first, size, share in ((0, 7, 0.25), (7, 30, 0.25), (37, 400, 0.5)):
        drawn = [[index for index in draw if first <= index < first + size] for draw in draws]
        assert all(abs(len(own) - share * 437) <= 1 for own in drawn)
        counts = Counter(index for own in drawn for index in own)
        assert len(counts) == size
        assert max(counts.values()) - min(counts.values()) <= 1
    assert Mixture([7, 30, 400], [1.0, 1.0, 2.0], seed=5).draw(8).tolist() == draws[8]
    assert Mixture([7, 30, 400], [1.0, 1.0, 2.0], seed=6).draw(8).tolist() != draws[8]


def test_batches_of_a_mixture_are_a_function_of_the_update_alone():
    generator = random.Random(2)
    lengths = [(generator.randint(1, 40), generator.randint(1, 40)) for _ in range(500)]

    def batches():
        return Batches(lengths, 200, 1, mixture=Mixture([100, 400], [1.0, 1.0], seed=1))

    one = batches()
    in_order = [one[update] for update in range(3 * one.per_epoch)]
    assert all(batches()[update] == in_order[update] for update in (0, one.per_epoch, 3 * one.per_epoch - 1))
    assert all(
        len(batch) == 1 or len(batch) * max(map(max, map(lengths.__getitem__, batch))) <= 200 for batch in in_order
    )
    share = sum(index < 100 for batch in in_order for index in batch) / sum(map(len, in_order))
    assert share == pytest.approx(0.5, abs=0.03)
