"""Where a storage is. A location may hold a password, which is never shown."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal, NoReturn
from urllib.parse import quote, quote_plus, unquote, urlsplit

import msgspec

from ortune.errors import UsageError
from ortune.limited import TooLargeError, read_limited

URL_VARIABLE = "ORTUNE_STORAGE"
FILE_VARIABLE = "ORTUNE_STORAGE_FILE"
"""Environment variables with the URL of the storage, and with the path of a file that holds the URL."""

MOST_BYTES = 4096
"""Longest URL."""

JOURNAL_SUFFIXES = (".journal", ".log")

DRIVERS = {"postgresql": "postgresql+psycopg", "postgres": "postgresql+psycopg", "mysql": "mysql+pymysql"}
"""Schemes of URLs without a driver, and the driver that ortune's extra `fleet` installs. With another one, such as
`mysql+mysqldb`, the user chose it."""

HIDDEN = "***"

Kind = Literal["journal", "database", "grpc"]


class Location(msgspec.Struct, frozen=True, kw_only=True):
    """Where a storage is.

    Attributes:
        kind: A journal file, a database, or a gRPC proxy in front of a database.
        url: Path of the file, or the URL with the driver. It may contain a password: it is not part of `repr`.
        title: The same without password and options, for messages.
    """

    kind: Kind
    url: str
    title: str

    def __repr__(self) -> str:
        """Return the location without its password."""
        return f"Location({self.title!r})"

    __str__ = __repr__

    @property
    def secrets(self) -> tuple[str, ...]:
        """Texts that must not appear anywhere: the password in each spelling, and passwords among the options."""
        if self.kind != "database":
            return ()
        found = urlsplit(self.url)
        values = [found.password or ""]
        for part in found.query.split("&"):
            name, _, value = part.partition("=")
            if "pass" in name.lower():
                values.append(value)
        spelled = {each for value in values for each in (value, unquote(value), quote(unquote(value)))}
        spelled |= {quote_plus(unquote(value)) for value in values}
        return tuple(sorted(spelled - {""}, key=len, reverse=True))

    def hide(self, text: str) -> str:
        """Return a text without the secrets of this location."""
        for secret in self.secrets:
            text = text.replace(secret, HIDDEN)
        return text


def find_location(given: str | None) -> Location | None:
    """Return the storage that an option or the environment names; None if neither does.

    Args:
        given: The value of the option. It must not contain a password, as all users of a host see command lines.

    Raises:
        UsageError: It is not legal, or the file cannot be read.
    """
    if given:
        location = parse_location(given, "storage")
        if location.secrets:
            raise UsageError(
                f"{location.title}: the URL contains a password. Other users of this host can see it in the list of "
                "processes.",
                f"Set the environment variable {URL_VARIABLE} to the URL, or {FILE_VARIABLE} to the path of a file "
                "that contains it.",
                option="storage",
            )
        return location
    if text := os.environ.get(URL_VARIABLE, ""):
        return parse_location(text, URL_VARIABLE)
    if path := os.environ.get(FILE_VARIABLE, ""):
        return parse_location(_read_file(Path(path)), FILE_VARIABLE)
    return None


def require_location(given: str | None) -> Location:
    """Return the storage that an option or the environment names.

    Raises:
        UsageError: Neither names one, or it is not legal.
    """
    location = find_location(given)
    if location is None:
        raise UsageError(
            "No storage is given.",
            f"Pass {{storage=URL}}, or set the environment variable {URL_VARIABLE} or {FILE_VARIABLE}.",
        )
    return location


def _read_file(path: Path) -> str:
    try:
        text = read_limited(path, MOST_BYTES, only_regular=True).decode()
    except (OSError, TooLargeError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else "it does not contain a URL"
        raise UsageError(f"{FILE_VARIABLE}={path}: cannot be read: {why}.") from None
    return text.strip()


def parse_location(text: str, source: str) -> Location:
    """Return the location that a text names.

    Args:
        text: A path with a suffix of `JOURNAL_SUFFIXES`, or a URL of a database or a gRPC proxy.
        source: Name of the option or the environment variable that holds the text. The text is not shown, as it may
            contain a password.

    Raises:
        UsageError: It names no storage.
    """
    if len(text) > MOST_BYTES or not text.isprintable():
        _refuse(source, "the value is not a URL")
    scheme, separator, _ = text.partition("://")
    if not separator:
        if Path(text).suffix not in JOURNAL_SUFFIXES:
            _refuse(source, "the value is neither a URL nor the path of a journal file")
        return Location(kind="journal", url=str(Path(text).resolve()), title=text)
    try:
        url = urlsplit(text)
        host, port = url.hostname or "", url.port
    except ValueError:
        _refuse(source, "the value is not a legal URL")
    where = f"[{host}]" if ":" in host else host
    where += f":{port}" if port else ""
    if scheme == "grpc":
        if not host or not port or url.username or url.path.strip("/") or url.query or url.fragment:
            _refuse(source, "a gRPC proxy is named by host and port only")
        return Location(kind="grpc", url=f"{where}", title=f"grpc://{where}")
    base = scheme.partition("+")[0]
    if base not in DRIVERS:
        _refuse(source, f"storages of the kind {scheme[:32]!r} are not supported")
    database = url.path.strip("/")
    if not database:
        _refuse(source, "the URL does not name a database")
    user = f"{unquote(url.username)}@" if url.username else ""
    name = "postgresql" if base == "postgres" else base
    return Location(
        kind="database",
        url=f"{DRIVERS.get(scheme, scheme)}{text[len(scheme) :]}",
        title=f"{name}://{user}{where}/{database}",
    )


def _refuse(source: str, why: str) -> NoReturn:
    hint = (
        "Use postgresql://USER@HOST/DATABASE, mysql://USER@HOST/DATABASE, grpc://HOST:PORT, or the path of a file such "
        "as fleet.journal."
    )
    if source == "storage":
        raise UsageError(f"{why}.", hint, option=source)
    raise UsageError(f"{source}: {why}.", hint)
