"""Checkpoints of toolkits that are no longer maintained, read without running any code of theirs."""
