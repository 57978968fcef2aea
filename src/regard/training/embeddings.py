"""Starts the embeddings of a new model from static word vectors."""

import torch
from torch import nn

from regard import models
from regard.data import vectors
from regard.errors import RecipeError
from regard.tasks import AnyTask
from regard.types import SPECIALS


def start_embeddings(task: AnyTask, model: nn.Module) -> list[str]:
    """Copy the vectors of model.embedding_from into the token embeddings; returns what to report about it.

    A token has the vector of its text; `▁`, which begins a word in sub-words, does not count. Tokens without a vector
    keep their initial one. Encoders and decoders of a text have such an embedding, those of letters and tags do not. Of
    a model on the meta device, only the sizes are checked.
    """
    names = task.recipe.model.embedding_from
    if not names:
        return []
    tables = {
        name: [entry.removeprefix("▁") if isinstance(entry, str) else "" for entry in vocabulary.entries]
        for name, vocabulary in task.vocabularies().items()
        if name in ("encoder.embedding.weight", "decoder.embedding.weight")
    }
    if not tables:
        raise RecipeError("model.embedding_from is for models that read or write tokens, which this one does not")
    found = vectors.read(names, {word for words in tables.values() for word in words if word}, task.recipe.data.limits)
    notes, own = [], models.weights(model)
    for name, words in tables.items():
        if name not in own:  # tied to another one
            continue
        width = own[name].shape[1]
        if width != found.width:
            raise RecipeError(
                f"the vectors of {names[0]} have {found.width} numbers, but {name} has {width}; "
                f"write model.embedding={found.width}, or of a Transformer that dim"
            )
        rows = [row for row, word in enumerate(words) if word in found.rows]
        if rows and not own[name].is_meta:
            content = torch.tensor([found.rows[words[row]].tolist() for row in rows])
            own[name].detach().index_copy_(0, torch.tensor(rows), content)
        tokens = len(words) - len(SPECIALS)
        notes.append(f"{names[0]} has vectors for {len(rows):,} of the {tokens:,} tokens of {name.partition('.')[0]}")
    return notes
