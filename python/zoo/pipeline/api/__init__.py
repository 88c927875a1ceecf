"""Models and losses of Analytics Zoo."""
