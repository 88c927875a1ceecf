"""NNFrames: models of torch as Estimators and Transformers of ``pyspark.ml``.

``bigdl.dllib.nnframes`` and ``zoo.pipeline.nnframes`` are this module.
"""

from __future__ import annotations

import copy
import dataclasses
import uuid
from typing import Any

from pyspark.ml import Estimator, Model
from pyspark.ml.functions import vector_to_array
from pyspark.ml.linalg import VectorUDT
from pyspark.ml.param import Param, Params, TypeConverters
from pyspark.ml.param.shared import HasFeaturesCol, HasLabelCol, HasPredictionCol
from pyspark.ml.util import (
    DefaultParamsReader,
    DefaultParamsWriter,
    MLReadable,
    MLReader,
    MLWritable,
    MLWriter,
)
from pyspark.mllib.linalg import VectorUDT as OldVectorUDT
from pyspark.mllib.util import MLUtils
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, NumericType

from orca.adapters.torch.wrappers import (
    Shaped,
    TorchLoss,
    TorchModel,
    TorchOptim,
    is_double,
)
from orca.context import active_context
from orca.errors import FailedPreconditionError, InvalidArgumentError
from orca.learn import optimizers
from orca.learn.preprocessing import FeatureLabelPreprocessing, Sizes, read_sizes
from orca.learn.pytorch.callbacks.base import Callback
from orca.learn.pytorch.estimator import Estimator as TorchEstimators
from orca.learn.trigger import EveryEpoch, MaxEpoch, MaxIteration, Trigger

__all__ = ["NNClassifier", "NNClassifierModel", "NNEstimator", "NNModel"]

_FOREVER = 1 << 30
_PART = 64 << 20  # Bytes of a model in one record of Spark.


class _HasColumns(HasFeaturesCol, HasPredictionCol):
    """The columns and the batch of Estimators and Models."""

    batchSize: Param[int] = Param(
        Params._dummy(), "batchSize", "rows of a step, over all workers", TypeConverters.toInt
    )

    def setFeaturesCol(self, value: str) -> Any:
        """The column with the features; "features" by default."""
        return self._set(featuresCol=value)

    def setPredictionCol(self, value: str) -> Any:
        """The column that predictions go to; "prediction" by default."""
        return self._set(predictionCol=value)

    def setBatchSize(self, value: int) -> Any:
        """Rows of a step, over all workers together."""
        return self._set(batchSize=value)

    def getBatchSize(self) -> int:
        """Rows of a step."""
        return self.getOrDefault(self.batchSize)


