"""Convolutions and pooling by the engine, against torch's own."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import orca
from orca.adapters.torch.plugin import load_plugin


@pytest.fixture
def plugin() -> Iterator[Any]:
    found = load_plugin()
    threads = torch.get_num_threads()
    torch.manual_seed(1)
    yield found
    torch.set_num_threads(threads)
    found.use_kernels(False)


def both(plugin: Any, compute: Any) -> tuple[Any, Any]:
    """What ``compute`` gives with the engine, and without."""
    plugin.use_kernels(True)
    ours = compute()
    plugin.use_kernels(False)
    return ours, compute()


def gradients(x: Any, weight: Any, bias: Any, **how: Any) -> Any:
    output = F.conv2d(x, weight, bias, **how)
    grad = torch.sin(torch.arange(output.numel(), dtype=output.dtype)).reshape(output.shape)
    wanted = [each for each in (x, weight, bias) if each is not None and each.requires_grad]
    return (output.detach(), *torch.autograd.grad(output, wanted, grad))


def drawn(shape: tuple[int, ...], **options: Any) -> Any:
    return torch.randn(shape, requires_grad=True, **options)


SHAPES = [  # Images, channels, rows, columns, output channels, kernel, padding.
    (5, 1, 28, 28, 20, (5, 5), 0),
    (3, 20, 12, 12, 50, (5, 5), 0),
    (2, 3, 32, 32, 6, (3, 3), 1),
    (1, 1, 9, 17, 7, (3, 2), (1, 1)),
    (2, 2, 6, 5, 3, (2, 4), (0, 2)),
    (4, 5, 7, 7, 9, (7, 7), 3),
    (2, 3, 11, 30, 5, (1, 6), 0),
]


@pytest.mark.parametrize("case", SHAPES, ids=str)
@pytest.mark.parametrize("has_bias", [True, False])
def test_convolutions_are_those_of_doubles(plugin, case, has_bias):
    images, channels, rows, columns, out, kernel, padding = case
    x = drawn((images, channels, rows, columns))
    weight = drawn((out, channels, *kernel))
    bias = drawn((out,)) if has_bias else None
    doubles = (part if part is None else part.detach().double() for part in (x, weight, bias))
    exact = gradients(
        *(part if part is None else part.requires_grad_() for part in doubles), padding=padding
    )
    ours, theirs = both(plugin, lambda: gradients(x, weight, bias, padding=padding))
    for mine, torchs, right in zip(ours, theirs, exact, strict=True):
        assert mine.shape == torchs.shape
        assert mine.stride() == torchs.stride()
        scale = right.abs().max()
        error = (mine - right).abs().max() / scale
        assert error < 4e-6, (error, (torchs - right).abs().max() / scale)


@pytest.mark.parametrize(
    "how",
    [
        {"stride": 2},
        {"dilation": 2},
        {"groups": 2},
        {"padding": 4},  # More than the kernel.
        {"padding": "same"},
        {"padding": "valid"},
    ],
    ids=str,
)
def test_what_the_engine_is_not_made_for_goes_torchs_way(plugin, how):
    x, weight = drawn((2, 2, 12, 12)), drawn((6, 2 // how.get("groups", 1), 3, 3))
    ours, theirs = both(plugin, lambda: gradients(x, weight, None, **how))
    for mine, torchs in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, torchs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_types_go_torchs_way(plugin, dtype):
    x, weight = drawn((2, 1, 12, 12), dtype=dtype), drawn((6, 1, 3, 3), dtype=dtype)
    ours, theirs = both(plugin, lambda: gradients(x, weight, None))
    for mine, torchs in zip(ours, theirs, strict=True):
        assert torch.equal(mine, torchs)


def test_memory_formats_stay_as_torch_has_them(plugin):
    formats = (torch.contiguous_format, torch.channels_last)
    for of_x, of_weight in itertools.product(formats, formats):
        for channels in (1, 3):
            x = drawn((2, channels, 12, 12)).detach().to(memory_format=of_x)
            weight = drawn((6, channels, 3, 3)).detach().to(memory_format=of_weight)
            ours, theirs = both(plugin, lambda x=x, weight=weight: F.conv2d(x, weight))
            assert ours.stride() == theirs.stride(), (of_x, of_weight, channels)
            torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


def test_single_images_and_none_at_all(plugin):
    weight = drawn((6, 1, 3, 3))
    for shape in ((1, 12, 12), (0, 1, 12, 12)):
        ours, theirs = both(plugin, lambda shape=shape: F.conv2d(torch.ones(shape), weight))
        torch.testing.assert_close(ours, theirs)


def test_a_convolution_that_torch_refuses_is_refused_in_its_words(plugin):
    plugin.use_kernels(True)
    with pytest.raises(RuntimeError, match=r"expected input.* to have 2 channels"):
        F.conv2d(torch.ones(1, 1, 12, 12), torch.ones(6, 2, 3, 3))
    with pytest.raises(RuntimeError, match="Kernel size can't be greater"):
        F.conv2d(torch.ones(1, 1, 2, 2), torch.ones(6, 1, 3, 3))
    with pytest.raises(RuntimeError, match="bias"):
        F.conv2d(torch.ones(1, 1, 8, 8), torch.ones(6, 1, 3, 3), torch.ones(5))


def test_a_gradient_of_another_shape_is_refused(plugin):
    x, weight = torch.ones(2, 1, 12, 12), torch.ones(6, 1, 3, 3)
    plugin.use_kernels(True)
    for shape in ((2, 6, 9, 10), (1, 6, 10, 10), (2, 5, 10, 10), (6, 10, 10)):
        with pytest.raises(RuntimeError):
            torch.ops.aten.convolution_backward(
                torch.ones(shape),
                x,
                weight,
                [6],
                [1, 1],
                [0, 0],
                [1, 1],
                False,
                [0, 0],
                1,
                [True, True, True],
            )


def test_gradients_of_gradients(plugin):
    x, weight = drawn((2, 1, 10, 10)), drawn((5, 1, 3, 3))

    def twice() -> Any:
        (first,) = torch.autograd.grad(F.conv2d(x, weight).square().sum(), x, create_graph=True)
        return torch.autograd.grad(first.square().sum(), (x, weight))

    for mine, torchs in zip(*both(plugin, twice), strict=True):
        torch.testing.assert_close(mine, torchs, rtol=1e-4, atol=1e-3)


def test_transforms_of_functions(plugin):
    x, weight = drawn((4, 1, 10, 10)).detach(), drawn((5, 1, 3, 3)).detach()

    def of_one(weight: Any, image: Any) -> Any:
        return F.conv2d(image[None], weight).square().sum()

    ours, theirs = both(
        plugin, lambda: torch.func.vmap(torch.func.grad(of_one), (None, 0))(weight, x)
    )
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


def test_the_bits_do_not_depend_on_threads(plugin):
    plugin.use_kernels(True)
    x, weight, bias = drawn((7, 3, 20, 20)), drawn((50, 3, 5, 5)), drawn((50,))
    found = []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        found.append((*gradients(x, weight, bias), *F.max_pool2d(x, 2, return_indices=True)))
    for others in found[1:]:
        assert all(map(torch.equal, found[0], others))


@pytest.mark.parametrize("shape", [(2, 3, 24, 24), (1, 2, 8, 8), (3, 1, 7, 45), (2, 2, 2, 3)])
def test_pooling_is_torchs_to_the_bit(plugin, shape):
    x = torch.randint(-3, 4, shape).float()
    x[torch.rand(shape) < 0.1] = float("nan")
    x[torch.rand(shape) < 0.1] = -float("inf")
    for options in ({}, {"stride": 1}, {"padding": 1}, {"ceil_mode": True}, {"stride": (2, 1)}):

        def pooled(options: Any = options) -> Any:
            given = x.clone().requires_grad_()
            output, indices = F.max_pool2d(given, 2, return_indices=True, **options)
            (gradient,) = torch.autograd.grad(output.nan_to_num().sum(), given)
            return output.detach(), indices, gradient

        ours, theirs = both(plugin, pooled)
        assert torch.equal(ours[0].nan_to_num(9), theirs[0].nan_to_num(9))
        assert torch.equal(ours[1], theirs[1])
        assert torch.equal(ours[2], theirs[2])


def test_a_model_learns_the_same(plugin):
    def learned() -> Any:
        torch.manual_seed(0)
        model = nn.Sequential(
            *(nn.Conv2d(1, 6, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 10, 3), nn.ReLU()),
            *(nn.Flatten(), nn.Linear(1000, 3)),
        )
        optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
        rows, labels = torch.randn(64, 1, 28, 28), torch.randint(0, 3, (64,))
        losses = []
        for _ in range(15):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(rows), labels)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return torch.tensor(losses)

    ours, theirs = both(plugin, learned)
    assert ours[-1] < ours[0]
    torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-4)


def is_the_engines() -> bool:
    """Whether a convolution's bits are those of the engine, which differ from torch's."""
    torch.manual_seed(0)
    x, weight = drawn((4, 3, 28, 28)), drawn((20, 3, 5, 5))

    def learned() -> Any:
        return gradients(x, weight, None)[2]

    found = learned()
    ours, theirs = both(load_plugin(), learned)
    load_plugin().use_kernels(True)
    assert not torch.equal(ours, theirs)
    return torch.equal(found, ours)


def test_workers_have_them_and_the_driver_has_not(context, plugin):
    assert orca.run(is_the_engines, workers=2) == [True, True]
    assert not is_the_engines()
