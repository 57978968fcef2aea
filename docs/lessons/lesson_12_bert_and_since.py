# %% [markdown]
# # 12. BERT, and what grew since 2018
#
# A Transformer encoder reads a text and computes a vector for each word. What can it learn from text alone, without
# labels? Devlin et al. 2019 (**BERT**) hide some words and predict them: **masked language modelling**. This lesson
# does so with a small model. Then it counts parameters: how large models have become, and which parts changed on the
# way.

# %%
import random
import tempfile
from pathlib import Path

import torch
from exercises import check
from pictures import BLUE, GREEN, GREY, ORANGE, keep, panels, plot
from torch import nn

import regard
from regard import recipe as recipes
from regard.models import core, language
from regard.types import PAD, Padded

torch.manual_seed(12)

# %% [markdown]
# ## A text to learn from
#
# The text consists of small sentences with two rules. *a* or *an* depends on the word **after** it; *his* or *her*
# depends on the name **before** it. A model that reads from left to right cannot know the first.

# %%
draw = random.Random(12)
GIVEN = {"anna": "her", "mary": "her", "ruth": "her", "paul": "his", "john": "his", "max": "his"}
THINGS = {"apple": "an", "orange": "an", "egg": "an", "pear": "a", "cake": "a", "nut": "a"}
VERBS, PLACES = ("eats", "buys", "wants"), ("garden", "kitchen", "house")


def sentence():
    name, thing = draw.choice(list(GIVEN)), draw.choice(list(THINGS))
    return f"{name} {draw.choice(VERBS)} {THINGS[thing]} {thing} in {GIVEN[name]} {draw.choice(PLACES)}"


folder = Path(tempfile.mkdtemp())
(folder / "train.txt").write_text("".join(f"{sentence()}\n" for _ in range(3000)))
(folder / "dev.txt").write_text("".join(f"{sentence()}\n" for _ in range(200)))
print((folder / "train.txt").read_text().split("\n")[0])

# %% [markdown]
# ## 15 %, and of these 80 / 10 / 10
#
# BERT predicts 15 % of the tokens. Of these, 80 % are replaced by the token [MASK], 10 % by a random token, and 10 %
# stay unchanged. The loss is computed at these positions only. Why not mask them all? Because a later task has no
# [MASK] tokens, and a model that predicts at masks only could ignore the words that it can read. So it must sometimes
# predict a word that is there, without knowing whether that word is the right one. (regard predicts at least one token
# of every sentence; these sentences have seven words, so it is more than 15 % here.)
#
# In regard the task is `masked_lm`. This recipe is a small BERT, as of 2018.

# %%
RECIPE = f"""
name = "bert"
task = "masked_lm"
metric = "masked_accuracy"
data = {{ train = ["{folder / "train.txt"}"], dev = ["{folder / "dev.txt"}"] }}
tokens = {{ source = "word" }}

[model]
norm = "post"
activation = "gelu"
positions = "learned"
longest = 32
encoder = {{ kind = "transformer", dim = 32, layers = 2 }}
attention = {{ score = "scaled_dot", heads = 4 }}

[train]
updates = 160
validate = 40
batch_tokens = 800
learning_rate = 0.005
warmup = 20
threads = 1
"""
bert = recipes.parse(RECIPE, "this lesson")
print("training: a small BERT")
run = regard.train(bert, runs=folder, quiet=True)
predictor = regard.load(run)

# %% [markdown]
# First, is it 80 / 10 / 10? Here are the counts for the training text.

# %%
task = predictor.task
data = task.encode(type(task).examples(bert).train)
batch = task.collate(data, range(3000))
asked = batch.wanted != PAD
read, wanted = batch.source.ids[asked], batch.wanted[asked]
words = (batch.source.mask.sum() - 3000).item()  # without </s>, which is never predicted
print(f"asked for {asked.sum() / words:.0%} of the words (one of every sentence at least);", end=" ")
print(
    f"of these {(read == task.mask).float().mean():.0%} are hidden, {(read == wanted).float().mean():.0%} as they",
    end=" ",
)
print(f"were, {((read != task.mask) & (read != wanted)).float().mean():.0%} others")

# %% [markdown]
# Now the model fills holes. A row of the map is a hole and the words that it attends to, in the top layer, as the mean
# of four heads. *a* or *an* comes from the right, *his* or *her* from the left.

# %%
HOLES = ["anna eats ___ egg in ___ house", "paul eats ___ cake in ___ house"]
for prediction in predictor.predict(HOLES):
    print(prediction.source, "->", prediction.text)
keep(predictor.predict(HOLES)[0].map, "lesson_12_holes")

# %% [markdown]
# If several words are right, the model should be unsure. The next best words are the alternatives.

# %%
(prediction,) = predictor.predict(["anna eats an ___ in her house"], n_best=4)
for candidate in (prediction, *prediction.alternatives):
    print(f"{candidate.text}  ({torch.tensor(candidate.score).exp():.2f})")

