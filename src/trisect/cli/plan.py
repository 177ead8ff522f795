"""`trisect plan`: what each layout would cost, the best first, before anything runs."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from trisect.cli.source import DataDirOption, SetOption, find_config, sentence
from trisect.errors import ConfigError, TrisectError
from trisect.settings.writing import to_json


def plan(
    config: Annotated[
        str | None,
        typer.Argument(metavar="CONFIG.yaml", help="A configuration file, or the name of an example. [default: deep]"),
    ] = None,
    devices: Annotated[
        int | None, typer.Option("--devices", help="How many processes at most. [default: all devices of the cluster]")
    ] = None,
    cluster: Annotated[
        str | None,
        typer.Option(
            "--cluster", help="The machines: a cluster file, or a preset like 8xa100 or cpu-10gb. [default: this one]"
        ),
    ] = None,
    json_: Annotated[
        Path | None, typer.Option("--json", help="Also write the plan to this file; with -, print it and nothing else.")
    ] = None,
    approximate: Annotated[
        bool, typer.Option("--approximate", help="Also consider layouts whose result differs from that of one process.")
    ] = False,
    calibrate: Annotated[
        bool,
        typer.Option(
            "--calibrate",
            help="First measure this machine thoroughly (about a minute), and keep the result for later.",
        ),
    ] = False,
    set_: SetOption = None,
    data_dir: DataDirOption = None,
) -> None:
    """Say what each layout would cost, the best first.

    Shown are the seconds of an epoch, the bytes that are sent and the memory of a process. Nothing is trained.
    """
    if devices is not None and devices < 1:
        raise ConfigError(f"--devices is {devices}; it must be at least 1.")
    if json_ is not None and json_.is_dir():
        raise TrisectError(f"--json is {json_}, which is a directory; give a file.")
    if calibrate and cluster is not None:
        raise ConfigError("--calibrate measures this machine, and --cluster names another; give one of them.")

    from trisect.train.clusters import cluster_path, earlier_calibration

    if calibrate:
        from trisect.plan.cluster import DISTURBED
        from trisect.train.machine.calibrate import calibrate as measure

        path, earlier = cluster_path(), earlier_calibration()
        measured = measure(sentence, earlier)
        if earlier is not None and measured.source == DISTURBED:
            sentence(f"The undisturbed calibration in {path} is kept; remove that file to take a disturbed one.")
        else:
            measured.write(path)
            sentence(f"Cluster file: {path}")
        if config is None:
            return

    from trisect.config import load_config
    from trisect.plan.tell import tell
    from trisect.train.from_config import resolve
    from trisect.train.planning import configured_workload, plan_workload

    _, source = find_config(config)
    settings = resolve(load_config(source, set_ or [], None), data_dir)
    device = settings.train.device
    alone = json_ is not None and str(json_) == "-"
    workload = configured_workload(settings)
    choice = plan_workload(
        workload, cluster, devices, approximate=approximate, device=device, say=partial(typer.echo, err=alone)
    )
    for line in [to_json(choice.plain(), indent=2)] if alone else tell(choice):
        typer.echo(line)
    if json_ is not None and not alone:
        json_.parent.mkdir(parents=True, exist_ok=True)
        json_.write_text(to_json(choice.plain(), indent=2) + "\n", encoding="utf-8")
        sentence(f"Plan: {json_}")
    if not choice.best:
        raise TrisectError(f"No layout of {choice.devices} devices fits their memory; use more devices or larger ones.")
