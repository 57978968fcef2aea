"""AttentionMap to terminal, SVG, PNG, HTML, CSV and Pharaoh."""
