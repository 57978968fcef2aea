# %% [markdown]
# # 14. Captions, without and with attention
#
# A caption is a translation whose source is a **picture**. The decoder is the one of the earlier lessons; only what it
# looks at is new. There are two ways to give it a picture:
#
# - **one vector** for the whole picture (static encoding): the decoder starts from it, or reads it at every step;
# - **a grid of vectors**, one for each part of the picture, and weights over the grid that are new for every word:
#   *Show, Attend and Tell* (Xu et al. 2015).
#
# This lesson trains both on the same pictures, for the same number of updates.

# %%
import re
import tempfile
from statistics import mean

import torch
from exercises import check
from pictures import BLUE, ORANGE, keep, panels, plot

import regard
from regard.analysis.grounding import grounding
from regard.data.corpora import shapes
from regard.data.corpora.shapes import render, true_cells

torch.manual_seed(14)

# %% [markdown]
# ## Scenes whose captions are known
#
# The corpus `shapes` has scenes of two to four objects. A scene has one right caption, so a caption is right or wrong,
# and nobody has to judge. No caption of test is in train: the words must be read from the picture, and cannot be
# remembered as one sentence.

# %%
test = shapes(seed=1, size=0).test[:400]
figure, axes = panels(*(example.group for example in test[:3]), width=9, height=3.2)
for place, example in zip(axes, test[:3], strict=True):
    print(f"{example.group}: {example.target}")
    place.imshow(render(example.source))
    place.set_xticks(range(0, 65, 16))
    place.set_yticks(range(0, 65, 16))
    place.grid(color="white", alpha=0.4)
keep(figure, "lesson_14_scenes")

# %% [markdown]
# A small convolutional network reads each of 4 x 4 cells by itself (`picture.kernel = 2`: a cell sees its own pixels
# only) and adds where the cell is. A Transformer encoder of one layer then lets cells know about each other: without
# it, no cell could know that there is a second red circle. The result is a **memory** of 16 vectors a_1 ... a_16. So
# far both ways are the same.
#
# ## Static: one vector for the whole picture
#
# In the order `none` the decoder starts from the mean of the 16 vectors and never sees the picture again. In the order
# `context` the mean is an input of every step; this lesson trains that one, the better of the two. The caption has to
# be planned from one vector of fixed size, the **bottleneck** of lesson 1.
#
# ## With attention: new weights for every word
#
# Xu et al. score every cell with the decoder's last state h, turn the scores into weights, and take the weighted sum:
#
# e_ti = f_att(a_i, h_{t-1})    weights_ti = exp(e_ti) / sum_k exp(e_tk)    context_t = sum_i weights_ti a_i
#
# f_att is Bahdanau's additive score, and the **previous state** is the query: this is the order `bahdanau`. With the
# **current state** as the query, it is the order `luong`, in which the state already knows the last word (lesson 4).
# Both are one key of the recipe.

# %%
SETTINGS = (
    *("data.size=8000", "picture.size=32", "picture.blocks=3", "model.encoder.layers=1"),
    *("model.decoder.kind=recurrent", "model.decoder.dim=128", "model.decoder.cross_attention.score=additive"),
    *("train.updates=450", "train.validate=225", "train.learning_rate=0.004", "train.warmup=100", "train.threads=1"),
)
runs, predictors = tempfile.mkdtemp(), {}
NAMES = {"context": "static vector", "luong": "attention"}
for order in NAMES:
    print(f"training: {NAMES[order]}")
    run = regard.train("shapes", *SETTINGS, f"model.decoder.order={order}", f"name={order}", runs=runs, quiet=True)
    predictors[order] = regard.load(run)

# %% [markdown]
# ## What the static vector costs
#
# Exact match on unseen captions, and the share of captions whose first, second and third group of objects is right.


# %%
def groups(caption):
    return re.split(" above | left of ", caption)


def share_right(answers, place):
    pairs = [(groups(answer.text), groups(each.target)) for answer, each in zip(answers, test, strict=True)]
    return mean(mine[place : place + 1] == right[place : place + 1] for mine, right in pairs if len(right) > place)


figure, axes = plot("Groups of objects that are named right", x="group in the caption", y="share of captions")
for order, colour in zip(NAMES, (ORANGE, BLUE), strict=True):
    answers = predictors[order].predict([each.source for each in test])
    exact = mean(answer.text == each.target for answer, each in zip(answers, test, strict=True))
    shares = [share_right(answers, place) for place in range(3)]
    axes.plot((1, 2, 3), shares, color=colour, marker="o", label=NAMES[order])
    print(f"{NAMES[order]:13} exact match {exact:.2f}; first group {shares[0]:.2f}, second {shares[1]:.2f}", end=", ")
    print(f"third {shares[2]:.2f}")
