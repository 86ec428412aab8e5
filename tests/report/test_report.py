"""The report holds what the run holds, stands alone, and lets no model text act."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from run_fakes import FakeLearner, FakeUpdate, make_config, make_rollouts

from assay.errors import RunError
from assay.report.charts import make_charts, smooth
from assay.report.loaded import load_run
from assay.report.report import write_report
from assay.report.rollout_pages import _completion_html, choose_groups, choose_steps, safe
from assay.run.directory import Run

EVIL = (
    "<script>document.title='owned'</script>",
    "<img src=x onerror=\"document.title='owned'\">",
    "</div></article></section></main><style>*{display:none}</style>",
    "</script><script>document.title='owned'</script>",
    "$name ${rollouts} %s {0} <!-- <![CDATA[",
    "\u202egnp.exe\u200b \x00\x07 \u2028",
    "<svg/onload=document.title='owned'><iframe srcdoc='<script>parent.document.title=1</script>'>",
)


class Page(HTMLParser):
    """Collects what a browser would see of a page's structure."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[tuple[str | None, str]] = []
        self.texts: list[str] = []
        self._inside: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._inside.append(tag)
        if tag == "script":
            self.scripts.append((dict(attrs).get("type"), ""))

    def handle_endtag(self, tag: str) -> None:
        self._inside.append("")

    def handle_data(self, data: str) -> None:
        if self._inside and self._inside[-1] == "script":
            kind, text = self.scripts[-1]
            self.scripts[-1] = (kind, text + data)
        elif not self._inside or self._inside[-1] != "style":
            self.texts.append(data)

    def count(self, tag: str, name: str | None = None) -> int:
        classes = [(attrs.get("class") or "").split() for kind, attrs in self.tags if kind == tag]
        return sum(name is None or name in some for some in classes)

    @property
    def policy(self) -> str:
        wanted = "Content-Security-Policy"
        found = [attrs for _, attrs in self.tags if attrs.get("http-equiv") == wanted]
        return found[0]["content"] or ""


def make_run(parent: Path, num_steps: int, evil: Sequence[str] = ()) -> Path:
    with Run.create(make_config(parent, rl={"steps": 12}), quiet=True) as run:
        learner = FakeLearner()
        run.attach(learner=learner)
        for step in range(1, num_steps + 1):
            if step in (1, num_steps):
                accuracy = 0.25 + 0.5 * (step > 1)
                row = {"eval/pass_at_1": accuracy, "eval/stderr": 0.02, "eval/num_problems": 400}
                row["eval/by_problem"] = {"a": accuracy, "b": 0.5, "c": 2 * accuracy - 0.5}
                run.record_evaluation(row, step=0 if step == 1 else None)
            groups, verdicts = make_rollouts(step)
            for n, text in enumerate(evil):
                group = groups[n % len(groups)]
                hurt = replace(group.completions[n % 4], text=text)
                siblings = [hurt if c.id == hurt.id else c for c in group.completions]
                prompt = replace(group.prompt, text=text)
                problem = replace(group.problem, tags=(text,), id=text)
                groups[n % len(groups)] = replace(
                    group, completions=tuple(siblings), prompt=prompt, problem=problem
                )
                row = list(verdicts[0])
                row[0] = replace(row[0], detail=text, extracted=text, verifier=text)
                verdicts[0] = tuple(row)
            run.record(groups, verdicts)
            run.finish_step(learner.learn(groups, verdicts))
        for text in evil:
            run.event(text, what=text)
        if evil:
            (run.folder / "decision.md").write_text("\n".join(evil))
    return run.folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("runs"), 12)


@pytest.fixture(scope="module")
def evil_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("runs"), 3, EVIL)


def test_the_report_describes_the_run(folder: Path) -> None:
    path = write_report(folder)
    assert path == folder / "report.html"
    page = Page(path.read_text())
    text = " ".join(" ".join(page.texts).split())
    for wanted in (
        "25.0% → 75.0% +50.0 points (95% interval ",
        "400 held-out problems, greedy",
        "before ± 2.0%",
        "12 of 12",
        "finished",
        "Held-out accuracy",
        "rl.steps",
        "numpy",
        "created",
        "not judged",
    ):
        assert wanted in text, wanted
    titles = {chart.title for chart in make_charts(load_run(folder))}
    assert {"Held-out accuracy", "Reward", "Groups", "Completion length", "Loss"} <= titles
    drawn = json.loads(page.scripts[0][1])["charts"]
    assert titles <= {chart["title"] for chart in drawn}
    assert page.count("article", "rollout") > 20


