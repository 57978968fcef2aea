"""Imported Marian, BART and T5 models have the logits and greedy tokens of `transformers`, and are fine-tuned."""

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from regard import load, train
from regard.data.batching import pad
from regard.data.tokenizers import HuggingFace, SentencePiece
from regard.errors import CorruptError, DataError
from regard.interop.hugging_face_folder import ModelFolder
from regard.interop.hugging_face_import import import_folder, read
from regard.interop.hugging_face_seq2seq import SEQ2SEQ_FAMILIES
from regard.interop.hugging_face_weights import NEVER, Vocabulary
from regard.search import beam
from regard.sources.text import SOURCE, TARGET
from regard.types import BEGIN, END, UNKNOWN
from wordpieces import byte_level

transformers = pytest.importorskip("transformers")
transformers.logging.set_verbosity_error()

SOURCES = ["the cat sat on the mat", "a dog ran", "two  dogs ½ q", "the"]
TARGETS = ["die katze saß auf der matte", "ein hund lief", "zwei hunde", "der hund"]
SIZES = {"d_model": 12, "encoder_layers": 2, "decoder_layers": 3, "encoder_ffn_dim": 17, "decoder_ffn_dim": 19}
SIZES |= {"encoder_attention_heads": 2, "decoder_attention_heads": 3, "max_position_embeddings": 41, "init_std": 0.7}
T5_SIZES = {"d_model": 12, "d_kv": 4, "num_heads": 3, "d_ff": 17, "num_layers": 2, "num_decoder_layers": 3}
# Without a cache, which generate() makes too small if the decoder has more layers than the encoder.
GREEDY = {"max_new_tokens": 9, "do_sample": False, "num_beams": 1, "use_cache": False}
BART_TOKENS = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
BART_NAMES = {"pad_token": "<pad>", "unk_token": "<unk>", "bos_token": "<s>", "cls_token": "<s>"}
BART_NAMES |= {"eos_token": "</s>", "sep_token": "</s>", "mask_token": "<mask>"}


def spm(texts: list[str], size: int) -> bytes:
    """A model of sentencepiece with its default settings, as Marian's are: Unigram, NFKC, no spaces twice."""
    from sentencepiece import SentencePieceTrainer

    model = io.BytesIO()
    SentencePieceTrainer.train(
        sentence_iterator=iter(texts * 9), model_writer=model, vocab_size=size, minloglevel=2, hard_vocab_limit=False
    )
    return model.getvalue()


def pieces_of(content: bytes) -> list[str]:
    from sentencepiece import SentencePieceProcessor

    processor = SentencePieceProcessor()
    processor.LoadFromSerializedProto(content)
    return [processor.IdToPiece(index) for index in range(processor.GetPieceSize())]


