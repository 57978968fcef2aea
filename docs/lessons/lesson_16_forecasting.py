# %% [markdown]
# # 16. Forecasting
#
# What comes next in a series of numbers? Attention answers in one sentence: look for times in the past that were like
# now, and see what followed them. This lesson begins with attention that learns nothing, the kernel regression of
# lesson 6. It goes on to **DeepAR** (Salinas et al. 2020), a recurrent network that learns from many series, and then
# lets that network attend to its own past.
#
# The series are generated, so that the truth is known: x[t] depends on x[t - lag] and on noise, and on nothing else.

# %%
import tempfile
from collections import Counter
from pathlib import Path

import numpy as np
import torch
from exercises import check
from pictures import BLUE, GREY, ORANGE, keep, panels, plot

import regard
from regard.analysis.lags import excess
from regard.data.corpora.waves import wave
from regard.models.baselines import kernel_regression
from regard.types import Example

torch.manual_seed(16)
LAGS, HORIZON = (7, 13), 12

# %% [markdown]
# ## Attention without learning
#
# The **query** is the last window of the series. The **keys** are all earlier windows of that width, and the **value**
# of a window is what followed it. The score is `gaussian`: the nearer a past window is to the present one, the more its
# continuation counts. Nadaraya and Watson would have recognised it in 1964.

# %%
history, future = np.split(wave("waves:seasonal:16").values, [-24])
regression = kernel_regression(history, horizon=24, width=24)
shown = 96
steps = np.arange(len(history), len(history) + 24)
figure, (above, below) = panels("forecast", "weights of the past windows, by the time that followed them")
above.plot(np.arange(len(history))[-shown:], history[-shown:], color=GREY, label="history")
above.plot(steps, future, color=GREY, ls="--", label="observed")
above.plot(steps, regression.mean, color=BLUE, label="kernel regression")
above.legend(frameon=False, fontsize=8)
below.vlines(regression.starts, 0, regression.weights, color=ORANGE)
below.set(xlabel="step", ylabel="weight")
keep(figure, "lesson_16_kernel")
heaviest = regression.starts[regression.weights.argmax()]
print(
    f"{len(regression.weights)} past windows; the heaviest was followed by step {heaviest}, {steps[0] - heaviest} back"
)
print(f"mean absolute error {np.abs(regression.mean - future).mean():.2f}; of the mean of the history:", end=" ")
print(f"{np.abs(history.mean() - future).mean():.2f}")

# %% [markdown]
# The season has 24 steps: windows that are whole seasons back are alike. But the distance of two windows is fixed. It
# counts all steps of a window equally, whether they matter or not, and each series is alone with its own past.
#
# ## A distribution, not a number
#
# A forecast that says 20 and a forecast that says "between 5 and 35" are different. So a model predicts the parameters
# of a distribution, here the mean and the deviation of a normal one. To go on, it **draws** a value, reads it as if it
# had been observed, and predicts the next. Many such **sample paths** give **quantiles** at each step.
#
# Two scores judge them. **Coverage** is the share of observed values in an interval: of an interval of 90 %, it should
# be 0.9. **CRPS** compares the whole distribution with what was observed; of a single number it is the absolute error.
# The best possible CRPS is that of the true process, which is known here.
#
# ## DeepAR
#
# DeepAR is a language model of numbers: an LSTM that reads a value and predicts the next. The loss is the negative
# log-density of what came. One network learns from all series, and each window is divided by its own scale.

# %%
train = [wave(f"waves:lagged-{LAGS[number % 2]}:{number}") for number in range(100)]
unseen = [wave(f"waves:lagged-{LAGS[number % 2]}:{number}") for number in range(1000, 1040)]
test = [Example(series.name, series.to_text(), f"lag {series.categories[1]}") for series in unseen]
folder = Path(tempfile.mkdtemp())
settings = (
    *(f"forecast.horizon={HORIZON}", "forecast.context=36", "model.decoder.kind=recurrent", "model.decoder.cell=lstm"),
    *("model.decoder.dim=48", "train.updates=1000", "train.validate=1000", "train.batch_tokens=1536"),
    *("train.learning_rate=0.005", "train.warmup=20", "train.threads=1", "train.device=cpu"),
    *("forecast.lags=1", "forecast.lag_mixture=false"),  # a step reads the last value, and copies none
)
predictors = {}


def learn(name, order):
    print(f"training: {name}")
    run = regard.train(
        "waves", *settings, f"model.decoder.order={order}", f"name={order}", pairs=train, runs=folder, quiet=True
    )
    predictors[name] = regard.load(run)
    scored, scores = predictors[name].score(test), excess(predictors[name], test)
    groups = ", ".join(f"{group} {value:.2f}" for group, value in scored.groups.items())
    print(f"{name}: CRPS {scores.crps:.2f} ({groups}), coverage of 90 %: {scores.coverage:.2f}")
    print(f"true process: CRPS {scores.true_crps:.2f}, coverage of 90 %: {scores.true_coverage:.2f}")


