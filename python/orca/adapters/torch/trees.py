"""Tensors on their way between processes: state dicts whose tensors lie in shared memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch

from orca.data import Shard, SharedBlock

# What numpy has no name for travels as whole numbers of the same size.
_AS_BITS = {torch.bfloat16: torch.int16}
_PLAIN = (bool, int, float, str, type(None))  # To ask whether these are tensors takes longer.


def type_name(tensor: torch.Tensor) -> str:
    """The engine's name of a tensor's type: "float32"."""
    return str(tensor.dtype).removeprefix("torch.")


class BlockTensor:
    """A tensor in a block that changes as training goes on."""

    def __init__(self, block: SharedBlock, dtype: str, shape: tuple[int, ...], offset: int) -> None:
        self.block, self.dtype, self.shape, self.offset = block, dtype, shape, offset

    def tensor(self) -> torch.Tensor:
        """The memory itself."""
        dtype = getattr(torch, self.dtype)
        bits = _AS_BITS.get(dtype, dtype)
        name = str(bits).removeprefix("torch.")
        array = self.block.array(name, self.shape, self.offset)
        return torch.from_numpy(array).view(dtype)


class _Packed:
    """A tensor as an array, which travels beside the pickle and not inside."""

    def __init__(self, tensor: torch.Tensor) -> None:
        tensor = tensor.detach().cpu().contiguous()
        self.dtype = type_name(tensor)
        self.shape = tuple(tensor.shape)
        bits = _AS_BITS.get(tensor.dtype, tensor.dtype)
        self.array: np.ndarray[Any, Any] = tensor.reshape(-1).view(bits).numpy()

    def tensor(self) -> torch.Tensor:
        return torch.from_numpy(self.array).view(getattr(torch, self.dtype)).reshape(self.shape)


class _PackedSparse:
    """A sparse tensor as the arrays of its indices and values."""

    def __init__(self, tensor: torch.Tensor) -> None:
        tensor = tensor.detach()
        self.is_coalesced = tensor.is_coalesced()
        self.indices, self.values = _Packed(tensor._indices()), _Packed(tensor._values())
        self.shape = tuple(tensor.shape)

    def tensor(self) -> torch.Tensor:
        return torch.sparse_coo_tensor(
            self.indices.tensor(),
            self.values.tensor(),
            self.shape,
            is_coalesced=self.is_coalesced,
            check_invariants=False,
        )


def _packed(tensor: torch.Tensor) -> _Packed | _PackedSparse:
    return _PackedSparse(tensor) if tensor.layout is torch.sparse_coo else _Packed(tensor)


def map_leaves(tree: Any, change: Callable[[Any], Any]) -> Any:
    """The same dicts, lists and tuples with other leaves."""
    if isinstance(tree, dict):
        return {key: map_leaves(value, change) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        parts = [map_leaves(value, change) for value in tree]
        return type(tree)._make(parts) if hasattr(tree, "_make") else type(tree)(parts)
    return change(tree)


def leaves(tree: Any) -> Iterator[Any]:
    """What is in the dicts, lists and tuples."""
    if isinstance(tree, dict):
        tree = tuple(tree.values())
    if isinstance(tree, list | tuple):
        for value in tree:
            yield from leaves(value)
    else:
        yield tree


def pack(tree: Any) -> Any:
    """A tree that can be sent: tensors as arrays."""

    def sendable(leaf: Any) -> Any:
        if type(leaf) in _PLAIN:
            return leaf
        return _packed(leaf) if isinstance(leaf, torch.Tensor) else leaf

    return map_leaves(tree, sendable)


def unpack(tree: Any, copies: dict[int, SharedBlock] | None = None) -> Any:
    """A tree of tensors that belong to the caller, in the CPU's memory.

    Args:
        tree: Of what ``pack`` gives, and others.
        copies: Blocks that have already been copied, by the address of the original.
    """

    def own(leaf: Any) -> Any:
        if isinstance(leaf, BlockTensor) and copies and leaf.block.address in copies:
            copy = copies[leaf.block.address]
            return BlockTensor(copy, leaf.dtype, leaf.shape, leaf.offset).tensor()
        if isinstance(leaf, BlockTensor | _Packed | _PackedSparse):
            return leaf.tensor().clone()
        if isinstance(leaf, torch.Tensor):
            return leaf.detach().to("cpu", copy=True)
        return leaf

    return map_leaves(tree, own)


class SharedParts:
    """The parts of a pickle in one shard. Who reads them maps the memory; what is written stays the reader's own."""

    _ALIGNMENT = 64  # Of arrays that are read in place.

    def __init__(self, parts: Sequence[Any]) -> None:
        views = [memoryview(part).cast("B") for part in parts]
        self._sizes = tuple(len(view) for view in views)
        begins, end = self._places()
        data = np.zeros(end, np.uint8)
        for begin, view in zip(begins, views, strict=True):
            data[begin : begin + len(view)] = np.frombuffer(view, np.uint8)
        self._shard = Shard(data)
        self.nbytes = end

    def parts(self) -> list[np.ndarray[Any, Any]]:
        """The parts; each call gives memory of its own."""
        data = self._shard.own_view()
        begins, _ = self._places()
        return [data[at : at + size] for at, size in zip(begins, self._sizes, strict=True)]

    def _places(self) -> tuple[list[int], int]:
        begins, end = [], 0
        for size in self._sizes:
            begins.append(end)
            end += -(-size // self._ALIGNMENT) * self._ALIGNMENT
        return begins, end
