# %% [markdown]
# # 3. The scores, side by side
#
# A **score** is one number for a query and a key: how well they match. regard keeps all scores in the table `SCORES`;
# [the page of mechanisms](../mechanisms.md) gives paper, equation and picture of each. This lesson shows how they are
# related, and why one of them is divided by the square root of the width.

# %%
import torch
from exercises import check
from pictures import BLUE, ORANGE, keep, plot, side_by_side

from regard import AttentionMap, attend
from regard.attention import SCORES

torch.manual_seed(3)

# %% [markdown]
# ## All scores before any training
#
# All scores get the same queries and keys, vectors of 8 numbers. Key n is query n plus some noise. So a score that
# measures similarity gives a diagonal.
#
# - `cosine` and `gaussian` give a diagonal in every row.
# - A dot product also grows with the length of a key. Under `dot` and `scaled_dot`, query 2 attends to key 4 and query
#   5 to key 1: these are the two longest keys.
# - `linear_concat` gives columns: its weights do not depend on the query.
# - `location` ignores the keys. It has one row of a matrix for each source position, so it cannot learn similarity.

# %%
queries = torch.randn(6, 8)
keys = queries + 0.3 * torch.randn(6, 8)
labels = tuple("123456")
maps = {}
for name, kind in SCORES.items():
    score = kind(query_dim=8, key_dim=8, dim=8)
    weights = attend(queries, score.project(keys), keys, score=score).weights
    maps[name] = AttentionMap(weights.detach(), labels, labels)
    learned = sum(parameter.numel() for parameter in score.parameters())
    entropy = maps[name].entropy().mean() / torch.tensor(6.0).log()
    print(f"{name:15} learned numbers: {learned:4}; entropy {entropy:.2f} of 1")
keep(side_by_side(maps, columns=5), "lesson_3_scores")

# %% [markdown]
# The scores with a learned matrix (`general`, `multiplicative`, `concat`, `additive`) do not measure similarity before
# training. They have to learn it. But then they can also learn other relations than "points in the same direction".
#
# ## Additive = a perceptron on the concatenation
#
# Bahdanau's score v . tanh(W query + U key) is often drawn as a network on the **concatenation** [query; key]. It is
# the same: a matrix times a concatenation is the sum of two products, `W [q; k] = W[:, :n] q + W[:, n:] k`. But the sum
# is cheaper. U key is computed once per source (`project`) and W query once per query; only the tanh is computed for
# each pair.

# %%
concat = SCORES["concat"](query_dim=8, key_dim=8, dim=5)
additive = SCORES["additive"](query_dim=8, key_dim=8, dim=5)
with torch.no_grad():
    additive.query.weight.copy_(concat.weight.weight[:, :8])
    additive.key.weight.copy_(concat.weight.weight[:, 8:])
    additive.key.bias.zero_()
    additive.out.weight.copy_(concat.out.weight)
    pairs = torch.cat([queries.unsqueeze(1).expand(6, 6, 8), keys.unsqueeze(0).expand(6, 6, 8)], dim=-1)
    perceptron = concat.out(torch.tanh(concat.weight(pairs))).squeeze(-1)
    print("concat - perceptron:", (concat(queries, concat.project(keys)) - perceptron).abs().max().item())
    print("additive - perceptron:", (additive(queries, additive.project(keys)) - perceptron).abs().max().item())

# %% [markdown]
# ## Multiplicative = bilinear
#
# (W query) . (U key) = queryᵀ (Wᵀ U) key, a **bilinear form**. So `multiplicative` is `general` with a matrix written
# as a product of two. If the inner width is smaller than the query, this matrix has a low rank: it has fewer parameters
# and can express less.

# %%
multiplicative = SCORES["multiplicative"](query_dim=8, key_dim=8, dim=3)
general = SCORES["general"](query_dim=8, key_dim=8, dim=None)
with torch.no_grad():
    matrix = multiplicative.query.weight.T @ multiplicative.key.weight  # query_dim, key_dim
    general.key.weight.copy_(matrix)
    difference = multiplicative(queries, multiplicative.project(keys)) - general(queries, general.project(keys))
    print("multiplicative - general:", difference.abs().max().item(), "rank:", torch.linalg.matrix_rank(matrix).item())

# %% [markdown]
# ## Why the scale
#
# Take two vectors of d independent numbers of variance 1. Their dot product has variance d. So with growing width the
# scores differ more and more, the softmax gives nearly all weight to one key, and its gradient goes to zero. Divided by
# sqrt(d), the scores have variance 1 at every width (Vaswani et al. 2017, 3.2.1). Here it is measured on 64 random
# keys:

# %%
widths = [2, 4, 8, 16, 32, 64, 128, 256, 512, 1024]
largest, gradients = {"dot": [], "scaled_dot": []}, {"dot": [], "scaled_dot": []}
for width in widths:
    random_queries, random_keys = torch.randn(200, 1, width), torch.randn(200, 64, width)
    for name in largest:
        scores = SCORES[name](query_dim=width, key_dim=width, dim=None)(random_queries, random_keys).requires_grad_()
        weights = torch.softmax(scores, dim=-1)
        largest[name].append(weights.amax(-1).mean().item())
        # The derivative of a weight by its own score is w (1 - w); if all of these are 0, nothing is learned.
        gradients[name].append((weights * (1 - weights)).sum(-1).mean().item())
figure, axes = plot("What the softmax does with wide vectors", x="width d", y="mean over 200 queries, 64 keys")
for name, colour in (("dot", ORANGE), ("scaled_dot", BLUE)):
    axes.plot(widths, largest[name], color=colour, marker="o", ms=4, label=f"{name}: largest weight")
    axes.plot(widths, gradients[name], color=colour, ls="--", label=f"{name}: gradient, sum of w (1 - w)")
axes.set_xscale("log", base=2)
axes.set_ylim(-0.03, 1.05)
axes.legend(frameon=False, fontsize=8)
keep(figure, "lesson_3_scale")
print(f"at d = 1024: largest weight {largest['dot'][-1]:.2f} unscaled, {largest['scaled_dot'][-1]:.2f} scaled")

# %% [markdown]
# ## Exercise 1: the additive form of a concatenation
#
# Given W (inner, query_dim + key_dim), v (inner), queries (query, query_dim) and keys (key, key_dim), return the scores
# v . tanh(W [query; key]), shape (query, key), without concatenating anything.


# %%
def additive_from_concat(W, v, queries, keys): ...  # noqa: N803  # your turn


print(check("additive_from_concat", additive_from_concat))

# %% [markdown]
# ## Exercise 2: the bilinear form of a product
#
# Given W_q (inner, query_dim) and W_k (inner, key_dim), return the matrix M with queryᵀ M key = (W_q query) . (W_k
# key).


# %%
def bilinear(W_q, W_k): ...  # noqa: N803  # your turn


print(check("bilinear", bilinear))

# %% [markdown]
# ## Exercise 3: which of these is a_ij?
#
# In self-attention, the query of word i is W_q x_i and the key of word j is W_k x_j. Which of these is a_ij, the
# *weight* with which word i attends to word j? Return it for all i (rows) and j (columns), given `x` (words, dim).
#
# - (W_q x_i) . (W_k x_j)
# - (W_k x_i) . (W_q x_j)
# - softmax over i of (W_q x_i) . (W_k x_j)
# - softmax over j of (W_q x_i) . (W_k x_j)


# %%
def which_weight(x, W_q, W_k): ...  # noqa: N803  # your turn


print(check("which_weight", which_weight))
