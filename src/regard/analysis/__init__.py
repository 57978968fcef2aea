"""Analysis of trained runs: word alignment, forced decoding, sentence vectors, comparison."""
