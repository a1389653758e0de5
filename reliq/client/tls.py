"""TLS options, with the names of Kombu and redis-py; secure by default."""

from __future__ import annotations

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
_CERT_REQS = {
    "none": ssl.CERT_NONE,
    "optional": ssl.CERT_OPTIONAL,
    "required": ssl.CERT_REQUIRED,
}
# Options that are used together, and the one of them that no error shows.
_TOGETHER: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...] = (
    (("ssl_ca_certs", "ssl_ca_path", "ssl_ca_data"), ()),
    (("ssl_certfile", "ssl_keyfile"), ("ssl_password",)),
    (("ssl_ciphers",), ()),
)
_TLS_OPTIONS = frozenset(
    name for name in signature(SSLConnection).parameters if name.startswith("ssl_")
)
_YES_OR_NO = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
_VERSIONS = {
    "TLSv1.2": ssl.TLSVersion.TLSv1_2,
    "TLSv1.3": ssl.TLSVersion.TLSv1_3,
}


def tls_options(given: Any, *, always: bool = False) -> dict[str, Any] | None:
    """Return TLS options, or None for no TLS; certificates and names are verified.

    *given* is Kombu's ``ssl``: a yes or no, or a mapping with or without the prefix
    ``ssl_``. always: TLS even if nothing is given. Raises ConfigurationError for an
    unknown name, a wrong value, and a missing or invalid file.
    """
    mapping = given if isinstance(given, dict) else {}
    wanted = bool(given) if isinstance(given, dict) else _yes_or_no("ssl", given or False)
    if not (wanted or always):
        return None
    options: dict[str, Any] = {"ssl_cert_reqs": ssl.CERT_REQUIRED, "ssl_check_hostname": True}
    for name, value in mapping.items():
        full = name if name.startswith("ssl_") else f"ssl_{name}"
        if full not in _TLS_OPTIONS:
            raise unknown("TLS option", full, _TLS_OPTIONS)
        options[full] = value
    options["ssl_cert_reqs"] = _cert_reqs(options["ssl_cert_reqs"])
    options["ssl_check_hostname"] = options["ssl_cert_reqs"] != ssl.CERT_NONE and _yes_or_no(
        "ssl_check_hostname", options["ssl_check_hostname"]
    )
    if options.get("ssl_min_version") is not None:
        options["ssl_min_version"] = _version(options["ssl_min_version"])
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


def _yes_or_no(name: str, value: Any) -> bool:
    if isinstance(value, bool):
        return value
    choice = _YES_OR_NO.get(str(value).lower())
    if choice is None:
        raise ConfigurationError(f"expected {name} to be true or false, got: {value!r}")
    return choice


def _cert_reqs(value: Any) -> ssl.VerifyMode:
    if value is None:
        return ssl.CERT_NONE
    if isinstance(value, str):  # from a URL that Kombu did not parse
        mode = _CERT_REQS.get(value.lower().removeprefix("cert_"))
        if mode is not None:
            return mode
    elif value in set(_CERT_REQS.values()):
        return ssl.VerifyMode(value)
    raise ConfigurationError(
        f"expected ssl_cert_reqs to be one of {', '.join(_CERT_REQS)}, got: {value!r}"
    )


def _version(value: Any) -> ssl.TLSVersion:
    if isinstance(value, str):
        name = value.lower().replace("_", ".").removeprefix("tlsversion.").removeprefix("tlsv")
        version = _VERSIONS.get(f"TLSv{name}")
    else:
        version = next((known for known in _VERSIONS.values() if known == value), None)
    if version is None:
        raise ConfigurationError(
            f"expected ssl_min_version to be one of {', '.join(_VERSIONS)}, got: {value!r}"
        )
    return version


def require_tls_files(options: Mapping[str, Any]) -> None:
    """Raise ConfigurationError, which names the option, if a file or folder does not exist."""
    for name in ("ssl_ca_certs", "ssl_ca_path", "ssl_certfile", "ssl_keyfile"):
        path = options.get(name)
        if path is not None and not Path(path).exists():
            raise ConfigurationError(
                f"expected {name} to be an existing file or folder, got: {str(path)!r}"
            )


def _require_usable(options: Mapping[str, Any]) -> None:
    """Raise ConfigurationError, which names the options, if redis-py cannot use them."""
    require_tls_files(options)
    for names, secret in _TOGETHER:
        given = {name: options.get(name) for name in (*names, *secret)}
        if not any(given.values()):
            continue
        opened: Any = SSLConnection(**given)
        try:
            # It makes the context as it secures a socket, which need not be connected.
            with socket.socket() as plain:
                opened._wrap_socket_with_ssl(plain).close()  # noqa: SLF001
        except (OSError, TypeError, ValueError) as exc:  # ssl.SSLError is an OSError
            shown = [value for name, value in given.items() if name not in secret]
            raise ConfigurationError(
                f"{', '.join((*names, *secret))} cannot be used ({exc}), got: {shown!r}"
            ) from None
