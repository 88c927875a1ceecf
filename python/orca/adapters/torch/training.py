"""What a nursery imports before it forks workers of Estimators."""

# The first optimizer of a process would import it, in every worker: more than a second.
import torch._dynamo  # noqa: F401

from orca.adapters.torch import loop, tuning, worker  # noqa: F401
