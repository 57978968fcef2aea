# %% [markdown]
# # 6. Kernel regression: attention of 1964
#
# Given points (x_j, y_j), what is y at a new x? Nadaraya and Watson answered in 1964: take a mean of all y_j in which
# each counts by how near its x_j is,
#
# y(x) = sum_j K(x - x_j) y_j / sum_k K(x - x_k).
#
# With a Gaussian **kernel** K the fraction is a softmax of -(x - x_j)^2 / (2 h^2). So this is attention: the query is
# x, the keys are x_j, the values y_j, the score is `gaussian`, and h is the **bandwidth**. regard needs no new part for
# it.

# %%
import math

import torch
from exercises import check
from pictures import BLUE, GREEN, GREY, ORANGE, keep, plot, side_by_side

from regard import AttentionMap, attend
from regard.attention import SCORES

torch.manual_seed(6)


def truth(x):
    return torch.sin(2 * x) + 0.4 * x


places = torch.sort(5 * torch.rand(40)).values.unsqueeze(-1)  # key, 1
heights = truth(places) + 0.25 * torch.randn(40, 1)  # key, 1
wanted = torch.linspace(0, 5, 101).unsqueeze(-1)  # query, 1

# %% [markdown]
# ## Three bandwidths
#
# With a narrow bandwidth the curve follows every point and its noise (**overfitting**). With a wide one it is nearly
# the mean of all points. A good bandwidth is between the two. For keys of one number, h = 2^(1/4) exp(-w), and w is the
# score's only parameter, `weight`.


# %%
def regress(x, keys, values, bandwidth, mask=None):
    score = SCORES["gaussian"](query_dim=1, key_dim=1, dim=None)
    score.weight.data.fill_(math.log(2**0.25 / bandwidth))
    return attend(x, score.project(keys), values, score=score, mask=mask)


figure, axes = plot("Nadaraya-Watson regression is attention", x="x (query)", y="y (context)")
axes.plot(places, heights, "o", ms=4, color=GREY, label="points (keys, values)")
axes.plot(wanted, truth(wanted), color=GREY, lw=0.8, ls="--", label="truth")
maps = {}
for bandwidth, colour in ((0.03, ORANGE), (0.2, BLUE), (1.5, GREEN)):
    attended = regress(wanted, places, heights, bandwidth)
    axes.plot(wanted, attended.context.detach(), color=colour, lw=1.5, label=f"bandwidth {bandwidth}")
    some_weights = attended.weights[::10, ::2].detach()
    columns, rows = (tuple(f"{x:.1f}" for x in axis.flatten().tolist()) for axis in (places[::2], wanted[::10]))
    maps[f"bandwidth {bandwidth}"] = AttentionMap(some_weights, rows, columns)
axes.legend(frameon=False, fontsize=8)
keep(figure, "lesson_6_regression")
keep(side_by_side(maps), "lesson_6_maps")

# %% [markdown]
# The maps show the same: rows are queries, columns every second point. A wider bandwidth spreads the weights over more
# points.
#
# ## Learning the bandwidth
#
# The bandwidth is a parameter like any other and can be learned by gradient descent. But if each point may attend to
# itself, the best bandwidth is 0, because each point then predicts itself perfectly. So a mask hides each point from
# its own query (**leave-one-out**).

# %%
score = SCORES["gaussian"](query_dim=1, key_dim=1, dim=None)
others = ~torch.eye(40, dtype=torch.bool)
optimizer = torch.optim.Adam(score.parameters(), lr=0.1)
history = []
for _ in range(60):
    optimizer.zero_grad()
    attended = attend(places, score.project(places), heights, score=score, mask=others)
    loss = (attended.context - heights).square().mean()
    loss.backward()
    history.append((score.bandwidth.item(), loss.item()))
    optimizer.step()
print(
    f"bandwidth {history[0][0]:.2f} -> {history[-1][0]:.2f}, error left out {history[0][1]:.3f} -> {history[-1][1]:.3f}"
)


def error(bandwidth, mask):
    predicted = regress(places, places, heights, bandwidth, mask).context.detach()
    return (predicted - heights).square().mean().item()


bandwidths = torch.logspace(-2, 0.5, 40).tolist()
left_out, itself = ([error(bandwidth, mask) for bandwidth in bandwidths] for mask in (others, None))
on_the_curve = [math.isclose(error(bandwidth, others), loss, rel_tol=1e-3) for bandwidth, loss in history]
print("every step of the learning lies on the curve of the points left out:", all(on_the_curve))
figure, axes = plot("Which bandwidth? Ask points that do not know the answer", x="bandwidth", y="mean squared error")
axes.plot(bandwidths, left_out, color=BLUE, label="each point left out")
axes.plot(bandwidths, itself, color=ORANGE, label="each point sees itself")
axes.plot(*zip(*history, strict=True), "o", ms=3, color=GREEN, label="learning")
axes.set_xscale("log")
axes.legend(frameon=False)
keep(figure, "lesson_6_bandwidth")

# %% [markdown]
# Fifty years later, two things were new: networks compute the queries, keys and values, and the distance is learned
# with them.
#
# ## Exercise 1: kernel regression
#
# `x` (query), `places` (key), `heights` (key). Return one prediction for each x, with a Gaussian kernel of the given
# bandwidth.


# %%
def kernel_regression(x, places, heights, bandwidth): ...  # your turn


print(check("kernel_regression", kernel_regression))

# %% [markdown]
# ## Exercise 2: leave one out
#
# Return the mean squared error of predicting each point from all other points.


# %%
def leave_one_out(places, heights, bandwidth): ...  # your turn


print(check("leave_one_out", leave_one_out))
