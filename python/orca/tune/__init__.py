"""Studies: a search for the best configuration, trial by trial.

Example:
    >>> from orca.automl import hp
    >>> from orca.tune import Study
    >>> study = Study({"x": hp.uniform(-5, 5), "y": hp.uniform(-5, 5)}, mode="min", seed=0)
    >>> study.optimize(lambda config: config["x"] ** 2 + config["y"] ** 2, n_trials=100)
    >>> study.best_value < 0.5
    True
"""

from orca.tune.space import Domain, RecursiveDependencyError, SearchSpace
from orca.tune.study import SpaceExhaustedError, Study, Trial, search_names, search_parameters

__all__ = [
    "Domain",
    "RecursiveDependencyError",
    "SearchSpace",
    "SpaceExhaustedError",
    "Study",
    "Trial",
    "search_names",
    "search_parameters",
]
