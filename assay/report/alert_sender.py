"""The process that sends a run's alerts: ``[alerts]``. It imports the standard library only.

Standard input has one JSON object per line. The first line has the settings. ``alive`` reports
progress, ``alert`` is a message to send, and ``ended`` precedes the regular end of the input. If
the input ends without ``ended``, the run's process has died, which is a message too. Standard
output has one JSON object for each destination that failed.
"""

from __future__ import annotations

import json
import os
import select
import smtplib
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from email.message import EmailMessage
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError
from urllib.parse import unquote, urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

LIMITED = ("guard", "note", "evaluation")
"""Kinds of messages that ``every_minutes`` limits."""
SECONDS = 15.0
"""Seconds for one attempt at a destination."""
_POLL = 0.5
_WAITS = (1.0, 4.0)  # seconds before the second and the third attempt at a webhook


class _NoRedirect(HTTPRedirectHandler):
    """Refuses redirects: they would turn the POST into a GET, or send it to another server."""

    def redirect_request(self, *_: Any) -> None:
        return None


def main(parent: int) -> None:
    """Send alerts until standard input ends. parent: number of the run's process."""
    lines = read_lines(sys.stdin.fileno(), parent)
    settings: dict[str, Any] = json.loads(next(line for line in lines if line is not None))
    sender = AlertSender(settings, _destinations(settings))
    for line in lines:
        sender.receive(None if line is None else json.loads(line), time.monotonic())
    sender.close(time.monotonic())


def read_lines(file: int, parent: int) -> Iterator[bytes | None]:
    """Yield the lines of a pipe until its end, or until the parent is dead and the pipe is empty.

    Yields None if there is no new line for a moment, so that the caller can check the time.
    """
    # A forked child of the run could keep the pipe open after the run's death.
    # The process number of the parent changes in any case.
    rest = b""
    while True:
        is_dead = os.getppid() != parent
        if not select.select([file], [], [], 0 if is_dead else _POLL)[0]:
            if is_dead:
                return
            yield None
            continue
        part = os.read(file, 1 << 16)
        if not part:
            return
        *lines, rest = (rest + part).split(b"\n")
        yield from lines


class AlertSender:
    """Decides which alerts are sent: kinds, rate limits, stalls, and the death of the run.

    destinations: function for each configured destination; each sends (text, facts).
    """

    def __init__(
        self,
        settings: Mapping[str, Any],
        destinations: Mapping[str, Callable[[str, Mapping[str, Any]], None]],
    ) -> None:
        self._run, self._resume = str(settings["run"]), str(settings["resume"])
        self._kinds = frozenset(settings["on"])
        self._every, self._stall = settings["every_minutes"] * 60, settings["stall_minutes"] * 60
        self._destinations = destinations
        self._sent: dict[str, float] = {}
        self._suppressed: dict[str, int] = {}
        self._active: float | None = None
        self._stalled = self._ended = False
        self._step: int | None = None

    def receive(self, line: Mapping[str, Any] | None, now: float) -> None:
        """Process one line of the input, or the absence of a line."""
        if line is None:
            self._check_stall(now)
            return
        self._active, self._stalled = now, False
        self._step = line.get("step", self._step)
        if line["type"] == "ended":
            self._ended = True
        elif line["type"] == "alert":
            self._send(line["kind"], line["text"], line["facts"], now)

    def close(self, now: float) -> None:
        """Report the death of the run's process, unless the run has ended regularly."""
        if self._ended:
            return
        at = "before the first step" if not self._step else f"after step {self._step}"
        text = (
            f"{self._run}: the process died {at} (killed, out of memory, or the machine stopped); "
            f"continue with: {self._resume}"
        )
        self._send("end", text, {"reason": "died", "step": self._step}, now)

    def _check_stall(self, now: float) -> None:
        if self._active is None or self._stalled or self._ended:
            self._active = now if self._active is None else self._active
            return
        if now - self._active >= self._stall:
            self._stalled = True
            minutes = (now - self._active) / 60
            text = f"{self._run}: no progress for {minutes:.0f} minutes, after step {self._step}"
            self._send("stall", text, {"step": self._step}, now)

    def _send(self, kind: str, text: str, facts: Mapping[str, Any], now: float) -> None:
        if kind not in self._kinds:
            return
        last = self._sent.get(kind)
        if kind in LIMITED and last is not None and now - last < self._every:
            self._suppressed[kind] = self._suppressed.get(kind, 0) + 1
            return
        self._sent[kind] = now
        more = [f"{number} more of the kind {one}" for one, number in self._suppressed.items()]
        self._suppressed.clear()
        text += f" ({', '.join(more)} since the last message)" if more else ""
        found = {"text": text, "kind": kind, "run": self._run, **facts}
        for name, send in self._destinations.items():
            try:
                send(text, found)
            except (OSError, HTTPException, smtplib.SMTPException, ValueError) as error:
                _report(name, error)
            except subprocess.SubprocessError as error:
                _report(name, error)


