"""Where a storage is. A location may hold a password, which is never shown."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NoReturn
from urllib.parse import quote, quote_plus

import msgspec

from ortune.errors import UsageError
from ortune.limited import TooLargeError, read_limited
from ortune.storage.driver_options import ALLOWED, Value, read_options

if TYPE_CHECKING:
    import sqlalchemy

URL_VARIABLE = "ORTUNE_STORAGE"
FILE_VARIABLE = "ORTUNE_STORAGE_FILE"
"""Environment variables with the URL of the storage, and with the path of a file that holds the URL."""

MOST_URL_BYTES = 4096
"""Longest URL."""

JOURNAL_SUFFIXES = (".journal", ".log")

DRIVERS = {"postgresql": "postgresql+psycopg", "postgres": "postgresql+psycopg", "mysql": "mysql+pymysql"}
"""Schemes of URLs without a driver, and the driver that ortune's extra `fleet` installs. With another one, such as
`mysql+mysqldb`, the user chose it."""

GRPC = "grpc"

URL_WITHOUT_SLASHES = re.compile(rf"({'|'.join((*DRIVERS, GRPC))})(\+\w*)?:")
"""How a text begins that is a misspelled URL, and no path."""

HOST = re.compile(r"[\w.,:%-]*")
"""Characters of a host, of its IPv6 address, and of several hosts."""

HIDDEN = "***"

Kind = Literal["journal", "database", "grpc"]


class Location(msgspec.Struct, frozen=True, kw_only=True):
    """Where a storage is.

    Attributes:
        kind: A journal file, a database, or a gRPC proxy in front of a database.
        url: Path of the file, host and port of the proxy, or the URL with the driver and without options. It may
            contain a password: it is not part of `repr`.
        title: The same without password and options, for messages.
        options: Names and values of options of the driver. One may be a password.
    """

    kind: Kind
    url: str
    title: str
    options: tuple[tuple[str, Value], ...] = ()

    def __repr__(self) -> str:
        """Return the location without its password."""
        return f"Location({self.title!r})"

    __str__ = __repr__

    @property
    def engine_url(self) -> sqlalchemy.URL | None:
        """The URL of a database, in the parts that its engine sees. None for others."""
        if self.kind != "database":
            return None
        import sqlalchemy

        return sqlalchemy.make_url(self.url)

    @property
    def secrets(self) -> tuple[str, ...]:
        """Texts that must not appear anywhere: the password in each spelling, and passwords among the options."""
        url = self.engine_url
        values = [str(value) for name, value in self.options if "pass" in name]
        if url is not None and url.password:
            values.append(str(url.password))
        spelled = set(values)
        for value in values:
            spelled |= {quote(value), quote(value, safe=""), quote(value, safe=" +"), quote_plus(value)}
        return tuple(sorted(spelled, key=len, reverse=True))

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
        text = read_limited(path, MOST_URL_BYTES, only_regular=True).decode()
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
    if len(text) > MOST_URL_BYTES or not text.isprintable():
        _refuse(source, "the value is not a URL")
    if "://" not in text:
        if Path(text).suffix not in JOURNAL_SUFFIXES or URL_WITHOUT_SLASHES.match(text):
            _refuse(source, "the value is neither a URL nor the path of a journal file")
        return Location(kind="journal", url=os.path.realpath(text), title=text)
    url = _parse_url(text, source)
    host = url.host or ""
    where = f"[{host}]" if ":" in host else host
    where += f":{url.port}" if url.port else ""
    database = (url.database or "").strip("/")
    if url.drivername == GRPC:
        if not host or not url.port or url.username is not None or database or url.query:
            _refuse(source, "a gRPC proxy is named by host and port only")
        return Location(kind="grpc", url=where, title=f"grpc://{where}")
    base = url.get_backend_name()
    if base not in DRIVERS:
        _refuse(source, f"storages of the kind {base[:32]!r} are not supported")
    if not database:
        _refuse(source, "the URL does not name a database")
    user = f"{url.username}@" if url.username else ""
    if not f"{user}{database}".isprintable():
        _refuse(source, "the value is not a legal URL")
    name = "postgresql" if base == "postgres" else base
    drivername = DRIVERS.get(url.drivername, url.drivername)
    driver = drivername.partition("+")[2]
    try:
        options = read_options(driver, url.query)
    except ValueError as error:
        _refuse(source, str(error), f"Allowed are {', '.join(sorted(ALLOWED[driver]))}." if driver in ALLOWED else "")
    return Location(
        kind="database",
        url=url.set(drivername=drivername, query={}).render_as_string(hide_password=False),
        title=f"{name}://{user}{where}/{database}",
        options=tuple(options.items()),
    )


def _parse_url(text: str, source: str) -> sqlalchemy.URL:
    """Return the parts of a URL, as the engine that connects to it sees them.

    Raises:
        UsageError: It is not legal.
    """
    import sqlalchemy
    from sqlalchemy.exc import ArgumentError

    try:
        url = sqlalchemy.make_url(text)
    except (ArgumentError, ValueError):
        _refuse(source, "the value is not a legal URL")
    # With another @, a part of the password would count as the host, or as the database.
    n_separators = 0 if url.username is None else 1
    if text.count("@") != n_separators:
        _refuse(
            source, "the value is not a legal URL", "In names, passwords and options, write @ as %40, and / as %2F."
        )
    has_legal_port = url.port is None or 0 < url.port < 1 << 16
    if not HOST.fullmatch(url.host or "") or not has_legal_port:
        _refuse(source, "the value is not a legal URL")
    return url


def _refuse(source: str, why: str, hint: str = "") -> NoReturn:
    hint = hint or (
        "Use postgresql://USER@HOST/DATABASE, mysql://USER@HOST/DATABASE, grpc://HOST:PORT, or the path of a file such "
        "as fleet.journal."
    )
    if source == "storage":
        raise UsageError(f"{why}.", hint, option=source)
    raise UsageError(f"{source}: {why}.", hint)
