"""Comments in exports. They quote names of models, hosts and files, which must not leave the comment."""

from __future__ import annotations

import re

from ortune.sanitize import printable


def make_comment(start: str, text: str) -> str:
    r"""Return a comment of one line.

    Control characters and line breaks are replaced. So is what has an effect even in a comment:

    - `//`: Java reads `\u000a` as a line break. C++ continues a line that ends in a backslash, or in its trigraph.
    - `#`: Python reads the encoding of the file from `coding:` in its first lines.
    - `<!--`: two hyphens may end the comment.

    Args:
        start: What a comment starts with: `//`, `#` or `<!--`.
        text: The comment.
    """
    text = printable(text).rstrip()
    if start == "<!--":
        return f"<!-- {re.sub('-(?=-)', '- ', text)} -->"
    if start == "//":
        # After an odd number of backslashes, the u starts an escape sequence.
        text = re.sub(r"\\+(?=u)", lambda found: found[0] + "\\" * (len(found[0]) % 2), text)
        if text.endswith(("\\", "??/")):
            text += " ."
    else:
        text = re.sub(r"coding(?=[:=])", "coding ", text)
    return f"{start} {text}".rstrip()
