"""Reads text, turns it into token ids and groups examples into batches."""
