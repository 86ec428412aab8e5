"""The command line as a stranger uses it: what is wrong is said in one line, with exit code 2."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import tomli_w

from assay import cli
from assay.errors import DiskFull, OutOfMemory, RunStopped
from assay.testing import CHAT_TEMPLATE, save_tiny_model


@dataclass(frozen=True)
class Outcome:
    code: int
    out: str
    err: str

    @property
    def complaint(self) -> str:
        """What was wrong, in one line."""
        assert self.code == 2, (self.code, self.out, self.err)
        last = self.err.strip().splitlines()[-1]
        assert last.startswith("error: ") and self.err.count("error: ") == 1, self.err
        assert "Traceback" not in self.err and self.out == ""
        return last

    @property
    def json(self) -> Any:
        """The one line that was printed, of strict JSON."""
        assert self.code == 0, self.err
        (line,) = self.out.splitlines()
        return json.loads(line, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))


Assay = Callable[..., Outcome]


@pytest.fixture
def assay(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Assay:
    """Run one command in this process."""
    monkeypatch.setattr(sys, "path", [*sys.path])

    def run(*arguments: object) -> Outcome:
        monkeypatch.setattr(sys, "argv", ["assay", *map(str, arguments)])
        capsys.readouterr()
        code = 0
        try:
            cli.main()
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
        said = capsys.readouterr()
        return Outcome(code, said.out, said.err)

    return run


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model without a chat template."""
    return save_tiny_model(tmp_path_factory.mktemp("cli") / "model", max_positions=64)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, one_thread: None) -> Path:
    """The working directory, with problems and a reward in it."""
    monkeypatch.chdir(tmp_path)
    write_rows("train.jsonl", [{"prompt": f"{n} + 1 =", "answer": f"{n + 1}"} for n in range(6)])
    write_rows("heldout.jsonl", [{"prompt": f"{n} + 9 =", "answer": f"{n + 9}"} for n in range(2)])
    reward = "def odd(problem, completion):\n    return float(len(completion.text) % 2)\n"
    Path("rewards_in_cwd.py").write_text(reward)
    return tmp_path


def write_rows(name: str, rows: list[dict[str, Any]]) -> None:
    Path(name).write_text("".join(json.dumps(row) + "\n" for row in rows))


def write_config(folder: Path, **sections: Any) -> str:
    tree: dict[str, Any] = {
        "model": {"path": str(folder)},
        "data": {"train": ["train.jsonl"], "heldout": ["heldout.jsonl"]},
        "sampling": {"max_tokens": 6},
        "engine": {"num_slots": 8},
        "rl": {"steps": 1, "num_prompts": 2, "group_size": 2},
        "verification": {"num_workers": 1},
    }
    for section, values in sections.items():
        tree[section] = {**tree.get(section, {}), **(values or {})}
        if values is None:
            del tree[section]
    Path("run.toml").write_text(tomli_w.dumps(tree))
    return "run.toml"


def test_not_toml(assay: Assay, here: Path) -> None:
    Path("bad.toml").write_text("[rl]\nsteps = = 3\n")
    assert "bad.toml:2 not TOML" in assay("train", "bad.toml").complaint
    assert "none.toml: cannot be read (No such file" in assay("train", "none.toml").complaint


def test_an_unknown_key(assay: Assay, here: Path, model: Path) -> None:
    config = write_config(model, rl={"stepz": 3})
    assert (
        "run.toml:22 rl.stepz: unknown key; did you mean rl.steps?"
        in assay("train", config).complaint
    )
    config = write_config(model)
    assert (
        "rl.group_sise: unknown key" in assay("train", config, "--set", "rl.group_sise=2").complaint
    )


