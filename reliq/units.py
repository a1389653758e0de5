"""Human-readable durations, rates and sizes, for terminals and pages."""

from __future__ import annotations

import re

_UNITS = (("d", 86400), ("h", 3600), ("m", 60), ("s", 1))


def duration(seconds: float | None) -> str:
    """Return *seconds* in its two largest units: 1h 4m."""
    if seconds is None:
        return "-"
    if seconds < 1:
        return f"{seconds * 1000:.0f}ms" if seconds > 0 else "0s"
    left = int(seconds)
    parts: list[str] = []
    for unit, size in _UNITS:
        whole, left = divmod(left, size)
        if whole or parts:
            parts.append(f"{whole}{unit}")
    kept = [part for part in parts[:2] if not part.startswith("0")]
    return " ".join(kept)


def per_second(number: float) -> str:
    """Return a rate as text, with one decimal below 10."""
    return f"{number:,.0f}" if number >= 10 or number == 0 else f"{number:.1f}"  # noqa: PLR2004


def size(number: int | None) -> str:
    """Return a number of bytes as text in its largest unit."""
    if number is None:
        return "-"
    amount = float(number)
    for unit in ("B", "kB", "MB", "GB"):
        if amount < 1000:  # noqa: PLR2004 - decimal units
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1000
    return f"{amount:.1f} TB"


def bytes_of(text: str) -> int:
    """Return the bytes of a size such as 500, 64kB or 1.5 GB; raise ValueError."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(k|M|G|T)?B?\s*", text, re.IGNORECASE)
    if match is None:
        raise ValueError(text)
    powers = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4}
    return round(float(match[1]) * 1000.0 ** powers[(match[2] or "").upper()])
