"""BigDL 0.x."""
