"""`assay init` over rows, names and folders of strangers: data stays data, and files stay."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from init_rows import write_rows

from assay import config
from assay.config.toml_text import comment, one_line, toml_line
from assay.errors import RunError, UserError
from assay.host.removal import WRITTEN
from assay.init import configuration as module
from assay.init.configuration import init
from assay.testing import save_tiny_model

HOSTILE = [
    'a\n[guard]\nrules = ["evil:rule"]\n#',
    "a\r\nb = 1",
    "a\x0bb\x0cc\x85d\u2028e\u2029f",
    "\x1b]0;title\x07",
    '"""', "'''", "#", "$model", "${train}", "$$", "\\", "\x00", "\x7f", "\ud800", "x" * 100_000, "=", "[a]",
]  # fmt: skip


_KEYS = st.text(min_size=1) | st.sampled_from(HOSTILE)
_TOML = st.text(st.characters(exclude_categories=["Cs"]))
_VALUES = st.recursive(
    st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | _TOML,
    lambda inner: st.lists(inner, max_size=3),
    max_leaves=5,
)


@given(_TOML.filter(bool), _VALUES, st.text() | st.sampled_from(HOSTILE))
def test_a_line_of_toml_holds_its_key_and_its_value_alone(key: str, value: Any, note: str) -> None:
    line = toml_line(key, value, note)
    assert len(line.splitlines()) == 1 or "\n" not in line
    assert tomllib.loads(f"{line}\n[after]\nx = 1") == {key: value, "after": {"x": 1}}


@given(st.text() | st.sampled_from(HOSTILE))
def test_a_comment_is_one_line_that_says_nothing_to_a_parser(text: str) -> None:
    found = comment(text)
    found.encode()
    assert tomllib.loads(f"{found}\nx = 1") == {"x": 1} and len(found) < 400
    assert len(one_line(text).splitlines()) <= 1


def test_half_a_character_is_no_value() -> None:
    with pytest.raises(ValueError, match="surrogates"):
        toml_line("path", "a\ud800")


