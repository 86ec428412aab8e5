"""The viewer in headless Chromium: the scripts draw curves, and hostile text runs nothing."""

from __future__ import annotations

import shutil
import subprocess
import threading
from pathlib import Path
from urllib.parse import quote

import pytest
from viewing import TOKEN, make_run

from assay.report.viewer.view_server import ViewServer
from assay.scale.listening import address_of, bind, server

FLAGS = "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-sync"
FLAGS += " --disable-background-networking --disable-component-update --virtual-time-budget=3000"


def test_a_browser_draws_curves_and_runs_no_model_text(tmp_path: Path) -> None:
    chromium = shutil.which("chromium") or pytest.skip("needs chromium")
    folder = make_run(tmp_path / "runs")
    listening = bind("127.0.0.1", 0, None)
    served = server(ViewServer([folder], TOKEN), 64)
    thread = threading.Thread(target=served.run, kwargs={"sockets": [listening]})
    thread.start()
    try:
        url = f"{address_of(listening)}/{TOKEN}/run?run={quote(str(folder))}"
        command = [
            chromium,
            *FLAGS.split(),
            f"--user-data-dir={tmp_path / 'profile'}",
            "--dump-dom",
            url,
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    finally:
        served.should_exit = True
        thread.join(30)
        listening.close()
    assert done.stdout.count('<figure class="chart">') >= 3 and "<path" in done.stdout
    # The mark of the guard's event, whose text is hostile.
    assert "&lt;script&gt;alert(1)" in done.stdout and "<img" not in done.stdout
