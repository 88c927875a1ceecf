"""Estimators for PyTorch."""
