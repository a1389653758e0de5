"""TLS options, with the names of Kombu and redis-py; secure by default."""

from __future__ import annotations

import re
import socket
import ssl
from functools import cache
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any

from redis.connection import SSLConnection

from ..errors import ConfigurationError, logger, unknown

if TYPE_CHECKING:
    from collections.abc import Mapping

UNVERIFIED = (
    "TLS: the server's certificate or its name is not verified (ssl_cert_reqs, "
    "ssl_check_hostname): an attacker on the network can read and change everything"
)
_YES_OR_NO = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
_CHOICES: dict[str, dict[str, Any]] = {
    "ssl": _YES_OR_NO,
    "ssl_check_hostname": _YES_OR_NO,
    "ssl_cert_reqs": {
        "none": ssl.CERT_NONE,
        "optional": ssl.CERT_OPTIONAL,
        "required": ssl.CERT_REQUIRED,
    },
    "ssl_min_version": {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3},
}
_PREFIX = re.compile(r"^(tlsversion\.)?(cert\.|tlsv)")
# Options that redis-py uses together.
_TOGETHER = (
    ("ssl_ca_certs", "ssl_ca_path", "ssl_ca_data"),
    ("ssl_certfile", "ssl_keyfile", "ssl_password"),
    ("ssl_ciphers",),
    ("ssl_include_verify_flags",),
    ("ssl_exclude_verify_flags",),
)
_TLS_OPTIONS = frozenset(
    name for name in signature(SSLConnection).parameters if name.startswith("ssl_")
)


def tls_options(given: Any, *, always: bool = False) -> dict[str, Any] | None:
    """Return TLS options, or None for no TLS; certificates and names are verified.

    *given* is Kombu's ``ssl``: a yes or no, or a mapping with or without the prefix
    ``ssl_``. always: TLS even if nothing is given. Raises ConfigurationError for an
    unknown name, a wrong value, and a missing or invalid file.
    """
    mapping = given if isinstance(given, dict) else {}
    wanted = bool(given) if isinstance(given, dict) else _chosen("ssl", given or False)
    if not (wanted or always):
        return None
    options: dict[str, Any] = {"ssl_cert_reqs": ssl.CERT_REQUIRED, "ssl_check_hostname": True}
    for name, value in mapping.items():
        full = name if name.startswith("ssl_") else f"ssl_{name}"
        if full not in _TLS_OPTIONS:
            raise unknown("TLS option", full, _TLS_OPTIONS)
        if "ocsp" in full and value:
            raise ConfigurationError(
                f"{full} is not supported: redis-py asks for the revocation of a certificate "
                "without a time limit. Remove the option"
            )
        options[full] = value
    options["ssl_cert_reqs"] = _chosen("ssl_cert_reqs", options["ssl_cert_reqs"])
    options["ssl_check_hostname"] = options["ssl_cert_reqs"] != ssl.CERT_NONE and _chosen(
        "ssl_check_hostname", options["ssl_check_hostname"]
    )
    if options.get("ssl_min_version") is not None:
        options["ssl_min_version"] = _chosen("ssl_min_version", options["ssl_min_version"])
    # Without a password, OpenSSL would prompt for one at the terminal.
    options["ssl_password"] = options.get("ssl_password") or ""
    _require_usable(options)
    if not is_verified(options):
        _warn(UNVERIFIED)
    return options


def is_verified(options: Mapping[str, Any]) -> bool:
    """Whether certificate and name of the server are verified."""
    return bool(options["ssl_check_hostname"])  # never without the certificate


@cache  # once in a process
def _warn(text: str) -> None:
    logger.warning(text)


def _chosen(name: str, value: Any) -> Any:
    """Return the constant that *value* is, or names in the spelling of Python, Kombu or users."""
    for word, constant in _CHOICES[name].items():
        if value == constant or _plain(value) == _plain(word):
            return constant
    known = ", ".join(_CHOICES[name])
    raise ConfigurationError(f"expected {name} to be one of {known}, got: {value!r}")


def _plain(word: Any) -> str:
    return _PREFIX.sub("", str(word).lower().replace("_", "."))


def require_tls_files(options: Mapping[str, Any]) -> None:
    """Raise FileNotFoundError, which names the option, if a file or folder does not exist."""
    for name in ("ssl_ca_certs", "ssl_ca_path", "ssl_certfile", "ssl_keyfile"):
        path = options.get(name)
        if path is not None and not Path(path).exists():
            raise FileNotFoundError(
                f"expected {name} to be an existing file or folder, got: {str(path)!r}"
            )


def _require_usable(options: Mapping[str, Any]) -> None:
    """Raise ConfigurationError, which names the options, if redis-py cannot use them."""
    for names in _TOGETHER:
        given = {name: options[name] for name in names if options.get(name)}
        if not given:
            continue
        opened: Any = SSLConnection(**given)
        try:
            require_tls_files(given)
            # It makes the context as it secures a socket, which need not be connected.
            with socket.socket() as plain:
                opened._wrap_socket_with_ssl(plain).close()  # noqa: SLF001
        except (OSError, TypeError, ValueError) as exc:  # ssl.SSLError is an OSError
            shown = [value for name, value in given.items() if name != "ssl_password"]
            raise ConfigurationError(
                f"{', '.join(names)} cannot be used ({exc}), got: {shown!r}"
            ) from None
