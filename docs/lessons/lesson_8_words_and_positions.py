# %% [markdown]
# # 8. Words and positions as vectors
#
# A network reads numbers, so every token becomes a vector. This lesson first shows how: by an **embedding**, a learned
# table with one vector for each token. Then it shows that vectors of words alone do not contain the order of the words,
# and three ways to add it: sinusoidal vectors that are added, learned vectors that are added, and rotations.

# %%
import math

import torch
from exercises import check
from pictures import BLUE, BLUES, GREEN, ORANGE, keep, panels, plot
from torch import nn

from regard import attend
from regard.attention import POSITIONS, SCORES
from regard.errors import DataError

torch.manual_seed(8)

# %% [markdown]
# ## A table is a matrix product
#
# `nn.Embedding` picks rows of a table. As algebra this is a product: a **one-hot** vector (1 at the token's id and 0
# elsewhere) times the table. Seed 123 and the rows 2, 3, 1 are used so that you can compare the numbers.

# %%
torch.manual_seed(123)
ids = torch.tensor([2, 3, 1])
embedding = nn.Embedding(4, 5)  # ids 0 to 3
picked = embedding(ids)
one_hot = nn.functional.one_hot(ids, 4).float()
print(picked.detach())
print("the same as the product:", torch.equal(picked, one_hot @ embedding.weight))

# %% [markdown]
# The result is the same, but the product does far more work: it mostly multiplies by zeros. The gradient is the same
# too. A row that was not picked gets none.

# %%
picked.sum().backward()
print("rows with a gradient:", embedding.weight.grad.abs().sum(-1).nonzero().flatten().tolist())

# %% [markdown]
# ## The letters of SUNNY
#
# With 26 letters and vectors of 3 numbers the table is 26 x 3. Five letters pick five rows. Both N pick the same row:
# the table does not know the position of a letter. (Some texts print this example with S, U, N, Y beside the rows 13,
# 18, 20, 24. Counted from A = 0, these are the rows of N, S, U and Y.)

# %%
ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
letters = torch.tensor([ALPHABET.index(letter) for letter in "SUNNY"])
table = torch.rand(26, 3)
hot = nn.functional.one_hot(letters, 26).float()
dense = hot @ table
print("rows:", letters.tolist(), " the two N are equal:", torch.equal(dense[2], dense[3]))

figure, (left, middle, right) = panels("one-hot: 5 x 26", "table: 26 x 3", "dense: 5 x 3", height=4, shares=(26, 5, 5))
for axes, shown, rows, columns in (
    (left, hot, "SUNNY", ALPHABET),
    (middle, table, ALPHABET, "123"),
    (right, dense, "SUNNY", "123"),
):
    axes.imshow(shown.numpy(), cmap=BLUES, vmin=0, vmax=1, aspect="auto" if shown is table else "equal")
    axes.set_xticks(range(len(columns)), columns, fontsize=7)
    axes.set_yticks(range(len(rows)), rows, fontsize=7)
    axes.tick_params(length=0)
keep(figure, "lesson_8_sunny")

# %% [markdown]
# ## A vector for a sentence
#
# The simplest vector of a sentence is the **mean** of its word vectors, or their **maximum** number by number. (A third
# is attention with one learned query: **attention pooling**.) None of them depends on the order of the words.

# %%
words = {word: torch.randn(6) for word in ("dog", "bites", "man")}
first = torch.stack([words[word] for word in ("dog", "bites", "man")])
second = torch.stack([words[word] for word in ("man", "bites", "dog")])
print("same mean:", torch.allclose(first.mean(0), second.mean(0)), end="; ")
print("same maximum:", torch.equal(first.amax(0), second.amax(0)))

# %% [markdown]
# Attention does not depend on it either: the same query gets the same context from keys in any order. So a model made
# of attention alone cannot know who bites whom. Positions have to be added to the vectors.