class NNEstimator(Estimator, _HasColumns, HasLabelCol):  # type: ignore[misc]
    """Trains a model on the columns of a DataFrame.

    Args:
        model: A ``TorchModel``, or a ``torch.nn.Module``.
        criterion: A ``TorchLoss``, a loss of torch, or a function of output and target.
        feature_preprocessing: None: rows reach the model flat. A list of numbers: the shape of a row.
            A list of such lists: the model has several inputs, cut from the one column. Or a
            ``Preprocessing`` of ``bigdl.dllib.feature.common``; one of features and labels is for both.
        label_preprocessing: None, ``[n]``, how many numbers a label has, or a ``Preprocessing``.
        jvalue: Accepted.
        bigdl_type: Accepted.
    """

    maxEpoch: Param[int] = Param(
        Params._dummy(), "maxEpoch", "passes over the rows", TypeConverters.toInt
    )
    learningRate: Param[float] = Param(
        Params._dummy(), "learningRate", "in the place of the optimizer's", TypeConverters.toFloat
    )
    learningRateDecay: Param[float] = Param(
        Params._dummy(), "learningRateDecay", "of SGD", TypeConverters.toFloat
    )
    cachingSample: Param[bool] = Param(
        Params._dummy(), "cachingSample", "accepted", TypeConverters.toBoolean
    )

    def __init__(
        self,
        model: Any,
        criterion: Any,
        feature_preprocessing: Any = None,
        label_preprocessing: Any = None,
        jvalue: Any = None,
        bigdl_type: str = "float",
    ) -> None:
        super().__init__()
        self.model = TorchModel.from_pytorch(model)
        self.criterion = TorchLoss.from_pytorch(criterion)
        self._sizes: Sizes = None
        self._set_preprocessing(feature_preprocessing, label_preprocessing)
        self._setDefault(
            batchSize=1, maxEpoch=50, learningRate=1e-3, learningRateDecay=0.0, cachingSample=True
        )
        self._optim_method: Any = None
        self._end_when: Any = None
        self._validation: tuple[Any, DataFrame, Any, int] | None = None
        self._checkpoint: tuple[str, Any] | None = None
        self._clip: tuple[float, ...] = ()
        self._cache_level: tuple[str, int | None] = ("DRAM", None)

    def setLabelCol(self, value: str) -> Any:
        """The column with the labels; "label" by default."""
        return self._set(labelCol=value)

    def setMaxEpoch(self, value: int) -> Any:
        """Passes over the rows; 50 by default."""
        return self._set(maxEpoch=value)

    def getMaxEpoch(self) -> int:
        """Passes over the rows."""
        return self.getOrDefault(self.maxEpoch)

    def setLearningRate(self, value: float) -> Any:
        """In the place of the optimizer's own."""
        return self._set(learningRate=value)

    def getLearningRate(self) -> float:
        """The learning rate that was set, or 1e-3."""
        return self.getOrDefault(self.learningRate)

    def setLearningRateDecay(self, value: float) -> Any:
        """Of the default optimizer, SGD."""
        return self._set(learningRateDecay=value)

    def getLearningRateDecay(self) -> float:
        """Of the default optimizer."""
        return self.getOrDefault(self.learningRateDecay)

    def setCachingSample(self, value: bool) -> Any:
        """Accepted: rows are in shared memory while they are trained on."""
        return self._set(cachingSample=value)

    def isCachingSample(self) -> bool:
        """What was set."""
        return self.getOrDefault(self.cachingSample)

    def setSamplePreprocessing(self, value: Any) -> Any:
        """A ``FeatureLabelPreprocessing``, in the place of those that were given before."""
        self._set_preprocessing(value, None)
        return self

    def _set_preprocessing(self, feature: Any, label: Any) -> None:
        sizes = read_sizes("feature_preprocessing", feature)
        label_sizes = read_sizes("label_preprocessing", label)
        if label is None and isinstance(feature, FeatureLabelPreprocessing):
            label_sizes = feature.label_sizes
        if len(label_sizes or ()) > 1:
            raise InvalidArgumentError(
                f"label_preprocessing {label!r} wants several labels; give one column"
            )
        self._sizes = sizes

    def setDataCacheLevel(self, level: str, numSlice: int | None = None) -> Any:
        """Accepted: rows beyond the memory for them are in files, whatever the level.

        Args:
            level: "DRAM" or "DISK_AND_DRAM".
            numSlice: Accepted.
        """
        if level.upper() not in ("DRAM", "DISK_AND_DRAM"):
            raise InvalidArgumentError(
                f'data cache level {level!r} is not known; give "DRAM" or "DISK_AND_DRAM"'
            )
        self._cache_level = (level.upper(), numSlice)
        return self

    def getDataCacheLevel(self) -> Any:
        """What was set, or "DRAM"."""
        level, slices = self._cache_level
        return level if slices is None else (level, slices)

    def setOptimMethod(self, value: Any) -> Any:
        """A ``TorchOptim``, or one of ``orca.learn.optimizers``; SGD by default."""
        if not isinstance(value, TorchOptim | optimizers.Optimizer):
            value = TorchOptim.from_pytorch(value)
        self._optim_method = value
        return self

    def getOptimMethod(self) -> Any:
        """What was set, or None."""
        return self._optim_method

    def setEndWhen(self, trigger: Trigger) -> Any:
        """Ends training when the trigger fires; in the place of ``setMaxEpoch``."""
        self._end_when = trigger
        return self

    def getEndWhen(self) -> Any:
        """What was set, or None."""
        return self._end_when

    def setValidation(
        self, trigger: Any, val_df: DataFrame, val_method: Any, batch_size: int
    ) -> Any:
        """Evaluates on ``val_df`` after every epoch.

        Args:
            trigger: ``EveryEpoch()``.
            val_df: With the columns that are trained on.
            val_method: Validation methods or metrics.
            batch_size: Accepted; the result does not depend on it.
        """
        if not isinstance(trigger, EveryEpoch):
            raise InvalidArgumentError(
                f"setValidation with {trigger!r} is not in this release; give EveryEpoch()"
            )
        self._validation = (trigger, val_df, val_method, batch_size)
        return self

    def getValidation(self) -> Any:
        """What was set, or None."""
        return self._validation

    def setCheckpoint(self, path: str, trigger: Any, isOverWrite: bool = True) -> Any:
        """Writes a checkpoint below ``path`` whenever the trigger fires."""
        self._checkpoint = (path, trigger)
        return self

    def getCheckpoint(self) -> Any:
        """What was set, or None."""
        return self._checkpoint

    def setConstantGradientClipping(self, min: float, max: float) -> Any:
        """Keeps every element of the gradient between two numbers."""
        self._clip = (min, max)
        return self

    def setGradientClippingByL2Norm(self, clip_norm: float) -> Any:
        """Limits the 2-norm of the gradient."""
        self._clip = (clip_norm,)
        return self

    def clearGradientClipping(self) -> Any:
        """Gradients stay as they are."""
        self._clip = ()
        return self

    def _fit(self, dataset: DataFrame) -> NNModel:
        _check_context()
        ends = self._end()
        estimator, callbacks = self._estimator()
        columns = {"feature_cols": ["features"], "label_cols": ["label"]}
        validation = {}
        if self._validation is not None:
            validation["validation_data"] = self._rows(self._validation[1])
            validation["validation_methods"] = self._validation[2]
        estimator.fit(
            self._rows(dataset),
            batch_size=self.getBatchSize(),
            callbacks=[*callbacks, *ends.pop("callbacks", ())],
            checkpoint_trigger=None if self._checkpoint is None else self._checkpoint[1],
            **columns,
            **validation,
            **ends,
        )
        trained = estimator.get_model()
        estimator.shutdown()
        found = trained.model if isinstance(trained, Shaped) else trained
        made = self._make_model(TorchModel(found), self._sizes)
        made._set(featuresCol=self.getFeaturesCol(), predictionCol=self.getPredictionCol())
        return made

    def _make_model(self, model: TorchModel, sizes: Any) -> NNModel:
        return NNModel(model, sizes)

    def _rows(self, data: DataFrame) -> DataFrame:
        """Features and labels alone, each an array or a vector."""
        features, label = self.getFeaturesCol(), self.getLabelCol()
        data = _with_new_vectors(data.select(features, label), features, label)
        return data.select(
            _as_array(data, features).alias("features"), _as_array(data, label).alias("label")
        )

    def _estimator(self) -> tuple[Any, list[Callback]]:
        rate = self.getLearningRate() if self.isSet(self.learningRate) else None
        model, method = self.model.module, self._optim_method
        scheduler, step_freq, callbacks = None, "epoch", []
        if isinstance(method, TorchOptim):
            model, optimizer, scheduler = method.of(model, rate)
            step_freq, callbacks = method.step_freq, method.callbacks()
        else:
            model = copy.deepcopy(model)
            optimizer = self._sgd() if method is None else method
            if rate is not None:
                optimizer = dataclasses.replace(optimizer, learningrate=rate, bigdl_type="float")
        estimator = TorchEstimators.from_torch(
            model=_takes_rows(model, self._sizes),
            optimizer=optimizer,
            loss=self.criterion.for_training(),
            scheduler_creator=scheduler,
            scheduler_step_freq=step_freq,
            model_dir=None if self._checkpoint is None else self._checkpoint[0],
            backend="bigdl",
        )
        if len(self._clip) == 2:
            estimator.set_constant_gradient_clipping(*self._clip)
        elif self._clip:
            estimator.set_l2_norm_gradient_clipping(*self._clip)
        return estimator, callbacks

    def _sgd(self) -> optimizers.SGD:
        return optimizers.SGD(
            learningrate=self.getLearningRate(), learningrate_decay=self.getLearningRateDecay()
        )

    def _end(self) -> dict[str, Any]:
        """When training ends, as arguments of ``fit``."""
        when = self._end_when
        if when is None:
            return {"epochs": self.getMaxEpoch()}
        if self.isSet(self.maxEpoch):
            raise InvalidArgumentError("endWhen and maxEpoch cannot be both set")
        if isinstance(when, MaxEpoch):
            return {"epochs": when._arguments[0]}
        if isinstance(when, MaxIteration):
            return {"epochs": _FOREVER, "max_steps": when._arguments[0]}
        return {"epochs": _FOREVER, "callbacks": [_EndWhen(when)]}


