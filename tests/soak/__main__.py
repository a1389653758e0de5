"""Makes `python -m tests.soak` work."""

from tests.soak.cli import main

if __name__ == "__main__":
    main(prog_name="python -m tests.soak")
