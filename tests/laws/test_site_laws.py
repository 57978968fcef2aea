"""Laws of attention sites: the encoder's and the decoder's self-attention and cross-attention may all differ."""

import pytest
import torch
from small import make_sources, near

from regard import recipe as recipes
from regard.attention import SCORES
from regard.attention.scores import Additive, Cosine, ScaledDot
from regard.decoders import TransformerDecoder
from regard.models import Seq2Seq, build
from regard.search import beam
from regard.types import BEGIN

WORDS = 11
STANDARD = (
    *("model.encoder.kind=transformer", "model.encoder.dim=24", "model.encoder.layers=2", "model.encoder.inner_dim=23"),
    *("model.decoder.kind=transformer", "model.decoder.dim=24", "model.decoder.layers=2", "model.decoder.inner_dim=17"),
    *("model.attention.score=scaled_dot", "model.attention.heads=4"),
)
SITES = ("model.encoder.self_attention", "model.decoder.self_attention", "model.decoder.cross_attention")


def make_model(*keys: str) -> Seq2Seq:
    torch.manual_seed(5)
    recipe = recipes.parse("", "a test", [*STANDARD, *keys])
    return build(recipe.model, source_size=WORDS, target_size=WORDS).double().eval()


def scores_of(model: Seq2Seq) -> list[type]:
    """The scores of the three sites in the lowest layers."""
    layer = model.decoder.layers[0]
    assert layer.cross is not None
    sites = (model.encoder.stack[0].attention, layer.attention, layer.cross)
    return [type(site.attention.score) for site in sites]


def test_additive_cross_attention_in_a_standard_transformer_is_one_line():
    assert scores_of(make_model()) == [ScaledDot] * 3
    assert scores_of(make_model("model.decoder.cross_attention.score=additive")) == [ScaledDot, ScaledDot, Additive]


def test_a_site_without_settings_has_those_of_model_attention():
    keys = ("model.encoder.self_attention.score=cosine", "model.attention.score=additive")
    assert scores_of(make_model(*keys)) == scores_of(make_model(*reversed(keys))) == [Cosine, Additive, Additive]


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("site", SITES)
def test_stepping_retells_forward_and_search_scores_equal_teacher_forcing(site, score):
    model = make_model(f"{site}.score={score}", f"{site}.heads=3", f"{site}.groups=1", "model.positions=alibi")
    assert isinstance(model.decoder, TransformerDecoder)
    memory = model.encoder(make_sources(7, 4))
    tokens = torch.randint(4, WORDS, (2, 5))
    forward = model.decoder(tokens, memory)
    with torch.no_grad():
        prepared = model.decoder.prepare(memory)
        state, logits, maps = model.decoder.start(prepared), [], []
        for at in range(tokens.shape[1]):
            step = model.decoder.step(tokens[:, at : at + 1], state, prepared)
            state = step.state
            logits.append(step.logits)
            maps.append(step.attention)
    near(torch.cat(logits, dim=1), forward.logits)
    near(torch.cat(maps, dim=1), forward.attention)
    for row, (best, *_) in enumerate(beam(model.decoder, memory, width=3, limits=[6, 6])):
        alone = memory.select(torch.tensor([row]))
        words = model.decoder(torch.tensor([[BEGIN, *best.tokens]]), alone).logits.log_softmax(-1)[0]
        with_end = [*best.tokens, 3][: len(words)] if best.finished else best.tokens
        assert best.score == pytest.approx(sum(words[at, word].item() for at, word in enumerate(with_end)), abs=1e-9)


def test_a_written_recipe_has_only_the_given_settings_of_a_site():
    recipe = recipes.parse("", "a test", ["model.decoder.cross_attention.heads=2"])
    written = recipes.to_toml(recipe)
    assert "[model.decoder.cross_attention]\nheads = 2\n" in written
    assert "[model.encoder.self_attention]\n\n" in written
    reread = recipes.parse(written, "a test", ["model.attention.score=general"])
    assert reread.model.decoder.cross_attention.of(reread.model.attention) == recipes.Attention(
        score="general", heads=2
    )


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("model.decoder.cross_attention.score=vague", "unknown score 'vague'"),
        ("model.decoder.cross_attention.heads=0", "heads in the overrides is at least 1 and at most 4,096, not 0"),
        ("model.encoder.self_attention.haeds=2", "did you mean 'model.encoder.self_attention.heads'"),
        ("model.encoder.self_attention.scope=coverage", "'coverage' needs the weights of the steps before"),
        ("model.decoder.self_attention.normalizer=hard", "hard attention is trained with REINFORCE"),
    ],
)
def test_wrong_settings_of_a_site_are_refused_with_a_clear_message(key, message):
    with pytest.raises(recipes.RecipeError, match=message):
        make_model(key)