DATA_FAULTS = {
    "a bad row": (
        '{"prompt": "1", "answer": "1"}\n{"prompt": 7}\n',
        "train.jsonl:2 prompt: found 7",
    ),
    "not JSON": ('{"prompt": "1", "answer": "1"}\n{"prom\n', "train.jsonl:2"),
    "an empty file": ("", "train.jsonl"),
    "only blank lines": ("\n\n", "train.jsonl"),
    "an unknown verifier": (
        '{"prompt": "1", "answer": "1", "verifier": "mathh"}\n',
        "train.jsonl:1 verifier 'mathh' column 1: found",
    ),
    "a prompt beyond the context": (
        json.dumps({"prompt": "x" * 100, "answer": "1"}) + "\n",
        "train.jsonl:1 prompt: found 101 tokens; accepted: at most 58 tokens",
    ),
    "a question of both sets": (
        '{"prompt": "5", "answer": "1"}\n{"prompt": "0 + 9  =", "answer": "9"}\n',
        "heldout.jsonl:1",
    ),
}


@pytest.mark.parametrize("fault", DATA_FAULTS)
def test_faults_of_the_data(assay: Assay, here: Path, model: Path, fault: str) -> None:
    text, said = DATA_FAULTS[fault]
    Path("train.jsonl").write_text(text)
    assert said in assay("train", write_config(model)).complaint
    assert not Path("runs").exists(), "a run that cannot begin leaves nothing behind"


def test_missing_problems(assay: Assay, here: Path, model: Path) -> None:
    config = write_config(model, data={"train": ["none.jsonl"]})
    assert "none.jsonl" in assay("train", config).complaint
    measured = assay("eval", model, "--problems", "none.jsonl", "--max-tokens", 4)
    assert "none.jsonl" in measured.complaint
    assert "--max-tokens" in assay("eval", model, "--problems", "train.jsonl").complaint
    config = write_config(model, data={"train": []})
    assert 'add train = ["problems.jsonl"]' in assay("train", config).complaint


CONFIG_FAULTS: dict[str, tuple[dict[str, Any], str]] = {
    "one sibling": ({"rl": {"group_size": 1}}, "rl.group_size"),
    "an unknown verifier": ({"data": {"verifier": "mathh"}}, "mathh"),
    "a verifier expression": ({"data": {"verifier": "math*"}}, "math*"),
    "a module that is not there": ({"data": {"verifier": "no_such_module:f"}}, "no_such_module"),
    "an unknown algorithm": ({"algorithm": {"name": "grop"}}, "grop"),
    "no chat template": ({"data": {"template": "chat"}}, "base"),
    "no room for a prompt": ({"sampling": {"max_tokens": 64}}, "sampling.max_tokens: found 64"),
    "greedy training": ({"sampling": {"temperature": 0.0}}, "sampling.temperature"),
    "tokens cut off in training": ({"sampling": {"top_p": 0.9}}, "sampling.top_p: found 0.9"),
    "the least likely cut off": ({"sampling": {"min_p": 0.1}}, "sampling.min_p: found 0.1"),
    "all but some cut off": ({"sampling": {"top_k": 5}}, "sampling.top_k: found 5; accepted: None"),
    "both stages": ({"sft": {"traces": ["t.jsonl"]}}, "found [rl] and [sft]"),
    "natural steps in halves": (
        {"algorithm": {"name": "trpo"}, "model": {"dtype": "bfloat16"}},
        'model.dtype: found "bfloat16", with a trust region',
    ),
    "a bad guard rule": ({"guard": {"rules": ["nowhere:rule"]}}, "nowhere:rule"),
    "a missing model": ({"model": {"path": "./nothing"}}, "nothing there"),
    "a folder that is no model": ({"model": {"path": "."}}, "without config.json"),
    "an unknown layer": ({"model": {"lora": {"targets": ["nope"]}}}, "model.lora.targets"),
    "no such device": ({"run": {"device": "cuda:99"}}, "run.device"),
}


