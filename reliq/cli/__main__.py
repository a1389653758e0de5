"""Run the ``reliq`` command by ``python -m reliq.cli``."""

from . import main

main()
