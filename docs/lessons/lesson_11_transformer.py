# %% [markdown]
# # 11. The Transformer: encoder, decoder, masks
#
# The earlier lessons introduced all parts: words, positions, self-attention, heads. This lesson puts them together as
# Vaswani et al. 2017 did, trains a small **Transformer**, shows its maps, and then removes one part at a time to see
# what breaks.

# %%
import random
import tempfile
from pathlib import Path
from unittest.mock import patch

import torch
from exercises import check
from pictures import BLUE, GREEN, GREY, ORANGE, keep, plot, side_by_side
from torch import nn

import regard
from regard import recipe as recipes
from regard.attention import POSITIONS, SCOPES, SCORES, SelfAttention, masks
from regard.attention.record import record
from regard.data.batching import pad
from regard.models import build
from regard.types import BEGIN, END

torch.manual_seed(11)

# %% [markdown]
# ## Residual every sub-layer: a residual and a norm
#
# A layer of the encoder has two sub-layers. In **self-attention** words attend to each other. The **feed-forward**
# layer processes each word by itself. Neither *replaces* a word's vector. The output of a sub-layer is **added** to it
# (the **residual connection**), and vectors are **normalised** to mean 0 and variance 1 (**layer norm**).
#
# Why add? Attention computes means, and means of means become more and more similar. Here are twelve layers of
# self-attention without any training, with and without the addition: how similar do the vectors of ten different words
# become?


# %%
def scaled_dot(width):
    return SCOPES["global"](SCORES["scaled_dot"](query_dim=width, key_dim=width, dim=None), query_dim=width)


def likeness(states):
    """The mean cosine similarity of the vectors of two different words."""
    cosines = nn.functional.cosine_similarity(states.unsqueeze(1), states.unsqueeze(2), dim=-1)[0]
    return cosines[~torch.eye(len(cosines), dtype=torch.bool)].mean().item()


layers = [SelfAttention(scaled_dot, dim=64, heads=4) for _ in range(12)]
norm, nowhere = nn.LayerNorm(64), POSITIONS["none"](dim=64, heads=4, longest=1, causal=False)
words = torch.randn(1, 10, 64)
figure, axes = plot("Ten words through twelve layers", x="layers", y="mean cosine of two words")
for name, share, colour in (("f(norm(x))", 0.0, ORANGE), ("x + f(norm(x))", 1.0, BLUE)):
    states, alike = words, [likeness(words)]
    with torch.no_grad():
        for layer in layers:
            attended, _ = layer(norm(states), mask=None, bias=None, positions=nowhere)
            states = share * states + attended
            alike.append(likeness(states))
    print(f"{name:15} likeness after 12 layers: {alike[-1]:.2f}")
    axes.plot(alike, color=colour, marker="o", ms=3, label=name)
axes.set_ylim(-0.1, 1.05)
axes.legend(frameon=False)
keep(figure, "lesson_11_residual")

# %% [markdown]
# The paper normalises after the addition, norm(x + f(x)): **post-norm**. Most later models normalise the input of f, x
# + f(norm(x)): **pre-norm**. In a recipe this is `model.norm`.
#
# ## The decoder, and its mask
#
# A layer of the decoder has a third sub-layer: after self-attention it attends to the encoder's states
# (**cross-attention**). Its self-attention has a **causal mask**: word t attends to the words up to t and to no later
# one. The mask is boolean, True if a word may be attended to.

# %%
print(masks.causal(4, 4)[0].int())

# %% [markdown]
# With the mask, all words of a target can be read at once in training, and each is still predicted only from the words
# before it. Two things follow, and both are shown here. Changing the last word changes nothing before it. And reading
# one word after the other gives the same numbers.

# %%
SMALL = (
    *("model.encoder.kind=transformer", "model.encoder.dim=64", "model.encoder.inner_dim=128"),
    *("model.decoder.kind=transformer", "model.decoder.dim=64", "model.decoder.inner_dim=128"),
    *("model.attention.score=scaled_dot", "model.attention.heads=4"),
)
model = build(recipes.load("reverse", SMALL).model, source_size=30, target_size=30).eval()
memory = model.encoder(pad([[5, 6, 7, 8, END]]))
tokens = torch.tensor([[BEGIN, 8, 7, 6, 5]])
with torch.no_grad():
    at_once = model.decoder(tokens, memory).logits
    other = model.decoder(torch.tensor([[BEGIN, 8, 7, 6, 20]]), memory).logits
    prepared = model.decoder.prepare(memory)
    state, steps = model.decoder.start(prepared), []
    for token in tokens[0]:
        step = model.decoder.step(token.view(1, 1), state, prepared)
        state, steps = step.state, [*steps, step.logits]
print("another last word changes the rows", (at_once != other).any(-1)[0].nonzero().flatten().tolist())
print(f"one by one differs from all at once by {(torch.cat(steps, dim=1) - at_once).abs().max():.0e}")

# %% [markdown]
# ## Three trainings
#
# The task is to write short strings backwards. The strings are written to a file, as your own data would be. All three
# models are small and train for some seconds.
#
# - `whole`: the complete Transformer.
# - `no positions`: `model.positions=none`.
# - `no mask`: in training the decoder attends to later words too. regard has no key for that, so the code replaces the
#   mask by none.

