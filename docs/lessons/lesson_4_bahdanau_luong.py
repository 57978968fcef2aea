# %% [markdown]
# # 4. Bahdanau against Luong
#
# Two papers of 2015 give two answers to one question: in which **order** does a decoder update its state, attend and
# predict?
#
# - **Bahdanau**: the *previous* state is the query. The context is an input of the cell and so changes the new state.
#   s_{t-1} -> weights -> context -> s_t -> word
# - **Luong**: the cell is updated first. The *new* state is the query, and the context joins it just before the word is
#   predicted. h_t -> weights -> context -> attentional state -> word
#
# The order is one setting, `model.decoder.order`. The score is another. Bahdanau's paper has the additive score and
# Luong's the dot product, but any order with attention works with any score. (`dot`, `scaled_dot`, `cosine` and
# `gaussian` need an encoder as wide as the decoder. Luong's paper also has `general`, `concat` and `location`, which
# scores positions and never reads a key.)

# %%
import tempfile
import time

import torch
from exercises import check
from pictures import BLUE, GREEN, ORANGE, keep, plot, side_by_side

import regard
from regard import recipe as recipes
from regard.decoders import ORDERS
from regard.maps import TEXT
from regard.models import build
from regard.tasks import Transduce
from regard.types import Memory, Recurrent

torch.manual_seed(4)

# %% [markdown]
# ## The difference, in code
#
# An order says what the inputs of the cell are, what the word is predicted from, and whether all words can be read at
# once. Luong's decoder can read all words at once: no context enters its cell, so all states are computed in one call,
# and then all attend together. Bahdanau's decoder cannot. Neither can Luong's with **input feeding**, in which the
# attentional state of a step enters the cell at the next step.

# %%
for name, order in ORDERS.items():
    print(f"{name:14} cell reads {'+'.join(order.enters):13} word is read from {'+'.join(order.reads):19}", end=" ")
    print("all at once" if order.parallel else "one by one")

# %% [markdown]
# ## The difference, by experiment
#
# If the previous state is the query, the weights of step t cannot depend on the word that step t reads. If the new
# state is the query, they do. So the experiment is: read two sentences that differ in the last word only, and compare
# the weights of the last step.

# %%
summary = Recurrent(torch.randn(1, 1, 128), None)
memory = Memory(torch.randn(1, 6, 128), torch.ones(1, 6, dtype=torch.bool), summary, TEXT)
for name in ("bahdanau", "luong"):
    recipe = recipes.override(recipes.load("reverse"), f"model.decoder.order={name}")
    decoder = build(recipe.model, source_size=30, target_size=30).decoder
    one, other = decoder(torch.tensor([[2, 7, 9]]), memory), decoder(torch.tensor([[2, 7, 8]]), memory)
    same = torch.equal(one.attention[:, -1], other.attention[:, -1])
    print(f"{name:9} the last look {'does not know' if same else 'knows'} the last word")

# %% [markdown]
# ## Both, trained for some seconds
#
# The task is `reverse` on short strings. Score, sizes, data and updates are the same.

# %%
LONGEST = 8
SETTINGS = (
    *("data.size=5000", f"data.max_length={LONGEST}", "train.updates=120", "train.validate=30", "train.threads=1"),
    *("train.batch_tokens=1000", "train.learning_rate=0.01", "train.warmup=15"),
    *("model.embedding=32", "model.encoder.dim=64", "model.decoder.dim=64", "model.attention.dim=32"),
)
runs = tempfile.mkdtemp()
test = [each for each in Transduce.examples(recipes.load("reverse")).test if len(each.source) <= LONGEST]
figure, axes = plot("Learning, in the mean of the last 30 updates", x="updates", y="loss per token")
maps = {}
for name, colour in (("bahdanau", BLUE), ("luong", ORANGE), ("luong_feeding", GREEN)):
    print(f"training: {name}")
    began = time.perf_counter()
    run = regard.train("reverse", *SETTINGS, f"model.decoder.order={name}", f"name={name}", runs=runs, quiet=True)
    seconds = time.perf_counter() - began
    curve = [(each["update"], each["loss"]) for each in run.metrics() if "loss" in each]
    axes.plot(*zip(*curve, strict=True), color=colour, marker="o", ms=3, label=name)
    predictor = regard.load(run)
    answer = predictor.predict(["student"])[0]
    maps[f"{name}: {answer.text}"] = answer.map
    print(f"{name:14} exact match {predictor.score(test).measured.value:.2f} after {seconds:.1f} s: {answer.text}")
axes.legend(frameon=False)
keep(figure, "lesson_4_loss")
keep(side_by_side(maps), "lesson_4_maps")

# %% [markdown]
# All maps show the antidiagonal: the last letter is written first. A map is blurred if the training was too short, or
# if the neighbouring states contain the letter too: the encoder reads in both directions.
#
# One warning about reading such maps as **alignments**. A row holds the weights of the step that *writes* token t. In
# this step Luong's query has read the tokens up to t - 1 and Bahdanau's only those up to t - 2; neither has read token
# t. So a decoder may attend to a source word one row late, after it has written the translation.
# `regard.analysis.alignment` measures both readings if the true alignment is known (Chen et al. 2020).
#
# ## Exercise 1: a step of Bahdanau
#
# You get the last state, the vector of the last word, `look(query)`, which returns a context, and `cell(inputs,
# state)`, which returns a new state. All are vectors. Return the new state and the context. The input of the cell is
# [word; context].


# %%
def bahdanau_step(state, word, look, cell): ...  # your turn


print(check("bahdanau_step", bahdanau_step))

# %% [markdown]
# ## Exercise 2: a step of Luong
#
# The same for Luong's order, without input feeding. Return the new state and the attentional state tanh(W [context;
# state]).


# %%
def luong_step(state, word, look, cell, W): ...  # noqa: N803  # your turn


print(check("luong_step", luong_step))
