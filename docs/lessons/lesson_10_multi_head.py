# %% [markdown]
# # 10. Several heads
#
# One look gives one mixture. A word that needs two things from two places, and must not mix them up, needs two looks
# at once. **Multi-head attention** (Vaswani et al. 2017, 3.2.2) cuts wide queries, keys and values into narrow ones,
# looks in every part by itself, joins what was seen, and mixes it with a last matrix W_o.

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
# T words of 512 numbers, h = 8 heads. Each head gets queries, keys and values of 512 / 8 = 64 numbers. Its output is
# T x 64; the eight side by side are T x 512 again.

# %%
T, WIDE, HEADS = 5, 512, 8
part = WIDE // HEADS
x = torch.randn(1, T, WIDE)  # batch, word, dim
layer = MultiHead(scaled_dot, query_dim=WIDE, key_dim=WIDE, dim=WIDE, heads=HEADS)
with torch.no_grad(), record(layer) as recording:
    looked = layer(x, layer.project(x), layer.content(x), mask=None)
print("x", tuple(x.shape), " keys of all heads", tuple(layer.project(x).shape), end=" ")
print(" weights", tuple(recording.weights["attention"].shape), " out", tuple(looked.context.shape))

# %% [markdown]
# ## A cut, not eight copies
#
# It is often drawn with matrices W_q, W_k, W_v for each head. That is the same: eight matrices of 512 x 64 beside each
# other are one of 512 x 512. Here is the loop over the heads, each with its own slice.

# %%
with torch.no_grad():
    heads = []
    for head in range(HEADS):
        own = slice(head * part, (head + 1) * part)  # the rows of this head in every matrix
        query, key, value = (
            nn.functional.linear(x[0], each.weight[own], each.bias[own])
            for each in (layer.query, layer.key, layer.value)
        )
        heads.append(torch.softmax(query @ key.T / part**0.5, dim=-1) @ value)  # word, 64
    joined = torch.cat(heads, dim=-1)  # word, 512
    print("the loop gives the same:", torch.allclose(layer.out(joined), looked.context[0], atol=1e-5))

# %% [markdown]
# So heads cost nothing: the four matrices are as large with one head as with eight. What changes is how often the
# softmax chooses, and how narrow the vectors are by which it does.

# %%
for count in (1, 2, 8, 64):
    heads = MultiHead(scaled_dot, query_dim=WIDE, key_dim=WIDE, dim=WIDE, heads=count)
    learned = sum(each.numel() for each in heads.parameters())
    print(f"heads = {count:2}, {WIDE // count:3} wide: {learned:,} numbers to learn")

# %% [markdown]
# ## A task for two heads
#
# A row of random letters. At every place, two questions: which letter stands *before*, and which *after*? One
# attention over letters and waves of position, one linear layer that reads both answers off what came of it. With one
# head, what comes is one mixture: half of the one and half of the other letter do not say which was which. The models
# are equally large.

# %%
LETTERS, LENGTH, DIM = 12, 10, 32
ALPHABET = "abcdefghijkl"


class Neighbours(nn.Module):
    def __init__(self, heads):
        super().__init__()
        self.embedding = nn.Embedding(LETTERS, DIM)
        self.positions = POSITIONS["sinusoidal"](dim=DIM, heads=heads, longest=LENGTH, onward=False)
        self.look = SelfAttention(scaled_dot, dim=DIM, heads=heads)
        self.read = nn.Linear(DIM, 2 * LETTERS)

    def forward(self, ids):
        states = self.positions.embed(self.embedding(ids), 0)
        seen, _ = self.look(states, mask=None, bias=None, positions=self.positions)
        return self.read(seen).unflatten(-1, (2, LETTERS))  # row, place, question, letter


def examples(count):
    ids = torch.randint(LETTERS, (count, LENGTH))
    wanted = torch.stack([ids.roll(1, dims=1), ids.roll(-1, dims=1)], dim=-1)  # row, place, question
    wanted[:, 0, 0] = wanted[:, -1, 1] = -100  # nothing stands before the first and after the last
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
# One head stays near a loss of log 2 = 0.69, that of a guess between two letters: it has found both, and does not know
# which is which.
#
# ## Each head's own map
#
# `record` keeps the weights of every head. A row is a place that asks, a column a place that is looked at.

# %%
text = torch.randperm(LETTERS)[:LENGTH].unsqueeze(0)
letters = tuple(ALPHABET[letter] for letter in text[0].tolist())
seen = {}
for count in (1, 2):
    with torch.no_grad(), record(models[count]) as recording:
        models[count](text)
    for head in range(count):
        told = recording.map("look.attention", head=head, rows=letters, columns=letters)
        before, after = told.weights.diagonal(-1).mean(), told.weights.diagonal(1).mean()
        print(f"head {head + 1} of {count}: {before:.2f} on the letter before, {after:.2f} on the one after")
        seen[f"head {head + 1} of {count}"] = told
keep(side_by_side(seen), "lesson_10_heads")

# %% [markdown]
# Nobody told the heads to share the work. It is what lowers the loss.
#
# ## Fewer keys than queries
#
# When a model writes, it keeps the keys and values of all words so far, of every head in every layer. For long texts
# that is what fills the memory. Shazeer 2019 let all heads share one set of keys and values (**multi-query**); Ainslie
# et al. 2023 let groups of heads share one each (**grouped queries**). In a recipe: `model.attention.groups`. With as
# many groups as heads it is what it was.

# %%
figure, (left, right) = panels("numbers kept for each word", "thousands of numbers to learn", height=2.8)
positions = POSITIONS["none"](dim=WIDE, heads=HEADS, longest=1, onward=False)
for count in (8, 4, 2, 1):
    layer = SelfAttention(scaled_dot, dim=WIDE, heads=HEADS, groups=count)
    with torch.no_grad():
        out, kept = layer(x, mask=None, bias=None, positions=positions)
    size = (kept.keys.numel() + kept.values.numel()) // T
    learned = sum(each.numel() for each in layer.parameters())
    print(f"groups = {count}: keys {tuple(kept.keys.shape)}, {size} numbers a word; {learned:,} to learn", end="; ")
    print(f"out {tuple(out.shape)}")
    left.bar(str(count), size, color=BLUE)
    right.bar(str(count), learned / 1000, color=ORANGE)
for axes in (left, right):
    axes.set_xlabel("groups of keys and values for 8 heads of queries")
keep(figure, "lesson_10_groups")

# %% [markdown]
# ## Exercise 1: multi-head attention
#
# `x` is (words, dim); W_q, W_k, W_v and W_o are (dim, dim); dim is divided by `heads`. Head n has the n-th slice of the
# columns of x W_q, x W_k and x W_v. Return (words, dim).


# %%
def multi_head(x, W_q, W_k, W_v, W_o, heads): ...  # noqa: N803  # your turn


print(check("multi_head", multi_head))

# %% [markdown]
# ## Exercise 2: grouped keys
#
# `keys` is (groups, words, part). Return them for every head, (heads, words, part): with 6 heads and 2 groups the
# first three heads share the first group.


# %%
def keys_for_heads(keys, heads): ...  # your turn


print(check("keys_for_heads", keys_for_heads))
