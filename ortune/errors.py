"""Exceptions, and the exit code of each outcome.

The exception tree::

    OrtuneError                     ortune cannot go on; the message says what failed, with which value
    ├── UsageError                  an option or argument is not valid
    ├── HostError                   the host cannot be read, or lacks what ortune needs, such as onnxruntime
    ├── ModelError                  the file is not a model that ONNX Runtime can load
    ├── InputsError                 the inputs cannot be made, or do not fit the model
    ├── MeasureError                the baseline itself cannot be measured
    │   └── BackgroundLoadError     the background load does not run
    └── RecordError                 a record cannot be read, or is not for this model

A candidate that fails is not an error. It is a `Failure` value (`ortune.worker`), and the search goes on.

Code below the command line does not know how the user wrote an option. An error therefore names the option by its
Python name (`option="max_slowdown"`), and texts refer to options as `{budget}` or `{budget=60s}`. `OrtuneError.render`
spells them as the caller's interface does: `--max-slowdown` on the command line, `max-slowdown` in `ortune.toml`,
`max_slowdown` in Python.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Sequence
from enum import IntEnum
from typing import Any

from ortune.sanitize import printable

Spelling = Callable[[str, str], str]
"""Spells an option, given its Python name and an example value, which may be empty."""


class ExitCode(IntEnum):
    """Exit codes, the same for all commands."""

    DONE = 0
    FAILED = 1
    ERROR = 2
    INCONCLUSIVE = 3
    INTERRUPTED = 130


def spell_in_python(name: str, value: str = "") -> str:
    """Spell an option as a Python parameter: `budget="60s"`."""
    return f'{name}="{value}"' if value else name


def spell_as_flag(name: str, value: str = "") -> str:
    """Spell an option as on the command line: `--budget 60s`."""
    flag = f"--{name.replace('_', '-')}"
    return f"{flag} {value}" if value else flag


def spell_in_toml(name: str, value: str = "") -> str:
    """Spell an option as in `ortune.toml`: `budget = "60s"`."""
    key = name.replace("_", "-")
    return f'{key} = "{value}"' if value else key


PLACEHOLDERS = frozenset({"port", "workers"})
"""What commands and URLs of programs contain in braces. It is not an option; see `ortune.apply.placeholders`."""


def spell_options(text: str, spell: Spelling) -> str:
    """Return a text in which each `{option}` and `{option=value}` is spelled by `spell`."""
    return re.sub(
        r"\{([a-z][a-z_]*)(?:=((?:[^{}]|\{[a-z]+\})*))?\}",  # a value may contain a placeholder
        lambda found: found[0] if found[1] in PLACEHOLDERS else spell(found[1], found[2] or ""),
        text,
    )


class OrtuneError(Exception):
    """ortune cannot go on, for a cause outside its own code.

    Args:
        message: What failed, with which value. It does not name the option.
        hint: How the user can fix it, as a sentence; empty when the message says so.
        option: Python name of the option with the invalid value; empty when there is none.
        details: Lines that follow the message, such as one for each input of the model.
        advised: Options with which the same command works, as names and values.
    """

    def __init__(
        self,
        message: str,
        hint: str = "",
        *,
        option: str = "",
        details: Sequence[str] = (),
        advised: Sequence[tuple[str, str]] = (),
    ) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.option = option
        self.details = tuple(details)
        self.advised = tuple(advised)

    def render(self, spell: Spelling = spell_in_python, where: str = "") -> tuple[str, str]:
        """Return message and hint for one interface.

        They may quote files, so each line is made printable. Only details add line breaks to the message.

        Args:
            spell: Spells options.
            where: Location of the option, such as `ortune.toml, line 3`; empty when the option name is enough.
        """
        named = " ".join(part for part in (f"{where}:" if where else "", spell(self.option, "")) if part)
        message = spell_options(self.message, spell)
        lines = [f"{named} {message}" if self.option else message, *(f"  {detail}" for detail in self.details)]
        return "\n".join(map(printable, lines)), printable(spell_options(self.hint, spell))

    def __str__(self) -> str:
        message, hint = self.render()
        return f"{message}\n{hint}" if hint else message


class UsageError(OrtuneError):
    """An option or argument is not valid."""


class HostError(OrtuneError):
    """The host cannot be read, or lacks what ortune needs, such as onnxruntime."""


class ModelError(OrtuneError):
    """The file is not a model that ONNX Runtime can load."""


class InputsError(OrtuneError):
    """The inputs cannot be made, or do not fit the model."""


class MeasureError(OrtuneError):
    """The baseline itself cannot be measured."""


class ProgramError(MeasureError):
    """The program to be tuned does not work, or cannot be measured as asked."""


class ClockError(MeasureError):
    """The clocks of the host disagree, so that nothing can be measured."""


class BackgroundLoadError(MeasureError):
    """The background load does not run."""


class RecordWarning(UserWarning):
    """What the settings of a file do, or do not, that the user should know."""


class TrustWarning(RecordWarning):
    """Something that a file may do only because the user trusts it."""


class ThreadsWarning(RecordWarning):
    """Numbers of threads or processes in a file that are too large for this host, so that smaller ones are used."""


def print_record_warnings() -> None:
    """Print each `RecordWarning` on stderr, as the command line prints its other warnings."""
    import sys
    import warnings

    others = warnings.showwarning

    def show(message: Any, category: type[Warning], *args: Any, **kwargs: Any) -> None:
        if issubclass(category, RecordWarning):
            sys.stderr.write(f"warning: {printable(str(message))}\n")
        else:
            others(message, category, *args, **kwargs)

    warnings.simplefilter("always", RecordWarning)
    warnings.showwarning = show


TEMPORARY = re.compile(r"ortune-\d+-")
"""What paths of temporary files contain; see `ortune.worker.owned_folder`."""


def make_missing_error(path: object) -> HostError:
    """Return the error for a temporary file or folder of ortune that is missing."""
    return HostError(
        f"{path} is missing: something removed ortune's temporary files while it was measuring.",
        "Set TMPDIR to a folder that nothing cleans up, and try again.",
    )


def explain_lack(error: BaseException) -> HostError | None:
    """Return an error that explains what the host lacks: space, memory, processes. None for other exceptions.

    Where ortune reads and writes the user's files, it reports their names. What remains are mostly temporary files.
    """
    import errno
    import os

    number = error.errno if isinstance(error, OSError) else None
    if isinstance(error, MemoryError) or number == errno.ENOMEM:
        return HostError("There is not enough memory.", "Free some, or raise the limit, such as that of `ulimit -v`.")
    if not isinstance(error, OSError):
        return None
    why = error.strerror or str(error)
    if number in {errno.EMFILE, errno.ENFILE}:
        return HostError(f"Cannot open another file: {why}.", "Raise the limit, such as that of `ulimit -n`.")
    if number == errno.EAGAIN:
        return HostError(f"Cannot start a process: {why}.", "Raise the limit, such as that of `ulimit -u`.")
    if number in {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS} or "usable temporary directory" in why:
        where = f" {error.filename}" if error.filename else ""
        return HostError(
            f"Cannot write a temporary file{where}: {why}.", "Set the variable TMPDIR to a folder with free space."
        )
    if number == errno.ENOENT and error.filename and TEMPORARY.search(os.fsdecode(error.filename)):
        return make_missing_error(os.fsdecode(error.filename))
    if number in {errno.EACCES, errno.EPERM, errno.ENAMETOOLONG, errno.ELOOP, errno.EIO} and isinstance(
        error.filename, (str, bytes)
    ):
        return HostError(f"{printable(os.fsdecode(error.filename))}: cannot be accessed: {why}.")
    return None


@contextlib.contextmanager
def explain_lacks() -> Iterator[None]:
    """Turn exceptions that show what the host lacks into errors, as `explain_lack` does. Others are not changed.

    Raises:
        HostError: The host lacks something.
    """
    try:
        yield
    except (OSError, MemoryError) as error:
        if lack := explain_lack(error):
            raise lack from error
        raise


class RecordError(OrtuneError):
    """A record cannot be read, or is not for this model."""
