"""A headless Chromium that opens pages."""

from __future__ import annotations

import base64
import shutil
import time
from pathlib import Path
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")

SIZES = {"desktop": (1280, 900), "phone": (390, 844)}
"""Width and height of pages, in pixels."""

LONGEST_S = 60
"""Time after which a page that is not ready counts as broken."""


class Browser:
    """A browser. Close it at the end.

    Attributes:
        driver: Selenium's driver.
    """

    def __init__(self) -> None:
        from selenium import webdriver
        from selenium.webdriver.chrome.service import Service

        options = webdriver.ChromeOptions()
        options.binary_location = str(CHROMIUM)
        # Without its sandbox, Chromium runs as root, too. The pages are ortune's own.
        for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
            options.add_argument(argument)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        self.driver = webdriver.Chrome(options=options, service=Service(str(DRIVER)))

    def open(self, page: Path | str, size: str = "desktop", *, dark: bool = False) -> float:
        """Open a page, and return how many seconds it took until it is ready, such as when all charts are drawn.

        Args:
            page: A file or a URL. The page sets `data-ready` of its root element at the end.
            size: One of `SIZES`.
            dark: Whether the user prefers dark pages.
        """
        width, height = SIZES[size]
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": size == "phone"}
        self.command("Emulation.setDeviceMetricsOverride", **metrics)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.command("Emulation.setEmulatedMedia", features=[scheme])
        self.driver.get_log("browser")
        self.driver.get(page if isinstance(page, str) else page.resolve().as_uri())
        end_s = time.monotonic() + LONGEST_S
        while not self.run("return document.documentElement.dataset.ready"):
            assert time.monotonic() < end_s, f"{page} is not ready: {self.driver.get_log('browser')}"
            time.sleep(0.02)
        return float(self.run("return performance.now()")) / 1000

    def run(self, script: str, *arguments: Any) -> Any:
        """Run JavaScript on the page."""
        return self.driver.execute_script(script, *arguments)

    def command(self, name: str, **parameters: Any) -> Any:
        """Send a command of the DevTools protocol."""
        return self.driver.execute_cdp_cmd(name, parameters)

    def problems(self) -> list[str]:
        """Return what the console shows since the page was opened, and what charts could not be drawn."""
        shown = [entry["message"] for entry in self.driver.get_log("browser")]
        failed = self.run("return [...document.querySelectorAll('.chart.failed')].map(each => each.textContent)")
        return [*shown, *failed]

    def take_picture(self, *, height: int, scale: float = 1.0) -> bytes:
        """Return the upper part of the page as PNG."""
        width = self.run("return innerWidth")
        clip = {"x": 0, "y": 0, "width": width, "height": height, "scale": scale}
        shot = self.command("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)
        return base64.b64decode(shot["data"])

    def close(self) -> None:
        """End the browser."""
        self.driver.quit()
