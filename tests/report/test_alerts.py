"""Alerts reach their destinations, are limited in number, and report a run that dies or hangs."""

from __future__ import annotations

import errno
import json
import os
import signal
import socketserver
import subprocess
import sys
import threading
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager, nullcontext
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.error import HTTPError

import pytest
from run_fakes import FakeLearner, make_config, take_steps

from assay.config import AlertsConfig
from assay.errors import ConfigError, UserError
from assay.host import orphans
from assay.host.records import read_events
from assay.report import alert_sender, alerts, trackers
from assay.run.directory import Run
from assay.session.consent import powers_of

WRITE = "import sys; open(sys.argv[1], 'a').write(sys.stdin.read() + chr(10))"


def sender(
    every: float = 10.0, stall: float = 30.0, on: tuple[str, ...] = AlertsConfig().on
) -> tuple[alert_sender.AlertSender, list[tuple[str, Mapping[str, Any]]]]:
    sent: list[tuple[str, Mapping[str, Any]]] = []
    settings = {"run": "runs/a", "step": 0, "on": on}
    settings |= {"every_minutes": every, "stall_minutes": stall}
    made = alert_sender.AlertSender(
        settings, {"list": lambda text, facts: sent.append((text, facts))}
    )
    return made, sent


def alert(kind: str, text: str = "text", limit: str | None = None) -> dict[str, Any]:
    return {"type": "alert", "kind": kind, "text": text, "facts": {"step": 1}, "limit": limit}


def test_messages_of_one_rule_are_limited_and_counted() -> None:
    made, sent = sender(every=10)
    for minute in (0, 1, 9):
        made.receive(alert("note", f"at {minute}", "length"), minute * 60)
    made.receive(alert("note", "another rule", "entropy"), 9.2 * 60)
    made.receive(alert("guard", "stop"), 9.5 * 60)
    made.receive(alert("note", "at 10", "length"), 10 * 60)
    assert [text for text, _ in sent] == [
        "at 0",
        "another rule (2 more of the kind note since the last message)",
        "stop",
        "at 10",
    ]


def test_a_message_that_no_destination_got_does_not_suppress_the_next() -> None:
    works: list[bool] = []
    sent: list[str] = []

    def send(text: str, facts: Mapping[str, Any]) -> None:
        if not works:
            raise TimeoutError
        sent.append(text)

    settings = {"run": "a", "step": 0, "on": ["note"], "every_minutes": 10, "stall_minutes": 1}
    made = alert_sender.AlertSender(settings, {"command": send})
    made.receive(alert("note", "one", "length"), 0)
    works.append(True)
    made.receive(alert("note", "two", "length"), 1)
    assert sent == ["two"]


def test_a_long_text_is_cut() -> None:
    made, sent = sender()
    made.receive(alert("end", "x" * 100_000), 0)
    assert len(sent[0][0]) < 600


def test_the_end_is_never_suppressed() -> None:
    made, sent = sender(every=10)
    made.receive(alert("end", "one"), 0)
    made.receive(alert("end", "two"), 1)
    assert [text for text, _ in sent] == ["one", "two"]


def test_a_kind_that_is_not_configured_is_not_sent() -> None:
    made, sent = sender(on=("end",))
    made.receive(alert("guard"), 0)
    made.receive(alert("end"), 0)
    assert [facts["kind"] for _, facts in sent] == ["end"]


def test_a_stall_is_reported_once_until_the_run_goes_on() -> None:
    made, sent = sender(stall=30)
    made.receive({"type": "alive", "step": 7}, 0)
    for minute in (10, 29, 30, 31, 90):
        made.receive(None, minute * 60)
    made.receive({"type": "alive"}, 91 * 60)
    made.receive(None, 120 * 60)
    assert [text for text, _ in sent] == ["runs/a: no progress for 30 minutes, after step 7"]
    made.receive(None, 121 * 60)
    assert len(sent) == 2


def test_a_run_that_ended_neither_stalls_nor_dies() -> None:
    made, sent = sender(stall=30)
    made.receive({"type": "alive", "step": 7}, 0)
    made.receive({"type": "ended"}, 1)
    made.receive(None, 1e6)
    made.close(1e6)
    assert sent == []


def test_a_death_names_the_step_and_the_command_that_continues() -> None:
    made, sent = sender()
    made.receive({"type": "alive", "step": 7}, 0)
    made.close(1)
    ((text, facts),) = sent
    assert "died after step 7" in text
    assert facts["kind"] == "end"


