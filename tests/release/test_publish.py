"""A model handed on: its card holds the run's evidence, and the hub's errors are one line."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from train_worlds import World

from assay.errors import RunError
from assay.release.export import export
from assay.release.model_card import model_card
from assay.release.publish import publish
from assay.report.loaded import load_run
from assay.run.intervals import share_words
from assay.training.api import train


class FakeHub:
    """Stands for the hub's client: says what it was asked, and keeps what was uploaded."""

    said: list[Any]

    def whoami(self) -> dict[str, str]:
        self.said.append("whoami")
        return {"name": "me"}

    def create_repo(self, name: str, private: bool, exist_ok: bool) -> Any:
        assert exist_ok
        self.said.append((name, private))

        class Place(SimpleNamespace):
            def __str__(self) -> str:
                return f"https://hub/{self.repo_id}"

        return Place(repo_id=f"me/{name}" if "/" not in name else name)

    def upload_folder(self, repo_id: str, folder_path: Path, commit_message: str) -> None:
        files = {path.name for path in folder_path.iterdir()}
        card = (folder_path / "README.md").read_text(encoding="utf-8")
        self.said.append((repo_id, files, card, commit_message))


@pytest.fixture
def run(world: World) -> str:
    tree = world.tree(rl={"steps": 2}, data={"heldout": [str(world.folder / "heldout.jsonl")]})
    return train(tree, quiet=True).run


def test_a_run_is_pushed_with_its_evidence(run: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FakeHub, "said", [], raising=False)
    monkeypatch.setattr("huggingface_hub.HfApi", FakeHub)
    assert publish(run, "tiny-adder") == "https://hub/me/tiny-adder"
    asked, created, (place, files, card, commit) = FakeHub.said
    assert (asked, created, place) == ("whoami", ("tiny-adder", True), "me/tiny-adder")
    assert {"model.safetensors", "config.json", "README.md"} <= files
    assert commit == f"Step 2 of {Path(run).name}"
    loaded = load_run(run)
    before, after = loaded.evaluations[0], loaded.evaluations[-1]
    line = next(one for one in card.splitlines() if one.startswith("| greedy |"))
    for row, step in ((before, 0), (after, 2)):
        assert f"{row['eval/pass_at_1']:.1%} (95% interval " in line
        assert f"{share_words(row)} (step {step})" in line
    assert f"`{loaded.config.model.path}`" in card and "reinforcement learning, " in card
    (name,) = loaded.environment["verifiers"]
    assert f"verifier `{name}` | version" in card and "| torch | " in card
    assert "| `rl.steps` | `2` |" in card and "No other quality was measured." in card
    assert publish(f"{run}@last", "o/n", public=True).endswith("/o/n")
    assert FakeHub.said[4] == ("o/n", False)


def test_an_exported_run_has_the_card_too(run: str, tmp_path: Path) -> None:
    out = export(f"{run}@last", tmp_path / "out")
    assert (out / "README.md").read_text() == model_card(load_run(run), 2)
    assert not (out / "decision_record.md").exists()
    assert "was not evaluated" not in model_card(load_run(run), 2)
    assert "The checkpoint of step 1 itself was not evaluated." in model_card(load_run(run), 1)
    assert "(step 2)" not in model_card(load_run(run), 1)  # what came later says nothing of it
    assert not model_card(load_run(run), 2).startswith(
        "---\nlibrary_name: transformers\nbase_model"
    )


def test_what_cannot_be_pushed_is_one_line(run: str, world: World) -> None:
    with pytest.raises(RunError, match="found 'a/b/c'; accepted: OWNER/NAME"):
        publish(run, "a/b/c")
    with pytest.raises(RunError, match="found a model without a run"):
        publish(str(world.folder / "model"), "a/b")


@pytest.fixture
def server() -> Iterator[tuple[str, dict[str, int]]]:
    """A hub that answers with the status that is asked for; its address and those statuses."""
    statuses: dict[str, int] = {}

    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            self.send_response(statuses.get(self.path, 200))
            self.send_header("Content-Length", "13")
            self.end_headers()
            self.wfile.write(b'{"name":"me"}')

        do_GET = do_POST = answer

        def log_message(self, *arguments: Any) -> None:
            pass

    hub = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=hub.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{hub.server_port}", statuses
    hub.shutdown()
    thread.join()
    hub.server_close()


@pytest.mark.filterwarnings("ignore")
def test_the_hubs_errors_are_one_line(
    run: str, server: tuple[str, dict[str, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the real client."""
    import huggingface_hub

    real, (place, statuses) = huggingface_hub.HfApi, server

    def complaint(**client: Any) -> str:
        monkeypatch.setattr("huggingface_hub.HfApi", partial(real, **client))
        with pytest.raises(RunError) as caught:
            publish(run, "me/tiny")
        text = str(caught.value)
        assert text.startswith("--push me/tiny: ") and "\n" not in text
        return text

    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("huggingface_hub.utils._headers.get_token", lambda: None)
    assert "hf auth login, or HF_TOKEN" in complaint(endpoint=place)
    statuses["/api/whoami-v2"] = 401
    assert "hf auth login, or HF_TOKEN" in complaint(endpoint=place, token="hf_x")
    statuses.update({"/api/whoami-v2": 200, "/api/repos/create": 403})
    assert "the token may not do this" in complaint(endpoint=place, token="hf_x")
    nobody = "http://localhost:9"
    assert "the hub cannot be reached" in complaint(endpoint=nobody, token="hf_x")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert "HF_HUB_OFFLINE is set: unset it" in complaint(endpoint=place, token="hf_x")
