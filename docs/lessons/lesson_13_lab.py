# %% [markdown]
# # 13. The lab: one corpus, six stops
#
# Each lesson so far was about one thing. This one goes the whole way on one small corpus: preprocessing, a
# sequence-to-sequence model, a better one, one with attention, a Transformer, and fine-tuning. At the end a table
# compares them. Each stop is a few keys of a recipe; change them and run it again.

# %%
import importlib.util
import random
import tempfile
import warnings
from pathlib import Path

import torch
from exercises import check
from pictures import BLUE, GREEN, GREY, ORANGE, keep, plot, side_by_side

import regard
from regard import recipe as recipes
from regard.data.batching import plan
from regard.data.corpora import CORPORA
from regard.tasks import Transduce
from regard.types import SPECIALS, Example

torch.manual_seed(13)

# %% [markdown]
# ## Stop 1: preprocessing
#
# The corpus is `numbers`: English number words to German ones, which put units before tens and write everything as one
# word. We keep numbers of at most four digits, and write them to TSV files, the format that your own data could have.
# No number of dev or test is in train.

# %%
folder = Path(tempfile.mkdtemp())
splits = CORPORA["numbers"](seed=1, size=8000)
short = {name: [each for each in getattr(splits, name) if int(each.group) <= 4] for name in ("train", "dev", "test")}


def write(name, pairs):
    (folder / name).write_text("".join(f"{source}\t{target}\n" for source, target in pairs), encoding="utf-8")
    return folder / name


files = {name: write(f"{name}.tsv", ((each.source, each.target) for each in part)) for name, part in short.items()}
print({name: len(part) for name, part in short.items()})
print(files["train"].read_text(encoding="utf-8").split("\n")[0])

# %% [markdown]
# **Text to tokens.** English is split at spaces. German number words have no spaces, so sentencepiece learns
# **sub-words** from the training text: frequent strings stay whole, the rest is split into smaller pieces. `▁` marks
# the beginning of a word. The vocabulary is small on purpose: a few dozen pieces are enough for all numbers.
#
# **Tokens to ids.** The first four ids are the same in every vocabulary: padding, unknown, begin, end.

# %%
SETTINGS = (
    *(f"data.train={files['train']}", f"data.dev={files['dev']}"),
    *("tokens.source=word", "tokens.target=sentencepiece", "tokens.size=72"),
    *("model.embedding=32", "model.encoder.dim=64", "model.decoder.dim=64", "model.attention.dim=32"),
    *("model.encoder.cell=lstm", "model.decoder.cell=lstm"),
    *("train.updates=240", "train.validate=40", "train.batch_tokens=700", "train.learning_rate=0.01"),
    *("train.warmup=20", "train.threads=1"),
)
recipe = recipes.load("numbers", SETTINGS)
examples = Transduce.examples(recipe)
task = Transduce.learn(recipe, examples.train)
print("special:", {token: place for place, token in enumerate(SPECIALS)})
print(f"{task.source.size} English tokens, {task.target.size} German ones")
for tokenizer, text in ((task.source, "three hundred twenty one"), (task.target, "dreihunderteinundzwanzig")):
    ids = tokenizer.encode(text)
    print(ids, [tokenizer.piece(each) for each in ids], "->", tokenizer.decode(ids))

# %% [markdown]
# **Ids to padded batches.** A tensor has one width, but sentences differ in length. So shorter ones are filled up with
# **padding**, and a boolean **mask** marks the real tokens: True = may be attended to. Examples of similar length are
# put together, so that there is little padding; the size of a batch is limited in tokens, not in sentences. The source
# ends with `</s>`; the target begins with `<s>` and ends with `</s>`.

# %%
data = task.encode(examples.train)
batch = task.collate(data, [0, 2, 5])
print(batch.source.ids)
print(batch.source.mask.int())
print("target begins", batch.target.ids[:, 0].tolist(), "and has real tokens:", batch.target.mask.sum(1).tolist())

lengths = [(len(source) + 1, len(target) + 2) for source, target in zip(data.sources, data.targets, strict=True)]
alike = [task.collate(data, indices).target.mask for indices in plan(lengths, 700, seed=1, epoch=0)]
anyhow = [task.collate(data, range(first, first + 60)).target.mask for first in range(0, len(lengths) - 60, 60)]
for name, masks in (("as they come", anyhow), ("like with like", alike)):
    padding = 1 - sum(each.sum().item() for each in masks) / sum(each.numel() for each in masks)
    print(f"batches {name}: {padding:.0%} of the target is padding")

