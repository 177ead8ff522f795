"""What hosts that cut the data for themselves must have found alike."""

from __future__ import annotations

from torch import Tensor

from trisect.comm.ledger import Ledger
from trisect.comm.mesh import Mesh
from trisect.comm.transport import Transport
from trisect.errors import LayoutError
from trisect.partition.partition import order_digest


def require_one_order(order: Tensor | None, mesh: Mesh) -> None:
    """Raise on all ranks where they have vertices in different orders: each row that crosses would be another's.

    Args:
        order: the user's vertex at each position; None: as given.
    """
    digests = Transport(mesh, Ledger()).gather(None if order is None else order_digest(order))
    others = [str(rank) for rank, digest in enumerate(digests) if digest != digests[0]]
    if others:
        raise LayoutError(
            f"The graph was cut in another way on the host of rank {', '.join(others)} than on that of rank 0, which"
            " has other libraries or data; install the same releases on all hosts."
        )