class _ModelWriter(MLWriter):
    """Writes a model wherever Spark can write; what says that it is one comes last."""

    def __init__(self, instance: NNModel) -> None:
        super().__init__()
        self._instance = instance

    def saveImpl(self, path: str) -> None:
        data = self._instance.model.to_bytes()
        parts = [data[at : at + _PART] for at in range(0, len(data), _PART)]
        rows = self.sc.parallelize(list(enumerate(parts)), len(parts))
        rows.saveAsPickleFile(f"{path}/model")
        sizes = self._instance._sizes
        DefaultParamsWriter.saveMetadata(self._instance, path, self.sc, {"sizes": sizes})


class _ModelReader(MLReader[Any]):
    """Reads what ``_ModelWriter`` wrote. It may run code: read only what you trust."""

    def __init__(self, kind: type[NNModel]) -> None:
        super().__init__()
        self._kind = kind

    def load(self, path: str) -> Any:
        name = f"{self._kind.__module__}.{self._kind.__name__}"
        metadata = DefaultParamsReader.loadMetadata(path, self.sc, name)
        parts = sorted(self.sc.pickleFile(f"{path}/model").collect())
        model = TorchModel.from_bytes(b"".join(part for _, part in parts))
        made = self._kind(model, metadata["sizes"])
        made._resetUid(metadata["uid"])
        DefaultParamsReader.getAndSetParams(made, metadata)
        return made


