"""The entry point of `python -m tests.soak`."""

from tests.soak.cli import main

if __name__ == "__main__":
    main(prog_name="python -m tests.soak")
