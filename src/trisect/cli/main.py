"""The command `trisect`, which heeds Ctrl-C and SIGTERM before it imports anything else (`trisect.cli.app`)."""

from __future__ import annotations

import os
import sys

from trisect.cli.requests import end_on_request, end_undisturbed, leave_stopped


def run(arguments: list[str] | None = None) -> None:
    """Run the command line and leave the process with its exit code."""
    # a rank has a launcher to put things in order: SIGTERM ends it at once
    end_on_request(terminated="RANK" not in os.environ and "SLURM_PROCID" not in os.environ)
    try:
        _run(arguments)
    except KeyboardInterrupt:  # between two things that would have ended in order
        leave_stopped()


def _run(arguments: list[str] | None) -> None:
    wait_briefly()
    from trisect.cli import app

    app.use_sentences()
    if "SLURM_PROCID" in os.environ:
        from trisect.comm.slurm import slurm_world
        from trisect.errors import TrisectError

        try:
            os.environ.update(slurm_world(os.environ))
        except TrisectError as error:
            sys.exit(app.end(str(error), error.exit_code))
    if "RANK" not in os.environ:
        end_on_request()
        code = run_command(arguments)
        end_undisturbed()
        sys.exit(code)
    # it leaves without tearing down its connections one by one, during which a peer that is faster could make it abort
    code = run_command(arguments)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def run_command(arguments: list[str] | None = None) -> int:
    """Run the command line and return its exit code. Unexpected exceptions pass, with their traceback."""
    from trisect.cli import app

    return app.run_command(arguments)


def wait_briefly() -> None:
    """Let threads that wait for others sleep after about a tenth of a millisecond; torch, loaded later, reads it.

    They would spin for milliseconds, and on a machine with other work hold the core that the others wait for: the
    built-in example was then 35 times slower. A user's own setting stays.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "10000")