class NNModel(Model, _HasColumns, MLWritable, MLReadable[Any]):  # type: ignore[misc]
    """Predicts the rows of a DataFrame.

    ``save(path)``, ``write().overwrite().save(path)`` and ``NNModel.load(path)`` are those of ``pyspark.ml``, also within a
    PipelineModel. What is loaded may run code: load only what you trust.

    Args:
        model: A ``TorchModel``, or a ``torch.nn.Module``.
        feature_preprocessing: As that of ``NNEstimator``.
        jvalue: Accepted.
        bigdl_type: Accepted.
    """

    def __init__(
        self,
        model: Any,
        feature_preprocessing: Any = None,
        jvalue: Any = None,
        bigdl_type: str = "float",
    ) -> None:
        super().__init__()
        self.model = TorchModel.from_pytorch(model)
        self._sizes = read_sizes("feature_preprocessing", feature_preprocessing)
        context = active_context()
        self._setDefault(batchSize=4 * (1 if context is None else int(context.native.cores)))

    def getModel(self) -> TorchModel:
        """The model."""
        return self.model

    def write(self) -> MLWriter:
        """What saves it."""
        return _ModelWriter(self)

    @classmethod
    def read(cls) -> MLReader[Any]:
        """What loads one."""
        return _ModelReader(cls)

    def _transform(self, dataset: DataFrame) -> DataFrame:
        _check_context()
        module = self.model.to_pytorch()
        estimator = TorchEstimators.from_torch(
            model=_takes_rows(module, self._sizes), backend="bigdl"
        )
        features = self.getFeaturesCol()
        dataset = _with_new_vectors(dataset, features)
        # What a model takes is a row of numbers; the user's own column stays as it is.
        rows, outputs = (f"{name}_{uuid.uuid4().hex[:8]}" for name in ("rows", "outputs"))
        found = estimator.predict(
            dataset.withColumn(rows, _as_array(dataset, features)),
            feature_cols=[rows],
            output_cols=[outputs],
            batch_size=self.getBatchSize() if self.isSet(self.batchSize) else None,
        )
        prediction = self._read(_as_numbers(found, outputs, is_double(module)))
        return found.withColumn(self.getPredictionCol(), prediction).drop(rows, outputs)

    def _read(self, outputs: Column) -> Column:
        """The prediction of a row, from the outputs of the model."""
        return outputs