def test_the_gain_has_the_standard_error_of_paired_problems(folder: Path) -> None:
    text = write_report(folder).read_text()
    assert "+50.0 points (95% interval" in text  # of 0.5, 0 and 1


def test_the_page_is_one_file_that_loads_nothing(folder: Path) -> None:
    page = Page(write_report(folder).read_text())
    for tag, attrs in page.tags:
        assert "src" not in attrs and tag not in ("link", "iframe", "object", "embed", "base")
        assert (attrs.get("href") or "#").startswith("#")
    assert "default-src 'none'" in page.policy


def test_only_the_pages_own_scripts_may_run(evil_folder: Path) -> None:
    page = Page(write_report(evil_folder).read_text())
    programs = [text for kind, text in page.scripts if kind is None]
    assert [kind for kind, _ in page.scripts] == ["application/json", None, None]
    allowed = re.findall(r"script-src ([^;]*)", page.policy)[0].split()
    digests = [hashlib.sha256(text.encode()).digest() for text in programs]
    assert allowed == [f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests]
    assert "unsafe" not in page.policy.replace("style-src 'unsafe-inline'", "")


def test_no_model_text_becomes_markup(evil_folder: Path, folder: Path) -> None:
    evil, good = (Page(write_report(one).read_text()) for one in (evil_folder, folder))
    assert {tag for tag, _ in evil.tags} <= {tag for tag, _ in good.tags}
    for _, attrs in evil.tags:
        assert not [name for name in attrs if name.startswith("on") or name in ("srcdoc", "src")]
    assert evil.count("style") == 1 and evil.count("main") == 1
    text = "".join(evil.texts)
    assert "<script>document.title='owned'</script>" in text  # as text, to be read
    assert "${rollouts}" in text
    assert "U+202E" in text and "\u202e" not in text and "U+0000" in text


def test_chart_data_cannot_end_its_element(evil_folder: Path) -> None:
    page = Page(write_report(evil_folder).read_text())
    kind, data = page.scripts[0]
    assert kind == "application/json" and "<" not in data
    charts = json.loads(data)["charts"]
    names = [trace["name"] for chart in charts for trace in chart["traces"]]
    assert any("<" in name for name in names), "a tag is a family, a family is a line"


def test_the_lines_of_charts_have_a_value_for_every_step(folder: Path) -> None:
    for chart in make_charts(load_run(folder)):
        for trace in chart.traces:
            assert len(trace["x"]) == len(trace["y"]) > 0
    accuracy = make_charts(load_run(folder))[0]
    assert accuracy.traces[0]["y"] == [0.25, 0.75]
    for side in ("above", "below"):
        assert accuracy.traces[0][side] == pytest.approx([0.02, 0.02])


def test_a_report_is_small_enough_to_send(folder: Path) -> None:
    assert write_report(folder).stat().st_size < 200_000


def test_events_of_the_guard_are_marked_on_the_curves(folder: Path) -> None:
    event = {"time": "2026-01-01T00:00:00", "step": 1, "kind": "guard_note", "reason": "slow"}
    with (folder / "events.jsonl").open("a") as events:
        events.write(json.dumps(event) + "\n")
    _, data = Page(write_report(folder).read_text()).scripts[0]
    assert {"step": 1, "kind": "guard_note", "text": "slow"} in json.loads(data)["marks"]


@pytest.mark.parametrize("speeds", [[-1.0, 100.0], [-1.0, -2.0]])
def test_a_damaged_rate_below_zero_is_left_to_the_logarithmic_axis(
    folder: Path, speeds: list[float]
) -> None:
    run = load_run(folder)
    rows = [{"step": n, "speed/update": speed} for n, speed in enumerate(speeds)]
    charts = make_charts(replace(run, metrics=rows))
    (throughput,) = [one for one in charts if "speed/step" in one.labels]
    # The script draws no point at or below zero on a logarithmic axis.
    assert list(throughput.traces[0]["y"]) == speeds and throughput.log


