"""Optimizers, schedules, triggers and validation methods, by their names in BigDL 0.x."""
