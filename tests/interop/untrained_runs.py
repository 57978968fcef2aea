"""Small runs with random weights, made without training, for tests of exports and imports."""

import torch
from safetensors.torch import save

from regard import models
from regard import recipe as recipes
from regard.data.tokenizers import TOKENIZERS
from regard.sources.text import SOURCE, TARGET
from regard.storage import MODEL, RECIPE, Run
from regard.tasks import Transduce
from regard.types import END

TEXTS = ["wir sehen das haus", "ein hund und ein ball", "das ist gut", "haus ball hund", "und wir", "ein gut das ist"]
TRANSFORMER = {
    "model.encoder.kind": "transformer",
    "model.decoder.kind": "transformer",
    "model.encoder.dim": 24,
    "model.decoder.dim": 24,
    "model.encoder.layers": 2,
    "model.decoder.layers": 3,
    "model.encoder.inner_dim": 40,
    "model.decoder.inner_dim": 36,
    "model.attention.heads": 3,
    "model.attention.score": "scaled_dot",
    "model.longest": 100,
    "search.max_extra": 5,
    "search.max_ratio": 1.0,
}


def make_run(folder, kind="word", shared=False, seed=3, ends=True, **changes):
    """A run whose weights are random, but large enough that outputs differ and end; `ends`: sources end with END."""
    torch.manual_seed(seed)
    settings = {"tokens.source": kind, "tokens.target": kind, "tokens.shared": shared, **changes}
    recipe = recipes.load("reverse", [f"{key}={_text(value)}" for key, value in settings.items()])
    tokenizer = TOKENIZERS[kind].build(TEXTS, 60)
    if not ends:
        tokenizer = TOKENIZERS[kind]([tokenizer.piece(token) for token in range(4, tokenizer.size)], ends=False)
    other = tokenizer if shared else TOKENIZERS[kind].build([text[::-1] + " extra" for text in TEXTS], 70)
    files = {RECIPE: recipes.to_toml(recipe).encode(), SOURCE: tokenizer.to_bytes(), TARGET: other.to_bytes()}
    task = Transduce.restore(recipe, files.__getitem__)
    model = task.build()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
        if model.decoder.out is not None:
            model.decoder.out.bias[END] += 2.0
    return Run.create(folder, "run", files | {MODEL: save(models.weights(model))})


def _text(value):
    return str(value).lower() if isinstance(value, bool) else str(value)
