"""`python -m trisect` is the command line, as `trisect` is."""

from trisect.cli.main import run

if __name__ == "__main__":
    run()