def test_how_hard_problems_are_is_drawn_as_shares(tmp_path: Path) -> None:
    shares = [[0.5, 0.25, 0.0, 0.0, 0.25], [0.25, 0.25, 0.0, 0.25, 0.25]]
    with Run.create(make_config(tmp_path, rl={"steps": 2}), quiet=True) as run:
        run.attach(learner=FakeLearner())
        for step in shares:
            bins = [f"curriculum/pass_rate_{low}_{low + 20}" for low in range(0, 100, 20)]
            found = {"curriculum/retired": 0.5, **dict(zip(bins, step, strict=True))}
            run.finish_step(FakeUpdate({"loss/total": 1.0, **found}))
    charts = {chart.title: chart for chart in make_charts(load_run(run.folder))}
    chart = charts["How hard the problems are"]
    drawn = {trace["name"]: (trace["y"], trace["color"]) for trace in chart.traces}
    assert drawn["80 to 100 % pass"] == ([0.25, 0.25], "pass")
    assert drawn["60 to 80 %"] == ([0.0, 0.25], "c6")
    assert drawn["0 to 20 %"] == ([0.5, 0.25], "fail")
    assert "40 to 60 %" not in drawn and len(drawn) == 4
    assert np.sum([trace["y"] for trace in chart.traces], axis=0).tolist() == [1.0, 1.0]
    assert charts["Problems"].traces[0]["y"] == [0.5, 0.5]