@pytest.mark.parametrize("fault", CONFIG_FAULTS)
def test_faults_of_the_configuration(assay: Assay, here: Path, model: Path, fault: str) -> None:
    sections, said = CONFIG_FAULTS[fault]
    if "device" in sections.get("run", {}):
        import torch

        if torch.cuda.is_available():
            pytest.skip("this machine has CUDA")
    assert said in assay("train", write_config(model, **sections)).complaint
    assert not Path("runs").exists()


def test_a_model_that_is_not_cached(
    assay: Assay, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    said = assay("sample", "no-such-owner/no-such-model", "--prompt", "x").complaint
    assert "no-such-owner/no-such-model" in said and "HF_HUB_OFFLINE" in said


def test_a_model_with_code_of_its_own(assay: Assay, here: Path, model: Path) -> None:
    folder = shutil.copytree(model, here / "own_code")
    auto = {"AutoConfig": "mine.MyConfig", "AutoModelForCausalLM": "mine.MyModel"}
    config = json.loads((folder / "config.json").read_text())
    config |= {"model_type": "mine", "auto_map": auto, "architectures": ["MyModel"]}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "mine.py").write_text("raise SystemExit('foreign code ran')\n")
    said = assay("sample", folder, "--prompt", "x").complaint
    assert "model.trust_remote_code = true" in said


def test_a_missing_extra(
    assay: Assay, here: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "peft", None)
    config = write_config(model, model={"lora": {"rank": 2}})
    assert 'pip install "assay-rl[lora]"' in assay("train", config).complaint


def test_a_directory_that_cannot_be_written(assay: Assay, here: Path, model: Path) -> None:
    Path("blocked").write_text("a file in the way")
    config = write_config(model, run={"directory": "blocked/runs"})
    said = assay("train", config).complaint
    assert "run.directory blocked/runs" in said and "a file" in said
    rows = ("--problems", "heldout.jsonl", "--max-tokens", "4")
    said = assay("eval", model, *rows, "--out", "blocked/out").complaint
    assert (
        "--out blocked/out: found no folder blocked; accepted: a file that can be written" in said
    )


def test_what_the_commands_need(assay: Assay, here: Path, model: Path) -> None:
    assert "give a CONFIG file, or --resume RUN" in assay("train").complaint
    both = assay("train", write_config(model), "--resume", "runs/x")
    assert "not both" in both.complaint
    assert "not a run directory" in assay("train", "--resume", "runs/x").complaint
    assert "not a run directory" in assay("run", "report", "runs/x").complaint
    assert "needs a CONFIG file" in assay("train", "--resume", "x", "--dry-run").complaint
    assert "(--prompt) or problems (--problems)" in assay("sample", model).complaint
    several = assay("eval", model, "--problems", "heldout.jsonl", "--samples", 4)
    assert "temperature: found 0" in several.complaint
    assert "a run (RUN, RUN@best" in assay("model", "export", "./nothing", "out").complaint
    assert assay("train", "--no-such-option").code == 2
    assert assay("eval", model).code == 2


def test_training_and_all_that_reads_a_run(assay: Assay, here: Path, model: Path) -> None:
    """One run, begun as a stranger does, and every command that takes it, with --json."""
    config = write_config(model, data={"verifier": "rewards_in_cwd:odd"})
    plan = assay("train", config, "--dry-run", "--json").json
    assert {"samples", "notes", "memory_mib"} <= plan.keys() and not Path("runs").exists()
    done = assay("train", config, "--json").json
    assert done["run"] == "runs/run" and done["steps"] == 1 and done["ended"] == "finished"
    assert done["after"][0]["eval/num_problems"] == 2
    assert Path(done["report"]).exists() and Path(done["checkpoint"]).is_dir()
    again = assay(
        "train", "--resume", "runs/run", "--set", "rl.steps=2", "--max-minutes", 9, "--json"
    )
    assert again.json["steps"] == 2
    measured = assay("eval", "runs/run", "--problems", "heldout.jsonl", "--json").json
    assert 0 <= measured["pass_at_1"] <= 1 and measured["num_problems"] == 2
    several = ("--samples", 2, "--temperature", 1, "--json")
    measured = assay("eval", model, "--problems", "train.jsonl", "--max-tokens", 4, *several).json
    assert {"pass_at_1", "pass_at_2", "stderr", "majority"} <= measured.keys()
    read = assay("sample", "runs/run", "--prompt", "1 + 1 =", "--answer", "2", "--json").json
    assert len(read["samples"]) == 4 and read["samples"][0]["prompt"] == "1 + 1 =\n"
    assert assay("run", "report", "runs/run", "--json").json == {"report": "runs/run/report.html"}
    assert assay("model", "export", "runs/run", "merged", "--json").json == {"model": "merged"}
    assert Path("merged/model.safetensors").exists()