def _report(name: str, error: Exception) -> None:
    """Tell the run which destination failed. Error messages of these libraries contain no URL."""
    if isinstance(error, HTTPError):
        found = f"HTTP {error.code}"
    elif isinstance(error, subprocess.TimeoutExpired):
        found = f"did not end within {SECONDS:g} s"
    elif isinstance(error, subprocess.CalledProcessError):
        found = f"exit code {error.returncode}"
    else:
        found = f"{type(error).__name__}: {error}"
    line = json.dumps({"destination": name, "error": found[:300]})
    # The run's process may be dead, so that nobody reads the pipe any more.
    with suppress(OSError):
        os.write(sys.stdout.fileno(), line.encode() + b"\n")


def _destinations(
    settings: Mapping[str, Any],
) -> dict[str, Callable[[str, Mapping[str, Any]], None]]:
    found: dict[str, Callable[[str, Mapping[str, Any]], None]] = {}
    if settings["url"]:
        found["url_env"] = lambda text, facts: post(settings["url"], facts)
    if settings["email"]:
        found["email"] = lambda text, facts: mail(settings["smtp"], settings["email"], text, facts)
    if settings["command"]:
        found["command"] = lambda text, facts: run_command(settings["command"], text, facts)
    return found


def post(url: str, facts: Mapping[str, Any], waits: Sequence[float] = _WAITS) -> None:
    """POST a message as JSON. A busy or unreachable server gets more attempts."""
    kinds = {"Content-Type": "application/json", "User-Agent": "assay"}
    request = Request(url, json.dumps(facts).encode(), kinds, method="POST")
    for wait in (*waits, None):
        try:
            with build_opener(_NoRedirect).open(request, timeout=SECONDS):
                return
        except OSError as error:
            # Another attempt cannot help if the server refuses the request itself.
            final = isinstance(error, HTTPError) and error.code < 500 and error.code != 429
            if wait is None or final:
                raise
        time.sleep(wait)


def mail(server: str, to: str, text: str, facts: Mapping[str, Any]) -> None:
    """Send a message through a mail server: ``smtp://`` or ``smtps://``."""
    parts = urlsplit(server)
    user, password = unquote(parts.username or ""), unquote(parts.password or "")
    sent = EmailMessage()
    sent["From"], sent["To"] = user if "@" in user else to, to
    sent["Subject"] = text[:120]
    sent.set_content(f"{text}\n\n{json.dumps(facts, indent=1)}\n")
    kind = smtplib.SMTP_SSL if parts.scheme == "smtps" else smtplib.SMTP
    with kind(parts.hostname or "", parts.port or 0, timeout=SECONDS) as client:
        if parts.scheme == "smtp":
            client.ehlo()
            if client.has_extn("starttls"):
                client.starttls()
        if user:
            client.login(user, password)
        client.send_message(sent)


def run_command(command: Sequence[str], text: str, facts: Mapping[str, Any]) -> None:
    """Run the user's command with the message as last argument and the facts as its input."""
    subprocess.run(
        [*command, text],
        input=json.dumps(facts).encode(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        timeout=SECONDS,
        check=True,
    )
