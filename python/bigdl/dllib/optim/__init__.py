"""Optimizers, schedules, triggers and validation methods."""
