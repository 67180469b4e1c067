"""Writes pages as HTML and their charts as PNG.

Records, trials and histories are data of unknown origin. The template escapes every text. The charts are JSON in which
`<`, `>` and `&` are escaped, so that nothing ends its block. The page's Content-Security-Policy allows no script but
those that ortune put there, by their hashes, and no connection at all.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import json
import re
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ortune import __version__
from ortune.errors import UsageError
from ortune.record.files import check_writable, write_atomically
from ortune.report.blocks import Chart, Page
from ortune.report.charts.style import PRINT_COLORS
from ortune.sanitize import printable, printable_lines

if TYPE_CHECKING:
    import jinja2

PNG_WIDTH = 720
PNG_SCALE = 2.0
"""Width of a chart as PNG, in pixels of its layout, and how many pixels of the file each becomes."""

MISSING = "Reports need the packages jinja2 and vl-convert-python, which are not installed."
INSTALL = "Install them with pip install 'ortune[report]'."

PAGE_MARK = b'<meta name="generator" content="ortune'
"""What all pages of ortune contain near their beginning."""

FOLDER = resources.files("ortune.report") / "page"


def check_installed() -> None:
    """Check that the packages that reports need are installed.

    Raises:
        UsageError: One is missing.
    """
    try:
        import jinja2  # noqa: F401
        import vl_convert  # noqa: F401
    except ImportError:
        raise UsageError(MISSING, INSTALL) from None


def check_output(path: Path) -> None:
    """Check that a page can be written to a file: only pages of ortune are replaced.

    Raises:
        UsageError: It cannot.
    """
    check_writable(path, "output", lambda content: PAGE_MARK in content)


COLORS_BY_VARIABLE = {f"var(--{name})": color for name, color in PRINT_COLORS.items()}


def render_page(page: Page) -> str:
    """Return a page as HTML.

    Raises:
        UsageError: A package that reports need is missing.
    """
    check_installed()
    scripts = [read_vega() if page.charts else "", read_text("page.js")]
    charts = [{"id": f"chart-{chart.name}", "spec": chart.spec} for chart in page.charts]
    return read_template().render(
        page=page,
        kind_of=lambda block: type(block).__name__,
        charts=encode_script_json(charts),
        style=read_text("page.css"),
        scripts=[script for script in scripts if script],
        hashes=" ".join(f"'sha256-{hash_script(script)}'" for script in scripts if script),
        version=__version__,
    )


@functools.cache
def read_template() -> jinja2.Template:
    """Return the template of a page. To compile it takes longer than to render a page."""
    import jinja2
    from markupsafe import Markup, escape

    def finalize(value: object) -> object:
        """Return a text on one line without control characters."""
        return printable(value) if isinstance(value, str) and not isinstance(value, Markup) else value

    def escape_lines(text: str) -> Markup:
        return escape(printable_lines(text))

    environment = jinja2.Environment(
        autoescape=True,
        finalize=finalize,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["lines"] = escape_lines
    return environment.from_string(read_text("page.html.jinja"))


def encode_script_json(value: Any) -> str:
    """Return JSON for a script element: no text in it ends the element or starts a comment."""
    text = json.dumps(clean(value), ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def clean(value: Any) -> Any:
    """Return a specification with texts that are safe to show."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, dict):
        return {name: clean(inner) for name, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [clean(element) for element in value]
    return value


def hash_script(script: str) -> str:
    """Return the digest of a script as a Content-Security-Policy has it."""
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


@functools.cache
def read_text(name: str) -> str:
    """Return a file of the page."""
    return (FOLDER / name).read_text(encoding="utf-8")


@functools.cache
def read_vega() -> str:
    """Return Vega, Vega-Lite and Vega-Embed as one script."""
    import vl_convert

    bundle: Any = vl_convert.javascript_bundle
    script = str(bundle())  # its types ask for a snippet, which is optional
    # It is put into a script element as it is.
    assert not re.search(r"</script|<!--", script, re.IGNORECASE)
    return script


def write_page(page: Page, path: Path) -> None:
    """Write a page.

    Args:
        page: The page.
        path: Path of the file; `-` for stdout.

    Raises:
        UsageError: The file cannot be written, or a package that reports need is missing.
    """
    write_atomically(path, render_page(page).encode("utf-8", "replace"))


def write_charts(page: Page, folder: Path) -> tuple[Path, ...]:
    """Write each chart of a page as PNG, in the colors of the light page, and return the files.

    Raises:
        UsageError: A file cannot be written, or a package that reports need is missing.
    """
    check_installed()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{folder}: cannot be created: {error.strerror}.", option="png") from None
    written = []
    for chart in page.charts:
        path = folder / f"{chart.name}.png"
        write_atomically(path, draw_png(chart))
        written.append(path)
    return tuple(written)


def draw_png(chart: Chart) -> bytes:
    """Return a chart as PNG.

    Raises:
        UsageError: It cannot be drawn.
    """
    import vl_convert

    spec = use_print_colors(clean(chart.spec))
    spec |= {"width": PNG_WIDTH, "background": "white", "title": {"text": printable(chart.title), "anchor": "start"}}
    spec["config"] = {**spec["config"], "background": "white", "font": "sans-serif"}
    try:
        return bytes(vl_convert.vegalite_to_png(spec, scale=PNG_SCALE, allowed_base_urls=[]))
    except ValueError as error:  # charts of files that others wrote may have more points than can be drawn
        reason = str(error).strip().splitlines()[-1].strip()
        raise UsageError(f"{chart.name}.png: cannot be drawn: {reason}.", option="png") from None


OF_FILES = frozenset({"values", "domain"})
"""Parts of a specification that may hold texts from a file."""


def use_print_colors(spec: Any) -> Any:
    """Return a specification with colors instead of CSS variables. Texts from files are not changed."""
    if isinstance(spec, dict):
        return {name: inner if name in OF_FILES else use_print_colors(inner) for name, inner in spec.items()}
    if isinstance(spec, list):
        return [use_print_colors(element) for element in spec]
    return COLORS_BY_VARIABLE.get(spec, spec) if isinstance(spec, str) else spec
