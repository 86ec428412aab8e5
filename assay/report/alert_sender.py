"""The process that sends a run's alerts: ``[alerts]``. It imports the standard library only.

Standard input has one JSON object per line. The first line has the settings. ``alive`` reports
progress, ``alert`` is a message to send, and ``ended`` is the last line. If the input ends without
``ended``, the run's process has died, which is a message too. Standard output has one JSON object
for each destination that failed.
"""

from __future__ import annotations

import json
import os
import select
import signal
import smtplib
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from email.message import EmailMessage
from email.utils import formatdate, make_msgid
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import unquote, urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

MOST_TEXT = 500
"""Maximum number of characters of a message."""
SECONDS = 15.0
"""Seconds for one attempt at a destination."""
_POLL = 0.5
_WAITS = (1.0, 4.0)  # seconds before the second and the third attempt at a webhook


class NotEncrypted(OSError):
    """A mail server that would get the password in plain text."""


class _NoRedirect(HTTPRedirectHandler):
    """Refuses redirects: they would turn the POST into a GET, or send it to another server."""

    def redirect_request(self, *_: Any) -> None:
        return None


def main(parent: int) -> None:
    """Send alerts until standard input ends. parent: number of the run's process."""
    # A service manager signals all processes of a job at once.
    # This process ignores the signal, because it still has to send the alert of the run's end.
    # The user's command does not inherit signal handlers, but it would inherit SIG_IGN.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: None)
    lines = read_lines(sys.stdin.fileno(), parent)
    first = next((line for line in lines if line is not None), None)
    if first is None:
        return
    settings: dict[str, Any] = json.loads(first)
    sender = AlertSender(settings, _destinations(settings))
    for line in lines:
        sender.receive(None if line is None else json.loads(line), time.monotonic())
        # A forked process of the user may keep the pipe open for longer.
        if sender.ended:
            return
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
        self._run = str(settings["run"])
        self._kinds = frozenset(settings["on"])
        self._every, self._stall = settings["every_minutes"] * 60, settings["stall_minutes"] * 60
        self._destinations = destinations
        self._sent: dict[str, float] = {}
        self._suppressed: dict[str, int] = {}
        self._active: float | None = None
        self._stalled = self.ended = False
        self._step = int(settings["step"])

    def receive(self, line: Mapping[str, Any] | None, now: float) -> None:
        """Process one line of the input, or the absence of a line."""
        if line is None:
            self._check_stall(now)
            return
        self._active, self._stalled = now, False
        self._step = line.get("step", self._step)
        if line["type"] == "ended":
            self.ended = True
        elif line["type"] == "alert":
            self._send(line["kind"], line["text"], line["facts"], now, line["limit"])

    def close(self, now: float) -> None:
        """Report the death of the run's process, unless the run has ended regularly."""
        if self.ended:
            return
        text = (
            f"{self._run}: the process died after step {self._step} (killed, out of memory, or "
            "crashed); to continue, resume the run, or the recipe or sweep that started it"
        )
        self._send("end", text, {"reason": "died", "step": self._step}, now)

    def _check_stall(self, now: float) -> None:
        if self._active is None or self._stalled or self.ended:
            self._active = now if self._active is None else self._active
            return
        if now - self._active >= self._stall:
            self._stalled = True
            minutes = (now - self._active) / 60
            text = f"{self._run}: no progress for {minutes:.0f} minutes, after step {self._step}"
            self._send("stall", text, {"step": self._step}, now)

    def _send(
        self,
        kind: str,
        text: str,
        facts: Mapping[str, Any],
        now: float,
        limit: str | None = None,
    ) -> None:
        if kind not in self._kinds:
            return
        last = None if limit is None else self._sent.get(limit)
        if last is not None and now - last < self._every:
            self._suppressed[kind] = self._suppressed.get(kind, 0) + 1
            return
        more = [f"{number} more of the kind {one}" for one, number in self._suppressed.items()]
        text = text if len(text) <= MOST_TEXT else f"{text[:MOST_TEXT]}..."
        text += f" ({', '.join(more)} since the last message)" if more else ""
        found = {"text": text, "kind": kind, "run": self._run, **facts}
        sent = [self._sent_to(name, text, found) for name in self._destinations]
        # After a failure of all destinations, the next message is not suppressed.
        if any(sent):
            self._suppressed.clear()
            if limit is not None:
                self._sent[limit] = now

    def _sent_to(self, name: str, text: str, facts: Mapping[str, Any]) -> bool:
        try:
            self._destinations[name](text, facts)
        except (OSError, HTTPException, ValueError, subprocess.SubprocessError) as error:
            _report(name, error)
            return False
        return True


def _report(name: str, error: Exception) -> None:
    """Tell the run which destination failed. The text never contains a URL or a password."""
    if isinstance(error, HTTPError):
        found = f"HTTP {error.code}"
    elif isinstance(error, subprocess.TimeoutExpired):
        found = f"did not end within {SECONDS:g} s"
    elif isinstance(error, subprocess.CalledProcessError):
        found = f"exit code {error.returncode}"
    elif isinstance(error, NotEncrypted):
        found = str(error)
    elif isinstance(error, URLError) and isinstance(error.reason, OSError):
        found = f"{type(error.reason).__name__}: {error.reason}"
    elif isinstance(error, OSError) and not isinstance(error, smtplib.SMTPException):
        found = f"{type(error).__name__}: {error}"
    else:
        # Messages of http.client and smtplib can quote parts of the URL or of the login.
        found = type(error).__name__
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
    if (urlsplit(url).hostname or "").endswith("slack.com"):
        # In Slack, these characters would mention users or channels.
        text = str(facts["text"]).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
        facts = {**facts, "text": text}
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
    # Some relays reject mail without these headers.
    sent["Date"], sent["Message-ID"] = formatdate(), make_msgid(domain="localhost.invalid")
    sent["Subject"] = text[:120]
    sent.set_content(f"{text}\n\n{json.dumps(facts, indent=1)}\n")
    # Without this context, smtplib accepts any certificate.
    host, port, context = parts.hostname or "", parts.port or 0, ssl.create_default_context()
    if parts.scheme == "smtps":
        client: smtplib.SMTP = smtplib.SMTP_SSL(host, port, timeout=SECONDS, context=context)
    else:
        client = smtplib.SMTP(host, port, timeout=SECONDS)
    with client:
        if parts.scheme == "smtp":
            client.ehlo()
            if client.has_extn("starttls"):
                client.starttls(context=context)
            elif user:
                raise NotEncrypted("the server offers no STARTTLS, and the password is not sent")
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
