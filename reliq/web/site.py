"""The parts that pages and actions are made from, put together once for an application."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .action_log import ActionLog
from .brokers import Brokers
from .operations import Operations
from .redaction import Redaction
from .render import Templates
from .watch import Watch

if TYPE_CHECKING:
    from .settings import Settings


class Site:
    """Holds the parts; raises ConfigurationError where one cannot be made of *settings*."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.brokers = Brokers(settings)
        self.watches = [Watch(broker) for broker in self.brokers]
        self.redaction = Redaction(settings.redact)
        self.log = ActionLog(settings.action_log)
        self.operations = Operations(self.log)
        self.templates = Templates()

    def close(self) -> None:
        """Close the connections that nobody uses, and remove the files of exports."""
        self.brokers.close()
        self.operations.close()
