# %% [markdown]
# # 10. Several heads
#
# One attention gives one mixture. A word that needs two things from two places, without mixing them up, needs two
# attentions at once. **Multi-head attention** (Vaswani et al. 2017, 3.2.2) cuts wide queries, keys and values into
# narrow ones, the **heads**. Each head attends by itself. Their results are concatenated and multiplied by a last
# matrix W_o.

# %%
import torch
from exercises import check
from pictures import BLUE, GREEN, ORANGE, keep, panels, plot, side_by_side
from torch import nn

from regard.attention import POSITIONS, SCOPES, SCORES, MultiHead, SelfAttention
from regard.attention.record import record

torch.manual_seed(10)


def scaled_dot(width):
    return SCOPES["global"](SCORES["scaled_dot"](query_dim=width, key_dim=width, dim=None), query_dim=width)


# %% [markdown]
# ## The shapes of the paper
#
# T words of 512 numbers, h = 8 heads. Each head has queries, keys and values of 512 / 8 = 64 numbers. Its output is T x
# 64; the eight outputs side by side are T x 512 again.

# %%
T, WIDE, HEADS = 5, 512, 8
part = WIDE // HEADS
x = torch.randn(1, T, WIDE)  # batch, word, dim
layer = MultiHead(scaled_dot, query_dim=WIDE, key_dim=WIDE, dim=WIDE, heads=HEADS)
with torch.no_grad(), record(layer) as recording:
    attended = layer(x, layer.project(x), layer.content(x), mask=None)
print("x", tuple(x.shape), " keys of all heads", tuple(layer.project(x).shape), end=" ")
print(" weights", tuple(recording.weights["attention"].shape), " out", tuple(attended.context.shape))

# %% [markdown]
# ## Slices, not eight copies
#
# Heads are often drawn with matrices W_q, W_k, W_v for each head. That is the same: eight matrices of 512 x 64 side by
# side are one of 512 x 512. Here is the loop over the heads, each with its own slice.

# %%
with torch.no_grad():
    heads = []
    for head in range(HEADS):
        own = slice(head * part, (head + 1) * part)  # the rows of this head in every matrix
        query, key, value = (
            nn.functional.linear(x[0], matrix.weight[own], matrix.bias[own])
            for matrix in (layer.query, layer.key, layer.value)
        )
        heads.append(torch.softmax(query @ key.T / part**0.5, dim=-1) @ value)  # word, 64
    joined = torch.cat(heads, dim=-1)  # word, 512
    print("the loop gives the same:", torch.allclose(layer.out(joined), attended.context[0], atol=1e-5))

# %% [markdown]
# So heads cost no parameters: the four matrices are as large with one head as with eight. What changes is the number of
# softmaxes, and the width of the vectors that each of them compares.

# %%
for count in (1, 2, 8, 64):
    heads = MultiHead(scaled_dot, query_dim=WIDE, key_dim=WIDE, dim=WIDE, heads=count)
    learned = sum(each.numel() for each in heads.parameters())
    print(f"heads = {count:2}, {WIDE // count:3} wide: {learned:,} numbers to learn")

# %% [markdown]
# ## A task for two heads
#
# The input is a row of random letters. At every position there are two questions: which letter is *before* it, and
# which is *after* it? The model is one attention over letters with sinusoidal positions, and one linear layer that
# predicts both answers from its result. With one head the result is one mixture: half of one letter and half of the
# other, without saying which is which. All models have the same number of parameters.

# %%
LETTERS, LENGTH, DIM = 12, 10, 32
ALPHABET = "abcdefghijkl"


class Neighbours(nn.Module):
    def __init__(self, heads):
        super().__init__()
        self.embedding = nn.Embedding(LETTERS, DIM)
        self.positions = POSITIONS["sinusoidal"](dim=DIM, heads=heads, longest=LENGTH, causal=False)
        self.look = SelfAttention(scaled_dot, dim=DIM, heads=heads)
        self.read = nn.Linear(DIM, 2 * LETTERS)

    def forward(self, ids):
        states = self.positions.embed(self.embedding(ids), 0)
        attended, _ = self.look(states, mask=None, bias=None, positions=self.positions)
        return self.read(attended).unflatten(-1, (2, LETTERS))  # row, position, question, letter


def examples(count):
    ids = torch.randint(LETTERS, (count, LENGTH))
    wanted = torch.stack([ids.roll(1, dims=1), ids.roll(-1, dims=1)], dim=-1)  # row, position, question
    wanted[:, 0, 0] = wanted[:, -1, 1] = -100  # ignored by the loss: no letter is before the first or after the last
    return ids, wanted


