"""A headless Chromium for tests, driven over its debugging pipe: console, network, emulation, screenshots.

The DevTools protocol is JSON messages ended by a zero byte, written to file descriptor 3 and read from 4:
no package is needed and no port is opened.
"""

import base64
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

BINARIES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
)


def find_chromium() -> str | None:
    """Path of a Chromium or Chrome binary, or None."""
    return next(filter(None, map(shutil.which, BINARIES)), None)


class Page:
    """One tab. Complaints of the page and its requests gather in ``errors`` and ``requests``."""

    def __init__(self, send: Any, receive: Any) -> None:
        self._send, self._receive = send, receive
        self._number = 0
        self._session: str | None = None
        self._loaded = False
        self.errors: list[str] = []
        self.requests: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Send a command and wait for its result; events on the way are recorded."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        self._send.write(json.dumps(message).encode() + b"\0")
        self._send.flush()
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]

    def open(self, file: Path, width: int, height: int = 900, dark: bool = False) -> None:
        """Load a local file at a viewport width in CSS pixels and wait until it has loaded."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.errors, self.requests, self._loaded = [], [], False
        self.call("Page.navigate", url=file.resolve().as_uri())
        while not self._loaded:
            self._next()

    def evaluate(self, expression: str) -> Any:
        """The JSON value of a JavaScript expression."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(f"{expression[:80]}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def screenshot(self, file: Path, whole: bool = True) -> None:
        """PNG of the whole page, or of what fits the viewport."""
        data = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)["data"]
        file.write_bytes(base64.b64decode(data))

    def _next(self) -> dict[str, Any]:
        buffer = bytearray()
        while (byte := self._receive.read(1)) != b"\0":
            if not byte:
                raise RuntimeError("Chromium closed its debugging pipe")
            buffer += byte
        message = json.loads(buffer)
        self._record(message.get("method"), message.get("params", {}))
        return message

    def _record(self, method: str | None, params: dict[str, Any]) -> None:
        if method == "Page.loadEventFired":
            self._loaded = True
        elif method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            self.errors.append(json.dumps(params["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
            self.errors.append(json.dumps(params["args"]))
        elif method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.errors.append(params["entry"]["text"])


@contextmanager
def chromium(binary: str) -> Iterator[Page]:
    """Start a browser with a profile of its own and stop it afterwards."""
    to_browser, from_browser = os.pipe(), os.pipe()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        # The shell moves the inherited descriptors to the numbers that Chromium expects.
        command = f'exec "$@" 3<&{to_browser[0]} 4>&{from_browser[1]}'
        process = subprocess.Popen(
            ["bash", "-c", command, "chromium", binary, *FLAGS, f"--user-data-dir={profile}"],
            pass_fds=(to_browser[0], from_browser[1]),
            stderr=subprocess.DEVNULL,
        )
        os.close(to_browser[0])
        os.close(from_browser[1])
        try:
            with os.fdopen(to_browser[1], "wb") as send, os.fdopen(from_browser[0], "rb") as receive:
                yield Page(send, receive)
        finally:
            process.terminate()
            process.wait(timeout=20)
