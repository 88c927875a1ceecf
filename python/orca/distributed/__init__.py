"""``torch.distributed`` over Orca's collectives.

Importing this registers the backend ``"orca"`` for CPU tensors; nothing else in a script changes.
For CUDA tensors beside them start the group with ``"cpu:orca,cuda:nccl"``.

Example:
    >>> import torch
    >>> import torch.distributed as dist
    >>> import orca.distributed
    >>> store = dist.HashStore()
    >>> dist.init_process_group("orca", store=store, rank=0, world_size=1)
    >>> tensor = orca.distributed.empty(2).fill_(1.0)
    >>> dist.all_reduce(tensor)
    >>> tensor
    tensor([1., 1.])
    >>> dist.destroy_process_group()
"""

try:
    from orca.adapters.torch.backend import Options, empty, is_registered
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    raise ImportError(
        "orca.distributed needs PyTorch 2.13 or newer; run: pip install 'torch>=2.13'"
    ) from error

__all__ = ["Options", "empty", "is_registered"]