# %% [markdown]
# ## How large?
#
# The recipe decides the size of a model. So we can build BERT and GPT-2 as in their papers, without memory for the
# weights (on the **meta device**), and count parameters. BERT-base has 12 layers, width 768, 30,522 tokens and 512
# positions. The encoder built here lacks three parts of it, with 593,664 parameters: the vectors of its two segments
# (in regard only the task `answer` has them, `answer.segments`), the norm before the first layer, and the pooler. GPT-2
# has the same sizes, 50,257 tokens and 1,024 positions.


# %%
def sized(norm, longest, *changes):
    large = (f"model.norm={norm}", f"model.longest={longest}", "model.positions=learned", "model.activation=gelu")
    parts = [f"model.{part}.{key}" for part in ("encoder", "decoder") for key in ("kind=transformer", "dim=768")]
    layers = ("model.encoder.layers=12", "model.decoder.layers=12")
    heads = ("model.attention.score=scaled_dot", "model.attention.heads=12")
    return recipes.load("reverse", (*large, *parts, *layers, *heads, *changes)).model


def count(module):
    return sum(each.numel() for each in module.parameters())


with torch.device("meta"):
    base = count(core.text_encoder(sized("post", 512), 30_522))
    gpt2 = count(language.build(sized("pre", 1024, "model.tied=true"), size=50_257))
print(f"BERT-base: {base:,} + 593,664 = {base + 593_664:,} (the paper: 110M)")
print(f"GPT-2, the smallest: {gpt2:,} (the weights that were published: 124M)")

# %% [markdown]
# A rule of thumb: a layer has about 12 d² parameters, 4 d² in attention and 8 d² in the feed-forward layer if that is 4
# d wide. Twelve layers of width 768 have 12 x 12 x 768² = 85 million; the rest is word vectors.
#
# ## What grew since 2018
#
# The table gives the parameters of the largest model of each paper, as stated in the paper. (The last two are mixtures
# of experts, which use a part of their parameters for each token: DeepSeek-V3 uses 37 of 671 billion, Kimi K2 32 of
# 1,040 billion.)

# %%
GROWTH = [
    # model, year, parameters, paper
    ("Transformer", 2017, 213e6, "Vaswani et al. 2017, big"),
    ("GPT", 2018, 117e6, "Radford et al. 2018"),
    ("BERT", 2018, 340e6, "Devlin et al. 2019, large"),
    ("GPT-2", 2019, 1.5e9, "Radford et al. 2019"),
    ("T5", 2019, 11e9, "Raffel et al. 2020"),
    ("GPT-3", 2020, 175e9, "Brown et al. 2020"),
    ("Gopher", 2021, 280e9, "Rae et al. 2021"),
    ("Chinchilla", 2022, 70e9, "Hoffmann et al. 2022"),
    ("PaLM", 2022, 540e9, "Chowdhery et al. 2022"),
    ("Llama 2", 2023, 70e9, "Touvron et al. 2023"),
    ("Llama 3.1", 2024, 405e9, "Dubey et al. 2024"),
    ("DeepSeek-V3", 2024, 671e9, "DeepSeek-AI 2024"),
    ("Kimi K2", 2025, 1040e9, "Kimi Team 2025"),
]
figure, axes = plot("Parameters of the largest model of each paper", x="year", y="parameters", height=4.2)
for model, year, parameters, paper in GROWTH:
    print(f"{model:12} {year}  {parameters / 1e9:7.3f} billion  {paper}")
    axes.plot(year, parameters, "o", color=BLUE)
    axes.annotate(model, (year, parameters), xytext=(6, -3), textcoords="offset points", fontsize=8)
axes.set_yscale("log")
axes.set_xlim(2016.7, 2026)
keep(figure, "lesson_12_growth")

# %% [markdown]
# From GPT to GPT-3, models grew more than a thousandfold in two years; in the five years since, sixfold. Growth has
# slowed. Hoffmann et al. 2022 trained Chinchilla on more text than Gopher, and with a quarter of the parameters it gave
# better results.
#
# ## What changed in the layer
#
# The layer of 2017 is still in use. Most models changed four things in it, and each is a key of a recipe.
#
# | key | 2017 | since | for example |
# |---|---|---|---|
# | `model.norm` | `post` | `pre` | GPT-2 and nearly all after it |
# | `model.activation` | `relu` | `gelu` | GPT, BERT, GPT-2, GPT-3 |
# | `model.positions` | `sinusoidal` | `learned`, `relative`, `alibi`, `rotary` | BERT, GPT; T5; BLOOM; PaLM, Llama |
# | `model.attention.groups` | as many as heads | 1, or a few | PaLM; Llama 2 70B, 8 for 64 heads |
#
# (regard does not have two further changes: PaLM and Llama have a gate in the feed-forward layer, and T5 and Llama
# normalise by the root mean square alone.)
#
# **Norm.** In post-norm the norm comes after the addition, so every layer rescales the gradient that flows back through
# the residual connection. Xiong et al. 2020 found that this makes the gradient large near the output, so that the first
# updates are unstable; therefore post-norm needs warm-up. The picture shows twelve layers before any training, and the
# norm of the gradient in each: with post-norm it grows towards the top, with pre-norm it shrinks.