axes.set_xticks((1, 2, 3))
axes.set_ylim(0, 1.05)
axes.legend(frameon=False)
keep(figure, "lesson_14_static")

# %% [markdown]
# After so few updates the static captions have the right form, but their objects are guesses. In a training of 1,800
# updates, the first group became right in 0.75 of the captions and the second in 0.48, and attention was always right
# ([more numbers](../pictures.md#static-or-attention)). The mean of all cells holds every colour and every shape; it is
# hard to tell from it which belong together, and which were named already. With attention the decoder asks anew for
# every word, and each question is easy: what is *there*?
#
# ## Where each word looks
#
# The map has a row for every word and a column for every cell. Xu et al. print the largest weight behind each word,
# such as `a(0.99)`. The true cells of every noun are known here, so that we can ask whether the heaviest cell is one of
# them.

# %%
example = next(each for each in test if each.group == "3 objects")
(answer,) = predictors["luong"].predict([example.source])
rows = list(zip(answer.map.rows, answer.map.weights, strict=True))
print(" ".join(f"{word}({weights.max():.2f})" for word, weights in rows if word != "</s>"))
for place, cells in true_cells(example.source, 4, 4).items():
    numbers = ", ".join(map(str, sorted(cells)))
    print(f"{example.target.split()[place]}: {'cell' if len(cells) == 1 else 'cells'} {numbers}, row by row from 0")
keep(answer.map, "lesson_14_map")
measured = grounding(predictors["luong"], test)
print(f"the heaviest cell of a noun shows its object: {measured.share:.2f} of {measured.words:,} nouns", end=" ")
print(f"(cells drawn at random: {measured.chance:.2f})")

# %% [markdown]
# Nobody told the model where objects are: pairs of picture and caption were enough. A static model has no map at all,
# so if its caption is wrong, there is nothing to look at.
#
# One warning: a map is a fact about *this* network. The encoder lets cells exchange what they know; with more of its
# layers, a weight on an empty cell could mean the object beside it.
#
# ## Soft or hard
#
# Attention so far is **soft**: the context is a weighted mean of all cells. **Hard** attention draws *one* cell, with
# these weights as probabilities. In the mean over many draws both contexts are the same:

# %%
weights = torch.tensor([0.7, 0.2, 0.1, 0.0])
cells = torch.randn(4, 3)
drawn = torch.multinomial(weights, 20_000, replacement=True)
print("soft context:            ", [round(number, 2) for number in (weights @ cells).tolist()])
print("mean of 20,000 hard ones:", [round(number, 2) for number in cells[drawn].mean(0).tolist()])

# %% [markdown]
# But a draw has no gradient. The weights are trained with **REINFORCE**: a draw that led to a likelier caption is made
# more likely. Its gradient is noisy, so hard attention takes longer to train; it looks at one cell only, so its maps
# are easy to read. In regard it is a normaliser: `model.attention.normalizer=hard`.
#
# Two more parts of the paper are keys: `train.doubly_stochastic` is a loss term that wants every cell to get attention
# at some time (exercise 3), and `model.decoder.gated_context` multiplies the context by a gate between 0 and 1, since
# words such as *of* need no picture.
#
# ## Exercise 1: attend to the cells
#
# `a` is (cells, width), `h` the decoder's last state, (state). `W` is (hidden, state), `U` is (hidden, width) and `v`
# is (hidden): a matrix stands to the left of a vector. The score of cell i is v . tanh(W h + U a_i). Return context and
# weights.


# %%
def attend_to_cells(a, h, W, U, v): ...  # noqa: N803  # your turn


print(check("attend_to_cells", attend_to_cells))

# %% [markdown]
# ## Exercise 2: the heaviest cells
#
# `weights` is (words, cells), and the cells of the picture are numbered row by row, `width` in a row. Return (words,
# 2): row and column of the heaviest cell of each word.


# %%
def heaviest_cells(weights, width): ...  # your turn


print(check("heaviest_cells", heaviest_cells))

# %% [markdown]
# ## Exercise 3: doubly stochastic attention
#
# Every row of the weights sums to one. Xu et al. (equation 14) want the columns to sum to one too, so that no part of
# the picture is ignored. Return the penalty of one caption: the sum over the cells of (1 - attention received)^2.


# %%
def doubly_stochastic(weights): ...  # your turn


print(check("doubly_stochastic", doubly_stochastic))
