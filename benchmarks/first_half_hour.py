"""What a newcomer does in the first half hour, typed by a script: a fresh clone, a report, two tables, probabilities.

    python benchmarks/first_half_hour.py [--keep DIR] [--only first,tables]

`first` is README's first command, `make train`, in a new clone without an environment, up to a report that Chromium has
drawn. `tables` is the way of examples/fraud in that environment: two tables, a graph, training, the report, and the
probabilities of the month after. Each command is printed as it is typed, with the seconds that it took. Where there is
no Chromium, the report is only read, and the last line says so.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PARTS = ("first", "tables")


class Newcomer:
    """Somebody in a terminal: a folder, a search path, and a clock."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        foreign = ("PYTHONPATH", "VIRTUAL_ENV", "TRISECT_CLUSTER")
        self.environment = {key: value for key, value in os.environ.items() if key not in foreign}
        self.seconds = 0.0

    def types(self, command: str) -> str:
        """Run a command of the page, and give what it printed; one that fails ends the script."""
        print(f"$ {command}", flush=True)
        begin = time.perf_counter()
        done = subprocess.run(
            ["bash", "-c", command], cwd=self.folder, env=self.environment, capture_output=True, text=True
        )
        took = time.perf_counter() - begin
        self.seconds += took
        print(f"    {took:.1f} s", flush=True)
        if done.returncode:
            raise SystemExit(f"{command} ended with {done.returncode}: {(done.stdout + done.stderr)[-3000:]}")
        return done.stdout + done.stderr

    def activates(self, environment: Path) -> None:
        """Use a virtual environment, as `source .venv/bin/activate` does."""
        self.environment["PATH"] = f"{environment / 'bin'}{os.pathsep}{self.environment['PATH']}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keep", type=Path, help="work in this new folder, and leave it there")
    parser.add_argument("--only", default=",".join(PARTS))
    arguments = parser.parse_args()
    wanted = arguments.only.split(",")
    with tempfile.TemporaryDirectory(prefix="trisect-newcomer-") as scratch:
        folder = Path(scratch) if arguments.keep is None else arguments.keep.resolve()
        folder.mkdir(parents=True, exist_ok=True)
        clone = folder / "trisect"
        subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
        if "first" in wanted:
            first(clone)
        if "tables" in wanted:
            tables(clone)


def first(clone: Path) -> None:
    """`make train` in a clone, and the report that it names."""
    somebody = Newcomer(clone)
    said = somebody.types("make train")
    named = re.search(r"\S+report\.html", said)
    if named is None:
        raise SystemExit(f"make train named no report: {said[-2000:]}")
    seen = see(clone / named.group(), somebody)
    print(f"make train to a report that was {seen}: {somebody.seconds:.0f} s", flush=True)


def tables(clone: Path) -> None:
    """Every command of examples/fraud/README.md up to the probabilities, as it stands there."""
    page = clone / "examples" / "fraud" / "README.md"
    blocks = re.findall(r"```bash\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    somebody = Newcomer(page.parent)
    environment = clone / ".venv"
    somebody.activates(environment if environment.exists() else ROOT / ".venv")
    said = ""
    for line in blocks[0].replace("\\\n", " ").splitlines():
        if line.strip() and not line.startswith("#"):
            said = somebody.types(" ".join(line.split()))
    seen = see(page.parent / "runs" / "fraud" / "report.html", somebody)
    print(said.strip(), flush=True)
    print(f"two tables to probabilities, and a report that was {seen}: {somebody.seconds:.0f} s", flush=True)


def see(report: Path, somebody: Newcomer) -> str:
    """Draw a report in Chromium, or read it where there is none."""
    if not report.is_file():
        raise SystemExit(f"There is no report at {report}.")
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        return "read, and not seen, for want of Chromium"
    picture = report.with_suffix(".png")
    options = "--headless --no-sandbox --disable-gpu --hide-scrollbars --window-size=1280,2000"
    somebody.types(f"{chromium} {options} --screenshot={picture} file://{report} 2>/dev/null")
    if picture.stat().st_size < 20_000:
        raise SystemExit(f"The picture of {report} has {picture.stat().st_size} bytes, too few for a page with charts.")
    return "seen"


if __name__ == "__main__":
    main()
