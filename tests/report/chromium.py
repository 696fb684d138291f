"""A headless Chromium, spoken to through a pipe in its DevTools protocol: no driver is needed.

https://chromedevtools.github.io/devtools-protocol/ names the methods. Messages are JSON, each ended
by a zero byte; Chromium reads them from descriptor 3 and answers on descriptor 4.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PROGRAM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "chrome"))), None)
_OPTIONS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run"),
    # Whatever the page asks for, no name has an address.
    *("--disable-dev-shm-usage", "--disable-background-networking", "--remote-debugging-pipe"),
    "--host-resolver-rules=MAP * ~NOTFOUND",
)
_PATIENCE_SECONDS = 60.0


class Tab:
    """One page of the browser."""

    def __init__(self, to_browser: int, from_browser: int) -> None:
        self._to, self._from = to_browser, from_browser
        self._rest, self._number, self._session = b"", 0, None
        self.requests: list[str] = []
        """Addresses that were asked for since the browser started, those in the page included."""
        self.complaints: list[str] = []
        """Errors of the page's script, and what its policy has blocked."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Network", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def open(self, file: Path, width: int, height: int, **features: str) -> None:
        """Show a file in a window of this size [CSS pixels], with media features."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 500,
        )
        listed = [{"name": name.replace("_", "-"), "value": v} for name, v in features.items()]
        self.call("Emulation.setEmulatedMedia", media="screen", features=listed)
        self.call("Page.navigate", url=file.resolve().as_uri())
        deadline = time.monotonic() + _PATIENCE_SECONDS
        whole = "document.readyState === 'complete' && location.protocol === 'file:'"
        while not self.evaluate(whole):
            assert time.monotonic() < deadline, f"{file} does not open"
            time.sleep(0.02)

    def evaluate(self, expression: str) -> Any:
        """Value of an expression of JavaScript, awaited."""
        answer = self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Call a method of the protocol."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                return dict(answer["result"])
            self._note(answer)

    def _note(self, event: dict[str, Any]) -> None:
        kind, about = event.get("method"), event.get("params", {})
        if kind == "Network.requestWillBeSent":
            self.requests.append(about["request"]["url"])
        elif kind == "Runtime.exceptionThrown" or kind == "Log.entryAdded":
            self.complaints.append(json.dumps(about))

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._from], [], [], _PATIENCE_SECONDS)
            part = os.read(self._from, 1 << 20) if ready else b""
            assert part, "Chromium does not answer"
            self._rest += part
        message, _, self._rest = self._rest.partition(b"\0")
        return dict(json.loads(message))


@contextmanager
def chromium(folder: Path) -> Iterator[Tab]:
    """A tab of a browser of its own, whose profile is in a folder."""
    assert PROGRAM is not None
    (theirs_in, ours_out), (ours_in, theirs_out) = os.pipe(), os.pipe()
    # The descriptors must be 3 and 4 in the browser: a shell puts them there, by a path since some
    # shells know no descriptor of two digits.
    command = f'exec "$0" "$@" 3</dev/fd/{theirs_in} 4>/dev/fd/{theirs_out}'
    browser = subprocess.Popen(
        ["sh", "-c", command, PROGRAM, *_OPTIONS, f"--user-data-dir={folder}"],
        pass_fds=(theirs_in, theirs_out),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "HOME": str(folder)},
    )
    os.close(theirs_in)
    os.close(theirs_out)
    try:
        yield Tab(ours_out, ours_in)
    finally:
        os.close(ours_out)
        os.close(ours_in)
        browser.terminate()
        try:
            browser.wait(60)
        except subprocess.TimeoutExpired:
            browser.kill()
            browser.wait()
