"""What a resumed run may be asked for."""

from __future__ import annotations

from pathlib import Path

import pytest
from run_fakes import FakeLearner, make_config, take_steps

from assay.errors import RunError
from assay.run.directory import Run


@pytest.mark.parametrize("change", ["rl.steps=4", "rl.num_prompts=7", "algorithm.clip_low=0.1"])
def test_a_run_that_is_done_takes_no_settings_that_no_step_would_use(
    tmp_path: Path, change: str
) -> None:
    """Its configuration says what its steps have done; what only an evaluation uses may change."""
    learner = FakeLearner()
    with Run.create(make_config(tmp_path), quiet=True) as run:
        run.attach(learner=learner)
        take_steps(run, learner, 12)
    before = (run.folder / "config.toml").read_text()
    with pytest.raises(RunError, match=f"all 12 steps are done.*{change.partition('=')[0]}"):
        Run.resume(run.folder, overrides=[change], quiet=True)
    assert (run.folder / "config.toml").read_text() == before
    Run.resume(run.folder, overrides=["evaluation.every=3"], quiet=True).__exit__(None, None, None)


def test_a_configuration_that_lost_settings_is_told_at_resume(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file that was cut off at the end of a line is TOML, and what it lost takes defaults."""
    learner = FakeLearner()
    with Run.create(make_config(tmp_path), quiet=True) as run:
        run.attach(learner=learner)
        take_steps(run, learner, 2)
    file = run.folder / "config.toml"
    whole = file.read_text()
    lost = whole.index("[critic]")
    file.write_text(whole[:lost])
    for told in ("warning: config.toml lacks critic.backbone and ", "going on after step 2"):
        with Run.resume(run.folder) as again:
            again.attach(learner=learner)
        assert ("lacks" in (err := capsys.readouterr().err)) == ("lacks" in told)
        assert told in err
    assert file.read_text()[lost:].startswith("[critic]")
