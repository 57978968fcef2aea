# %% [markdown]
# # 2. Query, key, value
#
# The words come from databases: a store keeps **values** under **keys**, and a **query** asks for one of them.
# Attention is such a store made soft. The query need not match a key exactly; it gets a mixture of all values, each
# by how well its key matches. Because everything in it is smooth, it can be learned by back-propagation.

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
# A look-up in a Python dictionary compares the query with every key (or does as if) and returns the one value whose
# key is equal.

# %%
store = {"red": 10.0, "green": 20.0, "blue": 30.0}
print(store["red"])

# %% [markdown]
# ## The same, soft
#
# Now keys are vectors. `attend` scores the query against every key, makes the scores into weights that sum to one,
# and returns the sum of the values by these weights: the **context**. The longer the query, the further apart the
# scores, and the harder the choice: a long query is an ordinary look-up.

# %%
keys = torch.eye(3)  # key, dim: red, green, blue
values = torch.tensor([[10.0], [20.0], [30.0]])  # key, dim
red = torch.tensor([[1.0, 0.0, 0.0]])  # query, dim
seen = {}
for strength in (0.0, 1.0, 3.0, 20.0):
    looked = attend(strength * red, keys, values, score=dot)
    print(f"strength {strength:4}: weights {[round(w, 3) for w in looked.weights[0].tolist()]}", end=" ")
    print(f"-> {looked.context.item():.2f}")
    seen[f"strength {strength:g}"] = AttentionMap(looked.weights, ("red?",), tuple(store))
keep(side_by_side(seen), "lesson_2_soft_lookup")

# %% [markdown]
# A query between two keys gets something between two values. No dictionary can do that.

# %%
yellowish = torch.tensor([[6.0, 6.0, 0.0]])
print(attend(yellowish, keys, values, score=dot).context)

# %% [markdown]
# ## Weights, by hand
#
# Scores become weights through the softmax, exp(score) divided by the sum of all exp(score). For the scores 2.0, 1.4,
# 0.7 and 0.0 the weights are these, and they sum to one.

# %%
weights = torch.softmax(torch.tensor([2.0, 1.4, 0.7, 0.0]), dim=-1)
print([round(weight, 2) for weight in weights.tolist()], f"sum {weights.sum():.4f}")

# %% [markdown]
# ## Keys = values
#
# In a translator, keys and values both come from the encoder's states, and the query is the state of the decoder.
# That keys and values are the same is so common that it needs no name. It is *not* self-attention: that is when the
# queries come from the same states too.
#
# ## Self-attention without weights
#
# Take the words of one sentence as queries, as keys, and as values. Nothing is learned; words whose vectors point the
# same way look at each other. No new class is needed, only the same tensor three times.

# %%
words = ("the", "cat", "saw", "a", "dog")
vectors = torch.tensor([[2.0, 0, 0], [0, 2, 0.3], [0, 0, 2], [1.8, 0, 0.1], [0, 1.8, 0.4]])  # word, dim
own = attend(vectors, vectors, vectors, score=dot)
print(own.context.shape)  # as many vectors as before, each now a mixture
keep(AttentionMap(own.weights, words, words), "lesson_2_self_attention")

# %% [markdown]
# ## Padding
#
# Sentences of a batch are filled up to one length. The filling is not language, and attention must not see it: every
# batch carries a **mask**, True where a word may be attended. Here is the damage without: the same sentence, alone
# and with three paddings behind it. (The padding is zeros here. That does not make it harmless: a score of 0 is not a
# weight of 0.)

# %%
vectors = 0.6 * vectors  # young vectors are short, and then it is worst
alone = attend(vectors, vectors, vectors, score=dot)
padded = torch.cat([vectors, torch.zeros(3, 3)])
mask = masks.from_lengths(torch.tensor([5]), 8)  # batch, key
without = attend(vectors, padded, padded, score=dot)
with_mask = attend(vectors, padded, padded, score=dot, mask=mask[0].expand(5, -1))
lost = without.weights[:, 5:].sum(-1)
print("weight lost to padding, word by word:", [round(each, 2) for each in lost.tolist()])
print("the context is off by up to", round((without.context - alone.context).abs().max().item(), 3))
print("with a mask it is off by", (with_mask.context - alone.context).abs().max().item())
columns = (*words, *["<pad>"] * 3)
seen = {"no mask": AttentionMap(without.weights, words, columns)}
seen["mask"] = AttentionMap(with_mask.weights, words, columns)
keep(side_by_side(seen), "lesson_2_padding")

# %% [markdown]
# ## Exercise 1: a look
#
# Write attention with the dot product and softmax. `query` is (query, dim), `keys` (key, dim), `values` (key, dim),
# `mask` (query, key) and boolean, True where a query may see a key. Return the context and the weights. A query that
# may see nothing gets zeros.


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
