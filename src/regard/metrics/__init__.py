"""Metrics that compare outputs with references; each score has a signature that says how it was computed."""

from regard.metrics.captions import bleu_1, bleu_2, bleu_3, bleu_4, cider_d, rouge_l
from regard.metrics.core import Cost, Measured, Metric, Outcome
from regard.metrics.edits import edit_rows
from regard.metrics.examples import CLOSEST, COUNTS, INSTEAD, MULTI_REFERENCE, companions, counter, example_scorer
from regard.metrics.forecasts import (
    Forecasts,
    coverage_50,
    coverage_80,
    coverage_90,
    crps,
    mase,
    msis,
    nd,
    nrmse,
    quantiles,
    rmse,
    smape,
    weighted_quantile_loss,
)
from regard.metrics.speech import (
    character_errors,
    phoneme_errors,
    phoneme_errors_unstressed,
    word_error_share,
    word_error_share_unstressed,
    word_errors,
)
from regard.metrics.tags import accuracy, entity_f1, f1, masked_accuracy, spans, tag_accuracy
from regard.metrics.text import (
    SACREBLEU,
    answer_f1,
    bits_per_character,
    bleu,
    bleu_tokenised,
    chrf,
    exact_match,
    perplexity,
)

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
    "bleu_1": bleu_1,
    "bleu_2": bleu_2,
    "bleu_3": bleu_3,
    "bleu_4": bleu_4,
    "cider_d": cider_d,
    "rouge_l": rouge_l,
    "tag_accuracy": tag_accuracy,
    "entity_f1": entity_f1,
    "perplexity": perplexity,
    "bits_per_character": bits_per_character,
    "masked_accuracy": masked_accuracy,
    "answer_f1": answer_f1,
    "nd": nd,
    "rmse": rmse,
    "nrmse": nrmse,
    "mase": mase,
    "smape": smape,
    "msis": msis,
    "weighted_quantile_loss": weighted_quantile_loss,
    "crps": crps,
    "coverage_50": coverage_50,
    "coverage_80": coverage_80,
    "coverage_90": coverage_90,
}


def better(metric: str) -> str:
    """Whether `higher is better` or `lower is better`, from the end of the first line of a metric's docstring.

    Of a coverage, for example, `nearer to 0.9 is better`: it says whether a model is calibrated, not how good it is.
    """
    return (METRICS[metric].__doc__ or "").split("\n", 1)[0].rpartition("; ")[2].rstrip(".")


__all__ = [
    "CLOSEST",
    "COUNTS",
    "INSTEAD",
    "METRICS",
    "MULTI_REFERENCE",
    "SACREBLEU",
    "Cost",
    "Forecasts",
    "Measured",
    "Metric",
    "Outcome",
    "accuracy",
    "answer_f1",
    "better",
    "bits_per_character",
    "bleu",
    "bleu_1",
    "bleu_2",
    "bleu_3",
    "bleu_4",
    "bleu_tokenised",
    "character_errors",
    "chrf",
    "cider_d",
    "companions",
    "counter",
    "coverage_50",
    "coverage_80",
    "coverage_90",
    "crps",
    "edit_rows",
    "entity_f1",
    "exact_match",
    "example_scorer",
    "f1",
    "mase",
    "masked_accuracy",
    "msis",
    "nd",
    "nrmse",
    "perplexity",
    "phoneme_errors",
    "phoneme_errors_unstressed",
    "quantiles",
    "rmse",
    "rouge_l",
    "smape",
    "spans",
    "tag_accuracy",
    "weighted_quantile_loss",
    "word_error_share",
    "word_error_share_unstressed",
    "word_errors",
]