# %% [markdown]
# ## Stop 2: sequence to sequence
#
# An LSTM reads the source from left to right. The decoder starts from its last state, c, and never sees the source
# again: h₀ = c, and after that it reads only its own words (Sutskever et al. 2014). In a recipe this is `order = none`.
#
# All stops train on the same batches for the same number of updates and are evaluated on test.

# %%
runs, table = {}, {}


def stop(name, *changes, test=short["test"][::2]):
    print(f"training: {name}")
    run = regard.train(recipe, *changes, f"name={name}", runs=folder, quiet=True)
    predictor = regard.load(run)
    right = predictor.score(test).measured.value
    errors = predictor.score(test, metric="character_errors").measured.value
    parameters = sum(each.numel() for each in predictor.model.parameters())
    seconds = [each["train_seconds"] for each in run.metrics() if "train_seconds" in each][-1]
    runs[name], table[name] = run, (right, errors, parameters, seconds)
    print(f"{name}: exact match {right:.2f}, character errors {errors:.2f}")
    return predictor


NUMBER = "seven thousand three hundred twenty one"
plain = stop("seq2seq", "model.encoder.bidirectional=false", "model.decoder.order=none", "model.decoder.start=last")
print(NUMBER, "->", plain.predict([NUMBER])[0].text)

# %% [markdown]
# ## Stop 3: improved
#
# Two changes at once. The encoder is a **stacked BiLSTM**: two layers, each in both directions; the upper one reads the
# states of the lower. And c is an **input of every step**, so that the decoder need not carry it through all its states
# (Cho et al. 2014): `order = context`.

# %%
improved = stop("improved", "model.encoder.layers=2", "model.decoder.order=context")
print(NUMBER, "->", improved.predict([NUMBER])[0].text)

# %% [markdown]
# This is still one vector of fixed size for a whole number. The vector is large enough: with three times the updates
# both stops get nearly all of these short numbers right (`train.updates=700`; try it). But the model has to learn how
# to store the source in a vector and how to read it in the right order. That takes long, and longer with every word.
#
# ## Stop 4: attentional
#
# One layer again, but the decoder attends to all states of the encoder, at every step (Bahdanau et al. 2015). The query
# is the state before the step; the context is an input of the step, with the last word.

# %%
ATTENTIONAL = ("model.decoder.order=bahdanau",)
attentional = stop("attentional", *ATTENTIONAL)
answer = attentional.predict([NUMBER])[0]
print(NUMBER, "->", answer.text)

# %% [markdown]
# ## Stop 5: the Transformer
#
# No recurrence: self-attention on both sides, four heads, sinusoidal positions (Vaswani et al. 2017).

# %%
TRANSFORMER = (
    *("model.encoder.kind=transformer", "model.encoder.inner_dim=128"),
    *("model.decoder.kind=transformer", "model.decoder.inner_dim=128"),
    *("model.attention.score=scaled_dot", "model.attention.heads=4"),
)
transformer = stop("Transformer", *TRANSFORMER)
prediction = transformer.predict([NUMBER])[0]
print(NUMBER, "->", prediction.text)

# %% [markdown]
# These are the maps of both models for the same number. Rows are the pieces that were written, columns the source
# words. Find the place where English has tens before units and German does not. (The Transformer's map is the mean of
# four heads.)

# %%
keep(side_by_side({"attentional": answer.map, "Transformer": prediction.map}), "lesson_13_maps")

figure, axes = plot("The same updates, four models", x="updates", y="loss per token, dev")
for (name, run), colour in zip(runs.items(), (ORANGE, GREEN, BLUE, GREY), strict=True):
    curve = [(each["update"], each["dev_loss"]) for each in run.metrics() if "dev_loss" in each]
    axes.plot(*zip(*curve, strict=True), color=colour, marker="o", ms=3, label=name)
axes.set_ylim(0, None)
axes.legend(frameon=False)
keep(figure, "lesson_13_loss")

# %% [markdown]
# ## Stop 6: fine-tuning
#
# **Fine-tuning** continues the training of a model on new data. Here the new corpus has only a hundred pairs:
# **years**. English says *nineteen eighty four*, German *neunzehnhundertvierundachtzig*: the German word contains a
# hundred that the English does not. All words are known from the numbers; the rule is new. What does the model of stop
# 4 write for years before it has seen one?

