"""Drawings of attention maps: for the terminal, as SVG, PNG, HTML, CSV and in the Pharaoh format."""
