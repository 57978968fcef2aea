# %% [markdown]
# # 9. Self-attention, without and with weights
#
# In **self-attention** the words of one sentence attend to each other. [Lesson 2](lesson_2_query_key_value.py) had it
# in one line: the same vectors are queries, keys and values. This lesson writes out that line, shows what it cannot do,
# adds three learned matrices, and shows why the scores are divided by sqrt(d_k).

# %%
import torch
from exercises import check
from pictures import BLUE, GREEN, GREY, ORANGE, keep, panels, plot, side_by_side
from torch import nn

from regard import AttentionMap, attend
from regard.attention import SCORES

torch.manual_seed(9)


def scored(name, width):
    return SCORES[name](query_dim=width, key_dim=width, dim=None)


# %% [markdown]
# ## Without weights, in three steps
#
# 1. A score for each pair of words, e_ij = x_i . x_j.
# 2. For each word i, the softmax of its scores over all words j: a_ij = exp(e_ij) / sum_j exp(e_ij).
# 3. The new vector of word i is the sum of all x_j, each times its a_ij. The sum runs over the same j as the softmax.

# %%
WOMEN, MEN = ("Anna", "Mary", "Ruth", "Eve"), ("Paul", "John", "Max", "Tom")
WORDS = (*WOMEN, *MEN, "she", "he", "saw", "met", "and")
TABLE = 0.5 * torch.randn(len(WORDS), 32)  # a vector for each word; it is not trained
sentence = ("Paul", "met", "Mary", "and", "she", "saw")
x = TABLE[[WORDS.index(word) for word in sentence]]  # word, dim

scores = torch.zeros(6, 6)
for i in range(6):
    for j in range(6):
        scores[i, j] = x[i] @ x[j]
weights = scores.exp() / scores.exp().sum(1, keepdim=True)
new = torch.stack([sum(weights[i, j] * x[j] for j in range(6)) for i in range(6)])
print("the same in one line:", torch.allclose(new, torch.softmax(x @ x.T, dim=-1) @ x, atol=1e-5))
print("the same by regard:", torch.allclose(new, attend(x, x, x, score=scored("dot", 32)).context, atol=1e-5))

# %% [markdown]
# What can this do? Not much. The scores are symmetric: if *she* attends to *Mary*, then *Mary* attends to *she*. And a
# word is most similar to itself: nearly all weight is on the diagonal, so the new vectors are nearly the old ones.
# There are no parameters to learn.

# %%
symmetric = torch.allclose(scores, scores.T, atol=1e-5)  # not exactly: sums may be rounded in another order
print("symmetric:", symmetric, f" least weight on oneself: {weights.diagonal().min():.4f}")

# %% [markdown]
# ## With weights: Thinking Machines
#
# Three matrices give each word three vectors: the **query** W_q x says what the word is looking for, the **key** W_k x
# says how it can be found, and the **value** W_v x is what it gives. Here are two words of 4 numbers, and queries, keys
# and values of 3. Queries and keys must have the same width, because they are multiplied; values may have any width.

# %%
two = ("Thinking", "Machines")
x = torch.tensor([[1.0, 0.0, 1.0, 0.0], [0.0, 2.0, 0.0, 1.0]])  # word, 4
W_q, W_k, W_v = 0.5 * torch.randn(3, 4, 3)  # each 4 x 3
q, k, v = x @ W_q, x @ W_k, x @ W_v  # word, 3

score_11, score_12 = q[0] @ k[0], q[0] @ k[1]  # the query of Thinking with both keys
weight_11, weight_12 = torch.softmax(torch.stack([score_11, score_12]) / 3**0.5, dim=0)
z_1 = weight_11 * v[0] + weight_12 * v[1]
print(f"Thinking: scores {score_11:.2f} and {score_12:.2f}, weights {weight_11:.2f} and {weight_12:.2f}")

z = torch.softmax(q @ k.T / 3**0.5, dim=-1) @ v  # the same for all words at once
print("word by word and in matrices:", torch.allclose(z[0], z_1, atol=1e-6))
attended = attend(q, k, v, score=scored("scaled_dot", 3))
print("and by regard:", torch.allclose(attended.context, z, atol=1e-6))

# %% [markdown]
# The scores are not symmetric any more: the score of Thinking's query and Machines' key is not that of Machines' query
# and Thinking's key. In the usual drawing of this example, the first word's scores are 112 and 96 and the keys are 64
# wide. Divided by 8 they are 14 and 12, and the weights are these.

# %%
e = q @ k.T
print(f"Thinking asks Machines {e[0, 1]:.2f}; Machines asks Thinking {e[1, 0]:.2f}")
print([round(weight, 2) for weight in torch.softmax(torch.tensor([112.0, 96.0]) / 64**0.5, dim=0).tolist()])

# %% [markdown]
# ## What the matrices can learn
#
# A task: two people meet, then *she* or *he* does something. Who was it? The word vectors are random and are not
# trained. Trained are W_q, W_k, W_v, and a linear layer that predicts the name from the new vector of the pronoun. In
# the model without weights only that layer is trained.


# %%
def examples(count):
    women, men = torch.randint(0, 4, (count,)), torch.randint(4, 8, (count,))
    turn = torch.rand(count) < 0.5
    pronoun, verbs = torch.randint(8, 10, (count,)), torch.randint(10, 12, (count, 2))
    first, second = torch.where(turn, men, women), torch.where(turn, women, men)
    ids = torch.stack([first, verbs[:, 0], second, torch.full((count,), 12), pronoun, verbs[:, 1]], dim=1)
    return ids, torch.where(pronoun == 8, women, men)