# %%
dot = SCORES["dot"](query_dim=6, key_dim=6, dim=None)
query = torch.randn(1, 6)
contexts = [attend(query, sentence, sentence, score=dot).context for sentence in (first, second)]
print("same context:", torch.allclose(*contexts))

# %% [markdown]
# ## Sinusoidal positions
#
# Vaswani et al. 2017, 3.5, add to the word at position pos a vector of sines and cosines ("waves" in the pictures),
#
# PE(pos, 2i) = sin(pos / 10000^(2i/d)),  PE(pos, 2i+1) = cos(pos / 10000^(2i/d)).
#
# Numbers 2i and 2i + 1 are a pair with one wavelength, like the hand of a clock: the first pairs turn fast, the last
# ones slowly. The longest wavelength is 10000^((d-2)/d) 2π, not quite the 10000 · 2π that is often quoted.

# %%
LENGTH, WIDTH = 60, 32
sinusoidal = POSITIONS["sinusoidal"](dim=WIDTH, heads=1, longest=LENGTH, causal=False)
waves = sinusoidal.embed(torch.zeros(1, LENGTH, WIDTH, dtype=torch.float64), 0)[0]  # position, number
print(f"wavelengths from {2 * math.pi:.2f} to {10000 ** ((WIDTH - 2) / WIDTH) * 2 * math.pi:.0f}", end=", ")
print(f"not to {10000 * 2 * math.pi:.0f}")

figure, (left, right) = panels("all numbers of all positions", "three of the sines, as waves")
left.imshow(waves.numpy(), cmap="RdBu", vmin=-1, vmax=1, aspect="auto")
left.set(xlabel="number", ylabel="position")
for number, colour in ((0, ORANGE), (6, GREEN), (12, BLUE)):
    right.plot(waves[:, number], color=colour, marker="o", ms=2, label=f"number {number}")
right.set(xlabel="position", ylim=(-1.1, 1.5))
right.legend(frameon=False, ncols=3, fontsize=8)
keep(figure, "lesson_8_waves")

# %% [markdown]
# ## A step is the same rotation everywhere
#
# Why sines and cosines? Each pair turns by the same angle at every step. So one rotation moves it k steps on, from any
# position: PE(pos + k) = M PE(pos), with a matrix M that depends on k alone. This means that a linear layer can learn
# "three words back". Here M is found by least squares, for k = 3.
#
# Some texts print the exponent (2i+1)/d for the cosine. Then sine and cosine of a pair have different wavelengths, the
# pair is not a rotation any more, and there is no such matrix.


# %%
def misprinted(positions, dim):
    exponents = torch.arange(dim) / dim
    angles = torch.arange(positions).double().unsqueeze(-1) / 10000**exponents
    return torch.where(torch.arange(dim) % 2 == 0, angles.sin(), angles.cos())


def shifted(table, k):
    """The error of the best matrix that should map every position to the position k steps later."""
    matrix = torch.linalg.lstsq(table[:-k], table[k:], driver="gelsd").solution
    return (table[:-k] @ matrix - table[k:]).abs().max().item()


many = POSITIONS["sinusoidal"](dim=8, heads=1, longest=500, causal=False)
print(f"shared exponent: off by {shifted(many.embed(torch.zeros(1, 500, 8).double(), 0)[0], 3):.0e}", end="; ")
print(f"exponent (2i+1)/d: off by {shifted(misprinted(500, 8), 3):.2f}")

# %% [markdown]
# ## The dot product of two positions
#
# With the shared exponent it depends on the distance only: sin a sin b + cos a cos b = cos(a - b). With the misprint it
# does not. The picture shows PE(pos) . PE(pos + distance), from three starting points.

# %%
figure, places = panels("shared exponent 2i/d", "misprint (2i+1)/d")
for axes, positions in zip(places, (waves, misprinted(LENGTH, WIDTH)), strict=True):
    for start, colour, style in ((0, BLUE, "-"), (5, ORANGE, "--"), (20, GREEN, ":")):
        axes.plot(positions[start : start + 40] @ positions[start], color=colour, ls=style, lw=2, label=f"from {start}")
    axes.set(xlabel="distance", ylim=(0, 20))
    axes.legend(frameon=False, fontsize=8)