@pytest.mark.parametrize("minutes", ["0", "-1", "nan", "inf"])
def test_a_time_limit_is_a_number_of_minutes(
    assay: Assay, here: Path, model: Path, minutes: str
) -> None:
    found = assay("train", write_config(model), f"--max-minutes={minutes}").complaint
    assert "run.max_minutes: found" in found and "accepted: a number > 0" in found
    assert not Path("runs").exists()


def test_human_output_of_train_sample_and_eval(assay: Assay, here: Path, model: Path) -> None:
    config = write_config(model, rl={"steps": 2})
    done = assay("train", config, "--max-minutes", 0.000001)
    assert done.code == 0 and "out of time after 1 step\n" in done.out
    assert "continue with: assay train --resume runs/run\n" in done.out
    assert "finished after 2 steps" in assay("train", "--resume", "runs/run").out
    shown = assay("sample", model, "--problems", "heldout.jsonl", "--max-tokens", 4, "--num", 1)
    assert shown.code == 0 and "=== prompt ===" in shown.out and "failed" in shown.out
    measured = assay("eval", model, "--problems", "heldout.jsonl", "--max-tokens", 4)
    assert "pass@1 0.000 (95% interval 0.000 to 0.658)" in measured.out
    assert "2 problems, greedy, 100% cut at the limit" in measured.out