def test_a_failing_destination_is_reported_and_the_others_receive_the_message(
    capfd: pytest.CaptureFixture[str],
) -> None:
    sent: list[str] = []

    def fail(text: str, facts: Mapping[str, Any]) -> None:
        raise ConnectionRefusedError(111, "Connection refused")

    settings = {"run": "a", "step": 0, "on": ["end"], "every_minutes": 0, "stall_minutes": 1}
    both = {"email": fail, "command": lambda text, facts: sent.append(text)}
    alert_sender.AlertSender(settings, both).receive(alert("end"), 0)
    assert sent == ["text"]
    found = json.loads(capfd.readouterr().out)
    assert found["destination"] == "email"
    assert "Connection refused" in found["error"]


@contextmanager
def webhook(*answers: int) -> Generator[tuple[str, list[Any]]]:
    """A server that answers with these status codes in turn, and keeps what it gets."""
    got: list[Any] = []
    left = list(answers)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            size = int(self.headers["Content-Length"])
            got.append((self.headers["Content-Type"], json.loads(self.rfile.read(size))))
            self.send_response(left.pop(0) if left else 200)
            self.send_header("Location", "/elsewhere")
            self.end_headers()

        do_GET = do_POST

        def log_message(self, format: str, *args: Any) -> None: ...

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/hook", got
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_a_webhook_gets_json_and_a_busy_one_is_asked_again() -> None:
    with webhook(503, 429) as (url, got):
        alert_sender.post(url, {"text": "a\u202eb", "step": 3}, waits=(0.0, 0.0))
    assert got == [("application/json", {"text": "a\u202eb", "step": 3})] * 3