# %%
figure, (left, right) = panels("gradient in each of 12 layers", "what a number becomes")
for norm, colour in (("post", ORANGE), ("pre", BLUE)):
    strengths = torch.zeros(12)
    for seed in range(4):
        torch.manual_seed(seed)
        narrow = ("model.encoder.dim=64", "model.attention.heads=4", "model.decoder.dim=64")
        encoder = core.text_encoder(sized(norm, 32, *narrow), 50)
        reader, ids = nn.Linear(64, 50), torch.randint(4, 50, (8, 20))
        states = encoder(Padded(ids, torch.ones(8, 20, dtype=torch.bool))).states
        nn.functional.cross_entropy(reader(states).flatten(0, 1), ids.flatten()).backward()
        strengths += torch.tensor([layer.feed.inner.weight.grad.norm().item() for layer in encoder.stack]) / 4
    left.plot(range(1, 13), strengths, color=colour, marker="o", ms=3, label=norm)
    print(f"{norm:4} norm: the top layer's gradient is {strengths[-1] / strengths[0]:.1f} times the lowest one's")
left.set(xlabel="layer", ylim=(0, None))
left.legend(frameon=False)

# %% [markdown]
# **Activation.** GELU is x times the probability that a standard normal variable is below x (Hendrycks and Gimpel
# 2016): a smooth ReLU. Below 0 the ReLU has slope 0, so a unit whose input is always negative learns nothing.

# %%
x = torch.linspace(-3, 3, 121, requires_grad=True)
for name, colour in (("relu", ORANGE), ("gelu", BLUE)):
    y = getattr(nn.functional, name)(x)
    (slope,) = torch.autograd.grad(y.sum(), x)
    right.plot(x.detach(), y.detach(), color=colour, label=name)
    right.plot(x.detach(), slope, color=colour, lw=0.8, ls=":", label=f"{name}, slope")
    print(f"{name}: slope at -0.5 is {slope[50]:.2f}")
right.axhline(0, color=GREY, lw=0.6)
right.legend(frameon=False, fontsize=8)
keep(figure, "lesson_12_norm_and_gelu")

# %% [markdown]
# **Positions** were in [lesson 8](lesson_8_words_and_positions.py), **groups** in [lesson 10](lesson_10_multi_head.py).
# Now all four together: the same text, the same updates, with the recipe of 2017, of 2018 (BERT), and of today.

# %%
NOW = ("model.norm=pre", "model.positions=rotary", "model.attention.groups=2")
FIRST = ("model.positions=sinusoidal", "model.activation=relu")
figure, axes = plot("The same text, three recipes", x="updates", y="loss at what is asked, dev")
for name, changes, colour in (("2017", FIRST, GREEN), ("2018", None, ORANGE), ("now", NOW, BLUE)):
    if changes is not None:
        print(f"training: {name}")
    other = run if changes is None else regard.train(bert, *changes, f"name={name}", runs=folder, quiet=True)
    curve = [(each["update"], each["dev_loss"]) for each in other.metrics() if "dev_loss" in each]
    axes.plot(*zip(*curve, strict=True), color=colour, marker="o", ms=3, label=name)
    print(f"{name}: {count(regard.load(other).model):,} parameters, loss {curve[-1][1]:.2f}")
axes.legend(frameon=False)
keep(figure, "lesson_12_recipes")

# %% [markdown]
# All models learn the two rules. The remaining loss comes from words that cannot be known, such as who eats. On a task
# this small the four choices do not matter much. They were made for deep models, long texts and little memory.
#
# ## Exercise 1: 80 / 10 / 10
#
# `ids` is (batch, length). `asked` is boolean, True if the token is to be predicted. `luck` holds a random number from
# 0 to 1 for each token, `others` a random id for each. Return the ids that the model reads. Where `asked` is True:
# `mask_id` if luck is below 0.8, the other id if it is from 0.8 to below 0.9, and the token itself if it is 0.9 or
# more.


# %%
def hide(ids, asked, luck, others, mask_id): ...  # your turn


print(check("hide", hide))

# %% [markdown]
# ## Exercise 2: the masked loss
#
# `logits` is (batch, length, vocabulary). `ids` (batch, length) are the original tokens. `asked` is boolean (batch,
# length). Return the mean cross-entropy over the tokens to predict.


# %%
def masked_loss(logits, ids, asked): ...  # your turn


print(check("masked_loss", masked_loss))
