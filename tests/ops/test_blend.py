"""Fresh rows in place of those that are seen: the native kernel against torch's operations."""

from __future__ import annotations

import pytest
import torch

from trisect.ops import blend


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rows_and_mean_are_those_of_torch(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    seen, fresh, mean = torch.randn(3, 7, 5, dtype=dtype, generator=torch.Generator().manual_seed(0)).unbind()
    native, plain = [[part.clone() for part in (seen, fresh, mean)] for _ in range(2)]
    blend.replace_rows(*native, 0.2)
    monkeypatch.setattr(blend, "usable", lambda *tensors: False)
    blend.replace_rows(*plain, 0.2)
    for one, other in zip(native, plain, strict=True):
        assert torch.allclose(one, other, rtol=1e-6)
    assert torch.equal(native[0], fresh)
    assert torch.allclose(native[2], 0.8 * seen + 0.2 * fresh, rtol=1e-5)
    assert not torch.allclose(native[2], 0.7 * seen + 0.3 * fresh, rtol=1e-5)
