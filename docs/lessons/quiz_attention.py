# %% [markdown]
# # A quiz on attention
#
# Ten questions. Put your letters into `ANSWERS` and run this script, or this notebook, again; each wrong choice is
# explained in one sentence. The first two questions are a lecture question that is often printed with query and key
# exchanged, or with an output word that does not exist; here they are corrected. What you need is in lessons
# [1](lesson_1_bottleneck.py) to [4](lesson_4_bahdanau_luong.py).

# %%
ANSWERS = {
    "score": "",
    "weight": "",
    "sum": "",
    "roles": "",
    "shapes": "",
    "additive": "",
    "scale": "",
    "bottleneck": "",
    "order": "",
    "picture": "",
}

# %% [markdown]
# The first three questions are about self-attention: the words of one sentence attend to each other. x_i is the vector
# of word i, a column. Three matrices, the same for all words, give it a query q_i = W_q x_i, a key k_i = W_k x_i and a
# value v_i = W_v x_i.
#
# ## score
#
# What is the *score* e_ij of word i's query for word j, by the dot product, before any normalisation?
#
# - a: k_i . q_j
# - b: q_i . k_j
# - c: softmax over j of q_i . k_j
# - d: q_i . y_j, with y_j word j of the output
#
# ## weight
#
# And what is the *weight* a_ij, with which word i attends to word j?
#
# - a: q_i . k_j
# - b: softmax over i of q_i . k_j
# - c: sigmoid of q_i . k_j
# - d: softmax over j of q_i . k_j
#
# ## sum
#
# What is the result of attention for word i, the context?
#
# - a: the sum over j of a_ij v_j
# - b: the sum over j of a_ij k_j
# - c: the v_j of the largest a_ij
# - d: the sum over i of a_ij v_i
#
# ## roles
#
# Now a recurrent decoder attends to the source while it writes. What are query, keys and values?
#
# - a: the query is the encoder's last state; keys and values are the decoder's states
# - b: the query is the decoder's state; keys are the source's words, values the target's
# - c: the query is the decoder's state; keys and values are both the encoder's states
# - d: the query is the decoder's state; keys and values are the decoder's earlier states
#
# ## shapes
#
# q and k are columns, perhaps of different length; W_q and W_k have the same number of rows. Which is a score, that is,
# one number?
#
# - a: (q W_q)ᵀ W_k k
# - b: (W_q q)ᵀ (W_k k), which is qᵀ M k with M = W_qᵀ W_k
# - c: qᵀ W_q W_k k
# - d: tanh(W_q q + W_k k)
#
# ## additive
#
# One book has w . tanh(W_q q + W_k k). Another has a perceptron with one hidden layer on the concatenation of q and k,
# w . tanh(W [q; k]). How are they related?
#
# - a: they are the same, with W_q and W_k side by side as W
# - b: the perceptron can do more, because it reads q and k together
# - c: they are the same only if q and k have the same width
# - d: they are the same only without the tanh
#
# ## scale
#
# Why is the dot product divided by the square root of the width d?
#
# - a: so that the weights sum to one
# - b: because its mean grows with d
# - c: because its variance grows with d, and a softmax of very different scores has almost no gradient
# - d: so that fewer numbers have to be multiplied
#
# ## bottleneck
#
# Without attention, long sentences are translated worse than short ones, and much more so than with it. Why?
#
# - a: the decoder cannot write more words than it has numbers in its state
# - b: words far back are cut off before the encoder reads them
# - c: the decoder does not know which words it wrote
# - d: one vector, of the same size for every sentence, has to hold all of it
#
# ## order
#
# Which state of the decoder is the query: that before the step, or that after it?
#
# - a: both are in use: before the step in Bahdanau's order, after it in Luong's
# - b: only that before it, because the one after needs the context
# - c: only that after it, because the one before does not know the last word
# - d: it does not matter, because the weights are the same
#
# ## picture
#
# A decoder writes a caption and attends to the picture for each word. What are the keys?
#
# - a: the last vector of the network that read the picture
# - b: the words of the caption so far
# - c: the features of a grid, one vector for each part of the picture
# - d: the names of the objects that were found in it

# %%
if __name__ == "__main__":
    from quiz_marks import mark

    marks = [mark(question, letter) for question, letter in ANSWERS.items()]
    print("\n".join(map(str, marks)))
    print(f"{sum(each.right for each in marks)} of {len(marks)}")
    if not any(ANSWERS.values()):
        print("Write your letters into ANSWERS at the top of this file, then run it again.")
