"""Spark and Orca's workers beside it, as BigDL 2.x started them."""

from bigdl.orca.common import OrcaContext
from orca.adapters import spark

_nncontext = spark.load("orca.adapters.spark.nncontext")

globals().update({name: getattr(_nncontext, name) for name in _nncontext.__all__})
globals().update(_nncontext.bind(OrcaContext))
ZooContext = OrcaContext

__all__ = [*_nncontext.__all__, *_nncontext.STARTERS, "OrcaContext", "ZooContext"]
