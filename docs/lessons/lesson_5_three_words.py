# %% [markdown]
# # 5. Global, local, self: three words settled
#
# Some texts use "global" and "cross" as if they were one word, and "local" and "self" as if they were another. They
# answer different questions:
#
# - **Scope**: *which keys* may a query attend to? All of them (global), or those in a window (local).
# - **Source**: *whose states* are the keys? Those of another sequence (cross-attention), or of the query's own
#   (self-attention).
# - **Order**: *when* does a decoder attend, before or after it updates its state? That was [lesson
#   4](lesson_4_bahdanau_luong.py).
#
# Each can be chosen without the others. Self-attention may be global (as in a Transformer's encoder), and
# cross-attention may be local (as in Luong's paper).

# %%
import torch
from exercises import check
from pictures import BLUE, ORANGE, keep, plot, side_by_side

from regard import AttentionMap
from regard.attention import SCOPES, SCORES

torch.manual_seed(5)

# %% [markdown]
# ## Scope x source: all six
#
# Three scopes are used with one score: `global`, `local_m` and `local_p`. The columns are the same twelve letters each
# time. In the first row of pictures the queries are other vectors (cross). In the second row the queries are the
# letters themselves (self), so a letter may attend to itself. (`regard list scopes` names two more, `coverage` and
# `location_aware`. They attend to all keys, as `global` does, and also use the weights of earlier steps. In the first
# step there are none, so they would give the same picture as `global`.)

# %%
text = tuple("abcdefghijkl")
letters = torch.randn(12, 6)
others = torch.randn(12, 6)
maps = {}
for source, queries in (("cross", others), ("self", letters)):
    for name in ("global", "local_m", "local_p"):
        score = SCORES["scaled_dot"](query_dim=6, key_dim=6, dim=None)
        attention = SCOPES[name](score, query_dim=6, window=2)
        with torch.no_grad():
            weights = attention(queries, attention.project(letters), attention.content(letters), mask=None).weights
        rows = text if source == "self" else tuple(map(str, range(12)))
        maps[f"{source}, {name}"] = AttentionMap(weights, rows, text)
print(len(maps), "maps:", "; ".join(maps))
keep(side_by_side(maps, columns=3), "lesson_5_scope_and_source")

# %% [markdown]
# ## local-m: a window that moves along
#
# Query t attends to the keys from t - window to t + window (Luong et al. 2015, 3.2, "monotonic"). Nothing is learned.
# This scope suits tasks like `copy`, in which source and target positions are about the same. It needs the position of
# the query: a decoder that steps token by token gives it as `start`.

# %%
local_m = SCOPES["local_m"](SCORES["dot"](query_dim=6, key_dim=6, dim=None), query_dim=6, window=2)
flat = torch.zeros(12, 6)  # all scores are 0, so only the window shapes the weights
at_once = local_m(flat, local_m.project(letters), letters, mask=None).weights
steps = [local_m(flat[t : t + 1], local_m.project(letters), letters, mask=None, start=t).weights for t in range(12)]
print("stepping retells all at once:", torch.equal(at_once, torch.cat(steps)))

# %% [markdown]
# ## local-p: a window at a predicted position
#
# The query predicts a source position, p = S sigmoid(v . tanh(W query)), for S source words. The weights inside the
# window are multiplied by a **Gaussian** around p, whose standard deviation is half the window. As in the paper they
# are not normalised again, so they sum to less than one: the further the attended words are from p, the smaller the
# sum.

# %%
local_p = SCOPES["local_p"](SCORES["dot"](query_dim=6, key_dim=6, dim=None), query_dim=6, window=4)
with torch.no_grad():
    local_p.query.weight.copy_(torch.eye(6))
    local_p.out.weight.copy_(torch.tensor([[4.0, 0, 0, 0, 0, 0]]))  # the first number of a query decides the position
    aims = torch.zeros(5, 6)
    aims[:, 0] = torch.tensor([-0.6, -0.2, 0.0, 0.2, 0.6])
    plain = torch.zeros(12, 6)  # all scores are 0, so only the Gaussian shapes the weights
    aimed = local_p(aims, plain, plain, mask=None).weights
    centres = 12 * torch.sigmoid(4 * torch.tanh(aims[:, 0]))
figure, axes = plot("local-p: five queries aim at five places", x="source position", y="weight")
for row, (weights, centre) in enumerate(zip(aimed, centres.tolist(), strict=True)):
    colour = (BLUE, ORANGE)[row % 2]
    axes.plot(weights.tolist(), marker="o", ms=3, color=colour)
    axes.axvline(centre, color=colour, lw=0.8, ls=":")
    print(f"aimed at {centre:5.2f}: the weights sum to {weights.sum():.2f}")
keep(figure, "lesson_5_local_p")
windows = {"local_m": AttentionMap(at_once, text, text)}
windows["local_p"] = AttentionMap(aimed, tuple(f"{centre:.1f}" for centre in centres), text)
keep(side_by_side(windows), "lesson_5_windows")

# %% [markdown]
# ## Exercise 1: a causal mask
#
# A **causal mask** hides later positions from self-attention. Return a boolean mask of shape (length, length), True if
# query t (row) may attend to a key (column): up to its own position.


# %%
def causal(length): ...  # your turn


print(check("causal", causal))

# %% [markdown]
# ## Exercise 2: the window of local-m
#
# Return a boolean mask of shape (queries, keys). The first query is at position `start`.


# %%
def local_m_mask(queries, keys, window, start): ...  # your turn


print(check("local_m", local_m_mask))

# %% [markdown]
# ## Exercise 3: the Gaussian of local-p
#
# `weights` (key) were normalised inside the window around `centre`. Return the weights of local-p.


# %%
def local_p_weights(weights, centre, window): ...  # your turn


print(check("local_p", local_p_weights))
