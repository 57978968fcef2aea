# %% [markdown]
# # 1. Sequence to sequence, and its bottleneck
#
# A sequence-to-sequence model has two parts. The **encoder** reads the source, word by word. The **decoder** writes the
# target, word by word: it is a language model that also knows something about the source. It starts from the token
# `<s>`. Each word that it writes is the next word that it reads, until it writes `</s>`. So the target may be longer or
# shorter than the source.
#
# In the first models (Sutskever et al. 2014; Cho et al. 2014) the decoder knows the source by one vector only, the
# encoder's last state. This lesson shows what that costs.
#
# Run this lesson as a script, or open it as a notebook with jupytext: [the index](../index.md#to-learn-and-to-teach)
# has the commands. Pictures go to `./lessons-out`, or to the folder named by `REGARD_LESSON_OUT`.

# %%
import tempfile
from dataclasses import replace

import torch
from exercises import check
from pictures import BLUE, GREEN, ORANGE, keep, plot

import regard
from regard import recipe as recipes
from regard.data.batching import pad
from regard.models import build
from regard.tasks import Transduce

torch.manual_seed(1)

# %% [markdown]
# ## A summary has one size
#
# The encoder has one **state** for each word, kept in `states`. Its last state is the **summary** of the source. The
# summary has the same size for every source, however long. A decoder without attention sees only the summary, never the
# other states.

# %%
model = build(recipes.load("reverse").model, source_size=30, target_size=30)
for length in (3, 30):
    memory = model.encoder(pad([torch.randint(4, 30, (length,)).tolist()]))
    states, summary = tuple(memory.states.shape), tuple(memory.summary.hidden.shape)
    print(f"{length:2} letters: states {states}, summary {summary}")

# %% [markdown]
# ## Three decoders, one task
#
# The task is to write a string of letters backwards. Nothing can be guessed: each letter must be remembered.
#
# - `none`: the decoder starts from the summary and never sees it again (Sutskever et al. 2014).
# - `context`: the summary is an input of every step (Cho et al. 2014).
# - `bahdanau`: the decoder **attends** to all encoder states at every step (Bahdanau et al. 2015).
#
# Encoder, sizes, data and number of updates are the same. The models are tiny and train for seconds, so do not expect
# perfect results. [The page on the bottleneck](../bottleneck.md) has the same picture after longer training.

# %%
LONGEST = 8
SETTINGS = (
    *("data.size=5000", f"data.max_length={LONGEST}", "train.updates=130", "train.validate=130", "train.threads=1"),
    *("train.batch_tokens=1000", "train.learning_rate=0.01", "train.warmup=15"),
    *("model.embedding=32", "model.encoder.dim=64", "model.decoder.dim=64", "model.attention.dim=32"),
)
runs = tempfile.mkdtemp()
predictors = {}
for order in ("none", "context", "bahdanau"):
    changes = (*SETTINGS, f"model.decoder.order={order}", f"name={order}")
    print(f"training: order = {order}")
    predictors[order] = regard.load(regard.train("reverse", *changes, runs=runs, quiet=True))

# %% [markdown]
# ## Quality by length
#
# **Exact match** is the share of outputs without any error. It is measured on strings that were not in the training
# data, 40 of each length.

# %%
test = Transduce.examples(predictors["none"].task.recipe).test
test = [replace(each, group=str(len(each.source))) for each in test if len(each.source) <= LONGEST]
figure, axes = plot("The same training, with and without a look back", x="letters to reverse", y="exact match")
for (order, predictor), colour in zip(predictors.items(), (ORANGE, GREEN, BLUE), strict=True):
    groups = predictor.score(test).groups
    axes.plot(list(map(int, groups)), list(groups.values()), marker="o", ms=4, color=colour, label=f"order = {order}")
    print(f"{order:9}", "  ".join(f"{length}: {value:.2f}" for length, value in groups.items()))
axes.set_ylim(-0.03, 1.05)
axes.legend(frameon=False)
keep(figure, "lesson_1_bottleneck")

# %% [markdown]
# A vector of 64 numbers could hold eight letters. But the model has to learn how to store them and how to read them in
# the right order, and every further letter makes this harder. With attention the letters stay in their own states, and
# the decoder only has to learn where to look.
#
# The attention weights are shown as an **attention map**. Rows are the letters that the model wrote, columns the
# letters that it attended to.

# %%
prediction = predictors["bahdanau"].predict(["decoder"])[0]
print(prediction.source, "->", prediction.text)
keep(prediction.map, "lesson_1_map")

# %% [markdown]
# ## Exercise 1: teacher forcing
#
# In training the decoder does not read its own output. It reads the correct target: **teacher forcing**. `target` holds
# rows of ids of shape (batch, length). Each row begins with `<s>` and ends with `</s>` and padding. Return two tensors:
# the tokens that the decoder reads, and the token that it should predict after each of them.


# %%
def teacher_forcing(target): ...  # your turn


print(check("teacher_forcing", teacher_forcing))

# %% [markdown]
# ## Exercise 2: greedy decoding
#
# **Greedy decoding** takes the likeliest word at every step. Write one sentence with the methods of a decoder:
# `ready = decoder.prepare(memory)`, `state = decoder.start(ready)` and `step = decoder.step(tokens, state, ready)`.
# `tokens` is a tensor of shape (1, 1). A step has two parts: `step.logits` of shape (1, 1, vocabulary), and
# `step.state`, the next state. Return the list of ids, without `<s>` and `</s>`, at most `limit` of them. The ids of
# `<s>` and `</s>` are `regard.types.BEGIN` and `END`.


# %%
def greedy(decoder, memory, limit): ...  # your turn


print(check("greedy", greedy))
