"""Spark and Orca's workers beside it, as Analytics Zoo started them."""

from orca.adapters import spark
from zoo.orca.common import OrcaContext

_nncontext = spark.load("orca.adapters.spark.nncontext")

globals().update({name: getattr(_nncontext, name) for name in _nncontext.__all__})
globals().update(_nncontext.bind(OrcaContext))
ZooContext = OrcaContext

__all__ = [*_nncontext.__all__, *_nncontext.STARTERS, "OrcaContext", "ZooContext"]
