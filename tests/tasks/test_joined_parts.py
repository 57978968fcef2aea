"""Long recordings are cut, answered part by part and joined: texts, scores and maps with the times of the whole."""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

import regard
from regard import recipe as recipes
from regard.analysis.times import token_times
from regard.data.corpora.tones import render, tones
from regard.data.tokenizers import TOKENIZERS
from regard.errors import DataError, RecipeError
from regard.maps import Frames
from regard.models import CROSS
from regard.tasks.parts import Corner, block_diagonal, join
from regard.types import Example, Hypothesis
from wordpieces import build

TEXTS = ["the cat sat", "a dog ran far", "the dog sat"]


def hypothesis(tokens: list[int], score: float, columns: int | None = None, finished: bool = True) -> Hypothesis:
    weights = None if columns is None else torch.rand(len(tokens) + 1, columns)
    return Hypothesis(tokens, score, weights, finished)


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_there_is_one_space_between_the_texts_of_two_parts(kind: str) -> None:
    tokenizer = build(kind, TEXTS, 40)
    texts = ["the cat", "", "a dog ran", "sat"]
    outputs = [hypothesis(tokenizer.encode(text) if text else [], -1.5) for text in texts]
    joined, corners = join(outputs, [0, 5, 9, 14], 20, tokenizer)
    assert tokenizer.decode(joined.tokens) == "the cat a dog ran sat"
    assert joined.tokens == tokenizer.encode("the cat a dog ran sat")
    assert (joined.score, joined.map, joined.finished) == (-6.0, None, True)
    for (row, _), output in zip(corners, outputs, strict=True):
        assert joined.tokens[row : row + len(output.tokens)] == output.tokens


def test_texts_of_a_vocabulary_without_spaces_are_joined_as_they_are() -> None:
    tokenizer = TOKENIZERS["character"].build(["猫", "犬犬"], 40)
    joined, _ = join([hypothesis(tokenizer.encode(text), 0) for text in ("猫", "犬")], [0, 3], 5, tokenizer)
    assert tokenizer.decode(joined.tokens) == "猫犬"


def test_the_map_of_the_whole_has_each_part_at_its_place() -> None:
    tokenizer = TOKENIZERS["character"].build(TEXTS, 40)
    outputs = [
        hypothesis(tokenizer.encode("ca"), -1, 7),  # wider than the part: the rest is padding
        hypothesis([], -2, 6),
        hypothesis(tokenizer.encode("dog"), -3, 5, finished=False),
    ]
    joined, corners = join(outputs, [0, 4, 10], 15, tokenizer)
    assert corners == [Corner(0, 0), Corner(2, 4), Corner(3, 10)]
    assert (joined.score, joined.finished) == (-6, False)
    expected = torch.zeros(6, 15)
    expected[:2, :4], expected[3:, 10:] = outputs[0].map[:2, :4], outputs[2].map[:3]
    assert torch.equal(joined.map, expected)
    heads = block_diagonal([torch.ones(3, 2, 4), torch.ones(3, 1, 5)], [Corner(0, 0), Corner(2, 4)], 3, 9)
    assert heads.shape == (3, 3, 9)
    assert heads.sum((1, 2)).tolist() == [13, 13, 13]


def test_one_part_stays_as_it_is() -> None:
    only = hypothesis([5, 6], -1, 4)
    assert join([only], [0], 4, TOKENIZERS["word"].build(TEXTS, 40)) == (only, [Corner(0, 0)])


# through a run


KEYS = (
    *("data.size=30", "model.embedding=6", "model.encoder.dim=8", "model.decoder.dim=8", "model.attention.dim=6"),
    *("speech.bands=12", "speech.width=8", "train.device=cpu", "train.threads=1", "train.batch_tokens=200"),
    *("search.max_ratio=0", "search.max_extra=4", "train.updates=3", "train.validate=3", "data.max_length=80"),
)


@pytest.fixture(scope="module")
def predictor(tmp_path_factory: pytest.TempPathFactory) -> regard.Predictor:
    """An untrained model that reads recordings of at most 3.2 seconds."""
    run = regard.train(recipes.load("tones", KEYS), runs=tmp_path_factory.mktemp("runs"))
    return regard.load(run, device="cpu")


def melody(count: int) -> Tensor:
    """Melodies, with half a second of silence between two."""
    parts = [render(example.source).samples for example in tones(1, count).train]
    return torch.cat([part for own in parts for part in (own, torch.zeros(4000))])


def spans(cuts: Sequence[float], samples: Tensor) -> list[tuple[int, int]]:
    bounds = [0, *(round(8000 * time) for time in cuts), len(samples)]
    return list(pairwise(bounds))


