"""Estimators, metrics, triggers and optimizers."""