keep(figure, "lesson_8_distance")

# %% [markdown]
# ## Added, but the mean does not change
#
# A sum does not depend on which word has which position. So the mean of words *plus* positions is still the same for
# both sentences. Only a nonlinear function, such as a softmax, a feed-forward layer or the maximum, can use the order.

# %%
place = POSITIONS["sinusoidal"](dim=6, heads=1, longest=9, causal=False)
first, second = place.embed(first.unsqueeze(0), 0)[0], place.embed(second.unsqueeze(0), 0)[0]
print("same mean:", torch.allclose(first.mean(0), second.mean(0), atol=1e-6), end="; ")
print("same maximum:", torch.allclose(first.amax(0), second.amax(0)))

# %% [markdown]
# ## Learned positions, and their end
#
# GPT and BERT learn a vector for each position (`learned`). This is simple, but it has an end: there is no vector for
# positions after the last learned one. Sinusoidal positions have no end.

# %%
learned = POSITIONS["learned"](dim=6, heads=1, longest=9, causal=False)
try:
    learned.embed(torch.zeros(1, 10, 6), 0)
except DataError as error:
    print(error)
print("waves at ten positions:", tuple(place.embed(torch.zeros(1, 10, 6), 0).shape))

# %% [markdown]
# ## Rotary positions
#
# Su et al. 2021 add nothing to the words. They rotate queries and keys: each pair of numbers by the angle pos /
# 10000^(2i/d). The dot product of two rotated vectors depends on the difference of their angles, so on the distance of
# the words and not on their positions. This is `rotary` (**RoPE**), which Llama and DeepSeek use. The picture shows one
# query and one key, always 3 apart, at different positions. With added sinusoids the score depends on the position;
# with rotation it does not. (Added sinusoids also give products of word and position; only the products of position and
# position depend on the distance alone.)

# %%
rotary = POSITIONS["rotary"](dim=WIDTH, heads=1, longest=LENGTH, causal=False)
query, key = torch.randn(2, WIDTH, dtype=torch.float64)
starts = range(LENGTH - 3)
turned = [(rotary.rotate(query[None], at) * rotary.rotate(key[None], at + 3)).sum().item() for at in starts]
added = [((query + waves[at]) * (key + waves[at + 3])).sum().item() for at in starts]
print(f"rotary: scores differ by {max(turned) - min(turned):.0e}; added: by {max(added) - min(added):.1f}")
figure, axes = plot("One query, one key, always 3 apart", x="position of the query", y="dot product")
axes.plot(starts, added, color=ORANGE, label="waves added")
axes.plot(starts, turned, color=BLUE, label="turned (rotary)")
axes.legend(frameon=False)
keep(figure, "lesson_8_rotary")

# %% [markdown]
# In a recipe this is one key, `model.positions`. The table also contains `relative` (T5) and `alibi`, which add a
# number by distance to the scores and leave all vectors unchanged, and `none`.

# %%
for name, kind in POSITIONS.items():
    print(f"{name:11} {kind.__doc__.splitlines()[0]}")

# %% [markdown]
# ## Exercise 1: sinusoidal positions
#
# Return the sinusoidal vectors of the positions 0 ... length - 1, shape (length, dim), for an even dim.


# %%
def sinusoids(length, dim): ...  # your turn


print(check("sinusoids", sinusoids))

# %% [markdown]
# ## Exercise 2: rotary positions
#
# `x` is (length, dim), dim even. Rotate the pair (x_{2i}, x_{2i+1}) of the row pos by the angle pos / 10000^(2i/dim):
# (a cos - b sin, a sin + b cos).


# %%
def rotary_positions(x): ...  # your turn


print(check("rotary", rotary_positions))
