"""Scores of outputs against references; each says by its signature how it was computed."""

import math
import re
import string
from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple


class Measured(NamedTuple):
    """A score with its signature."""

    value: float
    signature: str


def exact_match(outputs: Sequence[str], references: Sequence[str]) -> Measured:
    """The share of outputs that equal their reference; higher is better."""
    same = sum(output == reference for output, reference in zip(outputs, references, strict=True))
    return Measured(same / len(references), f"exact_match|n:{len(references)}|case:mixed|space:kept")


def accuracy(outputs: Sequence[str], references: Sequence[str]) -> Measured:
    """The share of labels that are right; higher is better."""
    return Measured(exact_match(outputs, references).value, f"accuracy|n:{len(references)}")


def f1(outputs: Sequence[str], references: Sequence[str]) -> Measured:
    """The harmonic mean of precision and recall, averaged over all labels alike; higher is better."""
    pairs = list(zip(outputs, references, strict=True))
    labels = sorted({label for pair in pairs for label in pair})
    said, meant = Counter(outputs), Counter(references)
    right = Counter(output for output, reference in pairs if output == reference)
    value = sum(2 * right[label] / (said[label] + meant[label]) for label in labels) / len(labels)
    return Measured(value, f"f1|n:{len(references)}|average:macro|labels:{len(labels)}")


def character_errors(outputs: Sequence[str], references: Sequence[str]) -> Measured:
    """Edits needed per character of the references; lower is better."""
    edits = sum(_edits(output, reference) for output, reference in zip(outputs, references, strict=True))
    characters = max(1, sum(map(len, references)))
    return Measured(edits / characters, f"character_errors|n:{len(references)}|case:mixed|space:kept")


def word_errors(outputs: Sequence[str], references: Sequence[str]) -> Measured:
    """Edits of words needed per word of the references, as of speech (WER); lower is better."""
    pairs = [(output.split(), reference.split()) for output, reference in zip(outputs, references, strict=True)]
    words = sum(len(reference) for _, reference in pairs)
    edits = sum(_edits(output, reference) for output, reference in pairs)
    return Measured(edits / max(1, words), f"word_errors|n:{len(references)}|words:{words}|case:mixed|tok:space")


Several = Sequence[Sequence[str]]  # for each output all texts that are right


def phoneme_errors(outputs: Sequence[str], references: Several) -> Measured:
    """Edits of phonemes per phoneme of the closest reference, spaces between phonemes; lower is better."""
    return _phoneme_errors(_phonemes(outputs), _of_each(references, _phonemes), "phoneme_errors", "kept")


def word_error_share(outputs: Sequence[str], references: Several) -> Measured:
    """The share of words whose phonemes are those of no reference, the WER of papers on spelling; lower is better."""
    return _word_error_share(_phonemes(outputs), _of_each(references, _phonemes), "word_error_share", "kept")


def phoneme_errors_unstressed(outputs: Sequence[str], references: Several) -> Measured:
    """Phoneme errors after the digits of stress are taken off both sides: AH0 and AH1 are AH; lower is better."""
    plain = _of_each(references, _unstressed)
    return _phoneme_errors(_unstressed(outputs), plain, "phoneme_errors_unstressed", "removed")


def word_error_share_unstressed(outputs: Sequence[str], references: Several) -> Measured:
    """The share of wrong words after the digits of stress are taken off both sides; lower is better."""
    plain = _of_each(references, _unstressed)
    return _word_error_share(_unstressed(outputs), plain, "word_error_share_unstressed", "removed")


Phonemes = list[list[str]]  # text by text


def _phonemes(texts: Sequence[str]) -> Phonemes:
    return [text.split() for text in texts]


def _unstressed(texts: Sequence[str]) -> Phonemes:
    return [[phoneme.rstrip(string.digits) for phoneme in text.split()] for text in texts]


def _of_each(references: Several, cut: Callable[[Sequence[str]], Phonemes]) -> list[Phonemes]:
    return [cut(texts) for texts in references]


