"""Spark and Orca's workers beside it: see ``nncontext``."""
