"""Searches for a secret where it must not be: in output, files, command lines, environments and memory of processes.

    secret = database.password
    with watch(process.pid, secret, allowed=("environ",)) as watcher:
        ...
    leaks = [*watcher.leaks, *search_texts(secret, stdout=out, stderr=err), *search_folder(secret, tmp_path)]
    assert leaks == []

A secret is also found if it was encoded: for URLs, JSON, Python, base64, as hexadecimal digits, or in UTF-16; and in
compressed files.
"""

from __future__ import annotations

import base64
import bz2
import contextlib
import gzip
import json
import lzma
import os
import re
import threading
import zipfile
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple
from urllib.parse import quote

SHORTEST = 8
"""Shorter secrets could be found by chance."""

CHUNK_BYTES = 1 << 20

MOST_BYTES = 1 << 30
"""Decompressed bytes of a file that are searched."""

Kind = Literal["cmdline", "environ", "memory"]

OPENERS: Mapping[bytes, Callable[[Path], Any]] = {
    b"\x1f\x8b": gzip.open,
    b"BZh": bz2.open,
    b"\xfd7zXZ": lzma.open,
}
"""How compressed files are read, by their first bytes."""


class Leak(NamedTuple):
    """A place where the secret is. It does not hold the secret, so that messages of tests may show it.

    Attributes:
        where: The place, such as `stderr`, a file, or `environ of 123 (python)`.
        form: How the secret is written there.
    """

    where: str
    form: str


