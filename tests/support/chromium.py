"""Chromium without a window: opens a page, reads what it shows and clicks, as a user does."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
from selenium.common.exceptions import StaleElementReferenceException
from selenium.webdriver import Chrome, ChromeOptions, ChromeService
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement

from tests.support.processes import alive
from tests.support.programs import program
from tests.support.waiting import wait_until

_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-dev-shm-usage",
    "--disable-sync",
)


class Browser:
    """One tab. Elements are named by CSS selectors."""

    def __init__(self, driver: Chrome) -> None:
        self._driver = driver

    def open(self, url: str) -> None:
        """Leave the page that is open, with its connections, for this one."""
        self._driver.get("about:blank")  # a new fragment alone would load nothing
        self._driver.get(url)

    def run(self, script: str) -> object:
        """What the script returns."""
        return self._driver.execute_script(script)

    def texts(self, selector: str) -> list[str]:
        """What the elements show now."""
        with suppress(StaleElementReferenceException):  # the page changed between two questions
            return [each.text for each in self._all(selector)]
        return []

    def wait_for(self, selector: str, *texts: str, timeout: float = 20.0) -> None:
        """Until the elements show exactly these texts."""
        what = f"{selector} shows {', '.join(texts) or 'nothing'}"
        try:
            wait_until(lambda: self.texts(selector) == list(texts), what, timeout)
        except AssertionError as error:
            error.add_note(f"the page shows: {self.texts('body')}\nits console: {self.console()}")
            raise

    def click(self, selector: str) -> None:
        """Once it is there and may be clicked."""
        wait_until(lambda: any(each.is_enabled() for each in self._all(selector)), f"{selector} can be clicked")
        self._all(selector)[0].click()

    def enabled(self, selector: str) -> bool:
        """Whether a click would do something."""
        return self._all(selector)[0].is_enabled()

    def attribute(self, selector: str, name: str) -> str | None:
        """Of the first such element; None without one."""
        found = self._all(selector)
        return found[0].get_attribute(name) if found else None

    def console(self) -> list[str]:
        """Warnings and errors of scripts since the last look; those about connections and answers are left out."""
        told = [each for each in self._driver.get_log("browser") if each["source"] != "network"]
        return [each["message"] for each in told if each["level"] in ("WARNING", "SEVERE")]

    def _all(self, selector: str) -> list[WebElement]:
        return self._driver.find_elements(By.CSS_SELECTOR, selector)


@contextmanager
def chromium(folder: Path) -> Generator[Browser]:
    """A browser with a new profile in this folder; it and its driver have ended afterwards."""
    options = ChromeOptions()
    options.binary_location = str(program("chromium", "chromium"))
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    for flag in (*_FLAGS, f"--user-data-dir={folder / 'profile'}"):
        options.add_argument(flag)
    driver_program = str(program("chromedriver", "chromium-driver"))  # named, or selenium would load one down
    service = ChromeService(driver_program, log_output=str(folder / "chromedriver.log"))
    driver = Chrome(options, service)
    family = [psutil.Process(service.process.pid), *psutil.Process(service.process.pid).children(recursive=True)]
    try:
        yield Browser(driver)
    finally:
        driver.quit()
        for process in filter(alive, family):
            with suppress(psutil.NoSuchProcess):
                process.kill()
