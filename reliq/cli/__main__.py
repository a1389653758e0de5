"""``python -m reliq.cli`` is the ``reliq`` command."""

from . import main

main()