def learn(heads, updates=400):
    torch.manual_seed(0)
    model = Neighbours(heads)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    losses = []
    for _ in range(updates):
        ids, wanted = examples(32)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(ids).flatten(0, 2), wanted.flatten())
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return model, losses


figure, axes = plot("Which letter stands before, which after?", x="updates", y="loss, mean of 20 updates")
models = {}
for count, colour in ((1, ORANGE), (2, BLUE), (4, GREEN)):
    print(f"training: heads = {count}")
    models[count], losses = learn(count)
    ids, wanted = examples(500)
    with torch.no_grad():
        right = (models[count](ids).argmax(-1) == wanted)[:, 1:-1].float().mean((0, 1))
    axes.plot(range(20, 401, 20), torch.tensor(losses).view(-1, 20).mean(1), color=colour, label=f"heads = {count}")
    print(f"heads = {count}: before {right[0]:.0%} right, after {right[1]:.0%} right")
axes.set_ylim(bottom=0)
axes.legend(frameon=False)
keep(figure, "lesson_10_learning")

# %% [markdown]
# The model with one head stays near a loss of log 2 = 0.69, which is that of a guess between two letters: it has found
# both letters, but does not know which is which.
#
# ## The map of each head
#
# `record` keeps the weights of every head. A row is the position of the query, a column the position of the key.

# %%
text = torch.randperm(LETTERS)[:LENGTH].unsqueeze(0)
letters = tuple(ALPHABET[letter] for letter in text[0].tolist())
maps = {}
for count in (1, 2):
    with torch.no_grad(), record(models[count]) as recording:
        models[count](text)
    for head in range(1, count + 1):
        head_map = recording.map("look.attention", head=head, rows=letters, columns=letters)
        before, after = head_map.weights.diagonal(-1).mean(), head_map.weights.diagonal(1).mean()
        print(f"head {head} of {count}: {before:.2f} on the letter before, {after:.2f} on the one after")
        maps[f"head {head} of {count}"] = head_map
keep(side_by_side(maps), "lesson_10_heads")

# %% [markdown]
# The heads were not told to divide the work. They do it because it lowers the loss.
#
# ## Fewer keys than queries
#
# When a model writes, it keeps the keys and values of all words so far, of every head in every layer: the **key-value
# cache**. For long texts this cache fills the memory. Shazeer 2019 let all heads share one set of keys and values
# (**multi-query attention**). Ainslie et al. 2023 let groups of heads share one each (**grouped-query attention**). In
# a recipe: `model.attention.groups`. With as many groups as heads, it is ordinary multi-head attention.

# %%
figure, (left, right) = panels("numbers kept for each word", "thousands of numbers to learn", height=2.8)
positions = POSITIONS["none"](dim=WIDE, heads=HEADS, longest=1, causal=False)
for count in (8, 4, 2, 1):
    layer = SelfAttention(scaled_dot, dim=WIDE, heads=HEADS, groups=count)
    with torch.no_grad():
        out, cache = layer(x, mask=None, bias=None, positions=positions)
    size = (cache.keys.numel() + cache.values.numel()) // T
    learned = sum(each.numel() for each in layer.parameters())
    print(f"groups = {count}: keys {tuple(cache.keys.shape)}, {size} numbers a word; {learned:,} to learn", end="; ")
    print(f"out {tuple(out.shape)}")
    left.bar(str(count), size, color=BLUE)
    right.bar(str(count), learned / 1000, color=ORANGE)
for axes in (left, right):
    axes.set_xlabel("groups of keys and values for 8 heads of queries")
keep(figure, "lesson_10_groups")

# %% [markdown]
# ## Exercise 1: multi-head attention
#
# `x` is (words, dim); W_q, W_k, W_v and W_o are (dim, dim); dim is a multiple of `heads`. Head n has the n-th slice of
# the columns of x W_q, x W_k and x W_v. Return (words, dim).


# %%
def multi_head(x, W_q, W_k, W_v, W_o, heads): ...  # noqa: N803  # your turn


print(check("multi_head", multi_head))

# %% [markdown]
# ## Exercise 2: grouped keys
#
# `keys` is (groups, words, part). Return the keys of every head, (heads, words, part): with 6 heads and 2 groups the
# first three heads share the first group.


# %%
def keys_for_heads(keys, heads): ...  # your turn


print(check("keys_for_heads", keys_for_heads))