def vary(model: nn.Module) -> nn.Module:
    """The model with norms and biases that are not 1 and 0, so that a swapped one is noticed."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(torch.randn(parameter.shape) / 5)
        if hasattr(model, "final_logits_bias"):
            model.final_logits_bias.normal_()
    return model.eval()


def write(folder: Path, **files: Any) -> None:
    for name, content in files.items():
        (folder / name.replace("__", ".")).write_text(json.dumps(content))


def marian(folder: Path, **more: Any) -> nn.Module:
    source, target = spm(SOURCES, 40), spm(TARGETS, 45)
    joint = list(dict.fromkeys([*pieces_of(source)[3:], *pieces_of(target)[3:]]))
    joint.remove(pieces_of(source)[7])  # one that the model does not know
    rows = {piece: row for row, piece in enumerate(["</s>", "<unk>", *joint, "<pad>"])}
    folder.mkdir()
    (folder / "source.spm").write_bytes(source)
    (folder / "target.spm").write_bytes(target)
    ids = {"pad_token_id": rows["<pad>"], "decoder_start_token_id": rows["<pad>"], "eos_token_id": 0}
    config = transformers.MarianConfig(
        **SIZES, **ids, vocab_size=len(rows), forced_eos_token_id=None, activation_function="swish", **more
    )
    model = vary(transformers.MarianMTModel(config))
    model.save_pretrained(folder)
    write(folder, vocab__json=rows, tokenizer_config__json={"source_lang": "en", "target_lang": "de"})
    return model


def bart(folder: Path, **more: Any) -> nn.Module:
    content = byte_level([("Ġ", "d"), ("t", "h"), ("th", "e"), ("Ġ", "the"), ("a", "t")], BART_TOKENS)
    config = transformers.BartConfig(
        **SIZES, vocab_size=len(content["model"]["vocab"]) + 2, forced_eos_token_id=None, **more
    )
    model = vary(transformers.BartForConditionalGeneration(config))
    model.save_pretrained(folder)
    write(folder, tokenizer__json=content, special_tokens_map__json=BART_NAMES)
    return model


def t5(folder: Path, **more: Any) -> nn.Module:
    import tokenizers

    pieces = ["<pad>", "</s>", "<unk>", *pieces_of(spm(SOURCES + TARGETS, 60))[3:]]
    scored = [(piece, -float(row)) for row, piece in enumerate(pieces)]
    fast = tokenizers.Tokenizer(tokenizers.models.Unigram(scored, unk_id=2))
    fast.pre_tokenizer, fast.decoder = tokenizers.pre_tokenizers.Metaspace(), tokenizers.decoders.Metaspace()
    fast.add_special_tokens(["<pad>", "</s>", "<unk>"])
    config = transformers.T5Config(
        **T5_SIZES, vocab_size=fast.get_vocab_size() + 3, decoder_start_token_id=0, initializer_factor=0.8, **more
    )
    model = vary(transformers.T5ForConditionalGeneration(config))
    model.save_pretrained(folder)
    names = {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
    write(folder, tokenizer__json=json.loads(fast.to_str()), special_tokens_map__json=names)
    return model


MODELS: dict[str, Callable[[Path], nn.Module]] = {
    "marian": marian,
    "marian, untied": lambda folder: marian(folder, tie_word_embeddings=False),
    "marian, scaled": lambda folder: marian(folder, scale_embedding=True),
    "bart": bart,
    "bart, untied": lambda folder: bart(folder, tie_word_embeddings=False),
    "bart, scaled": lambda folder: bart(folder, scale_embedding=True),
    "t5": t5,
    "t5, untied": lambda folder: t5(folder, tie_word_embeddings=False),
    "t5, gated": lambda folder: t5(folder, feed_forward_proj="gated-gelu", tie_word_embeddings=False),
}


def test_every_family_is_tested():
    assert {name.partition(",")[0] for name in MODELS} == set(SEQ2SEQ_FAMILIES)


every_model = pytest.mark.parametrize("name", MODELS)


def rows_of(vocabulary: Vocabulary) -> Tensor:
    """The model's own row of every token of regard; pieces that it does not know are <unk> to it."""
    unknown = vocabulary.rows[UNKNOWN]
    return torch.tensor([unknown if row is None else row for row in vocabulary.rows])


