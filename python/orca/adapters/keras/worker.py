"""What a nursery of Keras workers loads."""

from __future__ import annotations

from orca.adapters.keras.quiet import kept_quiet

with kept_quiet():
    from orca.adapters.keras import training

__all__ = ["training"]
