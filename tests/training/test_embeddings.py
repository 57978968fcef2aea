"""Embeddings that start from static word vectors: GloVe and word2vec as text, and a table with its tokenizer."""

import gzip
import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from regard import load, train
from regard import recipe as recipes
from regard.data import vectors
from regard.data.files import LIMITS
from regard.errors import CorruptError, DataError, RecipeError
from regard.training import loop, preview
from wordpieces import wordpiece

SMALL = ["data.corpus=moods", "data.size=40", "tokens.source=word", "train.updates=1", "train.learning_rate=0"]
SMALL += ["model.embedding=3", "model.encoder.dim=4", "train.device=cpu"]
GLOVE = "good 1 2 3\n. . . 4 5 6\nzebra 7 8 9\n"


def text(folder, content: str) -> str:
    (folder / "vectors.txt").write_text(content)
    return str(folder / "vectors.txt")


@pytest.mark.parametrize("content", [GLOVE, "3 3\n" + GLOVE, GLOVE.replace("\n", " \n")])
def test_both_text_formats_are_read(content, tmp_path):
    found = vectors.read((text(tmp_path, content),), ["good", ". . .", "lion"], LIMITS)
    assert found.width == 3
    assert {word: row.tolist() for word, row in found.rows.items()} == {"good": [1, 2, 3], ". . .": [4, 5, 6]}


def test_words_begin_with_their_vectors_and_others_with_new_ones(tmp_path, capsys):
    words = load(train("moods", *SMALL, "name=new", runs=tmp_path, quiet=True)).task.source
    known = [words.piece(token) for token in range(4, words.size, 2)]
    file = tmp_path / "vectors.txt.gz"
    lines = [f"{word} {place} 2.5 -1" for place, word in enumerate(known)]
    file.write_bytes(gzip.compress("\n".join(lines).encode()))
    run = train("moods", *SMALL, f"model.embedding_from={file}", "name=given", runs=tmp_path)
    assert f"vectors for {len(known)} of the {words.size - 4} tokens of encoder" in capsys.readouterr().err
    own, new = (load(tmp_path / name).model.encoder.words.weight for name in ("given", "new"))
    assert own[4::2].tolist() == [[place, 2.5, -1] for place in range(len(known))]
    assert torch.equal(own[5::2], new[5::2])
    assert torch.equal(own[:4], new[:4])
    assert run.path.name == "given"


def test_a_word_of_a_table_is_the_mean_of_its_pieces(tmp_path):
    content = wordpiece(["good bad", "x"])
    names = content["model"]["vocab"]
    table = torch.randn(len(names), 3)
    save_file({"embedding.weight": table.half()}, tmp_path / "table.safetensors")
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    files = (str(tmp_path / "table.safetensors"), str(tmp_path / "tokenizer.json"))
    found = vectors.read(files, ["bad", "goo"], LIMITS)
    expected = table.half().float()[[names["g"], names["##o"], names["##o"]]].mean(0)
    assert torch.allclose(torch.tensor(found.rows["goo"]), expected)
    assert torch.equal(torch.tensor(found.rows["bad"]), table.half().float()[names["bad"]])
    assert found.width == 3


def test_the_table_of_wordllama_gives_its_own_vectors(tmp_path, capsys):
    package = pytest.importorskip("wordllama")
    pytest.importorskip("tokenizers")
    folder = Path(package.__file__).parent
    table = folder / "weights/l2_supercat_256.safetensors"
    tokenizer = folder / "tokenizers/l2_supercat_tokenizer_config.json"
    matrix = load_file(table)["embedding.weight"]
    assert matrix.shape == (32_000, 256)
    files = f"model.embedding_from={table},{tokenizer}"
    run = train("moods", *SMALL, files, "model.embedding=256", runs=tmp_path)
    words = load(run).task.source
    assert f"has vectors for {words.size - 4} of the {words.size - 4} tokens of encoder" in capsys.readouterr().err
    inference = package.WordLlamaInference(matrix.numpy(), package.WordLlama.load_tokenizer(tokenizer))
    own = inference.embed([words.piece(token) for token in range(4, words.size)])
    torch.testing.assert_close(load(run).model.encoder.words.weight[4:], torch.from_numpy(own))


def test_bad_vectors_get_a_sentence_and_nothing_is_written(tmp_path):
    wide = f"model.embedding_from={text(tmp_path, 'good 1 2 3 4')}"
    for start in (train, preview):
        with pytest.raises(
            RecipeError, match=r"have 4 numbers, but encoder.embedding.weight has 3; write model.embedd"
        ):
            start("moods", *SMALL, wide, quiet=True, **({"runs": tmp_path / "runs"} if start is train else {}))
    assert not (tmp_path / "runs").exists()
    for content in ("good 1 2 x", "other 1 2 3\ngood 1 2", "good 1 nan 3"):
        with pytest.raises(DataError, match=r"vectors.txt:\d: 'good 1 .*' is not a word and 3 finite numbers"):
            vectors.read((text(tmp_path, content),), ["good"], LIMITS)
    with pytest.raises(RecipeError, match=r"is one text file of vectors \(GloVe, word2vec\), or a .safetensors table"):
        vectors.read(("one.safetensors",), ["good"], LIMITS)
    (tmp_path / "table.safetensors").write_bytes(b"nothing")
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(CorruptError, match=r"table.safetensors holds no tensors"):
        vectors.read((str(tmp_path / "table.safetensors"), str(tmp_path / "tokenizer.json")), ["good"], LIMITS)
    with pytest.raises(RecipeError, match=r"both say how embeddings begin; leave one of them out"):
        loop.check(recipes.load("moods", [*SMALL, wide, "train.start_from=runs/other"]))
