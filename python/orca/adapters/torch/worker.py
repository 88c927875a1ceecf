"""What a worker needs of torch."""

from __future__ import annotations

import importlib

import torch


def preload_more() -> None:
    """Imports what the first optimizer of a process would import, which takes a second."""
    importlib.import_module("torch._dynamo")


def begin(threads: int) -> None:
    """Prepares a forked worker: its number of threads, and random numbers of its own."""
    torch.set_num_threads(threads)
    torch.seed()
