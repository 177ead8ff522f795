"""The commands of `trisect`: what it knows, and how it ends.

0 is success, 1 a run that could not go on, 2 something the user can mend (one sentence, no traceback), 130 Ctrl-C, 143
SIGTERM.
Commands import what they need when they run, so that `--help` does not wait for torch.
"""

from __future__ import annotations

import hashlib
import os
import sys
import time
import warnings
from pathlib import Path
from typing import Annotated

import typer

from trisect import __version__
from trisect.cli import bench, check, data, plan, predict, report, train, watch
from trisect.cli.requests import stop_code
from trisect.errors import RunError, StoppedError, TrisectError

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


def use_sentences() -> None:
    """Show warnings as one line each."""
    warnings.formatwarning = _one_line


def run_command(arguments: list[str] | None = None) -> int:
    """Run the command line and return its exit code. Unexpected exceptions pass, with their traceback."""
    words = sys.argv[1:] if arguments is None else arguments
    try:
        result = app(args=words or ["--help"], prog_name="trisect", standalone_mode=False)
    except TrisectError as error:
        return end(str(error), error.exit_code)
    except (KeyboardInterrupt, typer.Abort):
        return end("Stopped.", stop_code())
    except typer.Exit as leave:  # typer also turns Ctrl-C into one
        return end("Stopped.", stop_code()) if leave.exit_code == 130 else int(leave.exit_code)
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
            return end(limit, RunError.exit_code)
        if type(error).__name__ == "NoArgsIsHelpError":
            print(message())
            return 0
        return end(_usage(error, str(message())), 2)
    if result == 130:
        return end("Stopped.", stop_code())
    return result if isinstance(result, int) else 0


def _usage(error: Exception, message: str) -> str:
    """Return a mistake on the command line as a sentence, with what to do."""
    flaw = message.rstrip(".").replace(_NO_INTEGER, "it must be a whole number")
    if flaw.startswith("No such option") and "Possible" not in flaw and "Did you mean" not in flaw:
        flaw += "; settings of a configuration are changed by --set, like --set train.epochs=20"
    command = getattr(getattr(error, "ctx", None), "command_path", "trisect")
    return f"{flaw}; {command} --help shows what there is."


def _one_line(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None
) -> str:
    """Return a warning as it is printed: our own as a sentence, others with the file that they come from."""
    return (
        f"trisect: {message}\n" if category is UserWarning else f"{filename}:{lineno}: {category.__name__}: {message}\n"
    )


def end(sentence: str, code: int) -> int:
    """Print the sentence with which a command ends, and return its exit code."""
    if "TORCHELASTIC_ERROR_FILE" in os.environ and code not in (130, StoppedError.exit_code):
        from trisect.train.processes.faults import tell_torchrun

        tell_torchrun(sentence)
    if os.environ.get("LOCAL_RANK", "0") != "0":
        if code in (130, StoppedError.exit_code):
            return code
        # what stops one rank of a host stops all: the first says it, and torchrun ends the others
        time.sleep(_PATIENCE)
    if _claim(sentence):
        print(f"trisect: {sentence}", file=sys.stderr)
    return code


def _claim(sentence: str) -> bool:
    """Whether no other rank of this host has printed the sentence: torchrun's folder of an attempt has a mark of it.

    Waiting alone does not do: on a busy machine the first rank may come to its end after the others.
    """
    error_file = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if error_file is None:
        return True
    digest = hashlib.sha256(sentence.encode()).hexdigest()
    try:
        Path(error_file).parents[1].joinpath(f"trisect-{digest}").touch(exist_ok=False)
    except FileExistsError:
        return False
    except OSError:
        return True
    return True
