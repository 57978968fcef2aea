"""Raw text to Batch."""
