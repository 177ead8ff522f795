"""The command `trisect`: what it knows, and how it ends.

0 is success, 1 a run that could not go on, 2 something the user can mend (one sentence, no traceback), 130 Ctrl-C, 143
SIGTERM.
Commands import what they need when they run, so that `--help` does not wait for torch.
"""

from __future__ import annotations

import os
import sys
import time
import warnings
from typing import Annotated

import typer

from trisect import __version__
from trisect.cli import bench, check, data, plan, predict, report, train, watch
from trisect.cli.source import end_on_request, end_undisturbed, stop_code
from trisect.errors import RunError, TrisectError

_PATIENCE = 2.0  # seconds
_NO_INTEGER = "Input should be a valid integer, unable to parse string as an integer"

app = typer.Typer(
    name="trisect",
    help="Train graph neural networks that no longer fit one device: cut by vertex, by layer, by time.",
    epilog="Begin with: trisect train. It ends by naming a report to open. trisect COMMAND --help says more.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command("train")(train.train)
app.command("plan")(plan.plan)
app.command("check")(check.check)
app.command("predict")(predict.predict)
app.command("report")(report.report)
app.command("watch")(watch.watch)
app.add_typer(data.app, name="data")
# a measurement has arguments of its own
app.command("bench", context_settings={"allow_extra_args": True, "ignore_unknown_options": True})(bench.bench)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"trisect {__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and leave.")
    ] = False,
) -> None:
    """Take the options of `trisect` itself."""


def run(arguments: list[str] | None = None) -> None:
    """Run the command line and leave the process with its exit code."""
    wait_briefly()
    warnings.formatwarning = _one_line
    if "SLURM_PROCID" in os.environ:
        from trisect.comm.slurm import slurm_world

        try:
            os.environ.update(slurm_world(os.environ))
        except TrisectError as error:
            sys.exit(_end(str(error), error.exit_code))
    if "RANK" not in os.environ:
        end_on_request()
        code = run_command(arguments)
        end_undisturbed()
        sys.exit(code)
    # a rank has whoever started it to put things in order: SIGTERM ends it at once. It leaves without tearing down
    # its connections one by one, during which a peer that is faster could make it abort
    code = run_command(arguments)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def wait_briefly() -> None:
    """Let threads that wait for others sleep after about a tenth of a millisecond; torch, loaded later, reads it.

    They would spin for milliseconds, and on a machine with other work hold the core that the others wait for: the
    built-in example was then 35 times slower. A user's own setting stays.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "10000")


def run_command(arguments: list[str] | None = None) -> int:
    """Run the command line and return its exit code. Unexpected exceptions pass, with their traceback."""
    words = sys.argv[1:] if arguments is None else arguments
    try:
        result = app(args=words or ["--help"], prog_name="trisect", standalone_mode=False)
    except TrisectError as error:
        return _end(str(error), error.exit_code)
    except (KeyboardInterrupt, typer.Abort):
        return _end("Stopped.", stop_code())
    except typer.Exit as leave:  # typer also turns Ctrl-C into one
        return _end("Stopped.", stop_code()) if leave.exit_code == 130 else int(leave.exit_code)
    except BrokenPipeError:  # the reader of our output (head, less) has gone
        sys.stderr.close()
        return 141
    except Exception as error:
        # typer's own usage errors, whose class differs between its releases
        message = getattr(error, "format_message", None)
        if message is None:
            from trisect.train.processes.resources import explain

            limit = explain(error)
            if limit is None:
                raise
            return _end(limit, RunError.exit_code)
        if type(error).__name__ == "NoArgsIsHelpError":
            print(message())
            return 0
        return _end(_usage(error, str(message())), 2)
    if result == 130:
        return _end("Stopped.", stop_code())
    return result if isinstance(result, int) else 0


def _usage(error: Exception, message: str) -> str:
    """Give a mistake on the command line as a sentence, with what to do."""
    flaw = message.rstrip(".").replace(_NO_INTEGER, "it must be a whole number")
    if flaw.startswith("No such option") and "Possible" not in flaw and "Did you mean" not in flaw:
        flaw += "; settings of a configuration are changed by --set, like --set train.epochs=20"
    command = getattr(getattr(error, "ctx", None), "command_path", "trisect")
    return f"{flaw}; {command} --help shows what there is."


def _one_line(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None
) -> str:
    """Give a warning as the user reads it: our own as a sentence, others with the file that they come from."""
    return (
        f"trisect: {message}\n" if category is UserWarning else f"{filename}:{lineno}: {category.__name__}: {message}\n"
    )


def _end(sentence: str, code: int) -> int:
    if os.environ.get("LOCAL_RANK", "0") != "0":
        # what stops one rank of a host stops all: the first says it, and torchrun ends the others
        time.sleep(_PATIENCE)
    print(f"trisect: {sentence}", file=sys.stderr)
    return code
