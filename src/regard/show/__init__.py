"""AttentionMap to terminal, SVG and PNG."""
