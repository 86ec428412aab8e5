"""Assay's verifiers in TRL's own trainers: the snippet of docs/use_in_your_trainer.md."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import assay
from assay.testing import CHAT_TEMPLATE, byte_tokenizer, save_tiny_model

pytestmark = [
    pytest.mark.peer,
    pytest.mark.filterwarnings("ignore"),  # TRL's own
]

COUNTS = {"num_generations": 2, "per_device_train_batch_size": 4, "max_completion_length": 6}


def lengthy(problem: Any, completion: Any) -> float | None:
    """Whether a reply has many bytes; not judged where it has an odd number of them."""
    return None if len(completion.text) % 2 else float(len(completion.text) > 3)


def train(name: str, folder: Path, rewards: list[Any], rows: list[dict[str, Any]]) -> Any:
    trl = pytest.importorskip("trl")
    datasets = pytest.importorskip("datasets")
    config = getattr(trl, f"{name}Config")(
        output_dir=str(folder / "out"),
        max_steps=2,
        logging_steps=1,
        report_to=[],
        use_cpu=True,
        bf16=False,
        disable_tqdm=True,
        **COUNTS,
    )
    trainer = getattr(trl, f"{name}Trainer")(
        model=str(save_tiny_model(folder / "model")),
        processing_class=byte_tokenizer(CHAT_TEMPLATE),
        reward_funcs=rewards,
        args=config,
        train_dataset=datasets.Dataset.from_list(rows),
    )
    trainer.train()
    return trainer


@pytest.mark.parametrize(("name", "chat"), [("GRPO", True), ("RLOO", False)])
def test_trl_trains_on_a_verifier(name: str, chat: bool, tmp_path: Path) -> None:
    def asked(text: str) -> Any:
        return [{"role": "user", "content": text}] if chat else text

    rows = [{"prompt": asked(f"{n}+1="), "answer": str(n + 1), "level": n} for n in range(4)]
    graded = assay.reward("math*1.0 + think_format*0.1", num_workers=1, deadline=60.0)
    own = assay.reward(lengthy, num_workers=1, deadline=60.0)
    trainer = train(name, tmp_path, [graded, own], rows)
    logs = [row for row in trainer.state.log_history if "reward" in row]
    assert len(logs) == 2
    for row in logs:
        assert row["rewards/math+think_format/mean"] == pytest.approx(0.0, abs=0.11)
        assert row["math+think_format/not_judged"] == 0.0
        assert 0.0 <= row["math+think_format/math"] <= 1.0
    name = f"{lengthy.__module__}:lengthy"
    shares = [row[f"{name}/not_judged"] for row in logs]
    assert any(share > 0 for share in shares)  # and TRL went on: they are left out


def test_a_data_set_without_an_answer_stops_trl_in_words(tmp_path: Path) -> None:
    rows = [{"prompt": "1+1=", "solution": "2"}] * 4
    with pytest.raises(assay.VerifierError, match=r"answer: missing.*its columns: solution"):
        train("GRPO", tmp_path, [assay.reward("math", num_workers=1, deadline=60.0)], rows)
