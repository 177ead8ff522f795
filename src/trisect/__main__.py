"""`python -m trisect`."""

from trisect.cli.main import run

if __name__ == "__main__":
    run()
