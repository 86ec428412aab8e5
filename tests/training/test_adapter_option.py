"""``--adapter``: commands that ask a model take a base model and adapters from a folder apart."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from train_worlds import World

import assay
from assay import cli
from assay.errors import ConfigError, ModelError
from assay.evaluation.compare import compare
from assay.evaluation.divergence import divergence
from assay.evaluation.gate import gate
from assay.release.model_card import model_card
from assay.report.loaded import load_run
from assay.session.sampling import SamplingOptions, sampling_config
from assay.testing import save_tiny_model

EVEN = "train_worlds:even_text"
HOW: dict[str, Any] = {"max_tokens": 8, "verifier": EVEN, "quiet": True}


@pytest.fixture
def run(world: World) -> str:
    """A run that has trained adapters; its prompts have a template of their own."""
    changes = {"prompt_template": "Q: {question}\nA:", "verifier": EVEN}
    tree = world.tree(
        rl={"steps": 2},
        model={"lora": {"rank": 2}},
        optimizer={"learning_rate": 0.1},
        data=changes,
        sampling={"max_tokens": 5},
    )
    return assay.train(tree, quiet=True).run


@pytest.fixture
def adapter(world: World, run: str) -> str:
    """The adapters of that run alone, as they are handed on; they name a base that is not there."""
    folder = world.folder / "adapter"
    folder.mkdir()
    for file in Path(run, "checkpoints/step-000002").glob("adapter_*"):
        shutil.copy(file, folder)
    settings = json.loads((folder / "adapter_config.json").read_text())
    settings["base_model_name_or_path"] = "/nowhere/of/another/machine"
    (folder / "adapter_config.json").write_text(json.dumps(settings))
    return str(folder)


def texts(file: Path, side: str | None = None) -> list[str]:
    rows = map(json.loads, file.read_text().splitlines())
    return [row["completion"] for row in rows if side is None or row["side"] == side]


def test_a_base_with_an_adapter_answers_as_the_run_did(
    world: World, run: str, adapter: str
) -> None:
    base, rows = str(world.folder / "model"), str(world.folder / "heldout.jsonl")
    files = [world.folder / f"{name}.jsonl" for name in ("run", "named", "folder", "base")]
    assay.evaluate(run, rows, out=files[0], quiet=True)
    assay.evaluate(base, rows, out=files[1], adapter=run, quiet=True)
    asked = ["data.prompt_template=Q: {question}\nA:"]
    how: dict[str, Any] = {"overrides": asked, "max_tokens": 5, "verifier": EVEN, "quiet": True}
    assay.evaluate(base, rows, out=files[2], adapter=adapter, **how)
    assay.evaluate(base, rows, out=files[3], **how)
    assert texts(files[0]) == texts(files[1]) == texts(files[2]) != texts(files[3])


def test_in_a_comparison_the_adapter_is_of_b(world: World, adapter: str) -> None:
    base, rows = str(world.folder / "model"), str(world.folder / "heldout.jsonl")
    alone, both = world.folder / "alone.jsonl", world.folder / "both.jsonl"
    assay.evaluate(base, rows, out=alone, **HOW)
    found = compare(base, base, rows, adapter=adapter, out=both, **HOW)
    assert (found.a, found.b) == (base, f"{base} with {adapter}")
    assert texts(both, "A") == texts(alone) != texts(both, "B")
    with pytest.raises(ConfigError, match="with an adapter: found a file of recorded completions"):
        compare(base, both, rows, adapter=adapter, **HOW)


def test_the_reference_of_a_divergence_has_no_adapter(world: World, adapter: str) -> None:
    base, rows = str(world.folder / "model"), [str(world.folder / "heldout.jsonl")]
    how = SamplingOptions(max_tokens=4, verifier=EVEN, adapter=adapter)
    found = divergence(base, base, rows, 2, how)
    assert found is not None and found.per_token > 0


def test_an_export_of_a_base_with_an_adapter(world: World, run: str, adapter: str) -> None:
    base, out = str(world.folder / "model"), world.folder / "out"
    assay.export(base, out, adapter=adapter)
    want, rows = world.folder / "want.jsonl", str(world.folder / "heldout.jsonl")
    assay.evaluate(base, rows, adapter=adapter, out=want, **HOW)
    assay.evaluate(out, rows, out=world.folder / "got.jsonl", **HOW)
    assert texts(world.folder / "got.jsonl") == texts(want)
    assert not (out / "README.md").exists()
    assay.export(base, world.folder / "carded", adapter=f"{run}@2")
    card = (world.folder / "carded/README.md").read_text()
    assert "step 2" in card and "merged into" not in card
    other = str(save_tiny_model(world.folder / "other", max_positions=64, seed=1))
    assay.export(other, world.folder / "elsewhere", adapter=f"{run}@2")
    card = (world.folder / "elsewhere/README.md").read_text()
    assert f"from `{base}`.\n\nHere the adapters of that step are merged into `{other}`." in card


def test_a_gate_says_which_base_had_the_adapters(world: World, run: str) -> None:
    base, rows = str(world.folder / "model"), world.folder / "unseen.jsonl"
    rows.write_text(json.dumps({"prompt": "9 + 9 =", "answer": "18"}) + "\n")
    out = world.folder / "gate.jsonl"
    found = gate(base, [str(rows)], canaries=[], adapter=run, out=out, **HOW)
    assert f"candidate: {base} with {run}" in str(found)
    assert f"with the adapters on `{base}`, against `{base}`" in model_card(load_run(Path(run)), 2)


def test_the_settings_are_those_of_the_adapters_run(world: World, run: str) -> None:
    other = str(save_tiny_model(world.folder / "other", max_positions=64, seed=1))
    config = sampling_config(other, [], SamplingOptions(adapter=run))
    assert config.model.path == other and config.sampling.max_tokens == 5
    assert config.model.adapter == f"{run}/checkpoints/step-000002"
    with pytest.raises(ModelError, match="found adapters there too"):
        assay.evaluate(run, str(world.folder / "heldout.jsonl"), adapter=run, **HOW)


def test_a_run_does_not_start_from_two_folders(world: World, adapter: str) -> None:
    tree = world.tree(rl={"steps": 1}, model={"adapter": adapter}, run={"name": "never"})
    for use in (assay.train, assay.dry_run):
        with pytest.raises(
            ConfigError, match=r"model\.adapter: found .*assay model export .* --adapter"
        ):
            use(tree, quiet=True)
    assert not (world.folder / "runs/never").exists()


@pytest.mark.parametrize("command", ["eval", "sample", "compare", "export"])
def test_commands_take_an_adapter(
    world: World,
    adapter: str,
    command: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    base, rows = str(world.folder / "model"), str(world.folder / "heldout.jsonl")
    asked = ["--problems", rows, "--max-tokens", "4", "--verifier", EVEN]
    models = [base, base] if command == "compare" else [base]
    rest = [str(world.folder / "exported")] if command == "export" else asked
    for folder, code in (("./none", 2), (adapter, 0)):
        words = ["model", "export"] if command == "export" else [command]
        line = ["assay", *words, *models, *rest, "--adapter", folder, "--json"]
        monkeypatch.setattr("sys.argv", line)
        with pytest.raises(SystemExit) as end:
            cli.main()
        assert end.value.code == code
        said = capsys.readouterr()
        if code == 0:
            assert json.loads(said.out)
        else:
            assert "./none: found nothing there" in said.err
            assert len(said.err.strip().splitlines()) == 1