@pytest.fixture(scope="module")
def plain_tree(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What is written for rows with plain keys, by kind."""
    folder = tmp_path_factory.mktemp("plain")
    here = os.getcwd()
    os.chdir(folder)
    try:
        save_tiny_model(folder / "model", max_positions=64)
        return {kind: written(kind, "plain", "words") for kind in ROWS}
    finally:
        os.chdir(here)


ROWS: dict[str, dict[str, Any]] = {
    "grpo": {"prompt": "1 + 1 =", "answer": "2"},
    "sft": {"prompt": "1 + 1 =", "completion": "2"},
    "dpo": {"prompt": "1 + 1 =", "chosen": "2", "rejected": "3"},
    "reward_model": {"prompt": "1 + 1 =", "chosen": "2", "rejected": "3"},
}


def written(kind: str, key: str, value: str) -> dict[str, Any]:
    """Write a configuration for a row with one more key; return what its file holds."""
    rows = write_rows({**ROWS[kind], key: value})
    result = init(kind, data=rows, model="model", overwrite=True)
    assert all(len(text.splitlines()) == 1 for text in result.assumed)
    read = tomllib.loads(Path(result.config).read_text("utf-8"))
    config.load(result.config)
    return read


# `tags`, `id` and the like are columns with a meaning, of which a wrong one is refused
@given(_KEYS.map(lambda key: f"z{key}"), st.text() | st.sampled_from(HOSTILE))
@pytest.mark.parametrize("kind", ROWS)
def test_a_stranger_s_columns_never_become_settings(
    plain_tree: dict[str, dict[str, Any]], tmp_path_factory: pytest.TempPathFactory, kind: str, key: str, value: str
) -> None:  # fmt: skip
    here = os.getcwd()
    os.chdir(tmp_path_factory.getbasetemp() / "plain0")
    try:
        assert written(kind, key, value) == plain_tree[kind]
    finally:
        os.chdir(here)


@pytest.mark.parametrize("key", HOSTILE)
def test_a_hostile_first_column_never_becomes_a_setting(model: str, key: str) -> None:
    rows = write_rows({key: "x", "prompt": "1 + 1 =", "answer": "2"})
    result = init("grpo", data=rows, model=model)
    assert "guard" not in tomllib.loads(Path(result.config).read_text("utf-8"))
    assert not [line for text in result.assumed for line in text.splitlines()[1:]]


@pytest.mark.parametrize("name", [key for key in HOSTILE if "\x00" not in key and len(key) < 200])
def test_hostile_names_of_files_stay_names(model: str, name: str) -> None:
    if "\ud800" in name:
        name = "\udcff"
    rows = write_rows({"prompt": "1 + 1 =", "answer": "2"}, name=f"{name.replace('/', '')}.jsonl")
    out = Path(f"{name.replace('/', '')}.toml")
    if "\udcff" in name:
        with pytest.raises(UserError, match="not valid Unicode"):
            init("grpo", data=rows, model=model)
        return
    result = init("grpo", data=rows, model=model, out=out)
    assert list(config.load(result.config).data.train) == rows
    assert "guard" not in tomllib.loads(out.read_text("utf-8"))


def test_a_folder_of_yours_is_not_written_over() -> None:
    Path("tiny").mkdir()
    Path("tiny", "thesis.txt").write_text("mine")
    with pytest.raises(
        RunError, match=r"tiny with --overwrite: found a folder without.*move it away"
    ):
        init("grpo", overwrite=True)
    assert Path("tiny", "thesis.txt").read_text() == "mine" and not Path("grpo.toml").exists()


def fake_starter(folder: Path, pairs: Any) -> None:
    save_tiny_model(folder, max_positions=64)


@pytest.mark.parametrize("change", ["added", "edited", "linked"])
def test_a_tiny_model_that_you_changed_is_not_written_over(
    change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "make_starter", fake_starter)
    init("grpo")
    assert (Path("tiny") / WRITTEN).exists()
    if change == "linked":
        Path("tiny").rename("elsewhere")
        Path("tiny").symlink_to("elsewhere")
    else:
        Path("tiny", "mine" if change == "added" else "config.json").write_text("mine")
    before = sorted(os.listdir("tiny"))
    with pytest.raises(
        RunError, match=r"tiny with --overwrite: found .*; accepted: an unchanged folder that"
    ):
        init("grpo", overwrite=True)
    assert sorted(os.listdir("tiny")) == before


def test_a_tiny_model_is_made_again_and_one_that_cannot_be_comes_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "make_starter", fake_starter)
    init("grpo")
    names = sorted(os.listdir())
    old = Path("tiny", "model.safetensors").stat().st_ino
    init("grpo", overwrite=True)
    assert sorted(os.listdir()) == names, "nothing is left beside it"
    new = Path("tiny", "model.safetensors").stat().st_ino
    assert new != old

    def fail(folder: Path, pairs: Any) -> None:
        save_tiny_model(folder, max_positions=64)
        raise UserError("no")

    monkeypatch.setattr(module, "make_starter", fail)
    text = Path("grpo.toml").read_text()
    with pytest.raises(UserError, match="no"):
        init("grpo", overwrite=True)
    assert sorted(os.listdir()) == names and Path("grpo.toml").read_text() == text
    assert Path("tiny", "model.safetensors").stat().st_ino == new


def test_rows_are_not_split_onto_themselves(model: str) -> None:
    rows = [{"prompt": f"{n} + 1 =", "answer": str(n)} for n in range(20)]
    names = write_rows(*rows, name="grpo.train.jsonl")
    with pytest.raises(RunError, match="which the split would be written over"):
        init("grpo", data=names, model=model, heldout_share=0.5, overwrite=True)
    assert len(Path("grpo.train.jsonl").read_text().splitlines()) == 20


def test_a_split_that_fails_leaves_the_files_that_were_there(model: str) -> None:
    for name in ("grpo.train.jsonl", "grpo.heldout.jsonl"):
        Path(name).write_text("mine")
    names = write_rows({"prompt": "1", "answer": "1"}, {"prompt": "1", "answer": "1"})
    with pytest.raises(UserError, match="leaves none"):
        init("grpo", data=names, model=model, heldout_share=0.5, overwrite=True)
    assert Path("grpo.train.jsonl").read_text() == Path("grpo.heldout.jsonl").read_text() == "mine"
