"""Orca's side of XGBoost."""