learn("DeepAR", "none")
for rule, scores in predictors["DeepAR"].task.baselines(test).items():
    print(f"{rule}: CRPS {scores['crps'].value:.2f}, coverage of 90 %: {scores['coverage_90'].value:.2f}")

# %% [markdown]
# The rule `kernel` is the regression from above. Its means are good, but its intervals are far too narrow, while DeepAR
# knows how sure it may be. Yet DeepAR is poor at the lag of 13: a value has to survive 13 updates of the state, beside
# the 12 that came after it and will be needed, too. It is the **bottleneck** of lesson 1 again.
#
# ## DeepAR with attention
#
# The remedy is the same, too. The state of each step becomes a query, the states of all earlier steps are the keys and
# values, and a causal mask hides the future. It takes one key of the recipe: `model.decoder.order=luong`.

# %%
learn("with attention", "luong")
name = next(example.source for example in test if example.group == "lag 13")
figure, axes = plot(f"{name}: 90 % of the sample paths", x="step", y="value")
axes.plot(range(-24, 0), wave(name).values[-24 - HORIZON : -HORIZON], color=GREY, label="history")
for (label, predictor), colour in zip(predictors.items(), (ORANGE, BLUE), strict=True):
    (forecast,) = predictor.predict([name])
    axes.fill_between(range(HORIZON), forecast.quantile(0.05), forecast.quantile(0.95), color=colour, alpha=0.25)
    axes.plot(range(HORIZON), forecast.quantile(0.5), color=colour, label=label)
axes.plot(range(HORIZON), forecast.observed, "o", ms=4, color=GREY, label="observed")
axes.legend(frameon=False, fontsize=8)
keep(figure, "lesson_16_forecasts")

# %% [markdown]
# ## Which past does it look at?
#
# A row of the map is a step of the forecast, a column a value of the past. How many steps back is the heaviest weight?

# %%
keep(forecast.map, "lesson_16_map")
for lag in LAGS:
    backs = Counter()
    names = [example.source for example in test if example.group == f"lag {lag}"]
    for answer in predictors["with attention"].predict(names):
        rows, columns = answer.map.weights.shape
        backs.update((torch.arange(rows) + columns - rows + 1 - answer.map.weights.argmax(-1)).tolist())
    frequent = ", ".join(f"{back} back ({count / backs.total():.0%})" for back, count in backs.most_common(3))
    print(f"lag {lag}: {frequent}")

# %% [markdown]
# The weights are rarely at the lag itself. The key of a step is a **state** of the LSTM, and a state still remembers
# the values of some steps before. So the model may look a few steps after the value that it needs, or anywhere if its
# own state remembers enough. The map says which states are read, not which values count.
#
# A Transformer of one layer has keys that know one value each. Then a weight is on the value itself, but finding it
# takes long, and not every seed finds every lag.
#
# The third way is attention **by location** (Luong et al. 2015, equation 8): the state gives a weight to each of the
# last 24 values by a softmax, without keys, and the weighted sum of the values themselves is the centre of the
# distribution (`forecast.lag_mixture`). The map shows these weights. The network still reads the values and may move
# the location away from the centre, so a map shows most of what counts, not all. It is the recipe `waves`: `regard
# demo forecast` trains it in a minute, and counts how often the heaviest weight is at the true lag.
#
# ## Exercise 1: kernel regression over windows
#
# `history` is (time,). The query is its last `width` values. A key is any window of that width which is followed by
# `horizon` values, and these are its value. Weights are softmax(-|query - key|^2 / (2 bandwidth^2)). Return the mean of
# what followed, (horizon,).


# %%
def kernel_forecast(history, width, horizon, bandwidth): ...  # your turn


print(check("kernel_forecast", kernel_forecast))

# %% [markdown]
# ## Exercise 2: the quantile loss
#
# With d = observed - predicted, the loss of a quantile of `level` p is p d if d is positive, and (p - 1) d if not. So
# for p = 0.9, being too low costs nine times as much as being too high. Return the mean over all steps.


# %%
def quantile_loss(observed, predicted, level): ...  # your turn


print(check("quantile_loss", quantile_loss))

# %% [markdown]
# ## Exercise 3: coverage
#
# `paths` is (paths, steps), `observed` is (steps,). Return the share of the observed values that lie in the central
# interval with this `share` of the paths: of 0.9, from the quantile 0.05 to the quantile 0.95 of each step.


# %%
def interval_coverage(paths, observed, share): ...  # your turn


print(check("interval_coverage", interval_coverage))