# %%
tens = {
    each.source: each.target for part in (splits.train, splits.dev, splits.test) for each in part if each.group == "2"
}
centuries = [word for word in tens if word.endswith("teen") or word in ("eleven", "twelve")]
years = [
    (f"{century} {rest}", f"{tens[century]}hundert{german}") for century in centuries for rest, german in tens.items()
]
random.Random(13).shuffle(years)
unseen = [Example(source, target) for source, target in years[300:500]]
for guess in attentional.predict([unseen[0].source]):
    print(f"before: {guess.source} -> {guess.text}, should be {unseen[0].target}")

# %% [markdown]
# `train.start_from` starts training from the weights of another run, with its tokenizers. It takes over every tensor
# whose name and shape fit. Here are the same few updates, once from fresh weights and once from stop 4:

# %%
YEARS = (
    *ATTENTIONAL,
    *(f"data.train={write('years.tsv', years[:100])}", f"data.dev={write('dev_years.tsv', years[100:300])}"),
    *("train.updates=40", "train.validate=40", "train.warmup=5"),
)
stop("fresh", *YEARS, "tokens.size=50", test=unseen)  # a hundred years are too little text for 72 pieces
tuned = stop("fine-tuned", *YEARS, f"train.start_from={runs['attentional'].path}", test=unseen)
print(f"after: {unseen[0].source} -> {tuned.predict([unseen[0].source])[0].text}")

# %% [markdown]
# Fine-tuning changes the weights that the old task used. After training on years alone, how well does the model still
# know numbers?

# %%
after_tuning = tuned.score(short["test"][::2]).measured.value
print(f"numbers, exact match: {table['attentional'][0]:.2f} before the years, {after_tuning:.2f} after")
print(NUMBER, "->", tuned.predict([NUMBER])[0].text)

# %% [markdown]
# It has lost much of them. This is called **catastrophic forgetting**. If you need both, train on both: the usual
# remedy is to mix a part of the old data into the new.
#
# **From Hugging Face.** The package `transformers` provides large models that others have trained. regard does not read
# their layers yet, but it can use their table of word vectors. If the package is installed, the next cell makes a tiny
# BERT with random weights (nothing is downloaded) and copies its table into a regard encoder. With a real BERT you
# would copy word by word: the row of a word in its vocabulary to the row of the same word in yours.

# %%
if importlib.util.find_spec("transformers") is None:
    print("The package transformers is not installed, so this lesson goes on without Hugging Face's weights.")
else:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # warnings of other packages at import do not matter here
        from transformers import BertConfig, BertModel
    words, width = attentional.model.encoder.embedding.weight.shape
    config = BertConfig(
        vocab_size=words, hidden_size=width, num_hidden_layers=1, num_attention_heads=2, intermediate_size=width
    )
    bert_vectors = BertModel(config).get_input_embeddings().weight
    model = task.build()
    with torch.no_grad():
        model.encoder.embedding.weight.copy_(bert_vectors)
    print(f"taken from a BERT: {words} word vectors of {width} numbers,", end=" ")
    print("all equal:", torch.equal(model.encoder.embedding.weight, bert_vectors))

# %% [markdown]
# ## The table
#
# **Exact match** is the share of outputs without any error. **Character errors** are edits per character of the
# reference, so lower is better. Seconds are those of training, on this machine. The first four rows are evaluated on
# numbers, the last two on years.

# %%
print("| stop | exact match | character errors | parameters | seconds |")
print("|---|---|---|---|---|")
for name, (right, errors, parameters, seconds) in table.items():
    print(f"| {name} | {right:.2f} | {errors:.2f} | {parameters:,} | {seconds:.1f} |")

# %% [markdown]
# One seed, one size, one short training: the table shows what these models learn *quickly*, not what they can learn.
# [The bottleneck](../bottleneck.md) and [the sweep](../sweep.md) have longer trainings, and `regard compare` makes such
# tables for your own recipes.
#
# ## Exercise 1: padding and a mask
#
# `rows` is a list of lists of ids, of different lengths. Return two tensors of shape (rows, longest): the ids, filled
# up with `pad`, and the mask, boolean, True if the token is real. (A real token may have any id, even that of `pad`, so
# use the lengths.)


# %%
def pad_and_mask(rows, pad): ...  # your turn


print(check("pad_and_mask", pad_and_mask))

# %% [markdown]
# ## Exercise 2: which weights can be taken over
#
# `theirs` and `ours` are dicts from name to tensor: the weights of a trained model and of a new one. Return a new dict
# with all names of `ours`: the tensor of `theirs` if it has the same name and the same shape, otherwise that of `ours`.


# %%
def take_over(theirs, ours): ...  # your turn


print(check("take_over", take_over))
