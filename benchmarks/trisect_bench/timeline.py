"""An epoch of CD-GCN and EvolveGCN-O on a timeline: Trisect, PyG with torch's LSTM, and PyG Temporal.

Forward, loss, backward and Adam step over all steps. Snapshots are smoothed and normalised beforehand for everyone, and
Trisect also has the first layer's Â_t·X_t, in which nothing is trained, and pairs of snapshots laid over each other.
Each candidate has its own process, turns are interleaved. PyG Temporal's EvolveGCNO has square weights only: a linear
layer widens its input to the hidden size.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from trisect.errors import RunError
from trisect_bench._harness import Candidate, Timing, race

_PEERS = "trisect_bench._timeline_peers"
_MODELS = {
    "cd-gcn": ("PyG GCNConv + torch LSTM", f"{_PEERS}:cd_gcn"),
    "evolvegcn-o": ("PyG Temporal EvolveGCNO", f"{_PEERS}:evolvegcn_o"),
}


def trisect(model: str, hidden: int, layers: int = 2, **sizes: Any) -> Callable[[], float]:
    """One epoch of the model of `trisect.nn`."""
    import torch
    from torch import Tensor, nn

    from trisect import ops
    from trisect.nn import DynamicModel, build
    from trisect.ops.spmm.grouping import prepare
    from trisect.views.view import View
    from trisect_bench._timeline_data import CLASSES, make
    from trisect_bench._timeline_peers import epoch_of

    data = make(**sizes)
    built = build(model, data.x.shape[2], CLASSES, layers=layers, hidden=hidden)
    if not isinstance(built, DynamicModel):
        raise RunError(f"model is {model!r}; this measurement needs a dynamic one.")
    network: DynamicModel = built
    with torch.no_grad():
        sums = View.whole(data.snapshots).aggregate(data.x)
    for snapshot in data.snapshots:
        snapshot.transpose()
    prepare(data.snapshots, hidden, data.x.dtype)

    class Bound(nn.Module):
        """The model with its data."""

        def __init__(self) -> None:
            super().__init__()
            self.network = network

        def forward(self) -> Tensor:
            out: Tensor = self.network(data.x, View.whole(data.snapshots, features=(data.x, sums)))
            return out

    def mean_loss(logits: Tensor, labels: Tensor) -> Tensor:
        return ops.cross_entropy(logits, labels) / labels.numel()

    return epoch_of(Bound(), data.labels, mean_loss)


def run(
    models: Sequence[str] = tuple(_MODELS),
    hidden: Sequence[int] = (6, 32),
    rounds: int = 5,
    threads: int = 2,
    **sizes: Any,
) -> dict[str, Any]:
    """Measure; `sizes` are steps, vertices, edges (new ones a step), life (steps that an edge lives), layers, seed."""
    result: dict[str, Any] = {"threads": threads, "rounds": rounds, "sizes": sizes, "models": {}}
    for model in models:
        name, peer = _MODELS[model]
        for width in hidden:
            arguments = {"hidden": width, **sizes}
            timings = race(
                [
                    Candidate("trisect", "trisect_bench.timeline:trisect", {"model": model, **arguments}),
                    Candidate(name, peer, arguments),
                ],
                rounds=rounds,
                threads=threads,
                report=print,
            )
            if "trisect" not in timings:
                raise RunError(f"Trisect itself could not run {model}; the line above says why.")
            figures: dict[str, Any] = {each: timing.to_json() for each, timing in timings.items()}
            figures.update(_compared(timings["trisect"], timings.get(name)))
            result["models"][f"{model}, hidden {width}"] = figures
    return result


def _compared(ours: Timing, peer: Timing | None) -> dict[str, float | None]:
    """How many times faster, by the best and by the median turns."""
    return {
        "speedup": None if peer is None else peer.best / ours.best,
        "speedup_median": None if peer is None else peer.median / ours.median,
    }


def show(result: dict[str, Any]) -> None:
    """Print the figures as a table."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"An epoch, {result['threads']} threads")
    for column in ("model", "candidate"):
        table.add_column(column)
    for column in ("best s", "median s", "peak GiB", "faster (best)", "faster (median)"):
        table.add_column(column, justify="right")
    for model, figures in result["models"].items():
        ratios = [figures[key] for key in ("speedup", "speedup_median")]
        for name, timing in figures.items():
            if not isinstance(timing, dict):
                continue
            shown = ratios if name == "trisect" else [None, None]
            table.add_row(
                model,
                name,
                f"{timing['best']:.3f}",
                f"{timing['median']:.3f}",
                f"{timing['peak_rss_bytes'] / 2**30:.2f}",
                *("" if ratio is None else f"{ratio:.1f}x" for ratio in shown),
            )
    Console().print(table)


if __name__ == "__main__":
    show(run())
