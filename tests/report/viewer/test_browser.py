"""The viewer in headless Chromium: the scripts draw curves, and hostile text runs nothing."""

from __future__ import annotations

import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

import pytest
from browser import FLAGS, Browser
from viewing import TOKEN, make_labelled_run, make_run

from assay.report.viewer.labelling import Labelling
from assay.report.viewer.view_server import ViewServer
from assay.run.human_labels import LabelFile
from assay.scale.listening import address_of, bind, server


@contextmanager
def served(app: ViewServer) -> Iterator[str]:
    """Serve a viewer; the value is its URL with the token."""
    listening = bind("127.0.0.1", 0, None)
    running = server(app, 64)
    thread = threading.Thread(target=running.run, kwargs={"sockets": [listening]})
    thread.start()
    try:
        yield f"{address_of(listening)}/{TOKEN}"
    finally:
        running.should_exit = True
        thread.join(30)
        listening.close()


def test_a_browser_draws_curves_and_runs_no_model_text(tmp_path: Path) -> None:
    chromium = shutil.which("chromium") or pytest.skip("needs chromium")
    folder = make_run(tmp_path / "runs")
    with served(ViewServer([folder], TOKEN)) as address:
        url = f"{address}/run?run={quote(str(folder))}"
        flags = [*FLAGS.split(), "--virtual-time-budget=3000", f"--user-data-dir={tmp_path / 'p'}"]
        command = [chromium, *flags, "--dump-dom", url]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.count('<figure class="chart">') >= 3 and "<path" in done.stdout
    # The mark of the guard's event, whose text is hostile.
    assert "&lt;script&gt;alert(1)" in done.stdout and "<img" not in done.stdout


NUMBERS = (
    "[...document.querySelectorAll('.sides section')].map(e => +/is (\\d),/.exec(e.textContent)[1])"
)


def test_two_people_label_by_keyboard_in_a_browser(tmp_path: Path) -> None:
    chromium = shutil.which("chromium") or pytest.skip("needs chromium")
    folder = make_labelled_run(tmp_path / "runs")
    guide = tmp_path / "guide.md"
    guide.write_text("Prefer the larger number.")
    browser = Browser(chromium, tmp_path / "profile")
    try:
        for by in ("anna", "ben"):
            app = ViewServer([folder], TOKEN, Labelling(guide, by, overlap=1.0))
            with served(app) as address:
                browser.open(f"{address}/label?run={quote(str(folder))}")
                for number in range(6):
                    left, right = browser.value(NUMBERS)
                    keys = ["ArrowLeft" if left > right else "ArrowRight"]
                    # The second pair is a mistake that is taken back, the last one is skipped.
                    keys = ["t", "z", *keys] if number == 1 else ["s"] if number == 5 else keys
                    for key in keys:
                        browser.answer(key)
                browser.open(f"{address}/label?run={quote(str(folder))}&kind=steps")
                for key in "rw":
                    browser.press(key)
                browser.press("/")
                browser.press("d")
                browser.press("Escape")
                browser.answer("d")
    finally:
        browser.close()
    labels = LabelFile(folder).read()
    for by in ("anna", "ben"):
        mine = [one for one in labels if one.by == by]
        pairs, (steps,) = mine[:-1], mine[-1:]
        assert [one.choice == "skip" for one in pairs] == [False] * 5 + [True]
        for one in pairs[:5]:
            numbers = [shown.id.rpartition("/")[2] for shown in one.shown]
            assert one.choice == ("left" if numbers[0] > numbers[1] else "right")
        assert [one.mark for one in steps.marks] == ["right", "wrong"]
        assert steps.comment == "d"