def list_forms(secret: str) -> dict[str, bytes]:
    """Return how a secret may be written, by the name of the form.

    Raises:
        ValueError: The secret is so short that it could be found by chance.
    """
    if len(secret) < SHORTEST:
        raise ValueError(f"a secret needs at least {SHORTEST} characters to be searched for")
    plain = secret.encode()
    forms = {
        "plain": plain,
        "encoded for a URL": quote(secret, safe="").encode(),
        "encoded for a path": quote(secret).encode(),
        "escaped for JSON": json.dumps(secret)[1:-1].encode(),
        "escaped for Python": repr(secret)[1:-1].encode(),
        "hexadecimal": plain.hex().encode(),
        "UTF-16": secret.encode("utf-16-le"),
    }
    for shift in range(3):
        # Six bits become a character. The outer ones also hold bits of what is before and after the secret.
        first, end = -(-8 * shift // 6), 8 * (shift + len(plain)) // 6
        data = bytes(shift) + plain
        forms[f"base64, shifted by {shift}"] = base64.b64encode(data)[first:end]
        forms[f"base64 for URLs, shifted by {shift}"] = base64.urlsafe_b64encode(data)[first:end]
    distinct: dict[bytes, str] = {}
    for name, form in forms.items():
        distinct.setdefault(form, name)
    return {name: form for form, name in distinct.items()}


def search_bytes(secret: str, data: bytes, where: str) -> list[Leak]:
    """Return each form of the secret that is in some bytes."""
    return [Leak(where, name) for name, form in list_forms(secret).items() if form in data]


def search_texts(secret: str, **texts: str | bytes | None) -> list[Leak]:
    """Return where the secret is in captured texts, such as `stdout=done.stdout, stderr=done.stderr`."""
    found = []
    for name, text in texts.items():
        data = text.encode("utf-8", "surrogateescape") if isinstance(text, str) else text or b""
        found += search_bytes(secret, data, name)
    return found


def search_folder(secret: str, folder: Path, allowed: Collection[Path] = ()) -> list[Leak]:
    """Return where the secret is in the files of a folder: names, targets of links, and contents, also of core dumps.

    Args:
        secret: The secret.
        folder: The folder, with all folders in it.
        allowed: Files that may hold it, such as the one that `ORTUNE_STORAGE_FILE` names.

    Raises:
        OSError: A file cannot be read.
    """
    found = []
    for path in sorted(folder.rglob("*")):
        if path in allowed:
            continue
        found += search_bytes(secret, os.fsencode(path.name), f"name of {path}")
        if path.is_symlink():
            found += search_bytes(secret, os.fsencode(path.readlink()), f"target of {path}")
        elif path.is_file():
            found += search_file(secret, path)
    return found


def search_file(secret: str, path: Path) -> list[Leak]:
    """Return each form of the secret that is in a file, or in what it holds in compressed form."""
    with path.open("rb") as file:
        start = file.read(8)
        file.seek(0)
        found = search_stream(secret, file, str(path))
    opener = next((opener for magic, opener in OPENERS.items() if start.startswith(magic)), None)
    with contextlib.suppress(EOFError, OSError, lzma.LZMAError, zipfile.BadZipFile, zlib.error):  # not such a file
        if opener:
            with opener(path) as file:
                found += search_stream(secret, file, f"{path}, decompressed")
        elif start.startswith(b"PK"):
            with zipfile.ZipFile(path) as archive:
                for name in archive.namelist():
                    with archive.open(name) as file:
                        found += search_stream(secret, file, f"{path}, {name}")
    return found


def search_stream(secret: str, file: IO[bytes], where: str) -> list[Leak]:
    """Return each form of the secret that is in a stream, which may be large."""
    forms = list_forms(secret)
    overlap = max(map(len, forms.values())) - 1
    found: dict[Leak, None] = {}
    before, n_read = b"", 0
    while (chunk := file.read(CHUNK_BYTES)) and n_read < MOST_BYTES:
        n_read += len(chunk)
        data = before + chunk
        found |= {Leak(where, name): None for name, form in forms.items() if form in data}
        before = data[-overlap:]
    return [*found]


# Processes.


class Process(NamedTuple):
    """A running process, as /proc shows it.

    Attributes:
        pid: Its number.
        cmdline: Its arguments, separated by null characters.
        environ: Its variables at its start, separated by null characters.
    """

    pid: int
    cmdline: bytes
    environ: bytes

    @property
    def name(self) -> str:
        """Its number and its program."""
        return f"{self.pid} ({Path(os.fsdecode(self.cmdline.split(bytes(1))[0])).name})"


def read_process(pid: int) -> Process | None:
    """Return a process, or None if it has ended or is starting another program at this moment.

    Raises:
        PermissionError: It is of another user.
    """
    folder = Path(f"/proc/{pid}")
    try:
        before = (folder / "cmdline").read_bytes()
        environ = (folder / "environ").read_bytes()
        return Process(pid, before, environ) if (folder / "cmdline").read_bytes() == before else None
    except (FileNotFoundError, ProcessLookupError):
        return None


def list_descendants(pid: int) -> list[int]:
    """Return the processes that a process started, directly or through others, as far as their parents still run."""
    children: dict[int, list[int]] = {}
    for path in Path("/proc").iterdir():
        if path.name.isdecimal():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                # The name of the program, in parentheses, may contain anything.
                parent = int((path / "stat").read_text(errors="replace").rpartition(")")[2].split()[1])
                children.setdefault(parent, []).append(int(path.name))
    found = list(children.get(pid, ()))
    for descendant in found:
        found += children.get(descendant, ())
    return found


def search_processes(
    secret: str, pid: int, *, allowed: Collection[Kind] = (), kinds: Collection[Kind] = ("cmdline", "environ")
) -> list[Leak]:
    """Return where the secret is in a running process and all of its descendants at this moment.

    Args:
        secret: The secret.
        pid: The process.
        allowed: Where this process itself may have it. Its descendants may not.
        kinds: What to search. `memory` is all that a core dump would contain, the environment included.

    Raises:
        PermissionError: A process or its memory cannot be read.
    """
    found: list[Leak] = []
    top = read_process(pid)
    for number in (pid, *list_descendants(pid)):
        process = read_process(number)
        if process is None:
            continue
        # A child that has not started its program yet is a copy of this process, which itself may just have started.
        is_top = number == pid or (top is not None and process.cmdline == top.cmdline)
        for kind in kinds:
            if is_top and kind in allowed:
                continue
            where = f"{kind} of {process.name}"
            if kind == "memory":
                found += search_memory(secret, number, where)
            else:
                found += search_bytes(secret, getattr(process, kind), where)
    return found


def search_memory(secret: str, pid: int, where: str) -> list[Leak]:
    """Return each form of the secret that is in the memory of a process.

    Raises:
        PermissionError: It cannot be read.
    """
    found: dict[Leak, None] = {}
    with contextlib.suppress(FileNotFoundError, ProcessLookupError), Path(f"/proc/{pid}/mem").open("rb", 0) as memory:
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            start, end, mode = re.match(r"(\w+)-(\w+) (\S+)", line).groups()  # type: ignore[union-attr]
            if mode.startswith("rw"):
                found |= dict.fromkeys(_search_range(secret, memory, int(start, 16), int(end, 16), where))
    return [*found]


def _search_range(secret: str, memory: IO[bytes], start: int, end: int, where: str) -> list[Leak]:
    found: dict[Leak, None] = {}
    overlap = max(map(len, list_forms(secret).values()))
    for place in range(start, end, CHUNK_BYTES):
        with contextlib.suppress(OSError):  # the range is gone, or is that of a device
            memory.seek(place)
            data = memory.read(min(CHUNK_BYTES + overlap, end - place))
            found |= dict.fromkeys(search_bytes(secret, data, where))
    return [*found]


class Watcher:
    """What `watch` has found so far.

    Attributes:
        leaks: Each place once.
        n_looks: How often the processes were searched.
        fault: Why the search ended early; None if it did not.
    """

    def __init__(self) -> None:
        self.leaks: dict[Leak, None] = {}
        self.n_looks = 0
        self.fault: Exception | None = None


@contextlib.contextmanager
def watch(
    pid: int,
    secret: str,
    *,
    allowed: Collection[Kind] = (),
    kinds: Collection[Kind] = ("cmdline", "environ"),
    interval_s: float = 0.005,
) -> Iterator[Watcher]:
    """Search a process and its descendants again and again while the block runs; see `search_processes`.

    A process that runs for less than the interval may be missed.

    Raises:
        Exception: The processes could not be searched.
    """
    watcher, is_over = Watcher(), threading.Event()
    list_forms(secret)

    def look() -> None:
        try:
            while True:
                leaks = search_processes(secret, pid, allowed=allowed, kinds=kinds)
                watcher.leaks |= dict.fromkeys(leaks)
                watcher.n_looks += 1
                if is_over.wait(interval_s):
                    return
        except Exception as error:  # noqa: BLE001 - it is raised where the block ends
            watcher.fault = error

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield watcher
    finally:
        is_over.set()
        thread.join()
    if watcher.fault:
        raise watcher.fault
