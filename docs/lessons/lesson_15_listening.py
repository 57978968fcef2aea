# %% [markdown]
# # 15. Listening
#
# Speech recognition is translation from **sound**. *Listen, Attend and Spell* (Chan et al. 2015) does it with the parts
# of the earlier lessons: an encoder listens, a decoder spells, and attention says when each letter was heard. What is
# new is the source: a second of sound is thousands of numbers, and its transcript is a few letters. This lesson follows
# a recording to its transcript, and asks how the two are aligned.
#
# The recordings are melodies, and the transcripts are the names of their notes: the task of a speech recogniser, in
# small, with notes whose true times are known.

# %%
import random
import tempfile
from itertools import pairwise
from pathlib import Path

import torch
from exercises import check
from pictures import BLUE, ORANGE, keep, panels

import regard
from regard import recipe as recipes
from regard.analysis.times import token_times
from regard.analysis.timing import timing
from regard.data.corpora.tones import NOTES, RATE, note_times, render
from regard.data.features import MelSettings, log_mel
from regard.types import Example

torch.manual_seed(15)

# %% [markdown]
# ## From samples to frames
#
# A **spectrogram** cuts the samples into short windows and measures how loud each frequency is in each of them. On the
# **mel** scale high frequencies are joined to wider bands, as the ear does, and the **logarithm** of the power is
# taken. The result is a picture: time to the right, frequency upwards. The dashed lines are the true onsets of the
# notes.

# %%
MELODY = "tones:7:C4-E4-G4-G4"
HOP = 0.02  # seconds between two frames
samples = render(MELODY).samples
features = log_mel(samples, MelSettings.for_rate(RATE, bands=40, window=0.064, hop=HOP))
print(f"{len(samples):,} samples, {len(features)} frames of {features.shape[1]} bands")
figure, (axes,) = panels("C4 E4 G4 G4", height=3)
axes.imshow(features.T.numpy(), origin="lower", aspect="auto", cmap="magma", extent=(0, len(features) * HOP, 0, 40))
for onset, _ in note_times(MELODY):
    axes.axvline(onset, color="white", ls="--", lw=1)
axes.set(xlabel="seconds", ylabel="mel band")
keep(figure, "lesson_15_spectrogram")

# %% [markdown]
# ## The pyramid
#
# There are still many more frames than notes. Attention over all of them is slow, and hard to learn: at first its
# weights are nearly equal, and the context is a mean over everything. So the encoder of Chan et al. is a **pyramid**:
# each layer reads in both directions and then joins two neighbours to one position. Three layers leave an eighth. The
# paper reports that without the pyramid even a month of training was not enough.

