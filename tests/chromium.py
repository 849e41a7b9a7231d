"""A headless Chromium, driven over its debugging pipe: JSON between zero bytes, no package.

python -m tests.chromium runs/<the run>/report/report.html first-screen.png
"""

import base64
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PROGRAM = shutil.which("chromium") or shutil.which("chromium-browser")
WHY_NOT = "needs Chromium; none is installed (Debian: apt-get install chromium)"
_LIMIT_S = 60.0
_FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--no-first-run",
    "--remote-debugging-pipe",
)


class Browser:
    """One tab; `said` holds each error that the page or the browser reported."""

    def __init__(self, write: int, read: int) -> None:
        self._write, self._read, self._rest, self._number = write, read, b"", 0
        self._session: str | None = None
        self.said: list[str] = []
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.ask("Target.attachToTarget", targetId=target, flatten=True)[
            "sessionId"
        ]
        for domain in ("Page", "Runtime", "Log"):
            self.ask(f"{domain}.enable")

    def ask(self, method: str, **params: object) -> Any:
        """Send a command and return its result."""
        self._number += 1
        message: dict[str, object] = {"id": self._number, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        until = time.monotonic() + _LIMIT_S
        while True:
            answer = self._next(until)
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]
            self._note(answer)

    def open(self, page: Path, *, width: int = 1600, height: int = 900) -> None:
        """Show a file and wait until it is there."""
        self.resize(width=width, height=height)
        self.ask("Page.navigate", url=page.resolve().as_uri())
        self.until("document.readyState === 'complete' && location.protocol === 'file:'")

    def resize(self, *, width: int, height: int = 900) -> None:
        """Have a screen of this size, in CSS pixels."""
        self.ask(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )

    def run(self, script: str) -> Any:
        """Return the value of an expression in the page; a promise is awaited."""
        found = self.ask(
            "Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True
        )
        if "exceptionDetails" in found:
            raise RuntimeError(found["exceptionDetails"])
        return found["result"].get("value")

    def until(self, script: str) -> None:
        """Wait until an expression is true."""
        until = time.monotonic() + _LIMIT_S
        while not self.run(script):
            if time.monotonic() > until:
                raise TimeoutError(script)
            time.sleep(0.02)

    def press(self, key: str) -> None:
        """Press a key."""
        code = {"Tab": 9, "Enter": 13, "Escape": 27, "ArrowRight": 39}[key]
        text = {"text": "\r"} if key == "Enter" else {}
        for kind in ("keyDown", "keyUp"):
            self.ask(
                "Input.dispatchKeyEvent",
                type=kind,
                key=key,
                code=key,
                windowsVirtualKeyCode=code,
                **(text if kind == "keyDown" else {}),
            )

    def point(self, script: str) -> None:
        """Move the mouse onto the element that an expression gives."""
        self.run(
            f"(async () => {{ for (let n = 0; n < 4; n++) {{"
            f" {script}.scrollIntoView({{block: 'center', inline: 'center'}});"
            " await new Promise(requestAnimationFrame); } })()"
        )
        box = self.run(
            f"(() => {{ const b = {script}.getClientRects()[0];"
            " return [b.x + b.width / 2, b.y + b.height / 2]; })()"
        )
        self.ask("Input.dispatchMouseEvent", type="mouseMoved", x=box[0], y=box[1])

    def picture(self, path: Path) -> None:
        """Save what is in sight as PNG."""
        path.write_bytes(base64.b64decode(self.ask("Page.captureScreenshot")["data"]))

    def _next(self, until: float) -> dict[str, Any]:
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._read], [], [], max(0.0, until - time.monotonic()))
            more = os.read(self._read, 2**20) if ready else b""
            if not more:
                raise TimeoutError("Chromium does not answer")
            self._rest += more
        line, _, self._rest = self._rest.partition(b"\0")
        found: dict[str, Any] = json.loads(line)
        return found

    def _note(self, event: dict[str, Any]) -> None:
        method, params = event.get("method"), event.get("params", {})
        if method == "Runtime.exceptionThrown":
            self.said.append(str(params["exceptionDetails"]))
        elif method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.said.append(params["entry"]["text"])
        elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning"):
            self.said.append(str(params["args"]))


@contextmanager
def browser() -> Iterator[Browser]:
    """Start Chromium, with a profile of its own, and end it."""
    to_read, to_write = os.pipe()
    from_read, from_write = os.pipe()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        # The pipe is file descriptors 3 and 4, whatever numbers the two have here.
        started = subprocess.Popen(
            [
                *("bash", "-c", f'exec "$@" 3<&{to_read} 4>&{from_write}', "bash"),
                *(str(PROGRAM), *_FLAGS, f"--user-data-dir={profile}"),
            ],
            pass_fds=(to_read, from_write),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            stdin=subprocess.DEVNULL,
        )
        os.close(to_read)
        os.close(from_write)
        try:
            yield Browser(to_write, from_read)
        finally:
            os.close(to_write)
            os.close(from_read)
            try:
                started.wait(10)
            except subprocess.TimeoutExpired:
                started.kill()
                started.wait()


def with_few_colours(path: Path) -> None:
    """Save a PNG of a page anew: 128 colours are enough for it, at a third of its bytes."""
    from PIL import Image  # comes with matplotlib

    with Image.open(path) as picture:
        small = picture.convert("RGB").quantize(128, dither=Image.Dither.NONE)
    small.save(path, optimize=True)


if __name__ == "__main__":
    with browser() as shown:
        shown.open(Path(sys.argv[1]), width=1280, height=800)
        shown.run("document.documentElement.style.scrollbarWidth = 'none'")
        shown.picture(Path(sys.argv[2]))
    with_few_colours(Path(sys.argv[2]))