def _phoneme_errors(outputs: Phonemes, references: Sequence[Phonemes], name: str, stress: str) -> Measured:
    """The closest reference needs the fewest edits, and of such is the shortest, which flatters least."""
    pairs = zip(outputs, references, strict=True)
    closest = [min((_edits(output, each), len(each)) for each in several) for output, several in pairs]
    edits, phonemes = (sum(each) for each in zip(*closest, strict=True))
    told = f"n:{len(outputs)}|refs:closest|phonemes:{phonemes}|stress digits {stress}"
    return Measured(edits / max(1, phonemes), f"{name}|{told}")


def _word_error_share(outputs: Phonemes, references: Sequence[Phonemes], name: str, stress: str) -> Measured:
    wrong = sum(output not in several for output, several in zip(outputs, references, strict=True))
    return Measured(wrong / len(outputs), f"{name}|n:{len(outputs)}|refs:closest|stress digits {stress}")


def bleu(outputs: Sequence[str], references: Sequence[str]) -> Measured:
    """BLEU through sacreBLEU on raw text; higher is better."""
    from sacrebleu.metrics.bleu import BLEU

    metric = BLEU()
    value = metric.corpus_score(list(outputs), [list(references)]).score
    return Measured(value, f"bleu|n:{len(references)}|{metric.get_signature()}")


def bleu_tokenised(outputs: Sequence[str], references: Sequence[str]) -> Measured:
    """BLEU of texts that are cut into words already, as papers report it; higher is better."""
    from sacrebleu.metrics.bleu import BLEU

    metric = BLEU(tokenize="none", force=True)
    value = metric.corpus_score(list(outputs), [list(references)]).score
    return Measured(value, f"bleu_tokenised|n:{len(references)}|{metric.get_signature()}")


def chrf(outputs: Sequence[str], references: Sequence[str]) -> Measured:
    """The F-score of character n-grams through sacreBLEU; higher is better."""
    from sacrebleu.metrics.chrf import CHRF

    metric = CHRF()
    value = metric.corpus_score(list(outputs), [list(references)]).score
    return Measured(value, f"chrf|n:{len(references)}|{metric.get_signature()}")


def tag_accuracy(outputs: Sequence[str], references: Sequence[str]) -> Measured:
    """The share of words with the right tag, tags being words of a line; higher is better."""
    pairs = [(output.split(), reference.split()) for output, reference in zip(outputs, references, strict=True)]
    right = sum(said == meant for output, reference in pairs for said, meant in zip(output, reference, strict=False))
    words = sum(len(reference) for _, reference in pairs)
    return Measured(right / max(1, words), f"tag_accuracy|n:{len(references)}|words:{words}")


def entity_f1(outputs: Sequence[str], references: Sequence[str]) -> Measured:
    """The F-score of whole entities in BIO tags, right where type and both ends are; higher is better."""
    said = {(line, *span) for line, output in enumerate(outputs) for span in spans(output.split())}
    meant = {(line, *span) for line, reference in enumerate(references) for span in spans(reference.split())}
    value = 2 * len(said & meant) / max(1, len(said) + len(meant))
    return Measured(value, f"entity_f1|n:{len(references)}|entities:{len(meant)}|average:micro|rule:conlleval")


def spans(tags: Sequence[str]) -> list[tuple[int, int, str]]:
    """The entities of BIO tags: first word, word after the last, type.

    As conlleval (Tjong Kim Sang and Buchholz 2000) has it, an I-X after another type or after O begins one too.
    """
    found: list[tuple[int, int, str]] = []
    begun: tuple[int, str] | None = None
    for place, tag in enumerate([*tags, "O"]):
        mark, _, kind = tag.partition("-")
        if begun and (mark != "I" or kind != begun[1]):
            found.append((begun[0], place, begun[1]))
            begun = None
        if begun is None and mark in ("B", "I"):
            begun = place, kind
    return found