class NNClassifier(NNEstimator):
    """As ``NNEstimator``, for labels that are classes: one number a row."""

    def __init__(
        self,
        model: Any,
        criterion: Any,
        feature_preprocessing: Any = None,
        jvalue: Any = None,
        bigdl_type: str = "float",
    ) -> None:
        super().__init__(model, criterion, feature_preprocessing, None, jvalue, bigdl_type)

    def _make_model(self, model: TorchModel, sizes: Any) -> NNModel:
        return NNClassifierModel(model, sizes)


class NNClassifierModel(NNModel):
    """As ``NNModel``; the prediction is a class.

    Of a single output: 1.0 when it is above 0.5, else 0.0. Of several: which one is the largest,
    counted from 1, as BigDL counted.
    """

    threshold: Param[float] = Param(
        Params._dummy(), "threshold", "accepted; 0.5 is used", TypeConverters.toFloat
    )

    def __init__(
        self,
        model: Any,
        feature_preprocessing: Any = None,
        jvalue: Any = None,
        bigdl_type: str = "float",
    ) -> None:
        super().__init__(model, feature_preprocessing, jvalue, bigdl_type)
        self._setDefault(threshold=0.5)

    def setThreshold(self, value: float) -> Any:
        """Kept; the originals did not use it either."""
        return self._set(threshold=value)

    def getThreshold(self) -> float:
        """What was set."""
        return self.getOrDefault(self.threshold)

    def _read(self, outputs: Column) -> Column:
        one = F.when(outputs[0] > 0.5, 1.0).otherwise(0.0)
        largest = F.array_position(outputs, F.array_max(outputs)).cast("double")
        return F.when(F.size(outputs) == 1, one).otherwise(largest)


class _EndWhen(Callback):
    """Ends training when a trigger fires."""

    def __init__(self, trigger: Trigger) -> None:
        self._trigger = trigger
        self._asked: Any = None
        self._score = float("nan")

    def on_train_begin(self) -> None:
        self._asked = self._trigger.get_trigger()

    def on_batch_end(self, batch: int, logs: Any = None) -> None:
        runner = self.trainer
        loss = float(logs["train_loss"])
        if self._asked.fires(runner.epochs + 1, runner.global_step + 1, loss, self._score):
            runner.stop = True

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        runner = self.trainer
        known = ("epoch", "batch_count", "num_samples", "train_loss", "last_train_loss")
        scores = [n for n in logs if n not in (*known, "val_loss", "val_num_samples")]
        if scores:
            self._score = float(logs[scores[0]])
        loss = float(logs["last_train_loss"])
        if self._asked.fires(runner.epochs + 1, runner.global_step + 1, loss, self._score):
            runner.stop = True


def _check_context() -> None:
    if active_context() is None:
        raise FailedPreconditionError(
            "there is no Orca context for NNFrames; call init_nncontext(), init_spark_on_local() or "
            "init_orca_context() first"
        )


def _with_new_vectors(data: DataFrame, *columns: str) -> DataFrame:
    """Vectors of ``pyspark.mllib`` become those of ``pyspark.ml``."""
    old = [c for c in columns if isinstance(data.schema[c].dataType, OldVectorUDT)]
    return MLUtils.convertVectorColumnsToML(data, *old) if old else data


def _as_array(data: DataFrame, column: str) -> Column:
    """A column as an array or a vector; a number as an array of one."""
    kind = data.schema[column].dataType
    if isinstance(kind, NumericType):
        return F.array(F.col(column).cast("double"))
    if isinstance(kind, VectorUDT | ArrayType):
        return F.col(column)
    raise InvalidArgumentError(
        f"column {column!r} is of type {kind.simpleString()}; NNFrames take numbers, arrays and vectors"
    )


def _as_numbers(data: DataFrame, column: str, double: bool) -> Column:
    """The outputs of a model as an array."""
    kind = data.schema[column].dataType
    if isinstance(kind, VectorUDT):
        return vector_to_array(F.col(column), "float64" if double else "float32")
    element = "double" if double else "float"
    if isinstance(kind, ArrayType):
        return F.col(column).cast(f"array<{element}>")
    return F.array(F.col(column).cast(element))


def _takes_rows(model: Any, sizes: Sizes) -> Any:
    """A model of rows as they come from columns: flat, and float32."""
    return Shaped(model, sizes) if sizes is not None or is_double(model) else model
