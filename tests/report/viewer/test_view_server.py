"""The viewer's pages over HTTP: who may read them, what they show, hostile text."""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import quote, urlencode

import pytest
from run_fakes import FakeLearner, make_config, make_rollouts
from viewing import HOSTILE, TOKEN, ask, get, make_run

from assay.report.loaded import load_run
from assay.report.viewer.view_server import ViewServer
from assay.run.directory import Run
from assay.types import Verdict

PAGES = (
    "",
    "run",
    "compare",
    "curves",
    "rollouts",
    "step",
    "problem",
    "rollout",
    "assets/view.css",
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("runs"))


@pytest.fixture
def app(folder: Path) -> Iterator[ViewServer]:
    made = ViewServer([folder.parent], TOKEN)
    yield made
    made._closing.set()
    made._threads.shutdown(wait=True)


def of(page: str, folder: Path, **parameters: object) -> str:
    return f"{page}?{urlencode({'run': folder, **parameters})}"


@pytest.mark.parametrize("page", PAGES)
def test_a_page_needs_the_token_and_a_loopback_name(app: ViewServer, page: str) -> None:
    for url in (f"/{page}", f"/{TOKEN}x/{page}", f"/é/{page}", f"//{TOKEN}/{page}"):
        assert ask(app, url, "localhost:8000").status == 404
    assert get(app, page, host="evil.example:8000").status == 403
    foreign = get(app, page, origin="http://evil.example")
    assert foreign.status == 403 and "Runs" not in foreign.text


@pytest.mark.parametrize("page", PAGES[1:8])
def test_only_listed_runs_are_opened(app: ViewServer, folder: Path, page: str) -> None:
    for key in ("/", str(folder.parent), f"{folder}/../test", "/etc", ""):
        reply = get(app, f"{page}?run={quote(key)}&id=x&step=1")
        if page == "curves":
            assert reply.json == {"runs": [], "gone": [key]}
        else:
            assert reply.status == 404


def test_pages_load_nothing_from_elsewhere(app: ViewServer, folder: Path) -> None:
    for page in ("", of("run", folder), of("rollouts", folder), of("step", folder)):
        reply = get(app, page)
        assert reply.status == 200
        assert reply.headers["content-security-policy"].startswith("default-src 'none'")
        assert reply.headers["referrer-policy"] == "no-referrer"
        links = re.findall(r'(?:href|src|action)="([^"]*)"', reply.text)
        assert links and all(one.startswith((f"/{TOKEN}/", "#", "data:,")) for one in links)
        Tags().feed(reply.text)


def test_the_list_finds_runs_by_setting(app: ViewServer, folder: Path) -> None:
    assert folder.name in get(app, "").text
    assert "1 of 1 runs" in get(app, "?word=rl.steps%3D12").text
    assert "0 of 1 runs" in get(app, "?word=rl.steps%3D13").text


def test_curves_carry_metrics_events_and_evaluations(app: ViewServer, folder: Path) -> None:
    reply = get(app, of("curves", folder))
    run = reply.json["runs"][0]
    charts = {chart["title"]: chart for chart in run["charts"]}
    rewards = charts["Reward"]["traces"][0]
    metrics = load_run(folder).metrics
    assert rewards["x"] == [1, 2, 3]
    assert rewards["y"] == pytest.approx(metrics["reward/mean"], rel=1e-4)
    assert charts["Held-out accuracy"]["traces"][0]["y"] == [0.25]
    assert [(mark["step"], mark["kind"]) for mark in run["marks"]] == [(3, "guard_note")]
    assert run["state"] == "paused" and run["step"] == 3
    again = get(app, of("curves", folder), if_none_match=reply.headers["etag"])
    assert again.status == 304 and not again.text


def shown_ids(text: str) -> list[str]:
    found = re.findall(r'<span class="id"><a href="[^"]*">(.*?)</a>', text)
    return [html.unescape(one) for one in found]


FILTERS: dict[str, Callable[[dict], bool]] = {
    "status=passed": lambda row: row["status"] == "passed",
    "status=not_judged": lambda row: row["status"] == "not_judged",
    "step=2": lambda row: row["step"] == 2,
    "problem=p1": lambda row: row["problem_id"] == "p1",
    "tag=level+1": lambda row: "level 1" in row["tags"],
    "text=GR%C3%96SSE+3": lambda row: False,
    "text=GR%C3%B6%C3%9Fe+3": lambda row: "größe 3" in row["text"],
    "text=q%3A+2": lambda row: "Q: 2" in row["prompt"],
    "truncated=1": lambda row: row["finish_reason"] == "length",
    "injected=1": lambda row: row["num_injected"] > 0,
    "status=failed&step=1": lambda row: row["status"] == "failed" and row["step"] == 1,
    "conflict=1": lambda row: (
        max(row["components"].values(), default=0) - min(row["components"].values(), default=0)
        >= 0.5
    ),
}


