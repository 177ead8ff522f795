"""What hosts that cut the data for themselves must have found alike."""

from __future__ import annotations

from torch import Tensor

from trisect.errors import LayoutError
from trisect.partition.partition import order_digest
from trisect.runtime.exchange import Exchange
from trisect.runtime.ledger import Ledger
from trisect.runtime.mesh import Mesh


def require_one_order(order: Tensor | None, mesh: Mesh) -> None:
    """Raise on all ranks where they have vertices in different orders: each row that crosses would be another's.

    Args:
        order: the user's vertex at each position; None: as given.
    """
    found = Exchange(mesh, Ledger()).gather(None if order is None else order_digest(order))
    others = [str(rank) for rank, digest in enumerate(found) if digest != found[0]]
    if others:
        raise LayoutError(
            f"The graph was cut in another way on the host of rank {', '.join(others)} than on that of rank 0, which"
            " has other libraries or data; install the same releases on all hosts."
        )