def test_only_slack_gets_escaped_text(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[tuple[str, str]] = []

    class Opener:
        def open(self, request: Any, timeout: float) -> Any:
            sent.append((request.host, json.loads(request.data)["text"]))
            return nullcontext()

    monkeypatch.setattr(alert_sender, "build_opener", lambda *_: Opener())
    for host in ("hooks.slack.com", "example.org"):
        alert_sender.post(f"https://{host}/secret", {"text": "<!channel> & more"})
    assert sent[0] == ("hooks.slack.com", "&lt;!channel&gt; &amp; more")
    assert sent[1] == ("example.org", "<!channel> & more")


@pytest.mark.parametrize(
    "url", ["https://bob:s3cret@127.0.0.1/x", "http://127.0.0.1/s3cret\x7f", "nothing:s3cret"]
)
def test_an_error_never_shows_the_url(url: str, capfd: pytest.CaptureFixture[str]) -> None:
    settings = {"run": "a", "step": 0, "on": ["end"], "every_minutes": 0, "stall_minutes": 1}
    posts = {"url_env": lambda text, facts: alert_sender.post(url, facts, ())}
    alert_sender.AlertSender(settings, posts).receive(alert("end"), 0)
    found = capfd.readouterr().out
    assert json.loads(found)["destination"] == "url_env"
    assert "s3cret" not in found


@pytest.mark.parametrize("status", [404, 302, 307])
def test_a_refusal_or_redirect_is_not_repeated(status: int) -> None:
    with webhook(status) as (url, got), pytest.raises(HTTPError):
        alert_sender.post(url, {"text": "a"}, waits=(0.0, 0.0))
    assert len(got) == 1


def test_mail_reaches_the_server_with_text_and_facts() -> None:
    letters: list[str] = []

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            self.wfile.write(b"220 ready\r\n")
            while line := self.rfile.readline():
                word = line[:4].upper()
                if word == b"DATA":
                    self.wfile.write(b"354 go on\r\n")
                    body = b""
                    while (line := self.rfile.readline()) != b".\r\n":
                        body += line
                    letters.append(body.decode())
                self.wfile.write(b"221 bye\r\n" if word == b"QUIT" else b"250 ok\r\n")
                if word == b"QUIT":
                    return

    with socketserver.TCPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        port = server.server_address[1]
        alert_sender.mail(f"smtp://127.0.0.1:{port}", "me@host", "runs/a: over", {"step": 3})
        server.shutdown()
        thread.join()
    (letter,) = letters
    assert "To: me@host" in letter
    assert "Subject: runs/a: over" in letter
    assert '"step": 3' in letter


def test_a_password_is_not_sent_without_encryption() -> None:
    got: list[bytes] = []

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            self.wfile.write(b"220 ready\r\n")
            while line := self.rfile.readline():
                got.append(line)
                is_quit = line.upper().startswith(b"QUIT")
                self.wfile.write(b"221 bye\r\n" if is_quit else b"250-host\r\n250 AUTH PLAIN\r\n")

    with socketserver.TCPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        address = f"smtp://me:secret@127.0.0.1:{server.server_address[1]}"
        with pytest.raises(alert_sender.NotEncrypted, match="STARTTLS"):
            alert_sender.mail(address, "me@host", "text", {})
        server.shutdown()
        thread.join()
    assert not any(line.startswith(b"AUTH") for line in got)


def test_a_command_gets_the_message_as_last_argument_and_the_facts_as_input(tmp_path: Path) -> None:
    code = "import sys; open(sys.argv[1], 'w').write(sys.argv[2] + sys.stdin.read())"
    place = tmp_path / "out"
    alert_sender.run_command([sys.executable, "-c", code, str(place)], "--text", {"step": 1})
    assert place.read_text() == '--text{"step": 1}'
    with pytest.raises(subprocess.CalledProcessError):
        alert_sender.run_command([sys.executable, "-c", "raise SystemExit(3)"], "text", {})


def written(place: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in place.read_text().splitlines()]


def test_a_run_reports_its_start_and_its_end(tmp_path: Path) -> None:
    place = tmp_path / "alerts"
    command = [sys.executable, "-c", WRITE, str(place)]
    config = make_config(
        tmp_path, alerts={"command": command, "on": ["start", "evaluation", "end"]}
    )
    with Run.create(config, quiet=True) as run:
        alerts.send_alerts(run)
        run.attach(learner=FakeLearner())
        take_steps(run, FakeLearner(), 2)
        run.record_evaluation({"eval/pass_at_1": 0.5, "eval/temperature": 0.0, "eval/by_tag": {}})
        run.note("no alert")
    found = written(place)
    assert [one["kind"] for one in found] == ["start", "evaluation", "end"]
    assert all(one["run"] == str(run.folder) for one in found)
    assert "0.5" in found[1]["text"]
    assert found[2]["step"] == 2
    assert read_events(run.folder / "events.jsonl")[-1]["kind"] == "ended"


def test_a_failed_alert_is_an_event_and_the_run_goes_on(tmp_path: Path) -> None:
    config = make_config(
        tmp_path, alerts={"command": [sys.executable, "-c", "raise SystemExit(3)"]}
    )
    with Run.create(config, quiet=True) as run:
        listener = alerts.AlertListener(run, config.alerts or AlertsConfig())
        while not listener._failures:
            time.sleep(0.01)  # a busy loop would take the core that the command needs
        run.listen(listener)
        run.attach(learner=FakeLearner())
        take_steps(run, FakeLearner(), 2)
    events = read_events(run.folder / "events.jsonl")
    failed = [row for row in events if row["kind"] == "alert_failed"]
    assert failed[0]["destination"] == "command"
    assert failed[0]["error"] == "exit code 3"
    assert events[-1]["kind"] == "ended"


def test_a_killed_process_is_reported_also_while_a_child_holds_the_pipe(tmp_path: Path) -> None:
    place = tmp_path / "alerts"
    command = [sys.executable, "-c", WRITE, str(place)]
    code = f"""
import os, time, types
from assay.config import AlertsConfig
from assay.report.alerts import AlertListener
run = types.SimpleNamespace(folder="runs/a", first_step=0, step=0, num_steps=9)
listener = AlertListener(run, AlertsConfig(command={command!r}))
listener("metrics", {{"step": 4}})
if os.fork() == 0:
    time.sleep(60)
print("ready", flush=True)
time.sleep(60)
"""
    parent = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, start_new_session=True
    )
    assert parent.stdout is not None
    parent.stdout.readline()
    parent.kill()
    parent.wait()
    for _ in range(600):
        if place.exists() and len(place.read_text().splitlines()) == 2:
            break
        threading.Event().wait(0.1)
    os.killpg(parent.pid, signal.SIGKILL)
    parent.stdout.close()
    kinds = [(one["kind"], one["step"]) for one in written(place)]
    assert kinds == [("start", 0), ("end", 4)]


def test_a_terminated_sender_and_a_forked_child_do_not_lose_the_end(tmp_path: Path) -> None:
    place = tmp_path / "alerts"
    command = [sys.executable, "-c", WRITE, str(place)]
    config = make_config(tmp_path, alerts={"command": command})
    with Run.create(config, quiet=True) as run:
        listener = alerts.AlertListener(run, config.alerts or AlertsConfig())
        while not place.exists():
            pass
        # A service manager signals every process of a job.
        listener._process.send_signal(signal.SIGTERM)
        holder = os.fork()
        if holder == 0:
            while True:
                signal.pause()
        run.listen(listener)
        run.attach(learner=FakeLearner())
        take_steps(run, FakeLearner(), 1)
    # The sender has ended, although a child holds the pipe open.
    assert listener._process.poll() == 0
    os.kill(holder, signal.SIGKILL)
    os.waitpid(holder, 0)
    assert [one["kind"] for one in written(place)] == ["start", "end"]


