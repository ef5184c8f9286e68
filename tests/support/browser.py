"""A Chromium for pages of the admin, controlled by the DevTools protocol over two pipes."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from tests.support.processes import kill_family

NAMES: Final = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
SECONDS: Final = 60.0
# File descriptors for Chromium's commands and replies.
_WITH_PIPES: Final = (
    "import os, sys; commands, answers, *browser = sys.argv[1:]; "
    "os.dup2(int(commands), 3); os.dup2(int(answers), 4); os.execv(browser[0], browser)"
)
_ARGUMENTS: Final = (
    "--headless=new", "--remote-debugging-pipe", "--no-sandbox", "--disable-gpu",
    "--disable-dev-shm-usage", "--no-first-run", "--hide-scrollbars",
    "--disable-background-networking",
)  # fmt: skip


class BrowserError(Exception):
    """The browser failed to run a command."""


def find_chromium() -> str:
    """Return the path of the browser; without one, fail with its installation command."""
    found = next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        raise BrowserError("No Chromium: `apt-get install chromium`, as CONTRIBUTING.md says.")
    return found


@contextmanager
def chromium() -> Iterator[Browser]:
    """Open one tab of a headless browser, and close it at the end of the block."""
    read, commands = os.pipe()
    answers, written = os.pipe()
    with tempfile.TemporaryDirectory(prefix="chromium-", ignore_cleanup_errors=True) as profile:
        process = subprocess.Popen(
            [sys.executable, "-c", _WITH_PIPES, str(read), str(written),
             find_chromium(), *_ARGUMENTS, f"--user-data-dir={profile}"],
            pass_fds=(read, written), stderr=subprocess.DEVNULL,
        )  # fmt: skip
        for end in (read, written):
            os.close(end)
        try:
            yield Browser(commands, answers)
        finally:
            os.close(commands)  # it ends when the pipe is closed
            kill_family(process)
            os.close(answers)


class Browser:
    """The tab, controlled over two pipes."""

    def __init__(self, commands: int, answers: int) -> None:
        self._commands, self._answers = commands, answers
        self._last, self._session, self._read = 0, "", b""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        self.call("Page.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Run a command of the protocol and return its reply."""
        self._last += 1
        command = {"id": self._last, "method": method, "params": params}
        if self._session:
            command["sessionId"] = self._session
        os.write(self._commands, json.dumps(command).encode() + b"\0")
        while (message := self._next()).get("id") != self._last:
            pass
        if "error" in message:
            raise BrowserError(f"{method}: {message['error']}")
        answer: dict[str, Any] = message["result"]
        return answer

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._read:
            data = os.read(self._answers, 1 << 20)
            if not data:
                raise BrowserError("The browser has ended.")
            self._read += data
        line, _, self._read = self._read.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        return message

    def look(
        self, *, width: int, height: int = 844, theme: str = "light", media: str = "screen"
    ) -> None:
        """Show later pages at this size, in this colour scheme and medium."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=1, mobile=False,
        )  # fmt: skip
        scheme = {"name": "prefers-color-scheme", "value": theme}
        self.call("Emulation.setEmulatedMedia", media=media, features=[scheme])

    def log_in(self, url: str, session_key: str) -> None:
        """Send this session's cookie to the site of the URL."""
        self.call("Network.setCookie", name="sessionid", value=session_key, url=url)

    def open(self, url: str) -> None:
        """Open a page and return once it has loaded."""
        self._load(lambda: self.call("Page.navigate", url=url))

    def press(self, url: str, button: str) -> None:
        """Open a page and press a button; return once the next page has loaded."""
        self.open(url)
        self._load(lambda: self.evaluate(f"document.querySelector({json.dumps(button)}).click()"))

    def _load(self, cause: Callable[[], Any]) -> None:
        """Run an action that loads a page, and return once it has loaded."""
        self.evaluate("window.isOld = true")
        cause()
        deadline = time.monotonic() + SECONDS
        while not self._is_there():
            if time.monotonic() > deadline:
                raise BrowserError("The page did not load in time.")

    def _is_there(self) -> bool:
        try:
            return bool(self.evaluate("!window.isOld && document.readyState == 'complete'"))
        except BrowserError as error:
            if "context" in str(error) or "navigat" in str(error):
                return False  # between two pages
            raise

    def evaluate(self, expression: str) -> Any:
        """Return the value of a JavaScript expression in the page."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        if "exceptionDetails" in answer:
            raise BrowserError(str(answer))
        return answer["result"].get("value")

    def shoot(self, path: Path) -> None:
        """Save a picture of the page, down to 2,500 pixels."""
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": min(size["height"], 2500)}
        picture = self.call(
            "Page.captureScreenshot", captureBeyondViewport=True, clip={**clip, "scale": 1}
        )
        path.write_bytes(base64.b64decode(picture["data"]))
