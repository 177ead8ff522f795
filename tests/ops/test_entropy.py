from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from trisect.errors import DataError
from trisect.ops import cross_entropy


def pair(rows: int, classes: int, dtype: torch.dtype, weighted: bool, seed: int = 0):
    generator = torch.Generator().manual_seed(seed)
    logits = (4 * torch.randn(rows, classes, generator=generator, dtype=torch.float64)).to(dtype)
    labels = torch.randint(classes, (rows,), generator=generator)
    weights = torch.rand(classes, generator=generator, dtype=torch.float64).to(dtype) if weighted else None
    return logits.requires_grad_(), labels, weights


def compare(logits, labels, weights, tolerance):
    ours = cross_entropy(logits, labels, weights)
    (gradient,) = torch.autograd.grad(3 * ours, logits)
    exact = logits.detach().double().requires_grad_()
    theirs = functional.cross_entropy(exact, labels, None if weights is None else weights.double(), reduction="sum")
    (expected,) = torch.autograd.grad(3 * theirs, exact)
    torch.testing.assert_close(ours.double(), theirs, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(gradient.double(), expected, rtol=tolerance, atol=tolerance)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 70), st.sampled_from([1, 2, 3, 7, 8, 9, 40]), st.booleans(), st.integers(0, 5))
def test_equals_torch(rows, classes, weighted, seed):
    compare(*pair(rows, classes, torch.float64, weighted, seed), 1e-12)
    compare(*pair(rows, classes, torch.float32, weighted, seed), 2e-5)


@pytest.mark.parametrize(("rows", "classes"), [(5000, 2), (3, 5000), (3000, 47)])
def test_equals_torch_on_many_rows_or_classes(rows, classes):
    compare(*pair(rows, classes, torch.float64, True), 1e-11)


def test_the_comparison_notices_a_wrong_label():
    logits, labels, _ = pair(9, 3, torch.float64, False)
    wrong = labels.clone()
    wrong[4] = (wrong[4] + 1) % 3
    assert (
        abs(
            float(
                cross_entropy(logits.detach(), wrong)
                - functional.cross_entropy(logits.detach(), labels, reduction="sum")
            )
        )
        > 1e-3
    )


def test_rows_at_a_distance():
    wide, labels, _ = pair(20, 9, torch.float32, False)
    compare(wide.detach()[:, 2:6].requires_grad_(), labels % 4, None, 2e-5)


def test_threads_do_not_change_a_bit():
    logits, labels, weights = pair(4000, 5, torch.float32, True)
    before = torch.get_num_threads()
    found = []
    for threads in (1, 3):
        torch.set_num_threads(threads)
        loss = cross_entropy(logits, labels, weights)
        found.append((loss.detach(), *torch.autograd.grad(loss, logits)))
    torch.set_num_threads(before)
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


def test_far_apart_infinite_and_missing_numbers():
    logits = torch.tensor([[1000.0, -1000.0], [0.0, float("-inf")], [0.0, 1.0]])
    assert float(cross_entropy(logits[:1], torch.tensor([0]))) == 0.0
    assert float(cross_entropy(logits[:1], torch.tensor([1]))) == 2000.0
    assert float(cross_entropy(logits[1:2], torch.tensor([1]))) == float("inf")
    logits[2, 0] = float("nan")
    assert torch.isnan(cross_entropy(logits, torch.tensor([0, 0, 0])))


@pytest.mark.parametrize("label", [-1, 2])
def test_a_label_that_is_no_class(label):
    with pytest.raises(DataError, match=f"{label}.*between 0 and 1"):
        cross_entropy(torch.zeros(2, 2), torch.tensor([1, label]))


def test_labels_of_another_integer_type():
    logits, labels, _ = pair(9, 3, torch.float64, False)
    assert torch.equal(cross_entropy(logits, labels.int()), cross_entropy(logits, labels))


def test_shapes_that_do_not_fit():
    with pytest.raises(DataError, match=r"weights have shape \(3,\); \(2,\)"):
        cross_entropy(torch.zeros(3, 2), torch.zeros(3, dtype=torch.int64), torch.ones(3))
    with pytest.raises(DataError, match=r"\(3, 2\) and labels \(2,\)"):
        cross_entropy(torch.zeros(3, 2), torch.zeros(2, dtype=torch.int64))
