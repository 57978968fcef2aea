"""Models of Marian compute its equations: npz files with settings as YAML, which are read without pickles."""

import io
import json
import zipfile

import numpy as np
import pytest
import reference
import torch

from regard.errors import CorruptError, DataError
from regard.interop import IMPORTS
from regard.interop.orphans import restricted

WORDS, OTHERS = ["</s>", "<unk>", "one", "null", "three"], ["</s>", "<unk>", "uno", "no", "tres", "y"]
SOURCE, TARGET = ("three", "one", "one", "null"), ("no", "y")
DIM, INNER, HEADS, LAYERS = 8, 10, 2, 2
SWISH = {"swish": 1.0, "gelu": 1.702}  # Marian's gelu has a factor in the sigmoid


def settings(**changes):
    """Settings of a small transformer-base."""
    values = {"type": "transformer", "dim-emb": DIM, "enc-depth": LAYERS, "dec-depth": LAYERS}
    values |= {"transformer-dim-ffn": INNER, "transformer-heads": HEADS, "transformer-ffn-activation": "relu"}
    values |= {"transformer-preprocess": "", "transformer-postprocess": "dan", "transformer-postprocess-emb": "d"}
    values |= {"transformer-tied-layers": [], "lemma-dim-emb": 0, "transformer-train-positions": False}
    return values | changes


def weights(pre, learned, tied):
    """The weights by Marian's names; matrices have their inputs as rows."""
    generator = np.random.default_rng(6)
    state = {"decoder_ff_logit_out_b": (1, len(OTHERS))}
    if tied == "all":
        state["Wemb"] = (len(OTHERS), DIM)
    else:
        state |= {"encoder_Wemb": (len(WORDS), DIM), "decoder_Wemb": (len(OTHERS), DIM)}
        if not tied:
            state["decoder_ff_logit_out_W"] = (DIM, len(OTHERS))
    if learned:
        state["Wpos"] = (9, DIM)
    end = "_pre" if pre else ""
    for side, attentions in {"encoder": ["self"], "decoder": ["self", "context"]}.items():
        for start in (f"{side}_l{number}" for number in range(1, LAYERS + 1)):
            norms = [f"{start}_ffn_ffn_ln"]
            for attention in attentions:
                for letter in "qkvo":
                    state |= {f"{start}_{attention}_W{letter}": (DIM, DIM), f"{start}_{attention}_b{letter}": (1, DIM)}
                norms.append(f"{start}_{attention}_Wo_ln")
            state |= {f"{start}_ffn_W1": (DIM, INNER), f"{start}_ffn_b1": (1, INNER)}
            state |= {f"{start}_ffn_W2": (INNER, DIM), f"{start}_ffn_b2": (1, DIM)}
            state |= {f"{norm}_{part}{end}": (1, DIM) for norm in norms for part in ("scale", "bias")}
        if pre:
            state |= {f"{side}_top_ln_{part}": (1, DIM) for part in ("scale", "bias")}
    return {name: generator.normal(size=shape).astype(np.float32) for name, shape in state.items()}


def write_model(folder, state, values, words=WORDS):
    """A folder as Marian's training leaves it."""
    folder.mkdir()
    yaml = "\n".join(f"{key}: {json.dumps(value)}" for key, value in values.items())
    text = np.frombuffer(yaml.encode() + b"\0", dtype=np.int8)
    np.savez(folder / "model.npz", **state, **{"special:model.yml": text})
    for name, vocabulary in {"source.yml": words, "target.yml": OTHERS}.items():
        lines = [
            f'"{word}": {number}' if "/" in word else f"{word}: {number}" for number, word in enumerate(vocabulary)
        ]
        (folder / name).write_text("\n".join(lines))
    decoder = {"models": ["/other/place/model.npz"], "vocabs": ["/other/place/source.yml", "/other/place/target.yml"]}
    (folder / "model.npz.decoder.yml").write_text(json.dumps(decoder | {"beam-size": 6}))
    return folder


def import_model(folder, parent):
    run, _ = IMPORTS["marian"](folder, "mine", parent)
    return run


def activation_of(name):
    """An activation by Marian's equations."""
    return (lambda inner: inner / (1 + (-SWISH[name] * inner).exp())) if name in SWISH else torch.relu


def marian_logits(state, words, pre, learned, activation="relu"):
    """The logits after the vector of zeros that begins the output, and after each word of the target."""
    exact = {name: torch.from_numpy(array).double() for name, array in state.items()}

    def affine(start, part):
        return exact[f"{start}_W{part}"].T, exact[f"{start}_b{part}"][0]

    def norm(start, end=""):
        return exact[f"{start}_ln_scale{end}"][0], exact[f"{start}_ln_bias{end}"][0]

    def run(side, attentions, vectors, memory=None):
        positions = exact["Wpos"][: len(vectors)] if learned else None
        if positions is None:
            vectors, positions = vectors * DIM**0.5, reference.tensor2tensor_positions(len(vectors), DIM, 0)
        layers, end = [], "_pre" if pre else ""
        for start in (f"{side}_l{number}" for number in range(1, LAYERS + 1)):
            parts = {"inner": affine(f"{start}_ffn", 1), "outer": affine(f"{start}_ffn", 2)}
            parts["feed_norm"] = norm(f"{start}_ffn_ffn", end)
            for name, attention in attentions.items():
                parts[name] = [affine(f"{start}_{attention}", letter) for letter in "qkvo"]
                parts[f"{name}_norm"] = norm(f"{start}_{attention}_Wo", end)
            layers.append(parts)
        how = {"heads": HEADS, "pre": pre, "eps": 1e-9, "activation": activation_of(activation)}
        states = reference.stack(layers, vectors + positions, memory, **how)
        return reference.norm(norm(f"{side}_top"), states, 1e-9) if pre else states

    embedding = exact["Wemb"] if "Wemb" in exact else exact["encoder_Wemb"]
    others = exact["Wemb"] if "Wemb" in exact else exact["decoder_Wemb"]
    memory = run("encoder", {"self": "self"}, embedding[[words.index(word) for word in (*SOURCE, "</s>")]])
    read = torch.cat([torch.zeros(1, DIM), others[[OTHERS.index(word) for word in TARGET]]])
    states = run("decoder", {"self": "self", "cross": "context"}, read, memory)
    out = exact.get("decoder_ff_logit_out_W", others.T)
    return states @ out + exact["decoder_ff_logit_out_b"]


