"""Passwords: hashed by scrypt, in a text of one word that a file or the environment may hold."""

from __future__ import annotations

import base64
import hashlib
import hmac
import os

from ..errors import ConfigurationError

_N, _R, _P = 2**14, 8, 5  # OWASP's; 16 MB and a tenth of a second
_BYTES = 32
_MOST_MEMORY = 2**27


def hashed(password: str) -> str:
    """Return what is stored in the place of *password*; another text each time."""
    salt = os.urandom(16)
    return "$".join(
        ("scrypt", str(_N), str(_R), str(_P), _text(salt), _text(_key(password, salt, _N, _R, _P)))
    )


def fits(password: str, stored: str) -> bool:
    """Whether *stored* was made of *password*. Takes a tenth of a second of one core."""
    n, r, p, salt, key = _parts(stored)
    return hmac.compare_digest(key, _key(password, salt, n, r, p))


def require_hash(stored: str) -> str:
    """Return *stored*; raises ConfigurationError where :func:`hashed` has not made it."""
    _parts(stored)
    return stored


def _parts(stored: str) -> tuple[int, int, int, bytes, bytes]:
    try:
        name, *numbers, salt, key = stored.split("$")
        n, r, p = map(int, numbers)
        parts = n, r, p, _raw(salt), _raw(key)
    except ValueError:
        name, parts = "", (0, 0, 0, b"", b"")
    n, r, p, _, raw_key = parts
    costs = n >= _N and 256 * n * r <= _MOST_MEMORY and 0 < p <= _R * _P
    if name != "scrypt" or len(raw_key) != _BYTES or not costs:
        # Not repeated: it may be a password that somebody forgot to hash.
        raise ConfigurationError(
            "expected the hash of a password, as `reliq web --hash-password` prints it"
        )
    return parts


def _key(password: str, salt: bytes, n: int, r: int, p: int) -> bytes:
    text = password.encode("utf-8", "surrogateescape")
    return hashlib.scrypt(text, salt=salt, n=n, r=r, p=p, maxmem=_MOST_MEMORY, dklen=_BYTES)


def _text(raw: bytes) -> str:
    return base64.b64encode(raw, b"-_").decode()


def _raw(text: str) -> bytes:
    return base64.b64decode(text, b"-_", validate=True)
