"""Tuning: what to search (``hp``), how good it is (``metrics``), and ``auto_estimator``."""
