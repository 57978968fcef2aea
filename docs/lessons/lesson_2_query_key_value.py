# %% [markdown]
# # 2. Query, key, value
#
# The words come from databases. A store keeps **values** under **keys**, and a **query** asks for one of them.
# Attention is such a store made soft. The query need not be equal to a key; the result is a mixture of all values, and
# each value counts by how well its key matches. All of it is differentiable, so it can be trained by back-propagation.

# %%
import torch
from exercises import check
from pictures import keep, side_by_side

from regard import AttentionMap, attend
from regard.attention import SCORES, masks

torch.manual_seed(2)
dot = SCORES["dot"](query_dim=3, key_dim=3, dim=None)

# %% [markdown]
# ## A dictionary
#
# A Python dictionary returns the one value whose key is equal to the query. Think of it as a comparison with every key.

# %%
store = {"red": 10.0, "green": 20.0, "blue": 30.0}
print(store["red"])

# %% [markdown]
# ## The same, soft
#
# Now keys are vectors. `attend` computes a **score** for the query and every key, turns the scores into **weights**
# that sum to one, and returns the weighted sum of the values: the **context**. A longer query vector makes the scores
# differ more, so one weight comes closer to 1. With a very long query this is an ordinary look-up.

# %%
keys = torch.eye(3)  # key, dim: red, green, blue
values = torch.tensor([[10.0], [20.0], [30.0]])  # key, dim
red = torch.tensor([[1.0, 0.0, 0.0]])  # query, dim
maps = {}
for strength in (0.0, 1.0, 3.0, 20.0):
    attended = attend(strength * red, keys, values, score=dot)
    print(f"strength {strength:4}: weights {[round(w, 3) for w in attended.weights[0].tolist()]}", end=" ")
    print(f"-> {attended.context.item():.2f}")
    maps[f"strength {strength:g}"] = AttentionMap(attended.weights, ("red?",), tuple(store))
keep(side_by_side(maps), "lesson_2_soft_lookup")

# %% [markdown]
# A query between two keys gets a mixture of two values. No dictionary can do that.

# %%
yellowish = torch.tensor([[6.0, 6.0, 0.0]])
print(attend(yellowish, keys, values, score=dot).context)

# %% [markdown]
# ## Weights, by hand
#
# The **softmax** turns scores into weights: exp(score) divided by the sum of all exp(score). For the scores 2.0, 1.4,
# 0.7 and 0.0 it gives these weights, and they sum to one.

# %%
weights = torch.softmax(torch.tensor([2.0, 1.4, 0.7, 0.0]), dim=-1)
print([round(weight, 2) for weight in weights.tolist()], f"sum {weights.sum():.4f}")

# %% [markdown]
# ## Keys = values
#
# In a translation model, keys and values both come from the encoder's states, and the query is the state of the
# decoder. Keys and values are the same so often that this case has no name. It is *not* self-attention: in
# self-attention the queries come from the same states too.
#
# ## Self-attention without weights
#
# Use the words of one sentence as queries, as keys, and as values: this is **self-attention**. Here nothing is learned.
# Words whose vectors point in the same direction attend to each other. No new class is needed, only the same tensor
# three times.

# %%
words = ("the", "cat", "saw", "a", "dog")
vectors = torch.tensor([[2.0, 0, 0], [0, 2, 0.3], [0, 0, 2], [1.8, 0, 0.1], [0, 1.8, 0.4]])  # word, dim
own = attend(vectors, vectors, vectors, score=dot)
print(own.context.shape)  # as many vectors as before, each now a mixture
keep(AttentionMap(own.weights, words, words), "lesson_2_self_attention")

# %% [markdown]
# ## Padding
#
# Sentences of a batch are filled up to one length with **padding**. Padding is not language, and attention must ignore
# it. So every batch has a **mask**: boolean, True if a word may be attended to. Here is the error without a mask: the
# same sentence, alone and with three padding positions after it. (The padding vectors are zeros here. That does not
# make them harmless: a score of 0 is not a weight of 0.)

# %%
vectors = 0.6 * vectors  # short vectors, as before training: then the error is largest
alone = attend(vectors, vectors, vectors, score=dot)
padded = torch.cat([vectors, torch.zeros(3, 3)])
mask = masks.from_lengths(torch.tensor([5]), 8)  # batch, key
without = attend(vectors, padded, padded, score=dot)
with_mask = attend(vectors, padded, padded, score=dot, mask=mask[0].expand(5, -1))
on_padding = without.weights[:, 5:].sum(-1)
print("weight lost to padding, word by word:", [round(weight, 2) for weight in on_padding.tolist()])
print("the context is off by up to", round((without.context - alone.context).abs().max().item(), 3))
print("with a mask it is off by", (with_mask.context - alone.context).abs().max().item())
columns = (*words, *["<pad>"] * 3)
maps = {"no mask": AttentionMap(without.weights, words, columns)}
maps["mask"] = AttentionMap(with_mask.weights, words, columns)
keep(side_by_side(maps), "lesson_2_padding")

# %% [markdown]
# ## Exercise 1: attention with a mask
#
# Write attention with the dot product and softmax. `query` is (query, dim), `keys` (key, dim), `values` (key, dim).
# `mask` is (query, key) and boolean, True if the query may attend to the key. Return the context and the weights. A
# query whose keys are all masked gets zeros.


# %%
def look(query, keys, values, mask): ...  # your turn


print(check("look", look))

# %% [markdown]
# ## Exercise 2: self-attention without weights
#
# For `x` of shape (words, dim), return the new vectors and the weights, without `attend`.


# %%
def self_attention(x): ...  # your turn


print(check("self_attention", self_attention))

# %% [markdown]
# ## Exercise 3: the mean of a padded sentence
#
# The simplest vector of a sentence is the mean of its states, which is attention with equal weights. `states` is
# (batch, length, dim), `lengths` (batch). Return (batch, dim).


# %%
def padded_mean(states, lengths): ...  # your turn


print(check("padded_mean", padded_mean))
