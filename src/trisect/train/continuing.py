"""Whether a run can go on from its checkpoint; found out before any rank starts."""

from __future__ import annotations

from pathlib import Path

from torch import nn

from trisect.config import Config
from trisect.errors import CheckpointError
from trisect.layout import Layout
from trisect.train.checkpoint import read_manifest
from trisect.train.cut_program import history_place
from trisect.train.run_directory import RunDirectory
from trisect.train.setup import ModelMaker
from trisect.train.shares import Cut, read_cut
from trisect.train.state import REMEDY, Shapes, require_state
from trisect.train.tasks import Place, make_task
from trisect.train.timeline_shares import TimelineCut


def check_resume(target: Path, config: Config, maker: ModelMaker, layout: Layout, shares: Path) -> None:
    """What would stop the ranks of a resumed run: other settings than the run's, or a checkpoint that does not fit.

    Sizes and hashes of files are compared by the ranks, which read them.

    Args:
        config: with every option filled in.
        shares: the cut data.
    """
    directory = RunDirectory.reopen(target, config)
    for path in reversed(directory.checkpoints.paths()):
        try:
            manifest = read_manifest(path)
        except CheckpointError:
            continue  # the ranks say so, and take the one before
        if manifest["run"] != directory.checkpoints.run:
            continue
        cut = read_cut(shares)
        found = {name: tuple(entry["shape"]) for name, entry in manifest["tensors"].items()}
        require_state(found, _parameters(config, maker, cut), f"The checkpoint {path}", whole=True)
        if isinstance(cut, Cut):
            _require_history(found, cut, layout, path)
        return


def _parameters(config: Config, maker: ModelMaker, cut: Cut | TimelineCut) -> dict[str, tuple[int, ...]]:
    """The shapes of all parameters of a run, by name."""
    data = cut.labels() if isinstance(cut, Cut) else cut.timeline
    bound = make_task(config.task.model_dump()).bind(data, Place(config.train.seed, data.order))
    model = maker(cut.features, bound.channels)
    decoder = bound.decoder(model.out_channels)
    modules = nn.ModuleDict({"model": model} if decoder is None else {"model": model, "decoder": decoder})
    return {name: tuple(value.shape) for name, value in modules.state_dict().items()}


def _require_history(found: Shapes, cut: Cut, layout: Layout, path: Path) -> None:
    """History that this layout would take up has a row for each that a rank reads."""
    place = history_place(layout, cut.order)
    for rank in range(layout.world):
        prefix = f"program.{place}rank-{rank}."
        rows = cut.rows(rank % layout.vertex)
        wanted = rows.stop - rows.start + cut.remote[rank % layout.vertex]
        for name, shape in found.items():
            if name.startswith(prefix) and (len(shape) != 2 or shape[0] != wanted):
                raise CheckpointError(
                    f"The checkpoint {path} has {name!r} of shape {list(shape)}, and the cut needs {wanted} rows (the"
                    f" graph was cut in another way); {REMEDY}"
                )