class Cost(NamedTuple):
    """What a model pays for texts that it predicts token by token."""

    texts: int  # lines, or windows
    tokens: int  # every END that is predicted included
    characters: int
    unknown: int  # tokens that the vocabulary does not hold
    nats: float  # minus the log-probability of all tokens


def perplexity(cost: Cost, how: str) -> Measured:
    """The exponential of the mean nats of a token: among how many it was in doubt; lower is better."""
    mean = cost.nats / cost.tokens
    return Measured(math.exp(mean), f"perplexity|{_paid(cost)}|nats:{mean:.4f}|{how}")


def bits_per_character(cost: Cost, how: str) -> Measured:
    """The bits of all tokens over the characters of the texts, so that tokenizers compare; lower is better."""
    bits = cost.nats / math.log(2) / cost.characters
    return Measured(bits, f"bits_per_character|{_paid(cost)}|characters:{cost.characters}|{how}")


def _paid(cost: Cost) -> str:
    return f"n:{cost.texts}|tokens:{cost.tokens}|unknown:{cost.unknown / cost.tokens:.2%}"


def masked_accuracy(outputs: Sequence[str], references: Sequence[str], how: str) -> Measured:
    """The share of hidden tokens whose likeliest guess is right; higher is better."""
    return Measured(exact_match(outputs, references).value, f"masked_accuracy|tokens:{len(references)}|{how}")


def answer_f1(outputs: Sequence[str], references: Sequence[str]) -> Measured:
    """Rajpurkar et al. 2016: the F1 of the words of an answer, averaged over the questions; higher is better.

    As SQuAD's script has it: in small letters, without punctuation and articles.
    """
    values = [_word_f1(output, reference) for output, reference in zip(outputs, references, strict=True)]
    return Measured(sum(values) / len(values), f"answer_f1|n:{len(values)}|normalised:squad")


def _word_f1(output: str, reference: str) -> float:
    said, meant = _plain_words(output), _plain_words(reference)
    if not said or not meant:
        return float(said == meant)
    return 2 * (Counter(said) & Counter(meant)).total() / (len(said) + len(meant))


def _plain_words(answer: str) -> list[str]:
    letters = answer.lower().translate(str.maketrans("", "", string.punctuation))
    return re.sub(r"\b(a|an|the)\b", " ", letters).split()


Metric = Callable[..., Measured]  # of outputs and references, but where the one task it is for gives it something else

METRICS: dict[str, Metric] = {
    "exact_match": exact_match,
    "accuracy": accuracy,
    "f1": f1,
    "character_errors": character_errors,
    "word_errors": word_errors,
    "phoneme_errors": phoneme_errors,
    "word_error_share": word_error_share,
    "phoneme_errors_unstressed": phoneme_errors_unstressed,
    "word_error_share_unstressed": word_error_share_unstressed,
    "bleu": bleu,
    "bleu_tokenised": bleu_tokenised,
    "chrf": chrf,
    "tag_accuracy": tag_accuracy,
    "entity_f1": entity_f1,
    "perplexity": perplexity,
    "bits_per_character": bits_per_character,
    "masked_accuracy": masked_accuracy,
    "answer_f1": answer_f1,
}

# What takes several references for an output: all targets of a source, which then counts once.
CLOSEST = ("phoneme_errors", "word_error_share", "phoneme_errors_unstressed", "word_error_share_unstressed")


def better(metric: str) -> str:
    """Which way a metric is better, as its first line says: `higher is better`."""
    return (METRICS[metric].__doc__ or "").split("\n", 1)[0].rpartition("; ")[2].rstrip(".")


def _edits(output: Sequence[str], reference: Sequence[str]) -> int:
    """The Levenshtein distance of two sequences; a text is one of characters."""
    row = list(range(len(reference) + 1))
    for index, left in enumerate(output, 1):
        diagonal, row[0] = row[0], index
        for column, right in enumerate(reference, 1):
            replaced = diagonal + (left != right)
            diagonal = row[column]
            row[column] = min(replaced, row[column] + 1, row[column - 1] + 1)
    return row[-1]
