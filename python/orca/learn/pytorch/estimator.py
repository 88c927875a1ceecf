"""``Estimator.from_torch``, for every import root."""

from __future__ import annotations

from typing import Any

from orca.context import active_context
from orca.errors import FailedPreconditionError, InvalidArgumentError
from orca.generations import ORCA, Generation
from orca.learn.metrics import Metric
from orca.learn.optimizers import SGD
from orca.outputs import read_level

__all__ = ["Estimator", "bind"]

_BACKENDS = ("bigdl", "torch_distributed", "ray", "spark", "horovod")


def bind(generation: Generation, settings: Any = None) -> Any:
    """The Estimator of an import root, with the settings of its ``OrcaContext``."""

    class Estimator:
        """Makes Estimators of PyTorch models."""

        @staticmethod
        def from_torch(
            *,
            model: Any = None,
            optimizer: Any = None,
            loss: Any = None,
            metrics: Any = None,
            backend: str | None = None,
            config: dict[str, Any] | None = None,
            workers_per_node: int | None = None,
            scheduler_creator: Any = None,
            scheduler_step_freq: str | None = None,
            training_operator_cls: Any = None,
            initialization_hook: Any = None,
            use_tqdm: bool = False,
            model_dir: str | None = None,
            sync_stats: bool = False,
            log_level: int | str | None = None,
            log_to_driver: bool = True,
            elementwise: bool | None = None,
            sync_batchnorm: bool = False,
            device: Any = None,
            oversubscribe: bool = False,
        ) -> Any:
            """An Estimator of a PyTorch model.

            Args:
                model: A ``torch.nn.Module``, or a creator ``f(config)`` of one.
                optimizer: A torch optimizer over the model's parameters, an optimizer of
                    ``orca.learn.optimizers``, or a creator ``f(model, config)``.
                loss: A torch loss, a function of output and target, or a creator ``f(config)``.
                metrics: Of ``orca.learn.metrics``; one or a list.
                backend: ``"bigdl"``, ``"torch_distributed"``, ``"ray"``, ``"spark"`` or ``"horovod"``;
                    all run on the workers of the context, and differ in what their names meant.
                config: For the creators.
                workers_per_node: How many workers train, but for backend ``"bigdl"``: one a core.
                    By default 1, on GPUs one a GPU.
                scheduler_creator: ``f(optimizer, config)`` of a learning rate scheduler.
                scheduler_step_freq: ``"batch"``, ``"epoch"``, ``"manual"`` or None.
                training_operator_cls: A training loop of your own.
                initialization_hook: Called on every worker before it makes the model.
                use_tqdm: Whether to show a progress bar.
                model_dir: Where checkpoints go.
                sync_stats: Accepted; statistics are always those of all workers.
                log_level: The least that the workers log; None: as in the driver. The driver's own
                    loggers have their levels beside it.
                log_to_driver: Whether the driver shows what the workers print and log during calls of this
                    Estimator. Else only ``orca logs`` does.
                elementwise: Whether the optimizer treats every element by itself, so that workers
                    can share one copy of the weights; None: known for torch's own.
                sync_batchnorm: Whether batch norms see the rows of all workers; else each worker's
                    own, as with DDP.
                device: ``"cuda"``: every worker has a GPU of its own, as many as there are;
                    ``"cuda:1"``: one worker on that GPU; None or ``"cpu"``: the CPU. Also a
                    ``torch.device``.
                oversubscribe: Permits more than four workers per core.

            Returns:
                The Estimator.
            """
            with generation.errors():
                return _make(
                    generation,
                    (generation.torch_backend if backend is None else backend),
                    model=model,
                    optimizer=optimizer,
                    loss=loss,
                    metrics=metrics,
                    config=config,
                    workers_per_node=workers_per_node,
                    scheduler=scheduler_creator,
                    step_freq=generation.scheduler_step_freq
                    if scheduler_step_freq is None
                    else scheduler_step_freq,
                    model_dir=model_dir,
                    use_tqdm=use_tqdm,
                    log_level=read_level(log_level),
                    log_to_driver=log_to_driver,
                    elementwise=elementwise,
                    sync_batchnorm=sync_batchnorm,
                    device=device,
                    oversubscribe=oversubscribe,
                    operator=training_operator_cls,
                    hook=initialization_hook,
                    settings=settings,
                )

        @staticmethod
        def from_mmcv(**given: Any) -> Any:
            """Not in this release."""
            with generation.errors():
                raise FailedPreconditionError(
                    "Estimator.from_mmcv is not in this release: mmcv 1.x, which it ran, has no build "
                    "for today's torch; give the model to from_torch, with a TrainingOperator for "
                    "its loop"
                )

    return Estimator


def _make(generation: Generation, backend: str, **given: Any) -> Any:
    name = backend.lower() if isinstance(backend, str) else backend
    if name not in _BACKENDS:
        raise InvalidArgumentError(
            f"Only {', '.join(_BACKENDS)} backends are supported for now, got backend: {backend}"
        )
    config = dict(given["config"] or {})
    if "batch_size" in config:
        raise InvalidArgumentError(
            "Please do not specify batch_size in config. Input batch_size in the fit/evaluate/predict "
            "function of the estimator instead."
        )
    from orca.adapters.torch.devices import read_device
    from orca.adapters.torch.estimator import TorchEstimator
    from orca.adapters.torch.session import ModelSpec

    if (context := active_context()) is not None:
        context.kind()  # Its workers are prepared while the program goes on.
    if given["optimizer"] is None and name == "bigdl":
        given["optimizer"] = SGD(learningrate=1e-3)
    metrics = given["metrics"]
    listed = metrics if isinstance(metrics, list | tuple) else [metrics]
    for metric in () if metrics is None else listed:
        if not isinstance(metric, Metric) and not (
            generation.functions_as_metrics and callable(metric)
        ):
            also = " and customized functions" if generation.functions_as_metrics else ""
            raise InvalidArgumentError(
                f"Only orca metrics{also} are supported, but get {type(metric).__name__}"
            )
    spec = ModelSpec(
        model=given["model"],
        optimizer=given["optimizer"],
        loss=given["loss"],
        scheduler=given["scheduler"],
        metrics=tuple(metrics)
        if isinstance(metrics, list | tuple)
        else (() if metrics is None else (metrics,)),
        config=config,
        step_freq=given["step_freq"],
        elementwise=given["elementwise"],
        sync_batchnorm=given["sync_batchnorm"],
        operator=given["operator"],
        hook=given["hook"],
        device=read_device(given["device"]),
    )
    return TorchEstimator(
        spec,
        generation,
        name,
        workers_per_node=given["workers_per_node"],
        oversubscribe=given["oversubscribe"],
        model_dir=given["model_dir"],
        use_tqdm=given["use_tqdm"],
        log_level=given["log_level"],
        log_to_driver=given["log_to_driver"],
        settings=given["settings"],
    )


Estimator = bind(ORCA)