@every_model
def test_logits_and_greedy_tokens_are_those_of_transformers(name, tmp_path):
    torch.manual_seed(3)
    theirs = MODELS[name](tmp_path / "model")
    imported = read(tmp_path / "model")
    task, model = imported.task, imported.model
    source, target = SEQ2SEQ_FAMILIES[name.partition(",")[0]].vocabularies(ModelFolder(tmp_path / "model")).values()
    known = torch.tensor([row is not None for row in target.rows])
    known[BEGIN] = False
    theirs, model = theirs.double(), model.double()
    batch = task.inputs.collate([task.inputs.encode(text) for text in SOURCES])
    written = pad([[BEGIN, *task.target.encode(text)] for text in TARGETS])
    assert not batch.mask.all()
    unreachable = {theirs.config.pad_token_id, *range(theirs.config.vocab_size)} - {*target.rows[END:]}
    asked = {"input_ids": rows_of(source)[batch.ids], "attention_mask": batch.mask.long()}
    with torch.no_grad():
        memory = model.encoder(batch)
        logits = model.decoder(written.ids, memory).logits
        expected = theirs(**asked, decoder_input_ids=rows_of(target)[written.ids]).logits[..., rows_of(target)]
        generated = theirs.generate(**asked, **GREEDY, bad_words_ids=[[row] for row in unreachable])
        found = beam(model.decoder, memory, width=1, limits=[9] * len(SOURCES))
    assert (logits - expected)[written.mask][:, known].abs().max() < 1e-5
    assert logits[..., ~known].max() < NEVER / 2  # nothing goes to tokens that the model does not have
    end = theirs.config.eos_token_id
    for [best], row in zip(found, generated[:, 1:].tolist(), strict=True):
        own = [target.rows[token] for token in best.tokens]
        assert own == (row[: row.index(end)] if end in row else row)
    assert len({tuple(row) for row in generated.tolist()}) > 1


def test_marian_texts_have_the_tokens_of_its_own_tokenizer(tmp_path):
    model = marian(tmp_path / "model")
    theirs = transformers.MarianTokenizer.from_pretrained(tmp_path / "model")
    source, target = SEQ2SEQ_FAMILIES["marian"].vocabularies(ModelFolder(tmp_path / "model")).values()
    for text in [*SOURCES, "ﬁne — q"]:
        own = rows_of(source)[source.tokenizer.framed(source.tokenizer.encode(text))]
        assert own.tolist() == theirs(text)["input_ids"]
    for text in TARGETS:
        ids = target.tokenizer.encode(text)
        assert [*rows_of(target)[ids].tolist(), 0] == theirs(text_target=text)["input_ids"]
        assert target.tokenizer.decode(ids) == text
    assert set(target.rows) - {None} == set(range(model.config.vocab_size))
    stored = target.tokenizer.to_bytes()
    assert SentencePiece.from_bytes(stored).to_bytes() == stored
    for length in range(0, len(stored), 7):
        with pytest.raises(CorruptError, match=r"^the stored sentencepiece tokenizer is damaged"):
            SentencePiece.from_bytes(stored[:length])


def test_bart_targets_begin_with_a_token_that_is_not_shown(tmp_path):
    bart(tmp_path / "model")
    source, target = SEQ2SEQ_FAMILIES["bart"].vocabularies(ModelFolder(tmp_path / "model")).values()
    ids = target.tokenizer.encode("the dog")
    assert rows_of(target)[[BEGIN, *ids, END]].tolist()[:2] == [2, 0]
    assert rows_of(source)[source.tokenizer.framed(source.tokenizer.encode("the dog"))].tolist()[0] == 0
    assert target.tokenizer.decode(ids) == "the dog"
    assert len(target.tokenizer.offsets("the dog")) == len(ids)
    assert HuggingFace.from_bytes(target.tokenizer.to_bytes()).encode("the dog") == ids