def test_an_evaluation_shows_how_far_it_is(
    assay: Assay, here: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("assay.run.progress._SAMPLING_EVERY", 0.0)
    command = ("eval", model, "--problems", "heldout.jsonl", "--max-tokens", 4)
    told = assay(*command)
    assert "problems: 2 of 2 completions, 8 tokens" in told.err and told.out.count("\n") == 1
    assert "completions" not in assay(*command, "--json").err


def test_a_chat_model(assay: Assay, here: Path) -> None:
    model = save_tiny_model(here / "chat", chat_template=CHAT_TEMPLATE, max_positions=64)
    read = assay("sample", model, "--prompt", "hi", "--max-tokens", 4, "--json").json
    assert read["samples"][0]["prompt"] == "<|user|>hi<|end|><|assistant|>"


def test_verify(assay: Assay, here: Path) -> None:
    rows = [
        {"id": "a", "answer": "4", "completion": "so \\boxed{4}"},
        {"id": "b", "answer": "4", "completion": "so \\boxed{5}"},
    ]
    write_rows("done.jsonl", rows)
    printed = assay("verify", "done.jsonl")
    verdicts = [json.loads(line) for line in printed.out.splitlines()]
    assert [row["status"] for row in verdicts] == ["passed", "failed"]
    assert "rows 2, passed 1, failed 1" in printed.err
    summary = assay("verify", "done.jsonl", "--out", "verdicts.jsonl", "--json").json
    assert summary["rows"] == 2 and len(Path("verdicts.jsonl").read_text().splitlines()) == 2
    write_rows("bad.jsonl", [{"id": "a", "answer": "4"}])
    assert "bad.jsonl:1 completion" in assay("verify", "bad.jsonl").complaint
    assert "none.jsonl" in assay("verify", "none.jsonl").complaint
    assert "mathh" in assay("verify", "done.jsonl", "--verifier", "mathh").complaint


def test_verify_options_warnings_and_nothing_judged(assay: Assay, here: Path) -> None:
    write_rows("rows.jsonl", [{"id": "a", "answer": "0.1", "completion": "The answer is 10%."}])
    assert '"passed"' in assay("verify", "rows.jsonl").out
    assert '"failed"' in assay("verify", "rows.jsonl", "--set", "math.percent=number").out
    complaint = assay("verify", "rows.jsonl", "--set", "math.falback=none").complaint
    assert "verification.options.math.falback: unknown key; did you mean fallback?" in complaint
    heavy = assay("verify", "rows.jsonl", "--verifier", "math + think_format*5")
    assert "warning: " in heavy.err and heavy.code == 0
    Path("my_rewards.py").write_text("def broken(problem, completion): return 1 / 0\n")
    dark = assay("verify", "rows.jsonl", "--verifier", "my_rewards:broken")
    assert dark.code == 1 and "ZeroDivisionError" in dark.out
    assert "one of FILE and --rescore RUN" in assay("verify").complaint


def test_steps_are_labelled(assay: Assay, here: Path, model: Path) -> None:
    rows = [{"id": "a", "prompt": "1 + 1 =", "answer": "2", "completion": "1 and 1\nso 2"}]
    write_rows("done.jsonl", rows)
    few = ("--set", f"model={model}", "--set", "num_samples=2", "--set", "max_tokens=4")
    told = (*few, "--set", "estimate=soft", "--json")
    found = assay("data", "label_steps", "done.jsonl", "--out", "labels", *told).json
    assert (found["rows"], found["measured"]["steps"], found["measured"]["rollouts"]) == (1, 2, 2)
    (row,) = [json.loads(line) for line in Path("labels/rows.jsonl").read_text().splitlines()]
    assert len(row["labels"]) == 2 and all(0 <= label <= 1 for label in row["labels"])
    before = ("--set", "labelled=labels/rows.jsonl")
    again = assay("data", "label_steps", "done.jsonl", "--out", "again", *told, *before).json
    assert (again["measured"]["labelled before"], again["measured"]["rollouts"]) == (1, 0)
    assert Path("again/rows.jsonl").read_text() == Path("labels/rows.jsonl").read_text()
    missing = assay("data", "label_steps", "nothing.jsonl", "--out", "new", *told).complaint
    assert "nothing.jsonl" in missing


def test_self_test_and_red_team(assay: Assay, here: Path) -> None:
    tested = assay("verifier", "self-test", "--verifier", "think_format", "--json").json
    assert tested["accuracy"] == 1.0 and tested["rows"] > 20
    assert "accepted: math" in assay("verifier", "self-test", "--verifier", "mth").complaint
    held = assay("redteam", "--verifier", "think_format")
    assert held.code == 0 and "0 of" in held.out
    Path("weak.py").write_text("def weak(p, c): return float(p.spec['answer'] in c.text)\n")
    caught = assay("redteam", "--verifier", "weak:weak")
    assert caught.code == 1 and "ACCEPTED" in caught.out and "expected '42'" in caught.out
    Path("strict.py").write_text("def strict(p, c): return float(p.spec['answer'] == c.text)\n")
    strict = assay("redteam", "--verifier", "strict:strict")
    assert strict.code == 0 and "honest controls failed" in strict.out.splitlines()[-1]
    assert "need --verifier" in assay("redteam", "--suite", "math").complaint


def test_a_reader_that_leaves_early_is_no_error(here: Path) -> None:
    write_rows("rows.jsonl", [{"answer": "4", "completion": "4"}] * 3000)
    command = (
        f"{sys.executable} -m assay.cli verify rows.jsonl | head -n 1; exit ${{PIPESTATUS[0]}}"
    )
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert (done.returncode, done.stdout.count("\n")) == (0, 1) and "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("error", "code"),
    [(OutOfMemory("lower x"), 1), (RunStopped("step 3"), 1), (DiskFull("free some"), 1)],
)
def test_a_run_that_fails_is_exit_code_1(
    assay: Assay, here: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, code: int
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("assay.training.api.train", fail)
    done = assay("train", write_config(here))
    assert (done.code, done.err, done.out) == (code, f"error: {error}\n", "")


def test_a_guard_stop_is_exit_code_1(assay: Assay, here: Path, model: Path) -> None:
    Path("mute_reward.py").write_text("def none(problem, completion):\n    return None\n")
    config = write_config(model, data={"verifier": "mute_reward:none"})
    done = assay("train", config, "--json")
    assert done.code == 1 and done.out == ""
    assert done.err.count("\n") == 1 and "100% of the completions were not judged" in done.err
    assert "runs/run" in done.err


def test_the_console_script_finds_rewards_in_the_working_directory(here: Path) -> None:
    """Its first path is the script's own folder; verifier workers are started by it."""
    script = Path(sys.executable).with_name("assay")
    if not script.exists():
        pytest.skip("assay is not installed as a script beside this interpreter")
    write_rows("judged.jsonl", [{"prompt": "1", "completion": text} for text in ("a", "bb")])
    done = subprocess.run(
        [str(script), "verify", "judged.jsonl", "--verifier", "rewards_in_cwd:odd", "--json"],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    assert [json.loads(line)["status"] for line in done.stdout.splitlines()] == ["passed", "failed"]


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_a_signal_before_the_run_is_there(
    assay: Assay, here: Path, model: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    before = signal.getsignal(signal.SIGTERM)  # another test's Ray may have set its own
    code = f"import os, signal, time\nos.kill(os.getpid(), signal.{name})\ntime.sleep(9)\n"
    Path(f"sends_{name}.py").write_text(code)
    outcome = assay("train", write_config(model, guard={"rules": [f"sends_{name}:rule"]}))
    assert (outcome.code, outcome.err) == (130, "interrupted\n")
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_file_that_cannot_be_written_is_one_line(
    assay: Assay, here: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read_only(*_: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system", "runs/x/report.html")

    monkeypatch.setattr("assay.report.report.write_report", read_only)
    assert (
        assay("run", "report", "x").complaint == "error: runs/x/report.html: read-only file system"
    )


STAGES = {
    "rl": {},
    "sft": {"rl": None, "sft": {"traces": ["train.jsonl"]}},
    "preference": {"rl": None, "preference": {"pairs": ["train.jsonl"]}},
    "reward_model": {"rl": None, "reward_model": {"rows": ["train.jsonl"]}},
    "on-policy": {"rl": None, "preference": {"steps": 1}},
}


@pytest.mark.parametrize("stage", STAGES)
def test_rows_are_looked_at_before_a_model_is_loaded(
    assay: Assay, here: Path, model: Path, stage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def loaded(*_: object) -> None:
        raise AssertionError("a model was loaded")

    monkeypatch.setattr("assay.model.load.read_model", loaded)
    Path("train.jsonl").write_text("{broken\n")
    config = write_config(model, **STAGES[stage])
    for option in ((), ("--dry-run",)):
        assert "train.jsonl:1: found broken JSON" in assay("train", config, *option).complaint
    for command in ("eval", "sample"):
        said = assay(command, model, "--problems", "train.jsonl", "--max-tokens", 4).complaint
        assert "train.jsonl:1: found broken JSON" in said


def test_an_evaluation_without_a_verdict_is_exit_code_1(
    assay: Assay, here: Path, model: Path
) -> None:
    Path("never.py").write_text("def judges(problem, completion):\n    return None\n")
    rows = ("--problems", "heldout.jsonl", "--max-tokens", "4", "--verifier", "never:judges")
    ended = assay("eval", model, *rows)
    assert ended.code == 1 and ended.err.startswith("error: nothing was judged")
