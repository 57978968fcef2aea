"""Fast paths: code that computes exactly what a plain definition computes, only faster."""