def test_many_steps_are_smoothed_and_thinned(tmp_path: Path) -> None:
    with Run.create(make_config(tmp_path, rl={"steps": 9999}), quiet=True) as run:
        run.attach(learner=FakeLearner())
        row = run.finish_step(FakeUpdate({"loss/total": 1.0, "entropy/mean": 0.5}))
    lines = [json.dumps({**row, "step": n, "entropy/mean": n % 2}) for n in range(1, 3501)]
    (run.folder / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    chart = next(one for one in make_charts(load_run(run.folder)) if one.title == "Entropy")
    faint, strong = chart.traces
    assert len(strong["x"]) <= 1000 and strong["x"][-1] == 3500
    assert strong["y"][500] == pytest.approx(0.5, abs=0.01) and faint["faint"]
    assert strong["measured"] == faint["y"], "the pointer shows what was measured"


def test_smoothing_keeps_constants_and_means() -> None:
    assert np.allclose(smooth(np.full(100, 3.0)), 3.0)
    noisy = np.random.default_rng(0).normal(size=2000)
    assert abs(smooth(noisy).mean()) < 0.1 and smooth(noisy).std() < 0.3


def test_an_unfinished_and_an_empty_run_have_reports(tmp_path: Path) -> None:
    run = Run.create(make_config(tmp_path), quiet=True)
    page = Page(write_report(run.folder).read_text())
    text = " ".join(page.texts)
    assert "running, or killed" in text and "no rollouts" in text and "No held-out" in text
    run.finish_step(FakeUpdate({"loss/total": float("nan")}))
    write_report(run.folder)
    run._release()


def test_a_supervised_run_has_a_report(tmp_path: Path) -> None:
    config = make_config(tmp_path)
    tree = {**config.model_dump(mode="json", exclude_none=True), "sft": {"traces": ["t.jsonl"]}}
    del tree["rl"]
    with Run.create(type(config).model_validate(tree), num_steps=3, quiet=True) as run:
        run.attach(learner=FakeLearner())
        for _ in range(3):
            run.finish_step(FakeUpdate({"loss/nll": 1.0, "tokens/trained": 50.0}))
    text = " ".join(Page(write_report(run.folder).read_text()).texts)
    assert "supervised fine-tuning" in text and "tokens trained on" in text and "t.jsonl" in text


def test_a_damaged_shard_is_told(tmp_path: Path) -> None:
    with Run.create(make_config(tmp_path), quiet=True) as run:
        for step in (1, 2):
            run.record(*make_rollouts(step))
            run.finish_step(FakeUpdate())
    shard = run.rollouts.path(2)
    shard.write_bytes(shard.read_bytes()[:-9])
    page = write_report(run.folder).read_text()
    assert "Damaged, and not shown: step-000002.parquet in rollouts/." in page
    assert 'value="1"' in page and 'value="2"' not in page
    run.rollouts.path(1).write_bytes(b"")
    page = write_report(run.folder).read_text()
    assert "step-000001.parquet, step-000002.parquet" in page and "has no rollouts" not in page


def test_what_is_no_run_has_no_report(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="not a run directory"):
        write_report(tmp_path)


def test_steps_to_read_are_the_ends_the_extremes_and_some_between() -> None:
    metrics = [{"step": n, "reward/mean": abs(n - 30) / 100} for n in range(1, 101)]
    chosen = choose_steps(list(range(1, 101)), metrics)
    assert chosen[1] == "first" and chosen[100] == "last" and chosen[30] == "worst reward"
    assert 4 <= len(chosen) <= 8 and list(chosen) == sorted(chosen)
    assert choose_steps([5], []) == {5: "last"}
    assert choose_steps([], metrics) == {}


def row(group: str, n: int, reward: float | None) -> dict[str, Any]:
    status = "not_judged" if reward is None else "passed" if reward >= 1 else "failed"
    return {"group_id": group, "completion_id": f"{group}/{n}", "reward": reward, "status": status}


def test_groups_to_read_are_of_every_kind() -> None:
    rewards: dict[str, list[float | None]] = {
        "mixed": [0.0, 1.0, 0.0, 0.5, 0.2, 1.0],
        "fail": [0.0, 0.1],
        "fail2": [0.0, 0.0],
        "pass": [1.0, 1.0],
        "odd": [1.0, None],
        "fail3": [0.0, 0.0],
    }
    rows = [row(name, n, one) for name, some in rewards.items() for n, one in enumerate(some)]
    groups = choose_groups(rows)
    assert {siblings[0]["group_id"] for siblings in groups} == {"mixed", "fail", "pass", "odd"}
    shown = [one["reward"] for one in groups[0]]
    assert shown == [1.0, 1.0, 0.0, 0.0]
    assert choose_groups([]) == []


@pytest.mark.parametrize("mode", ["off", "free"])
def test_reasoning_is_set_apart_from_the_answer_as_verifiers_do(mode: str) -> None:
    think = {"mode": mode, "open_tag": "<think>", "close_tag": "</think>"}
    html = _completion_html({"text": "<THINK>x</THINK>5<think>y", "think": think})
    assert re.findall(r'class="(\w+)">(.*?)</span>', html) == [
        ("reasoning", "&lt;THINK&gt;x&lt;/THINK&gt;"),
        ("answer", "5"),
        ("reasoning", "&lt;think&gt;y"),
    ]


@given(st.text(st.characters(exclude_categories=()), max_size=60))
def test_safe_text_is_inert_and_loses_nothing_visible(text: str) -> None:
    shown = safe(text)
    shown.encode()
    page = Page(shown)
    assert all(tag == "span" and attrs["class"] == "hidden" for tag, attrs in page.tags)
    visible = [c for c in text if c.isalnum()]
    assert [c for c in visible if c not in "".join(page.texts)] == []


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_in_a_browser_the_charts_are_drawn_and_nothing_else_runs(
    evil_folder: Path, tmp_path: Path, scheme: str
) -> None:
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("no chromium here")
    page = write_report(evil_folder)
    done = subprocess.run(
        [
            *(browser, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run"),
            *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
            *(f"--user-data-dir={tmp_path}", "--virtual-time-budget=8000", "--dump-dom"),
            f"--blink-settings=preferredColorScheme={int(scheme == 'light')}",
            "--enable-logging=stderr",
            page.as_uri(),
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "<title>test · Assay</title>" in done.stdout
    num_charts = len(make_charts(load_run(evil_folder)))
    assert done.stdout.count("main-svg") >= num_charts > 5
    assert "CONSOLE" not in done.stderr, done.stderr
