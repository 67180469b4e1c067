"""Options of database drivers in the URL of a storage. Only those that are listed here are passed on.

Others let the server read files of this host (`local_infile`), run statements when a connection is opened
(`init_command`, `options`), take settings from further files (`service`, `passfile`, `read_default_file`), write files
(`sslkeylogfile`), or load code (`plugin`, of SQLAlchemy).

Source: Parameter Key Words in the documentation of libpq 18, which psycopg passes on; `pymysql.connections.Connection`
of PyMySQL 1.2.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

Value = str | int | bool


def parse_seconds(text: str) -> int:
    """Return a number of seconds.

    Raises:
        ValueError: It is none, without the text.
    """
    if not re.fullmatch(r"[1-9][0-9]{0,4}", text):
        raise ValueError("must be a whole number of seconds")
    return int(text)


def parse_flag(text: str) -> bool:
    """Return whether something is wanted.

    Raises:
        ValueError: It is neither true nor false, without the text.
    """
    if text not in {"true", "false"}:
        raise ValueError("must be true or false")
    return text == "true"


def parse_socket_folder(text: str) -> str:
    """Return the folder of a Unix domain socket.

    Raises:
        ValueError: It is none, without the text.
    """
    if not text.startswith("/"):
        raise ValueError("must be the folder of a Unix domain socket; other hosts stand before the database")
    return text


LIBPQ: Mapping[str, Callable[[str], Value]] = {
    **dict.fromkeys(
        (
            "application_name",
            "channel_binding",
            "gssencmode",
            "keepalives",
            "keepalives_count",
            "keepalives_idle",
            "keepalives_interval",
            "krbsrvname",
            "load_balance_hosts",
            "require_auth",
            "requirepeer",
            "ssl_max_protocol_version",
            "ssl_min_protocol_version",
            "sslcert",
            "sslcertmode",
            "sslcrl",
            "sslcrldir",
            "sslkey",
            "sslmode",
            "sslnegotiation",
            "sslpassword",
            "sslrootcert",
            "sslsni",
            "target_session_attrs",
            "tcp_user_timeout",
        ),
        str,
    ),
    "connect_timeout": parse_seconds,
    "host": parse_socket_folder,
}

PYMYSQL: Mapping[str, Callable[[str], Value]] = {
    **dict.fromkeys(
        ("charset", "program_name", "ssl_ca", "ssl_cert", "ssl_key", "ssl_key_password", "unix_socket"), str
    ),
    **dict.fromkeys(("connect_timeout", "read_timeout", "write_timeout"), parse_seconds),
    **dict.fromkeys(("ssl_verify_cert", "ssl_verify_identity"), parse_flag),
}

ALLOWED: Mapping[str, Mapping[str, Callable[[str], Value]]] = {
    "psycopg": LIBPQ,
    "psycopg2": LIBPQ,
    "pymysql": PYMYSQL,
}
"""By driver: the options that are passed on, and what turns their texts into values. Other drivers get none."""

PYMYSQL_SSL = {
    "ssl_ca": "ca",
    "ssl_cert": "cert",
    "ssl_key": "key",
    "ssl_key_password": "password",
    "ssl_verify_cert": "verify_mode",
    "ssl_verify_identity": "check_hostname",
}
"""Names in the dictionary `ssl` of PyMySQL. With it, a server whose CA is given is verified unless stated otherwise.
With the arguments of the same names as the options, it would not be."""


def read_options(driver: str, query: Mapping[str, str | Sequence[str]]) -> dict[str, Value]:
    """Return the options in a URL.

    Args:
        driver: Name of the driver.
        query: The texts of the options, by name.

    Raises:
        ValueError: One is not passed on, is given twice, or has a value that is not legal. The message shows no value.
    """
    allowed = ALLOWED.get(driver, {})
    found = {}
    for name, text in query.items():
        if name not in allowed:
            shown = f" {name}" if re.fullmatch(r"[a-z_]{1,32}", name) else ""
            raise ValueError(f"the URL has an option{shown} that is not passed on to the driver {driver[:32]}")
        if not isinstance(text, str):
            raise ValueError(f"the URL has the option {name} twice")
        try:
            found[name] = allowed[name](text)
        except ValueError as error:
            raise ValueError(f"the option {name} of the URL {error}") from None
    if found.get("ssl_verify_identity") and "ssl_ca" not in found:
        raise ValueError("the option ssl_verify_identity of the URL needs ssl_ca: without it, PyMySQL checks no names")
    return found


def make_arguments(driver: str, options: Mapping[str, Value]) -> dict[str, Any]:
    """Return options as arguments of a driver's `connect`.

    Args:
        driver: Name of the driver.
        options: What `read_options` returns.
    """
    if driver != "pymysql":
        return dict(options)
    ssl = {PYMYSQL_SSL[name]: value for name, value in options.items() if name in PYMYSQL_SSL}
    others = {name: value for name, value in options.items() if name not in PYMYSQL_SSL}
    if ssl.get("verify_mode") is False:
        # Python refuses to compare the name of a certificate that it does not verify.
        ssl["check_hostname"] = False
    return {**others, "ssl": ssl} if ssl else others