@pytest.mark.parametrize("asked", FILTERS)
def test_filters_select_what_a_loop_over_all_rollouts_selects(
    app: ViewServer, folder: Path, asked: str
) -> None:
    every = [dict(row) for row in load_run(folder).rollouts()]
    wanted = [row["completion_id"] for row in every if FILTERS[asked](row)]
    found: list[str] = []
    for page in range(1, 4):
        reply = get(app, f"{of('rollouts', folder)}&{asked}&page={page}")
        found += [one for one in shown_ids(reply.text) if one not in found]
        assert f"<b>{len(wanted)}</b> of {len(every)} rollouts" in reply.text
    assert sorted(found) == sorted(wanted)


def test_group_kinds_are_those_of_the_metrics(app: ViewServer, folder: Path) -> None:
    metrics = load_run(folder).metrics
    for kind in ("all_pass", "mixed", "all_fail"):
        count = 0.0
        for step in (1, 2, 3):
            text = get(app, of("rollouts", folder, group=kind, step=step)).text
            count += len({one.rpartition("/")[0] for one in shown_ids(text)})
        # Three groups a step, all with a judged completion.
        assert count == pytest.approx(3 * sum(metrics[f"group/{kind}"]))


def test_a_rollout_is_found_by_its_link(app: ViewServer, folder: Path) -> None:
    for row in load_run(folder).rollouts(step=2):
        text = get(app, of("rollout", folder, step=2, id=row["completion_id"])).text
        assert html.escape(row["text"]) in re.sub(r"</?span[^>]*>", "", text)
        for name, value in row["components"].items():
            assert f"<dt>{name}</dt><dd>{value:.4g}</dd>" in text
        assert text.count('class="chip ') == 4 and text.count('aria-current="true"') == 1
    assert get(app, of("rollout", folder, step=2, id="p9#1/0")).status == 404
    assert get(app, of("rollout", folder, step=9, id="p1#2/0")).status == 404


def test_a_problem_shows_each_of_its_draws(app: ViewServer, folder: Path) -> None:
    text = get(app, of("problem", folder, id="p1")).text
    assert len(re.findall(r'<tr class="item">', text)) == 3
    for step in (1, 2, 3):
        rows = load_run(folder).rollouts(step=step, problem="p1")["status"]
        passed, judged = rows.count("passed"), len(rows) - rows.count("not_judged")
        assert f">{step}</a></td><td>{passed} of {judged}</td>" in text
    assert get(app, of("problem", folder, id="p9")).status == 404


class Tags(HTMLParser):
    """Collects what a browser would make of a page: elements, and attributes that run scripts."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append(tag)
        # The policy allows neither scripts in attributes nor styles.
        assert not [name for name, _ in attrs if name.startswith(("on", "style"))]
        assert tag != "script" or dict(attrs).get("src", "").startswith(f"/{TOKEN}/assets/")
        assert tag != "img"


@pytest.fixture
def hostile_folder(tmp_path: Path) -> Path:
    verdict = Verdict.of_score(
        0.0, "math@1", components={HOSTILE: 0.5}, detail=HOSTILE, extracted=HOSTILE
    )
    config = make_config(tmp_path, run={"name": "a <b> & 'c'"})
    with Run.create(config, quiet=True) as run:
        run.attach(learner=(learner := FakeLearner()))
        groups, verdicts = make_rollouts(1)
        for n, group in enumerate(groups):
            members = [
                replace(one, id=f"{HOSTILE}{one.id}", text=HOSTILE) for one in group.completions
            ]
            problem = replace(group.problem, id=HOSTILE, tags=(HOSTILE,), draw=n)
            prompt = replace(group.prompt, text=HOSTILE)
            groups[n] = replace(group, problem=problem, prompt=prompt, completions=tuple(members))
            verdicts[n] = (verdict,) * len(members)
        run.record(groups, verdicts)
        run.finish_step(learner.learn(groups, verdicts))
        run.event("guard_note", rule=HOSTILE, reason=HOSTILE)
        return run.folder


def test_hostile_text_stays_text(hostile_folder: Path) -> None:
    app, folder = ViewServer([hostile_folder.parent], TOKEN), hostile_folder
    id = load_run(folder).rollouts()["completion_id"][0]
    pages = ["", of("run", folder), of("step", folder), of("compare", folder)]
    pages += [of("rollouts", folder), of("rollouts", folder, text=HOSTILE[:20], tag=HOSTILE)]
    pages += [of("problem", folder, id=HOSTILE), of("rollout", folder, step=1, id=id)]
    pages += [
        f"?word={quote(HOSTILE)}",
        f"run?run={quote(HOSTILE)}",
        of("rollout", folder, id=HOSTILE),
    ]
    for page in pages:
        text = get(app, page).text
        Tags().feed(text)
        assert not {"\u202e", "\x1b"} & {*text}, page
    shown = get(app, of("rollout", folder, step=1, id=id)).text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in shown
    assert 'title="right-to-left override">U+202E' in shown
    # Scripts put this text into the page as text nodes; JSON keeps it whole.
    marks = get(app, of("curves", folder)).json["runs"][0]["marks"]
    assert marks[0]["text"] == HOSTILE
