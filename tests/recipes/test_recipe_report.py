"""The report of a recipe: what each stage made of the model and of the data, cost and lineage."""

from __future__ import annotations

from pathlib import Path

from recipe_worlds import World

from assay.report.loaded import load_run
from assay.run.evaluations import parts_of
from assay.run.intervals import share_words
from assay.run.paired import gain_between


def test_the_report_lists_each_stage_and_data_set(world: World) -> None:
    rows = [{"prompt": f"{n % 3} + 1 =", "completion": f" {n}{'<b>' * (n > 6)}"} for n in range(9)]
    inputs = [str(world.rows("collected", rows))]
    chosen = {"data": "select", "inputs": inputs, "keep": "any", "k": 2}
    tree = world.tree(cold={"sft": {"traces": ["@chosen"], "tokens_per_step": 8}})
    tree["stage"] = {"chosen": chosen, **tree["stage"]}
    result = world.run(world.file(tree))
    folder = Path(result.folder)
    text = (folder / "report.md").read_text()
    assert "| chosen | select: rows read |  | 9 |" in text
    assert "|  | k | -3 | 6 |" in text and "|  | rows written |  | 6 |" in text
    found = load_run(folder / "reason").evaluations[-1]
    shares = f"{found['eval/pass_at_1']:.1%}{share_words(found)}"
    assert f"| reason | rl | cold | {shares} |" in text and "| before cold |  | start |" in text
    generated = sum(load_run(folder / "reason").metrics["tokens/generated"])
    assert f"| {generated:,.0f} |" in text and "| in all |" in text
    lineage = text[text.index("## Lineage") :]
    assert [line.split(":")[0].strip() for line in lineage.splitlines()[4:]] == [
        "reason",
        "cold",
        "start",
        "chosen",
    ]
    page = (folder / "report.html").read_text()
    assert shares in page and "<b>" not in page.partition("</header>")[2]


def test_each_stage_says_whether_its_traces_were_verified(world: World) -> None:
    """Two stages from one model: of what a verifier passed, and of all; a third is given both."""
    ask = {"data": "collect", "model": str(world.folder / "model"), "inputs": world.source("train")}
    ask |= {"verifier": "recipe_worlds:even_text", "max_tokens": 8, "num_samples": 4}
    verified = {"data": "select", "inputs": ["@written"], "k": 4}
    varied = {"data": "vary", "inputs": ["@right"], "variants": {"one": {"append": "?"}}}
    stages = {"written": ask, "right": verified, "varied": varied}
    sft = {"tokens_per_step": 8, "epochs": 0.5}
    learners = {
        "right_only": ["@varied"],
        "any": ["@written"],
        "both": ["@right", *world.source("traces")],
    }
    for name, traces in learners.items():
        stages[name] = {"model": {"path": "@start"}, "sft": {**sft, "traces": traces}}
    tree = world.tree()
    tree["stage"] = {**tree["stage"], **stages}
    folder = Path(world.run(world.file(tree)).folder)
    text = (folder / "report.md").read_text()
    for stage, told in (
        ("cold", "unknown origin"),
        ("right_only", "verified"),
        ("any", "not verified"),
        ("both", "verified, unknown origin"),
    ):
        (row,) = (line for line in text.splitlines() if line.startswith(f"| {stage} | sft | "))
        assert row.split(" | ")[2:4] == ["start", told]
        page = (folder / stage / "report.html").read_text()
        assert (f"({told})" in page) == (told != "unknown origin")
    assert "| reason | rl | cold |  |" in text


def test_benchmarks_and_think_modes_are_rows_of_their_own(world: World) -> None:
    """Two held-out sets, one of them made by a stage, and one in both modes."""
    both = [{"id": f"b{n}", "prompt": f"{n} + 2 =", "answer": "2"} for n in range(4)]
    for n, row in enumerate(both):
        row["think"] = "empty" if n % 2 else "free"
    made = {"data": "filter", "inputs": [str(world.rows("both", both))]}
    held = {"heldout": ["@made", *world.source("held")], "think": "free"}
    tree = world.tree(cold={"data": held}, reason={"data": held})
    tree["stage"] = {"made": made, **tree["stage"]}
    folder = Path(world.run(world.file(tree)).folder)
    text = (folder / "report.md").read_text()
    head = "| stage |  | from | problems | think | greedy | gained, greedy | mean tokens, greedy |"
    assert head in text
    held_name = world.source("held")[0]
    places = [("made", "free"), ("made", "empty"), (held_name, "free")]
    found = parts_of(load_run(folder / "reason").evaluations[-1])
    assert len(found) == 3
    for stage in ("before cold |  | start ", "cold | sft | start ", "reason | rl | cold "):
        rows = [line for line in text.splitlines() if line.startswith(f"| {stage}|")]
        assert [tuple(row.split(" | ")[3:5]) for row in rows[:3]] == places
    for (source, mode), part in found.items():
        name = "made" if source.endswith("made/rows.jsonl") else source
        (row,) = (one for one in rows if f"| {name} | {mode} |" in one)
        assert f"| {part['eval/pass_at_1']:.1%}{share_words(part)} |" in row
        assert row.endswith(f"| {part['eval/mean_tokens']:.1f} |") and "%" in row.split(" | ")[6]


def test_a_stage_that_failed_has_a_report_too(world: World) -> None:
    tree = world.tree(reason={"guard": {"rules": ["recipe_worlds:stop"]}})
    try:
        world.run(world.file(tree))
    except Exception as error:
        assert "stage reason" in str(error)
    text = (world.folder / "runs" / "two" / "report.md").read_text()
    assert "| cold | sft | start |" in text and "reason: rl" in text


def test_a_stage_is_compared_with_the_model_that_it_started_from(world: World) -> None:
    """The third stage starts again from the first model, and not from the row above it."""
    again = {"model": {"path": "@start"}, "sft": {"traces": world.source("traces"), "epochs": 2}}
    folder = Path(world.run(world.file(world.tree(again=again))).folder)
    lines = (folder / "report.md").read_text().splitlines()
    for stage, kind, start in (("cold", "sft", "start"), ("reason", "rl", "cold"), ("again", "sft", "start")):  # fmt: skip
        first, *_, last = load_run(folder / stage).evaluations
        gain = gain_between(first, last)
        (line,) = (one for one in lines if one.startswith(f"| {stage} | {kind} | {start} | "))
        assert gain is not None and f"| {gain} |" in line
    own = load_run(folder / "reason").evaluations[0], load_run(folder / "cold").evaluations[-1]
    assert own[0]["eval/by_problem"] == own[1]["eval/by_problem"], "both are the same model"
