"""`regard vectors`: a sentence vector for each line."""

from regard.cli.core import Inputs, Json, RunPath, in_chunks, read_texts, to_json, write_line


def vectors(run: RunPath, inputs: Inputs = None, as_json: Json = False) -> None:
    """Print the sentence vector of every line, with norm 1, its numbers separated by tabs.

    A blank line, or one with too many tokens, gets zeros. This works for runs of translate, classify, masked_lm and
    answer.
    """
    from regard.analysis.vectors import vectors
    from regard.predict import load

    texts = read_texts(inputs)
    predictor = load(run)
    for chunk in in_chunks(texts):
        for text, vector in zip(chunk, vectors(predictor, chunk).tolist(), strict=True):
            if as_json:
                write_line(to_json({"text": text, "vector": vector}))
            else:
                write_line("\t".join(f"{number:.6g}" for number in vector))