@pytest.mark.parametrize(
    ("pre", "learned", "tied"), [(False, False, "all"), (True, True, "target"), (False, True, ""), (True, False, "")]
)
def test_a_transformer_computes_its_equations(tmp_path, pre, learned, tied):
    state = weights(pre, learned, tied)
    changes = {"transformer-train-positions": learned}
    if pre:
        changes |= {"transformer-preprocess": "n", "transformer-postprocess": "da", "transformer-postprocess-top": "n"}
    words = [*WORDS, "more"] if tied == "all" else WORDS  # one matrix for both sides
    run = import_model(write_model(tmp_path / "model", state, settings(**changes), words), tmp_path / "runs")
    own = reference.regard_logits(run, " ".join(SOURCE), " ".join(TARGET))
    reference.assert_equal(own, marian_logits(state, words, pre, learned), OTHERS)


@pytest.mark.parametrize("pre", [False, True])
@pytest.mark.parametrize("name", ["swish", "gelu", None])
def test_activations_are_those_of_marian(tmp_path, name, pre):
    """Without the setting, Marian takes its default, swish."""
    state, values = weights(pre, False, ""), settings()
    if pre:
        values |= {"transformer-preprocess": "n", "transformer-postprocess": "da", "transformer-postprocess-top": "n"}
    values["transformer-ffn-activation"] = name
    if name is None:
        del values["transformer-ffn-activation"]
    run = import_model(write_model(tmp_path / "model", state, values), tmp_path / "runs")
    own = reference.regard_logits(run, " ".join(SOURCE), " ".join(TARGET))
    reference.assert_equal(own, marian_logits(state, WORDS, pre, False, name or "swish"), OTHERS)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"type": "amun"}, "no counterpart of Marian's type = amun, only transformer"),
        ({"transformer-decoder-autoreg": "rnn"}, "transformer-decoder-autoreg = rnn, only self-attention"),
        ({"transformer-postprocess": "dhn"}, r"Marian's steps \('', 'dhn'\), only of '' with 'dan'"),
        ({"transformer-ffn-activation": "tanh"}, "transformer-ffn-activation = tanh, only swish or relu or gelu"),
        ({"transformer-tied-layers": [1, 1]}, "transformer-tied-layers = a list"),
        ({"dim-emb": "many"}, "dim-emb is no whole number"),
        ({"enc-depth": 1}, "regard has no place for encoder_l2_ffn_W1"),
    ],
)
def test_what_regard_cannot_express_is_refused(tmp_path, change, message):
    folder = write_model(tmp_path / "model", weights(False, False, ""), settings(**change))
    with pytest.raises(DataError, match=message):
        import_model(folder, tmp_path / "runs")
    assert not (tmp_path / "runs").exists()


def test_pieces_of_sentencepiece_are_a_vocabulary(tmp_path):
    from sentencepiece import SentencePieceTrainer

    folder = write_model(tmp_path / "model", weights(False, False, ""), settings())
    content = io.BytesIO()
    SentencePieceTrainer.train(
        sentence_iterator=iter(["a b ab ba aab"] * 9),
        model_writer=content,
        vocab_size=5,
        eos_id=0,
        unk_id=1,
        bos_id=-1,
        pad_id=-1,
        minloglevel=2,
    )
    (folder / "source.spm").write_bytes(content.getvalue())
    decoder = json.loads((folder / "model.npz.decoder.yml").read_text())
    (folder / "model.npz.decoder.yml").write_text(json.dumps(decoder | {"vocabs": ["source.spm", "target.yml"]}))
    run = import_model(folder, tmp_path / "runs")
    assert "▁" in json.loads(run.read("source.tokens"))["tokens"]


def npy(array):
    file = io.BytesIO()
    np.save(file, array, allow_pickle=True)
    return file.getvalue()


ARRAYS = {
    "a pickle": (npy(np.array([print, {}], dtype=object)), "has the type object, and regard reads numbers only"),
    "a text": (npy(np.array(["x"])), "has the type <U1"),
    "too few numbers": (npy(np.ones(3))[:-1], "has not as many numbers as it says"),
    "very many numbers": (
        npy(np.ones(3)).replace(b"(3,), }" + b" " * 11, b"(999999999999,), }"),
        "has not as many numbers as it says",
    ),
    "no array": (b"x", "cannot be read as an npz file"),
}


@pytest.mark.parametrize("name", ARRAYS)
def test_arrays_that_are_no_numbers_are_refused(tmp_path, name):
    content, message = ARRAYS[name]
    with zipfile.ZipFile(tmp_path / "model.npz", "w") as archive:
        archive.writestr("x.npy", content)
    with pytest.raises((DataError, CorruptError), match=message):
        restricted.load_npz(tmp_path / "model.npz")