@pytest.mark.parametrize("name", ["marian", "bart", "t5"])
@pytest.mark.parametrize("rank", [0, 2])
def test_a_run_is_fine_tuned_with_its_own_recipe(name, rank, tmp_path):
    """LoRA changes the attention of encoder and decoder, cross-attention included, and nothing else."""
    torch.manual_seed(5)
    MODELS[name](tmp_path / "model")
    origin, _ = import_folder(tmp_path / "model", "origin", tmp_path / "runs")
    file = tmp_path / "pairs.tsv"
    file.write_text("".join(f"{source}\t{target}\n" for source, target in zip(SOURCES, TARGETS, strict=True)))
    short = f"name=fine train.updates=3 train.validate=3 train.device=cpu data.train={file} data.dev={file}"
    given = f"train.start_from={origin.path} train.lora_rank={rank} train.keep=last {short}"
    run = train(str(origin.path / "recipe.toml"), *given.split(), runs=tmp_path / "runs", quiet=True)
    assert [run.read(file) == origin.read(file) for file in (SOURCE, TARGET)] == [True, True]
    own, before = (load(each).model.state_dict() for each in (run, origin))
    changed = {key for key, tensor in own.items() if not tensor.equal(before[key])}
    assert max((own[key] - before[key]).abs().max() for key in changed) < 0.01
    if rank:
        assert {key.split(".")[-2] for key in changed} == {"all", "out", "query", "key", "value"}
        assert {key.split(".")[-3] for key in changed} == {"attention", "cross"}
    else:
        assert {"encoder.embedding.weight", "decoder.out.weight"} < changed
    [answer] = load(run).predict(["the cat sat"], search={"max_extra": 3})
    assert answer.map is not None


@pytest.mark.parametrize("name", ["marian", "bart", "t5"])
def test_an_untied_model_without_output_matrix_is_refused(name, tmp_path):
    MODELS[name](tmp_path / "model")
    assert "lm_head.weight" not in load_file(tmp_path / "model" / "model.safetensors")
    with pytest.raises(DataError, match=r"has no tensor lm_head.weight, which its config.json implies"):
        read(edited(tmp_path / "model", tie_word_embeddings=False))


def edited(folder: Path, **config: Any) -> Path:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | config))
    return folder


def test_folders_that_cannot_be_expressed_get_a_sentence(tmp_path):
    t5(tmp_path / "t5")
    with pytest.raises(DataError, match=r"3 heads of width 5 have 15 dimensions, and regard needs as many as"):
        read(edited(tmp_path / "t5", d_kv=5))
    with pytest.raises(DataError, match=r"has 16 buckets up to distance 128, and regard needs 32 up to 128"):
        read(edited(tmp_path / "t5", d_kv=4, relative_attention_num_buckets=16))
    with pytest.raises(DataError, match=r"feed_forward_proj is 'gated-silu', not relu or gated-gelu"):
        read(edited(tmp_path / "t5", relative_attention_num_buckets=32, feed_forward_proj="gated-silu"))
    with pytest.raises(DataError, match=r"tokenizer.json has no special token 31, which config.json names"):
        read(edited(tmp_path / "t5", feed_forward_proj="relu", decoder_start_token_id=31))
    folder = tmp_path / "marian"
    marian(folder)
    tensors = load_file(folder / "model.safetensors")
    save_file({name: tensor for name, tensor in tensors.items() if "shared" not in name}, folder / "model.safetensors")
    with pytest.raises(DataError, match=r"has no tensor encoder.embed_tokens.weight, which its config.json implies"):
        read(folder)
    rows = json.loads((folder / "vocab.json").read_text())
    (folder / "vocab.json").write_text(json.dumps(rows | {">>fra<<": 40}))
    with pytest.raises(DataError, match=r"the language code '>>fra<<': regard imports Marian models of one pair"):
        read(folder)
    (folder / "vocab.json").write_text(json.dumps({name: row for name, row in rows.items() if name != "<pad>"}))
    with pytest.raises(DataError, match=r"has no <pad> or no <unk>, which a Marian model needs"):
        read(folder)
    (folder / "vocab.json").write_text('{"<pad>": "zero"}')
    with pytest.raises(CorruptError, match=r"vocab.json is damaged: a row is not a number"):
        read(folder)
    (folder / "vocab.json").write_text(json.dumps(rows))
    (folder / "source.spm").write_bytes(b"no model")
    with pytest.raises(CorruptError, match=r"source.spm is no sentencepiece model"):
        read(folder)
    (folder / "source.spm").unlink()
    with pytest.raises(DataError, match=r"has no source.spm, which a Marian model needs"):
        read(folder)