class Looker(nn.Module):
    """One self-attention, and a linear layer that predicts the name that the pronoun stands for."""

    def __init__(self, width, score, *, learned=True):
        super().__init__()
        self.score = scored(score, width)
        self.parts = nn.ModuleList(nn.Linear(32, width, bias=False) if learned else nn.Identity() for _ in range(3))
        self.read = nn.Linear(width, len(WORDS))

    def look(self, ids):
        query, key, value = (part(TABLE[ids]) for part in self.parts)
        return attend(query, key, value, score=self.score)

    def forward(self, ids):
        return self.read(self.look(ids).context[:, 4])  # the pronoun is the fifth word


def learn(model, updates=150):
    optimizer = torch.optim.Adam(model.parameters(), lr=0.003)
    losses = []
    for _ in range(updates):
        ids, meant = examples(64)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(ids), meant)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    ids, meant = examples(500)
    with torch.no_grad():
        return losses, (model(ids).argmax(-1) == meant).float().mean().item()


ids = torch.tensor([[WORDS.index(word) for word in sentence]])
maps = {}
for name, model in (
    ("without weights", Looker(32, "dot", learned=False)),
    ("with weights", Looker(64, "scaled_dot")),
):
    print(f"training: {name}")
    _, right = learn(model)
    print(f"{name:15} names the right one in {right:.0%} of the sentences")
    maps[f"{name}: {right:.0%}"] = AttentionMap(model.look(ids).weights[0].detach(), sentence, sentence)
keep(side_by_side(maps), "lesson_9_who_was_it")

# %% [markdown]
# Without weights the pronoun attends to itself, and the model can only guess. With weights the row of *she* is on Mary.
# The other rows mean nothing: no output depends on those words. But one map does not show everything. The next picture
# shows the mean weight of the pronoun on the right name, over many sentences, for each name.

# %%
ids, meant = examples(2000)
there = (model.look(ids).weights[:, 4] * (ids == meant.unsqueeze(-1))).sum(-1).detach()
figure, axes = plot("The weight on the one who is meant", x="", y="mean weight", height=2.6)
axes.bar([*WOMEN, *MEN], [there[meant == name].mean().item() for name in range(8)], color=BLUE)
keep(figure, "lesson_9_by_name")

# %% [markdown]
# A name with a low bar is predicted correctly too, although the pronoun does not attend to it. The model has learned it
# as the default answer, if none of the other names is found. A map shows where a model attended, not the whole reason
# for its answer.
#
# ## Why sqrt(d_k)
#
# The scores of wide queries and keys are large: with d_k independent numbers of variance 1 their standard deviation is
# sqrt(d_k). [Lesson 3](lesson_3_scores.py) showed what the softmax does with such scores: it puts nearly all weight on
# one word, by chance, before training. There its gradient is nearly 0, so the weights hardly change.

# %%
figure, places = panels("scores q . k", "weights of 10 keys, largest first", "the same, scores / sqrt(d_k)", height=3)
for width, colour in ((4, GREEN), (64, ORANGE), (512, BLUE)):
    queries, keys = torch.randn(300, 1, width), torch.randn(300, 10, width)
    scores = (queries @ keys.mT).squeeze(1)  # query, key
    print(f"d_k = {width:3}: standard deviation {scores.std():5.1f}, sqrt(d_k) = {width**0.5:4.1f}")
    places[0].hist(scores.flatten().tolist(), bins=60, range=(-60, 60), color=colour, alpha=0.6, label=f"d_k = {width}")
    for axes, scale in ((places[1], 1.0), (places[2], width**-0.5)):
        ordered = torch.softmax(scale * scores, dim=-1).sort(dim=-1, descending=True).values.mean(0)
        axes.plot(range(1, 11), ordered, color=colour, marker="o", ms=3)
        axes.set_ylim(0, 1)
places[0].legend(frameon=False, fontsize=8)
keep(figure, "lesson_9_scale")

# %% [markdown]
# Does it matter in training? Here is the same task with d_k = 512, with and without the scale, from three random
# initialisations; all else is equal.

# %%
figure, axes = plot("Queries and keys of 512 numbers, three starts each", x="updates", y="loss, mean of 10 updates")
for name, score, colour in (("q . k", "dot", ORANGE), ("q . k / sqrt(d_k)", "scaled_dot", BLUE)):
    for start in range(3):
        torch.manual_seed(start)
        losses, right = learn(Looker(512, score))
        smooth = torch.tensor(losses).view(-1, 10).mean(1)
        axes.plot(range(10, 151, 10), smooth, color=colour, label=name if start == 0 else None)
        print(f"{name:17} names the right one in {right:.0%} of the sentences")
axes.axhline(torch.tensor(4.0).log().item(), color=GREY, lw=0.8, ls=":", label="a guess among four names")
axes.set_ylim(bottom=0)
axes.legend(frameon=False)
keep(figure, "lesson_9_learning")

# %% [markdown]
# ## Exercise 1: self-attention with weights
#
# `x` is (words, dim); W_q and W_k are (dim, d_k), W_v is (dim, d_v). Return the new vectors, (words, d_v), and the
# weights, (words, words). The scores are scaled.


# %%
def weighted_self_attention(x, W_q, W_k, W_v): ...  # noqa: N803  # your turn


print(check("weighted_self_attention", weighted_self_attention))

# %% [markdown]
# ## Exercise 2: the derivative of the softmax
#
# The weights of one query, a (keys), are a softmax of scores e. Return the matrix of all d a_i / d e_j, shape (keys,
# keys): the **Jacobian**. If a score grows, its own weight grows, and all other weights shrink.


# %%
def softmax_slopes(a): ...  # your turn


print(check("softmax_slopes", softmax_slopes))
