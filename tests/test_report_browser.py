"""Pages of `ortune report` in headless Chromium: they draw all charts, and sorting, filtering and copying work.

Selenium drives the chromium and the chromedriver of the system; it downloads none.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from ortune.report.history import make_page as make_history_page
from ortune.report.write import write_page
from tests.browser import CHROMIUM, DRIVER, Browser
from tests.test_report import BENCH, FRONT, SEARCH, every_block, make_history, page_of

pytestmark = [
    pytest.mark.skipif(not (CHROMIUM and DRIVER), reason="needs chromium and chromedriver"),
    pytest.mark.skipif(not find_spec("selenium"), reason="needs selenium"),
    pytest.mark.xdist_group("browser"),
]

KINDS = ("search", "front", "bench", "history", "hostile")

OPENED = [("search", "desktop"), *((kind, "phone") for kind in KINDS)]
"""Pages that each run of the tests opens, and sizes of screens. What is too wide for any is too wide for a phone."""

OTHERS = [pytest.param(kind, "desktop", marks=pytest.mark.long) for kind in KINDS if kind != "search"]

HOSTILE = "</script><script>document.title = 'pwned'</script><img src=x onerror=\"document.title='pwned'\">"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    opened = Browser()
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    made = {
        "search": page_of(SEARCH),
        "front": page_of(FRONT),
        "bench": page_of(BENCH),
        "history": make_history_page(make_history(12), "h.jsonl"),
        "hostile": every_block(HOSTILE),
    }
    for name, page in made.items():
        write_page(page, folder / f"{name}.html")
    return {name: folder / f"{name}.html" for name in made}


@pytest.mark.parametrize(("kind", "size"), [*OPENED, *OTHERS])
def test_pages_open_without_problems(browser: Browser, pages: dict[str, Path], kind: str, size: str) -> None:
    browser.open(pages[kind], size)
    assert browser.problems() == []
    n_charts = browser.run("return JSON.parse(document.getElementById('charts').textContent).length")
    assert n_charts > 0
    # Each chart has marks, and colors that the page defines.
    drawn = browser.run(
        "return [...document.querySelectorAll('.chart svg')].map(each => ["
        "each.getBoundingClientRect().width, each.querySelectorAll('path, line, text').length])"
    )
    assert len(drawn) == n_charts
    assert all(width > 100 and n_marks > 4 for width, n_marks in drawn)
    assert browser.run("return document.documentElement.scrollWidth <= innerWidth"), "the page is too wide"


def test_texts_stay_texts(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["hostile"])
    assert browser.driver.title == HOSTILE
    assert browser.run("return document.images.length") == 0
    assert browser.run("return document.querySelector('h1').textContent") == HOSTILE


def test_dark_and_light_differ(browser: Browser, pages: dict[str, Path]) -> None:
    colors = []
    for dark in (False, True):
        browser.open(pages["bench"], dark=dark)
        page = browser.run("return getComputedStyle(document.body).backgroundColor")
        label = browser.run("return getComputedStyle(document.querySelector('.chart svg text')).fill")
        colors.append((page, label))
    assert colors[0][0] == "rgb(255, 255, 255)" and colors[1][0] != colors[0][0]
    assert colors[0][1] != colors[1][1], "charts follow the colors of the page"


CANDIDATES = "const table = [...document.querySelectorAll('.sortable table')].pop();"


def column(browser: Browser, place: int) -> list[str]:
    return list(
        browser.run(
            f"{CANDIDATES} return [...table.tBodies[0].rows].filter(row => row.checkVisibility())"
            ".map(row => row.cells[arguments[0]].textContent)",
            place,
        )
    )


def test_rows_are_sorted(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["search"])
    ratios = [float(cell.removesuffix("x")) for cell in column(browser, 2) if cell]
    press = f"{CANDIDATES} table.tHead.rows[0].cells[2].querySelector('button').click()"
    for descending in (True, False):
        browser.run(press)
        shown = [float(cell.removesuffix("x")) for cell in column(browser, 2) if cell]
        assert shown == sorted(ratios, reverse=descending) != ratios
        state = browser.run(f"{CANDIDATES} return table.tHead.rows[0].cells[2].getAttribute('aria-sort')")
        assert state == ("descending" if descending else "ascending")


def test_rows_are_filtered(browser: Browser, pages: dict[str, Path]) -> None:
    from selenium.webdriver.common.by import By

    browser.open(pages["search"])
    before = column(browser, 1)
    box = browser.driver.find_elements(By.CSS_SELECTOR, ".sortable input")[-1]
    box.send_keys("threads=1 screening")
    shown = column(browser, 1)
    assert 0 < len(shown) < len(before) and all("threads=1" in cell for cell in shown)
    count = browser.driver.find_elements(By.CSS_SELECTOR, ".sortable .count")[-1].text
    assert count == f"{len(shown)} of {len(before)} rows"


def test_settings_are_copied(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["search"])
    browser.command("Browser.grantPermissions", permissions=["clipboardReadWrite", "clipboardSanitizedWrite"])
    browser.run("document.querySelector('details').open = true")
    # In one script: the button says so for two seconds.
    text = browser.driver.execute_async_script(
        "const done = arguments[0], code = document.querySelector('details .code'); window.copied = '';"
        "document.addEventListener('copy', () => { window.copied = getSelection().toString(); });"
        "const button = code.querySelector('button'), text = code.querySelector('code').textContent;"
        "const wait = () => button.textContent === 'Copied' ? done(text) : setTimeout(wait, 10);"
        "button.click(); wait();"
    )
    copied = browser.driver.execute_async_script(
        "const done = arguments[0]; navigator.clipboard.readText().then(done, () => done(window.copied));"
    )
    assert text.strip() and copied.strip() == text.strip()


def test_it_prints(browser: Browser, pages: dict[str, Path]) -> None:
    import base64

    browser.open(pages["search"], dark=True)
    printed = base64.b64decode(browser.command("Page.printToPDF")["data"])
    assert printed.startswith(b"%PDF") and printed.count(b"/Type /Page\n") + printed.count(b"/Type /Page ") >= 1
