"""Rows of other parts that are read, by one number."""

from __future__ import annotations

import pytest

from trisect.plan.parts import described_parts, effective_degree, halo_share


@pytest.mark.parametrize(("parts", "share"), [(2, 0.4), (8, 2.61), (64, 5.0)])
def test_the_effective_degree_gives_its_halo_back(parts, share):
    degree = effective_degree(share, parts)
    assert halo_share(parts, degree) == pytest.approx(share)
    assert halo_share(parts, 1.1 * degree) > 1.01 * share


def test_halo_grows_with_parts_and_is_bounded():
    shares = [halo_share(parts, 12.0) for parts in (1, 2, 4, 8, 1024)]
    assert shares == sorted(shares)
    assert shares[0] == 0.0
    assert shares[-1] < 12.0


def test_described_parts():
    parts = described_parts(1001, 3, 4, 5.0)
    assert sum(parts.rows) == 1001
    assert parts.remote == (round(halo_share(4, 5.0) * 1001),) * 3
    assert not parts.measured
    assert described_parts(10, 1, 1, 5.0).remote == (0,)
