"""The user's consent to dangerous settings in another person's run configuration
(docs/security.md).

A run's configuration can name Python code to import, servers to contact, and folders to write to.
A command that reads such a key requires consent, unless the user created the run.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from assay import config as configuration
from assay.config import STAGES, TrainConfig
from assay.config.preference import FILE_PREFIX, RUN_PREFIX
from assay.data.sources import python_name
from assay.errors import RunError, message
from assay.host.files import config_of
from assay.run.signature import why_not_own
from assay.verify.expression import is_allowed, parse_expression

TO_SAMPLE = ("data.verifier", "verification", "model.trust_remote_code", "tools")
"""Sensitive keys that commands read when they sample from a run's model."""
TO_JUDGE = ("data.train", "data.verifier", "verification")
"""Sensitive keys that commands read when they judge a run's completions again."""
RULES_UNSET = ("data.verifier=", "data.verifier_by_tag=")
"""Overrides that remove a run's own verifiers in favor of a verifier from the command line."""

_POWERS = {
    "judge": ("url", "judges", "api_key_env", "replies"),
    "remote": ("url", "token_env"),
    "code": ("unsafe_no_sandbox",),
}
"""Options that send text or keys to a server, write a file, or disable the sandbox."""


def open_config(
    run: Path,
    used: Sequence[str] | None = None,
    *,
    overrides: Sequence[str] = (),
    allow: Sequence[str] = (),
    trust_run: bool = False,
) -> TrainConfig:
    """Load a run's configuration; raises RunError if a setting needs consent and the user has not
    given it.

    used: configuration keys and sections that the command reads; None means all. overrides: values
    from the user, which replace configured values and need no consent. allow: Python names that the
    user allows to be imported.
    """
    path = config_of(run)
    config = configuration.load(path)
    given = [override.partition("=")[0].strip() for override in overrides]

    def counts(key: str) -> bool:
        return (used is None or _covers(used, key)) and not _covers(given, key)

    for section in (config.model, config.teacher):
        key = f"{'model' if section is config.model else 'teacher'}.trust_remote_code"
        if section is not None and section.trust_remote_code and counts(key):
            # A foreign run must not grant itself consent: only the user can allow remote code.
            remedy = f"read the model's code, then add --set {key}=true"
            accepted = "false: a run cannot grant this consent"
            raise RunError(message(f"{path} {key}", "true", accepted, remedy))
    found = [
        f"{key} = {name}" if name else key
        for key, name in powers_of(config)
        if counts(key) and not is_allowed(name, allow)
    ]
    if found and not trust_run and (why := why_not_own(path)):
        remedy = "read the named code, then add --trust-run (in Python: trust_run=True)"
        accepted = f"a configuration without harmful settings, because {why}"
        raise RunError(message(str(path), ", ".join(dict.fromkeys(found)), accepted, remedy))
    return config


def powers_of(config: TrainConfig) -> Iterator[tuple[str, str]]:
    """Yield (key, Python name) for each setting that could do harm; the name is "" if the setting
    names no code."""
    for key, source in _sources(config):
        name = python_name(source)
        # Names under `assay.` need no consent: only data sources that Assay declares can be opened.
        if name and not name.startswith("assay."):
            yield key, name
    for expression in (config.data.verifier, *config.data.verifier_by_tag.values()):
        for term in parse_expression(expression):
            yield from (("data.verifier", name) for name in term.names if ":" in name)
    if config.audit is not None:
        for term in parse_expression(config.audit.second):
            yield from (("audit.second", name) for name in term.names if ":" in name)
    rows = {"algorithm.name": config.algorithm.name}
    if config.preference is not None:
        rows["preference.method"] = config.preference.method
    yield from ((key, name) for key, name in rows.items() if ":" in name)
    yield from (("guard.rules", rule) for rule in config.guard.rules)
    yield from (("tools.names", name) for name in config.tools.names if ":" in name)
    if config.tools.environment is not None:
        yield "tools.environment", config.tools.environment
    if config.tools.unsafe_no_sandbox:
        yield "tools.unsafe_no_sandbox", ""
    yield from (("verification.allow", name) for name in config.verification.allow)
    # The other machines of a cluster receive the code of the user.
    if config.scale.num_actors and config.scale.address is not None:
        yield "scale.address", ""
    # The server of the teacher receives texts and an API key.
    if config.teacher is not None and config.teacher.url is not None:
        yield "teacher.url", ""
    # The run writes the logits of the teacher to this folder.
    if config.distill is not None and config.distill.keep is not None:
        yield "distill.keep", ""
    # Trackers receive texts and an API key, whereas TensorBoard only writes local files.
    if {*config.log.to} - {"tensorboard"} and not config.log.offline:
        yield "log.to", ""
    # Alerts run a command, and send texts to a server.
    if config.alerts is not None:
        yield from ((f"alerts.{key}", "") for key in config.alerts.destinations)
    for verifier, powers in _POWERS.items():
        options = config.verification.options.get(verifier, {})
        yield from (
            (f"verification.options.{verifier}.{one}", "") for one in powers if one in options
        )


def _sources(config: TrainConfig) -> Iterator[tuple[str, str]]:
    """Yield (key, source name) for every data source that a configuration opens."""
    own, rows = STAGES[config.stage]
    keys = [("data", one) for one in ("train", "heldout", "canaries")]
    keys += [(own, rows), (own, "heldout"), ("tools", "corpus")]
    for section, key in dict.fromkeys(keys):
        for source in getattr(getattr(config, section), key, ()):
            if section != "preference":
                yield f"{section}.{key}", source
            elif not source.startswith(RUN_PREFIX):
                yield f"{section}.{key}", source.removeprefix(FILE_PREFIX)


def _covers(keys: Sequence[str], key: str) -> bool:
    return any(key == one or key.startswith(f"{one}.") for one in keys)
