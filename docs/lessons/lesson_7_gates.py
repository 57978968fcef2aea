# %% [markdown]
# # 7. Gates
#
# A **gate** multiplies a part of a vector by a number from 0 (closed) to 1 (open). A small network computes the gates
# from the current input. Like attention they select softly and are trained by back-propagation, so some texts call them
# attention. regard does not, for two reasons. Gates do not compete: each is its own sigmoid, and they need not sum to
# one. And no query is compared with keys. But gates have maps too, and these are just as instructive.

# %%
import torch
from exercises import check
from pictures import BLUE, ORANGE, keep, plot, side_by_side
from torch import nn

from regard import AttentionMap
from regard.attention.gates import SqueezeExcite
from regard.attention.record import record

torch.manual_seed(7)

# %% [markdown]
# ## A task that needs a gate
#
# An LSTM reads digits, some of them marked with a star. It has to remember the last starred digit: after every step it
# must output this digit. So it has to store a digit at a star (**input gate** open) and keep it at all other steps
# (**forget gate** near 1; "keep gate" would be a better name).

# %%
DIGITS, LENGTH, UNITS = 5, 12, 12


def examples(count):
    digits = torch.randint(DIGITS, (count, LENGTH))
    stars = torch.rand(count, LENGTH) < 0.25
    stars[:, 0] = True
    last = torch.where(stars, torch.arange(LENGTH), 0).cummax(dim=1).values  # the step of the last star
    inputs = torch.cat([nn.functional.one_hot(digits, DIGITS), stars.unsqueeze(-1)], dim=-1).float()
    return inputs, digits.gather(1, last), digits, stars


lstm, reader = nn.LSTM(DIGITS + 1, UNITS, batch_first=True), nn.Linear(UNITS, DIGITS)
optimizer = torch.optim.Adam([*lstm.parameters(), *reader.parameters()], lr=0.02)
for _ in range(250):
    inputs, wanted, _, _ = examples(64)
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(reader(lstm(inputs)[0]).flatten(0, 1), wanted.flatten())
    loss.backward()
    optimizer.step()
inputs, wanted, digits, stars = examples(500)
with torch.no_grad(), record(lstm) as recording:
    right = (reader(lstm(inputs)[0]).argmax(-1) == wanted).float().mean()
gates = {name: recording.weights[f"{name}_l0"] for name in ("input", "forget", "output")}  # example, step, unit
print(f"right at {right:.0%} of the steps")

# %% [markdown]
# `record` keeps the gates of every LSTM that runs in its block. It computes them beside the LSTM, from the same inputs;
# the layer itself is not changed. `l0` is the lowest layer, as in torch's names of weights; here it is the only one.
# Rows are units, columns the steps of one sequence, with their stars.

# %%
columns = tuple(
    f"{digit}{'*' if star else ''}" for digit, star in zip(digits[0].tolist(), stars[0].tolist(), strict=True)
)
units = tuple(f"unit {number}" for number in range(UNITS))
maps = {name: AttentionMap(gate[0].T, units, columns) for name, gate in gates.items()}
keep(side_by_side(maps), "lesson_7_lstm_gates")

figure, axes = plot("The gates open and close at the stars", x="unit", y="mean gate")
for name, colour in (("input", ORANGE), ("forget", BLUE)):
    gate = gates[name]
    axes.plot(gate[stars].mean(0), color=colour, marker="*", ms=8, label=f"{name} gate at a star")
    axes.plot(gate[~stars].mean(0), color=colour, ls=":", marker="o", ms=4, label=f"{name} gate elsewhere")
axes.set_ylim(0, 1)
axes.legend(frameon=False, fontsize=8, ncols=2)
keep(figure, "lesson_7_stars")
for name in ("input", "forget"):
    gate = gates[name]
    print(f"{name:6} gate, mean of all units: {gate[stars].mean():.2f} at a star, {gate[~stars].mean():.2f} elsewhere")

# %% [markdown]
# On average the gates do what the task needs: at a star the input gates open and the forget gates close; elsewhere they
# do the opposite. They are far from 0 and 1, and single units differ, but the network is right all the same.
#
# ## Squeeze and excitation
#
# Hu et al. 2018 put a gate on every channel of an image. *Squeeze*: take the mean of each channel over all positions.
# *Excite*: two small layers compute a gate for each channel from all these means. So an input anywhere in the image
# decides which channels count everywhere.
#
# Here are "images" of 5 x 5 with four channels. Two channels each give an answer, yes or no, by their brightness. A
# third channel is the cue: it says which of the two answers is the right one. The fourth is noise. The classifier after
# the gates is linear and could not choose between channels by itself.

# %%
CHANNELS = ("cue", "first", "second", "noise")


def images(count):
    means = torch.randint(2, (count, 1, 1, 4)) * 2.0 - 1.0  # image, height, width, channel: -1 or 1
    means[..., 3] = 0.0
    cue, first, second, _ = means.flatten(1).T
    return means + 0.5 * torch.randn(count, 5, 5, 4), torch.where(cue > 0, first, second) > 0, cue > 0


squeeze, classify = SqueezeExcite(channels=4, reduction=1), nn.Linear(4, 1)
optimizer = torch.optim.Adam([*squeeze.parameters(), *classify.parameters()], lr=0.05)
for _ in range(200):
    pictures, answer, _ = images(64)
    optimizer.zero_grad()
    logits = classify(squeeze(pictures).mean((1, 2))).squeeze(-1)
    loss = nn.functional.binary_cross_entropy_with_logits(logits, answer.float())
    loss.backward()
    optimizer.step()
pictures, answer, cue = images(600)
with torch.no_grad(), record(squeeze) as recording:
    right = ((classify(squeeze(pictures).mean((1, 2))).squeeze(-1) > 0) == answer).float().mean()
opened = recording.weights[""].squeeze(1)  # image, channel
print(f"right for {right:.0%} of the images; an image's gates sum to {opened.sum(-1).mean():.2f} on average, not to 1")
mean = torch.stack([opened[cue].mean(0), opened[~cue].mean(0)])
keep(AttentionMap(mean, ("cue says first", "cue says second"), CHANNELS), "lesson_7_squeeze_excite")

# %% [markdown]
# Here too `record` keeps the gates, as it keeps attention weights, and changes no result. A row is the mean over all
# images with the same cue. The gates differ from image to image, as attention weights do; but they do not sum to one.
#
# ## Exercise 1: a step of an LSTM
#
# `x`, `h` and `c` are vectors. W, U and b hold four blocks, in torch's order: input gate, forget gate, new content,
# output gate. Return the new h and c.


# %%
def lstm_step(x, h, c, W, U, b): ...  # noqa: N803  # your turn


print(check("lstm_step", lstm_step))

# %% [markdown]
# ## Exercise 2: squeeze and excite
#
# `x` is (positions, channels). V and c are the first layer (inner x channels), W and b the second (channels x inner).
# Return x with its channels gated.


# %%
def squeeze_excite(x, V, c, W, b): ...  # noqa: N803  # your turn


print(check("squeeze_excite", squeeze_excite))
