"""A headless Chromium that a test steers by the DevTools protocol, over a pipe."""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path
from typing import Any

FLAGS = "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-sync"
FLAGS += " --disable-background-networking --disable-component-update"
PATIENCE = 60.0


class Browser:
    """One page of a browser. chromium: path of the program."""

    def __init__(self, chromium: str, profile: Path) -> None:
        to_browser, self._out = os.pipe()
        self._in, from_browser = os.pipe()
        # With this flag Chromium reads commands from descriptor 3 and writes replies to 4.
        command = f'exec "$0" "$@" 3<&{to_browser} 4>&{from_browser}'
        flags = [*FLAGS.split(), "--remote-debugging-pipe", f"--user-data-dir={profile}"]
        self._process = subprocess.Popen(
            ["bash", "-c", command, chromium, *flags],
            pass_fds=(to_browser, from_browser),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_browser)
        os.close(from_browser)
        self._rest, self._number, self._session = b"", 0, {}
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        attached = self._call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = {"sessionId": attached["sessionId"]}

    def open(self, url: str) -> None:
        """Load a page."""
        self._call("Page.navigate", url=url)
        self.wait(f"location.href === {json.dumps(url)} && document.readyState === 'complete'")

    def value(self, script: str) -> Any:
        """Return the value of a JavaScript expression."""
        found = self._call("Runtime.evaluate", expression=script, returnByValue=True)
        return found["result"].get("value")

    def wait(self, script: str) -> None:
        """Wait until an expression is true, also on a page that is loaded meanwhile."""
        end = time.monotonic() + PATIENCE
        while self.value(script) is not True:
            assert time.monotonic() < end, f"never true: {script}"
            time.sleep(0.01)

    def press(self, key: str) -> None:
        """Press and release a key."""
        text = {"text": key} if len(key) == 1 else {}
        self._call("Input.dispatchKeyEvent", type="keyDown", key=key, **text)
        self._call("Input.dispatchKeyEvent", type="keyUp", key=key)

    def answer(self, key: str) -> None:
        """Press a key that sends a form, and wait for the next page."""
        self.value("window.isOld = true")
        self.press(key)
        self.wait("!window.isOld && document.readyState === 'complete'")

    def close(self) -> None:
        """End the browser."""
        self._process.terminate()
        self._process.wait(PATIENCE)
        os.close(self._in)
        os.close(self._out)

    def _call(self, method: str, **parameters: Any) -> Any:
        self._number += 1
        sent = {"id": self._number, "method": method, "params": parameters, **self._session}
        os.write(self._out, json.dumps(sent).encode() + b"\0")
        while (reply := self._read()).get("id") != self._number:
            pass
        # A page that is being left has no script context for a moment.
        return reply.get("result", {"result": {}})

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            part = os.read(self._in, 65536)
            assert part, "the browser has ended"
            self._rest += part
        message, _, self._rest = self._rest.partition(b"\0")
        return json.loads(message)