def test_a_long_recording_has_the_outputs_of_its_parts_and_the_times_of_the_whole(predictor: regard.Predictor) -> None:
    samples = melody(6)
    [short, whole] = predictor.predict([regard.Recording(samples[:20_000], 8000), regard.Recording(samples, 8000)])
    assert short.cuts == ()
    assert len(whole.cuts) >= 3
    assert str(whole.source) == f"<recording {len(samples) / 8000:.2f} s>"
    assert max(end - start for start, end in spans(whole.cuts, samples)) <= 3.2 * 8000
    for time in whole.cuts:
        assert samples[round(8000 * time) - 400 : round(8000 * time) + 400].abs().max() < 0.1
    task, layout = predictor.task, whole.map.layout
    assert isinstance(layout, Frames)
    item = task.inputs.encode(whole.source)
    assert whole.map.columns == task.inputs.labels(item)
    assert len(whole.map.columns) == -(-(len(samples) // 160 + 1) // 2)
    # the map is block-diagonal: the rows of a part are over the positions of the part
    starts = [0, *(round(time / layout.seconds) for time in whole.cuts), len(whole.map.columns)]
    first = [int(row.nonzero()[0]) for row in whole.map.weights]
    last = [int(row.nonzero()[-1]) for row in whole.map.weights]
    homes = [int(np.searchsorted(starts, column, side="right")) for column in first]
    assert homes == sorted(homes)
    assert homes == [int(np.searchsorted(starts, column, side="right")) for column in last]
    assert torch.allclose(whole.map.weights.sum(1), torch.ones(len(whole.tokens)))
    assert max(time for _, time in token_times(whole.map)) > whole.cuts[-1]
    # each part gives what it gives alone; the features at its ends see the samples beyond
    parts = task.parts([whole.source])
    assert [part.start for part in parts] == starts[:-1]
    assert sum(len(part.item) for part in parts) == len(item)
    assert len(set(homes)) == len(parts)
    assert whole.text == " ".join(whole.tokens)
    assert whole.to_dict()["cuts"] == list(whole.cuts)


def test_the_score_is_the_sum_and_outputs_of_the_same_rank_are_joined(predictor: regard.Predictor) -> None:
    recording = regard.Recording(melody(4), 8000)
    [best] = predictor.predict([recording], beam=3)
    [several] = predictor.predict([recording], beam=3, n_best=3)
    assert (several.text, several.score, len(several.alternatives)) == (best.text, best.score, 2)
    with predictor.running():
        task = predictor.task
        parts = task.parts([task.accept(recording, "it")])
        outputs, _ = task._search(predictor.model, parts, predictor.search_settings({}, 3), 3, 0)
    for rank, prediction in enumerate([several, *several.alternatives]):
        assert prediction.score == sum(outputs[number][rank].score for number in range(len(parts)))
        tokens = [token for number in range(len(parts)) for token in outputs[number][rank].tokens]
        assert prediction.tokens == tuple(map(task.target.piece, tokens))


def test_all_maps_of_a_cut_recording_are_those_of_cross_attention(predictor: regard.Predictor) -> None:
    recording = regard.Recording(melody(4), 8000)
    [plain] = predictor.predict([recording])
    [whole] = predictor.predict([recording], all_maps=True)
    assert whole.map == plain.map  # looking changes nothing
    assert whole.maps.sites == (CROSS,)
    assert torch.allclose(whole.maps.pick().weights, whole.map.weights, atol=1e-5)
    assert (whole.maps.pick().rows, whole.maps.pick().columns) == (whole.tokens, whole.map.columns)


def test_recordings_beside_a_long_one_are_answered_as_alone(predictor: regard.Predictor) -> None:
    sources = [example.source for example in tones(1, 3).train]
    alone = predictor.predict(sources)
    _, *beside, blank = predictor.predict([regard.Recording(melody(4), 8000), *sources, " "])
    assert [prediction.text for prediction in beside] == [prediction.text for prediction in alone]
    assert blank.text == ""


def test_a_long_recording_is_scored_in_parts_and_refused_beyond_the_limit(
    predictor: regard.Predictor, tmp_path: Path
) -> None:
    source = predictor.task.accept(regard.Recording(melody(4), 8000), "it")
    scored = predictor.score([Example(source, "C4")])
    assert len(scored.answers[0].cuts) >= 2
    assert not predictor.task.too_long(source)
    with pytest.raises(DataError, match="input 1 takes more than 600 seconds"):
        predictor.predict([regard.Recording(torch.zeros(601_000), 1000)])


def test_inputs_from_python_are_one_list_of_names_paths_and_recordings(
    predictor: regard.Predictor, tmp_path: Path
) -> None:
    description = tones(1, 1).train[0].source
    [named], [given] = predictor.predict([description]), predictor.predict([render(description)])
    assert (named.text, named.map) == (given.text, given.map)
    [forced], [again] = (regard.force(predictor, [(one, "C4")]) for one in (description, render(description)))
    assert (forced.score, forced.map) == (again.score, again.map)
    with pytest.raises(DataError, match=r"cannot find .*none\.wav"):
        predictor.predict([tmp_path / "none.wav"])
    with pytest.raises(DataError, match=r"^input 2 is of the type ndarray, which has no sampling rate"):
        predictor.predict([description, np.zeros(9)])
    with pytest.raises(DataError, match=r"^the source of pair 1 is of the type int, which has no sampling rate"):
        regard.force(predictor, [(7, "C4")])
    for one in (render(description), np.zeros(9), torch.zeros(9), tmp_path):
        with pytest.raises(
            RecipeError, match=r"^predict takes a list of inputs, not one \w+; write predict\(\[input\]\)"
        ):
            predictor.predict(one)
