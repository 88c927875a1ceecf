"""Models of trials, by the names of the old API."""
