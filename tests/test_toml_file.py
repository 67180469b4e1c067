"""Files of users in TOML."""

from __future__ import annotations

from pathlib import Path

import pytest

from ortune import UsageError
from ortune.toml_file import MOST_TOML_BYTES, read_toml

LINES = MOST_TOML_BYTES // 6


@pytest.mark.parametrize(
    "text",
    [
        'x = "' + '\\"' * (MOST_TOML_BYTES // 2 - 100),
        '"""\n' + '\\"""\n' * (LINES - 100) + "\\",
        "x = '" + "\\'" * (MOST_TOML_BYTES // 2 - 100),
        '"\n' * (MOST_TOML_BYTES // 2 - 100),
    ],
    ids=["escaped quotes", "escaped triple quotes", "single quotes", "quotes"],
)
def test_strings_that_do_not_end(text: str, tmp_path: Path) -> None:
    """The first two took hours, because each of their quotes may begin another string."""
    path = tmp_path / "ortune.toml"
    path.write_text(text)
    with pytest.raises(UsageError, match="not valid TOML"):
        read_toml(path)


def test_dots_in_strings_and_comments_are_not_those_of_keys(tmp_path: Path) -> None:
    path = tmp_path / "ortune.toml"
    dots = "." * 200
    path.write_text(f'a = "{dots}"  # {dots}\nb = """\n{dots}\\"""" {chr(10)}c = \'{dots}\'\nd = \'\'\'{dots}\'\'\'\n')
    assert read_toml(path).tables["a"] == dots
    path.write_text(f"a{dots}b = 1\n")
    with pytest.raises(UsageError, match="nested too deeply"):
        read_toml(path)