# %%
frames = 1000  # ten seconds, at 100 frames per second
for layers in range(4):
    positions = -(-frames // 2**layers)
    print(
        f"layers {layers}: {positions:5,} positions of {10 * 2**layers} ms; {40 * positions:6,} weights for 40 letters"
    )

# %% [markdown]
# The price is resolution: a time is only as exact as a position is long. `speech.front=pyramid` is the front of the
# paper; `convolution`, which this lesson uses, also halves, and is faster. `speech.layers` is their number.
#
# ## Listen, attend, spell
#
# To be quick, we use melodies of three or four notes, from five notes only. The recipe is `tones`, made smaller.

# %%
draw, folder = random.Random(15), Path(tempfile.mkdtemp())


def melody():
    notes = draw.choices(NOTES[:5], k=draw.choice((3, 4)))
    return Example(f"tones:{draw.randrange(10**6)}:{'-'.join(notes)}", " ".join(notes))


def write(name, examples):
    (folder / name).write_text("".join(f"{each.source}\t{each.target}\n" for each in examples), encoding="utf-8")
    return folder / name


test = [melody() for _ in range(200)]
train, dev = write("train.tsv", [melody() for _ in range(1500)]), write("dev.tsv", test[:50])
recipe = recipes.load(
    "tones",
    (
        *(
            f"data.train={write('train.tsv', [melody() for _ in range(1500)])}",
            f"data.dev={write('dev.tsv', test[:50])}",
        ),
        *("speech.bands=40", "speech.width=64", "model.encoder.dim=64", "model.decoder.dim=64", "model.embedding=16"),
        *("model.attention.dim=32", "train.updates=150", "train.validate=75", "train.batch_tokens=1000"),
        *("train.learning_rate=0.005", "train.warmup=20", "train.threads=1"),
    ),
)
predictors = {}
for scope in ("global", "location_aware"):
    print(f"training: {scope}")
    run = regard.train(recipe, f"model.attention.scope={scope}", f"name={scope}", runs=folder, quiet=True)
    predictors[scope] = regard.load(run)
    errors = predictors[scope].score(test).measured.value
    print(f"{scope:14} {errors:.1%} of the notes are wrong")

# %% [markdown]
# ## Where was I?
#
# The scope `global` is the attention of the paper: it compares contents. But two notes G4 in a row sound alike, so the
# content alone cannot say which of them comes next; the decoder's state has to remember it. Speech is full of such
# repeats. **Location-aware** attention (Chorowski et al. 2015) also reads its own last weights, through a small
# convolution, so that a score can mean "a little to the right of where I was".
#
# ## When was it heard?
#
# Every row of the map is a note, every column a position in time. The heaviest position of a row is the time of its
# note. Nobody told the model when notes begin: it has seen only the names.

# %%
(answer,) = predictors["location_aware"].predict([MELODY])
print("transcript:", answer.text)
for (token, seconds), (onset, offset) in zip(token_times(answer.map), note_times(MELODY), strict=False):
    print(f"{token}: heard at {seconds:.2f} s, sounds from {onset:.2f} to {offset:.2f} s")
keep(answer.map, "lesson_15_map")
for scope, predictor in predictors.items():
    times = timing(predictor, test)
    print(
        f"{scope:14} half of the notes are within {times.seconds:.3f} s of their onset, {times.positions:.1f} positions"
    )

# %% [markdown]
# ## Does it ever go back?
#
# A transcript follows its recording: the alignment is **monotonic**. Attention does not know this. It *may* jump back
# or skip a word, and on long recordings it sometimes does. So one asks how often it does not move on:

# %%
figure, axes = panels(*predictors, height=3)
for place, (scope, predictor) in zip(axes, predictors.items(), strict=True):
    back, stays, steps = 0, 0, 0
    for prediction in predictor.predict([each.source for each in test]):
        times = [seconds for _, seconds in token_times(prediction.map)]
        moves = [later - earlier for earlier, later in pairwise(times)]
        back, stays = back + sum(move < 0 for move in moves), stays + sum(move == 0 for move in moves)
        steps += len(moves)
        place.plot(times, range(len(times)), color=BLUE if scope == "global" else ORANGE, alpha=0.1)
    place.set(xlabel="seconds", ylabel="note", yticks=range(4))
    print(f"{scope:14} goes back in {back} of {steps} steps, and stays where it is in {stays}")
keep(figure, "lesson_15_monotonic")

# %% [markdown]
# ## Another way: CTC
#
# **Connectionist temporal classification** (Graves et al. 2006) has no decoder and no attention. Every position of the
# encoder predicts one letter, or a **blank** for "nothing new". Letters of neighbouring positions that are equal are
# one letter; then blanks are removed: `_ C C _ G G _ G` is *C G G*. Many such sequences give the same text, and CTC
# adds up the probabilities of all of them, with the forward algorithm. So its alignment is always monotonic, by
# construction; but each letter is predicted without knowing the letters before it.
#
# The two are good at different things, and can be trained together on one encoder (Kim et al. 2017): `train.ctc` is the
# weight of the CTC loss, and `search.ctc` that of its score in the search. CTC keeps the alignment in order, and the
# decoder knows how words are spelled.
#
# ## Exercise 1: a layer of the pyramid
#
# `states` is (frames, width). Join neighbours: position i of the result is frame 2 i followed by frame 2 i + 1. If the
# number of frames is odd, the last one is followed by zeros.


# %%
def join_pairs(states): ...  # your turn


print(check("join_pairs", join_pairs))

# %% [markdown]
# ## Exercise 2: the times of tokens
#
# `weights` is (tokens, positions), and a position takes `seconds` seconds. Return the time of each token.


# %%
def token_seconds(weights, seconds): ...  # your turn


print(check("token_seconds", token_seconds))

# %% [markdown]
# ## Exercise 3: read the output of CTC
#
# `labels` is a list with the label of each position, `blank` the label that means nothing. Return the letters as a
# list.


# %%
def collapse(labels, blank): ...  # your turn


print(check("collapse", collapse))
