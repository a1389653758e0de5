"""What a number on the command line may be."""

from __future__ import annotations

import re
from math import isfinite
from typing import Any

import click

_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}


class Number(click.FloatRange):
    """A number in a range: click's lets "nan" through any, and "inf" where there is no end."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Return the number; fails with what was expected."""
        number = float(super().convert(value, param, ctx))
        if not isfinite(number):
            self.fail(f"expected a number, got {value!r}", param, ctx)
        return number


class Duration(click.ParamType):  # type: ignore[type-arg, unused-ignore]
    """Seconds, or parts with a unit: 90, 15m, 1h30m, 2d."""

    name = "duration"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Return the seconds; fails with what was expected."""
        text = str(value).strip()
        if re.fullmatch(r"\d+(\.\d+)?", text):
            return float(text)
        if not re.fullmatch(r"(\d+(\.\d+)?[smhdw])+", text):
            self.fail(f"expected seconds, or for example 15m, 1h30m, 2d; got {value!r}", param, ctx)
        return sum(
            float(number) * _UNITS[unit]
            for number, unit in re.findall(r"(\d+(?:\.\d+)?)([smhdw])", text)
        )