def test_a_full_disk_is_the_reason_of_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "alerts"
    command = [sys.executable, "-c", WRITE, str(place)]
    config = make_config(tmp_path, alerts={"command": command, "on": ["end"]})

    def is_full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(RuntimeError), Run.create(config, quiet=True) as run:
        alerts.send_alerts(run)
        monkeypatch.setattr("assay.host.files.Journal.append", is_full)
        raise RuntimeError("the write of a checkpoint failed")
    ((found,)) = written(place)
    assert found["reason"] == "RuntimeError: the write of a checkpoint failed"


def test_the_mark_of_a_sweep_does_not_reach_the_sender(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(orphans.VARIABLE, "family-1")
    place = tmp_path / "alerts"
    code = "import os, sys; open(sys.argv[1], 'a').write(str(os.environ.get('ASSAY_WORKER')))"
    config = make_config(
        tmp_path, alerts={"command": [sys.executable, "-c", code, str(place)], "on": ["end"]}
    )
    with Run.create(config, quiet=True) as run:
        alerts.send_alerts(run)
    assert place.read_text() == "None"


def test_trackers_do_not_see_destinations(tmp_path: Path) -> None:
    config = make_config(tmp_path, alerts={"command": ["curl", "token"]})
    with Run.create(config, quiet=True) as run:
        assert trackers.Reporter("wandb", run, None)._place.config.alerts is None


def test_only_progress_that_changes_is_a_sign_of_life(tmp_path: Path) -> None:
    config = make_config(tmp_path, alerts={"command": ["true"]})
    run: Any = SimpleNamespace(folder="runs/a", first_step=0, step=0, num_steps=9, config=config)
    listener = alerts.AlertListener(run, config.alerts or AlertsConfig())
    lines: list[Mapping[str, Any]] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(listener, "_write", lines.append)
        for at, done, signs in ((10, 1, 0), (20, 1, 0), (30, 2, 0), (30.1, 3, 0), (40, 3, 1)):
            patch.setattr(alerts.time, "monotonic", lambda at=at: at)
            listener("progress", {"what": "sampling", "done": done, "signs": signs, "seconds": 1})
    assert len(lines) == 3
    listener("events", {"kind": "ended", "step": 1, "reason": "finished"})


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({}, "alerts: found no destination; accepted: url_env, email or command"),
        ({"email": "me"}, "alerts.email: found me; accepted: one address"),
        ({"email": "a@b\nBcc: c@d"}, "alerts.email"),
        ({"command": []}, "no destination"),
        ({"command": ["true"], "stall_minutes": 0}, "alerts.stall_minutes"),
        ({"command": ["true"], "on": ["gate"]}, "alerts.on"),
    ],
)
def test_settings_that_cannot_work_are_refused(
    settings: dict[str, Any], said: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=said):
        make_config(tmp_path, alerts=settings)


@pytest.mark.parametrize(
    ("settings", "value", "said"),
    [
        ({"url_env": "A_URL"}, None, "alerts.url_env: found A_URL, which is not set"),
        ({"url_env": "A_URL"}, "ftp://secret", "alerts.url_env: found A_URL with another value"),
        ({"url_env": "A_URL"}, "http://secret\n", "A_URL with another value"),
        ({"url_env": "A_URL"}, "https://h:99999999/secret", "A_URL with another value"),
        ({"url_env": "A_URL"}, "https://bob:secret@h/x", "A_URL with another value"),
        ({"url_env": "A_URL"}, "https://h/secret\x7f", "A_URL with another value"),
        ({"email": "me@host"}, None, "alerts.email: found ASSAY_SMTP_URL, which is not set"),
        ({"command": ["no-such-command"]}, None, "alerts.command: found no-such-command"),
    ],
)
def test_a_destination_that_cannot_work_is_refused_before_a_model_is_loaded(
    settings: dict[str, Any],
    value: str | None,
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("ASSAY_SMTP_URL", raising=False)
    monkeypatch.delenv("A_URL", raising=False)
    if value is not None:
        monkeypatch.setenv("A_URL", value)
    with pytest.raises(UserError, match=said) as caught:
        alerts.check_listeners(make_config(tmp_path, alerts=settings))
    assert "secret" not in str(caught.value)


def test_a_stranger_s_run_needs_consent_for_its_alerts(tmp_path: Path) -> None:
    settings = {"command": ["true"], "email": "me@host", "url_env": "A_URL"}
    found = {key for key, _ in powers_of(make_config(tmp_path, alerts=settings))}
    assert {"alerts.command", "alerts.email", "alerts.url_env"} <= found
