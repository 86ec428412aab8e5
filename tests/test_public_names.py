"""The public names of `assay`: the agreed ones, each with a docstring."""

from __future__ import annotations

import inspect

import pytest

import assay

# fmt: off
PUBLIC = {
    "AssayError", "CompareResult", "Completion", "ConfigError", "DataError", "DiskFull", "DryRun", "Evaluation",
    "Group", "LoadedRun", "MissingExtra", "ModelError", "OutOfMemory", "Problem", "Prompt",
    "RedTeamResult", "RewardFunction", "RunError", "RunStopped", "SampleResult",
    "SearchResult", "SearchRow", "Table",
    "ThinkFormat", "TrainConfig", "TrainResult", "UserError", "Verdict", "VerifierError",
    "WorkerDied", "compare", "dry_run", "evaluate", "export", "judge", "load_config", "load_run",
    "redteam", "reward", "sample", "search", "source", "train",
}
# fmt: on


def test_public_names_are_the_agreed_ones() -> None:
    assert set(assay.__all__) == PUBLIC, "a public name is a promise: change PUBLIC knowingly"
    assert list(assay.__all__) == sorted(assay.__all__)
    assert set(dir(assay)) >= PUBLIC


@pytest.mark.parametrize("name", sorted(PUBLIC))
def test_public_name_has_a_docstring(name: str) -> None:
    thing = getattr(assay, name)
    own = thing.__dict__.get("__doc__") if inspect.isclass(thing) else thing.__doc__
    assert own and not own.startswith(f"{name}(")  # a dataclass without one gets its signature


def test_unknown_public_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no_such_name"):
        assay.no_such_name  # pyright: ignore[reportAttributeAccessIssue]