# %%
folder = Path(tempfile.mkdtemp())
letters = random.Random(11)
strings = {"".join(letters.choices("abcdefghijklmnopqrstuvwxyz", k=letters.randint(2, 6))) for _ in range(9000)}
strings = sorted(strings - {"drawer", "reward"})
letters.shuffle(strings)
for name, part in (("train", strings[300:]), ("dev", strings[:300])):
    (folder / f"{name}.tsv").write_text("".join(f"{text}\t{text[::-1]}\n" for text in part))


SETTINGS = (
    *(f"data.train={folder / 'train.tsv'}", f"data.dev={folder / 'dev.tsv'}", "train.threads=1", "train.updates=200"),
    *("train.validate=40", "train.batch_tokens=700", "train.learning_rate=0.01", "train.warmup=20"),
)


def learn(name, *changes):
    print(f"training: {name}")
    run = regard.train("reverse", *SMALL, *SETTINGS, *changes, f"name={name}", runs=folder, quiet=True)
    return run, regard.load(run)


trained = {"whole": learn("whole"), "no positions": learn("unplaced", "model.positions=none")}
with patch("regard.decoders.transformer.Causal", lambda start: None):  # no mask: every word may be attended to
    trained["no mask"] = learn("unmasked")

figure, axes = plot("Loss on strings that were not trained on", x="updates", y="loss per token")
for (name, (run, predictor)), colour in zip(trained.items(), (BLUE, GREEN, ORANGE), strict=True):
    curve = [(each["update"], each["dev_loss"]) for each in run.metrics() if "dev_loss" in each]
    axes.plot(*zip(*curve, strict=True), color=colour, marker="o", ms=3, label=name)
    texts = [each.text for each in predictor.predict(strings[:300])]
    right = sum(text == string[::-1] for text, string in zip(texts, strings, strict=False)) / 300
    answers = [each.text for each in predictor.predict(["drawer", "reward"])]
    print(f"{name:12} loss {curve[-1][1]:.2f}, right {right:.0%}; drawer -> {answers[0]}, reward -> {answers[1]}")
axes.axhline(0, color=GREY, lw=0.8)
axes.legend(frameon=False)
keep(figure, "lesson_11_loss")

# %% [markdown]
# **Without the mask** the loss falls fastest at first, but the model is useless. In training it could read the answer:
# the word to predict is one position to the right. When it writes by itself there is nothing to the right, which in
# training always meant the end; so it ends at once. The loss does not show this, neither on training data nor on dev
# data; only decoding does.
#
# **Without positions** the encoder does not know the order of the letters. *drawer* and *reward* have the same letters,
# so the decoder gets the same states for both and gives the same answer. (It does know the order of the letters that it
# wrote, through its mask.)

# %%
_, predictor = trained["no positions"]
encode = predictor.task.source.encode
with torch.no_grad():
    drawer, reward = (predictor.model.encoder(pad([[*encode(word), END]])).states[0] for word in ("drawer", "reward"))
backwards = torch.tensor([5, 4, 3, 2, 1, 0, 6])  # the letters reversed, </s> in its place
print("the same states in another order:", torch.allclose(drawer[backwards], reward, atol=1e-4))

# %% [markdown]
# ## The maps of the whole model
#
# Three maps of the trained model, by `record`: the encoder's self-attention, the decoder's self-attention (half of it
# is empty because of the mask), and the cross-attention: the antidiagonal of [lesson 1](lesson_1_bottleneck.py). Each
# is the mean of four heads.

# %%
_, predictor = trained["whole"]
word, task = "drawer", predictor.task
source = pad([[*task.source.encode(word), END]])
target = torch.tensor([[BEGIN, *task.target.encode(word[::-1])]])
with torch.no_grad(), record(predictor.model) as recording:
    predictor.model.decoder(target, predictor.model.encoder(source))
columns, rows = (*word, "</s>"), (*word[::-1], "</s>")  # the label of a row is the token that is written
read = ("<s>", *word[::-1])
maps = {
    "encoder, itself": recording.map("encoder.stack.0.attention.attention", rows=columns, columns=columns),
    "decoder, itself": recording.map("decoder.stack.0.attention.attention", rows=rows, columns=read),
    "decoder, source": recording.map("decoder.stack.0.cross.attention", rows=rows, columns=columns),
}
keep(side_by_side(maps), "lesson_11_maps")
future = maps["decoder, itself"].weights.triu(1)
print("weight on the future:", future.sum().item())

# %% [markdown]
# Here is the cross-attention, head by head. Not every head attends to the letter that is written.

# %%
heads = {
    f"head {head}": recording.map("decoder.stack.0.cross.attention", head=head, rows=rows, columns=columns)
    for head in range(1, 5)
}
keep(side_by_side(heads), "lesson_11_heads")

# %% [markdown]
# ## Exercise 1: the mask of a padded target
#
# Targets of a batch are padded to one length. Return a boolean mask of shape (batch, longest, longest), True if word t
# (row) may attend to a word (column): up to its own position, and not padding. `lengths` is (batch). (The rows of
# padding words do not matter, but follow the same rule here.)


# %%
def target_mask(lengths, longest): ...  # your turn


print(check("target_mask", target_mask))

# %% [markdown]
# ## Exercise 2: pre-norm
#
# Return the result of a sub-layer `f` for the input `x` in the pre-norm form; `norm` is given.


# %%
def pre_norm(x, f, norm): ...  # your turn


print(check("pre_norm", pre_norm))
