"""Makes `python -m tests.chaos` work."""

from tests.chaos.cli import main

if __name__ == "__main__":
    main(prog_name="python -m tests.chaos")
