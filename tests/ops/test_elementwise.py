"""Rows that two read: their gradients are added as autograd would, in memory of the pool."""

from __future__ import annotations

import pytest
import torch

from trisect.ops.elementwise import twice
from trisect.ops.memory import empty, is_pooled

SHAPE = (3, 200, 64)  # large enough for the pool


def rows(shape=SHAPE, dtype=torch.float64):
    generator = torch.Generator().manual_seed(3)
    return torch.randn(shape, generator=generator, dtype=dtype).requires_grad_()


def test_gradients_of_both_readers_are_added():
    x = rows()
    first, second = twice(x)
    assert first.data_ptr() == second.data_ptr() == x.data_ptr()  # nothing is copied
    (gradient,) = torch.autograd.grad((first * 2.0).sum() + (second**2).sum(), x)
    torch.testing.assert_close(gradient, 2.0 + 2.0 * x.detach(), rtol=0, atol=0)
    # one reader alone is not enough
    (alone,) = torch.autograd.grad((twice(x)[0] * 2.0).sum(), x)
    assert not torch.equal(alone, gradient)


@pytest.mark.parametrize("reader", [0, 1])
def test_a_reader_without_a_gradient_adds_nothing(reader):
    x = rows()
    (gradient,) = torch.autograd.grad((twice(x)[reader] * 3.0).sum(), x)
    torch.testing.assert_close(gradient, torch.full_like(x, 3.0), rtol=0, atol=0)


def test_the_sum_lies_in_the_pool():
    seen = []
    x = rows()
    middle = x * 1.0
    middle.register_hook(lambda gradient: seen.append(is_pooled(gradient)))
    first, second = twice(middle)
    (first.sum() + (2.0 * second).sum()).backward()
    plain = x * 1.0
    plain.register_hook(lambda gradient: seen.append(is_pooled(gradient)))
    (plain.sum() + (2.0 * plain).sum()).backward()
    assert seen == [True, False]


def test_small_rows_and_rows_that_nothing_is_trained_through_stay_as_they_are():
    small, fixed = rows((2, 3, 4)), empty(SHAPE).fill_(1.0)
    for x in (small, fixed):
        assert all(one is x for one in twice(x))
