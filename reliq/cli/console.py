"""What the commands share: how they refuse."""

from __future__ import annotations

import click


class Refused(click.ClickException):
    """The command could not do its work; the text says why."""

    exit_code = 2  # 1 says that it did, and found a fault
