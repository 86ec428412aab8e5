"""Alerts: the listener that passes a run's events to the process that sends them (``[alerts]``)."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from assay.config import AlertsConfig, TrainConfig
from assay.errors import DiskFull, UserError, message
from assay.host import orphans
from assay.host.terminal import say
from assay.report.alert_sender import MOST_TEXT
from assay.report.trackers import check_trackers, evaluation_numbers
from assay.run.directory import Run
from assay.run.evaluations import kind_of, on_canaries

SMTP = "ASSAY_SMTP_URL"
"""Environment variable with the mail server."""
ALIVE_SECONDS = 1.0
"""Minimum number of seconds between two reports of progress."""
END_SECONDS = 60.0
"""Seconds to wait at the end of a run for the last message."""
_START = """import sys
sys.path.insert(0, sys.argv[1])
from assay.report.alert_sender import main
main(int(sys.argv[2]))
"""
_ROOT = str(Path(__file__).resolve().parents[2])
_GUARD = {"guard_stop": "guard", "guard_pause": "guard", "guard_note": "note"}


def check_listeners(config: TrainConfig) -> None:
    """Check that trackers and alerts are usable, before expensive work starts.

    Raises UserError, or MissingExtra for a library that is not installed.
    """
    check_trackers(config.log)
    if config.alerts is not None:
        secrets_of(config.alerts)
        _check_command(config.alerts)


def secrets_of(alerts: AlertsConfig) -> dict[str, str | None]:
    """Return the URLs of webhook and mail server. Raises UserError for a missing variable."""
    found: dict[str, str | None] = {"url": None, "smtp": None}
    if alerts.url_env is not None:
        found["url"] = _url(alerts.url_env, "alerts.url_env", ("http", "https"))
    if alerts.email is not None:
        found["smtp"] = _url(SMTP, "alerts.email", ("smtp", "smtps"))
    return found


def _url(variable: str, key: str, schemes: tuple[str, ...]) -> str:
    value = os.environ.get(variable, "")
    accepted = f"the variable {variable} with a URL: {' or '.join(f'{one}://' for one in schemes)}"
    # The value is a secret, so no message shows it.
    remedy = f"export {variable}=..."
    if not value:
        raise UserError(message(key, f"{variable}, which is not set", accepted, remedy))
    try:
        parts = urlsplit(value)
        is_usable = parts.scheme in schemes and parts.hostname and (parts.port or 1) > 0
        # urllib does not understand a user name in the URL of a webhook.
        is_usable = is_usable and ("@" not in parts.netloc or "smtp" in schemes)
    except ValueError:
        is_usable = False
    if not is_usable or not all("!" <= one <= "~" for one in value):
        raise UserError(message(key, f"{variable} with another value", accepted, remedy))
    return value


def _check_command(alerts: AlertsConfig) -> None:
    if alerts.command and shutil.which(alerts.command[0]) is None:
        found, accepted = alerts.command[0], "an executable file, or a command on PATH"
        raise UserError(message("alerts.command", found, accepted))


def send_alerts(run: Run) -> None:
    """Start the process that sends alerts, and attach its listener. No ``[alerts]``: do nothing."""
    if run.config.alerts is not None:
        try:
            listener = AlertListener(run, run.config.alerts)
        except OSError as error:
            run.event("alert_failed", destination="process", error=_plain(str(error)))
            return
        run.listen(listener)


class AlertListener:
    """Listener that writes alerts and signs of progress to the process that sends them."""

    close_seconds = END_SECONDS + 5

    def __init__(self, run: Run, alerts: AlertsConfig) -> None:
        self._run, self._name = run, _plain(str(run.folder))
        self._progress: tuple[Any, ...] = ()
        self._told = 0.0
        self._failures: list[str] = []
        # In a sweep, the mark of the sweep's processes would end the sender with a killed run.
        marked = {orphans.VARIABLE, "TMPDIR"} if orphans.VARIABLE in os.environ else set[str]()
        self._process = subprocess.Popen(
            # -I ignores variables such as PYTHONPATH, and -S makes the start fast.
            [sys.executable, "-I", "-S", "-c", _START, _ROOT, str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={key: value for key, value in os.environ.items() if key not in marked},
            # A signal to the run's process group must not end the process that reports the end.
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read_failures, daemon=True)
        self._reader.start()
        self._step = run.step
        facts = {"run": self._name, "step": run.step}
        self._write({**alerts.model_dump(mode="json"), **secrets_of(alerts), **facts})
        total = "" if run.num_steps is None else f" of {run.num_steps}"
        text = f"resumed after step {run.step}{total}" if run.first_step else "started"
        self._alert("start", text, {"step": run.step})

    def __call__(self, kind: str, row: Mapping[str, Any]) -> None:
        """Report a row of the run; see `assay.run.listeners.Listener`."""
        self._record_failures()
        if kind == "progress":
            # A heartbeat thread sends a row every second, also while the run hangs.
            # Only a changed row is a sign of progress.
            found = tuple(row.get(key) for key in ("what", "done", "signs"))
            if found != self._progress:
                self._progress = found
                self._tell()
        elif kind == "evaluations":
            name = f"evaluation {kind_of(row)}"
            self._alert("evaluation", _evaluation_text(row), {"step": row["step"]}, name)
        elif kind == "events" and row["kind"] in _GUARD:
            self._alert_of_guard(row)
        elif kind == "events" and row["kind"] == "ended":
            self._end(row)
        else:
            self._step = row["step"] if kind == "metrics" else self._step
            self._tell()

    def close(self) -> None:
        """Tell the process to end, if the run has not told it already."""
        stdin = self._process.stdin
        if stdin is not None and not stdin.closed:
            with suppress(OSError), stdin:
                self._write({"type": "ended"})

    def _record_failures(self) -> None:
        while self._failures:
            destination, _, error = self._failures.pop(0).partition(": ")
            # A run whose disk is full still sends alerts.
            with suppress(DiskFull):
                self._run.event("alert_failed", destination=destination, error=error)

    def _alert_of_guard(self, row: Mapping[str, Any]) -> None:
        action = {"guard_stop": "stopped: ", "guard_pause": "paused: "}.get(row["kind"], "")
        text = f"step {row['step']}: {action}{row['reason']}"
        limit = None if row["kind"] == "guard_stop" else f"{row['kind']} {row['rule']}"
        facts = {"step": row["step"], "rule": row["rule"]}
        self._alert(_GUARD[row["kind"]], text, facts, limit)

    def _tell(self) -> None:
        """Send a sign of progress with the last finished step, at most one a second."""
        # More lines could fill the pipe while the sender waits for a slow server.
        now = time.monotonic()
        if now - self._told >= ALIVE_SECONDS:
            self._told = now
            self._write({"type": "alive", "step": self._step})

    def _alert(
        self, kind: str, text: str, facts: Mapping[str, Any], limit: str | None = None
    ) -> None:
        text = f"{self._name}: {_plain(text)}"
        row = {"type": "alert", "kind": kind, "text": text, "facts": facts, "limit": limit}
        self._write(row)

    def _end(self, row: Mapping[str, Any]) -> None:
        reason = _plain(str(row["reason"]))[:MOST_TEXT]
        text = f"ended after step {row['step']}: {reason}"
        self._alert("end", text, {"step": row["step"], "reason": reason})
        self.close()
        try:
            self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            say(f"warning: {self._name}: the last alert was not confirmed in {END_SECONDS:g} s")
            return
        self._reader.join()
        for failure in self._failures:
            say(f"warning: {self._name}: alert not sent: alerts.{failure}")
        self._failures.clear()

    def _write(self, line: Mapping[str, Any]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(line).encode() + b"\n")
        self._process.stdin.flush()

    def _read_failures(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                found = json.loads(line)
                self._failures.append(f"{found['destination']}: {_plain(found['error'])}")


def _evaluation_text(row: Mapping[str, Any]) -> str:
    numbers = evaluation_numbers(row)
    shown = [f"{name} {value:.4g}" for name, value in numbers.items() if "pass_at" in name]
    shown = shown or [f"{name} {value:.4g}" for name, value in numbers.items()][:3]
    # Names of canary metrics begin with "canary".
    what = "" if on_canaries(row) else "held-out "
    return f"step {row['step']}: {what}{', '.join(shown)}"


def _plain(text: str) -> str:
    """Return text as one line without control characters, for e-mail headers and arguments."""
    return " ".join("".join(one if one.isprintable() else " " for one in text).split())
