"""TLS options: Kombu's names to redis-py's, safe unless the user says otherwise."""

from __future__ import annotations

import difflib
import ssl
from typing import Any

from ...errors import ConfigurationError

_CERT_REQS = {
    "none": ssl.CERT_NONE,
    "optional": ssl.CERT_OPTIONAL,
    "required": ssl.CERT_REQUIRED,
}
_TLS_OPTIONS = frozenset(
    {
        "ssl_ca_certs",
        "ssl_ca_data",
        "ssl_ca_path",
        "ssl_cert_reqs",
        "ssl_certfile",
        "ssl_check_hostname",
        "ssl_ciphers",
        "ssl_keyfile",
        "ssl_min_version",
        "ssl_password",
    }
)


def tls_options(given: Any) -> dict[str, Any]:
    """Return redis-py's TLS options: certificates and host names are verified by default.

    *given* is Kombu's ``ssl``: True, or a mapping with or without the prefix
    ``ssl_``. Raises ConfigurationError for an unknown name.
    """
    options: dict[str, Any] = {"ssl_cert_reqs": ssl.CERT_REQUIRED, "ssl_check_hostname": True}
    for name, value in given.items() if isinstance(given, dict) else ():
        full = name if name.startswith("ssl_") else f"ssl_{name}"
        if full not in _TLS_OPTIONS:
            near = difflib.get_close_matches(full, _TLS_OPTIONS, n=1)
            hint = f"did you mean {near[0]}?" if near else ", ".join(sorted(_TLS_OPTIONS))
            raise ConfigurationError(f"unknown TLS option {name!r}: {hint}")
        options[full] = value
    reqs = options["ssl_cert_reqs"]
    if isinstance(reqs, str):  # from a URL that Kombu did not parse
        reqs = _CERT_REQS.get(reqs.lower().removeprefix("cert_"))
        if reqs is None:
            raise ConfigurationError(
                f"expected ssl_cert_reqs to be one of {', '.join(_CERT_REQS)}, "
                f"got: {options['ssl_cert_reqs']!r}"
            )
    options["ssl_cert_reqs"] = ssl.CERT_NONE if reqs is None else reqs
    if options["ssl_cert_reqs"] == ssl.CERT_NONE or str(options["ssl_check_hostname"]).lower() in {
        "false",
        "0",
        "no",
    }:
        options["ssl_check_hostname"] = False
    return options
