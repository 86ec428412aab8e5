"""Types of the verifier contract: `Verifier`, `Part`, `Limits`, and the conversion of results.

A verifier judges one completion (or a whole group) and returns a `Part`. An expression such as
``math*1.0 + think_format*0.1`` names verifiers and their weights. In a weighted sum of verifiers,
the first term measures correctness.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from numbers import Real
from pathlib import Path
from typing import Any, Literal, cast

from assay.errors import VerifierError, find_object, message
from assay.host.fields import (
    Field,
    is_answer,
)
from assay.types import NotJudgedReason, Problem, StepScore, Verdict
from assay.verify.expression import BUILT_IN, REMOTE

Takes = Literal["completion", "group", "verdicts", "batch"]

# Maximum characters of `extracted`, and of `detail`, in a verdict.
MAX_TEXT = 2000
MAX_COMPONENTS = 64
# Maximum number of characters of a module's source that a run records.
MAX_SOURCE = 1_000_000


@dataclass(frozen=True, slots=True)
class KnownError:
    """A known misjudgment of a verifier, with an example on which the tests repeat it.

    what: description of the misjudgment.
    says, should_say: the verifier's status for the example, and the correct status.
    """

    what: str
    spec: Mapping[str, Any]
    completion: str
    says: Literal["passed", "failed"]
    should_say: Literal["passed", "failed"]


TEXT_ANSWER = "text, a number, or a list of accepted ones"
ANSWER = Field("answer", TEXT_ANSWER, needed=True, check=is_answer, equates=True)


def spec_check(read: Callable[[Problem], Any]) -> Callable[[Mapping[str, Any]], None]:
    """Return a `Verifier.check_spec` that raises the VerifierError of ``read(problem)``."""

    def check(spec: Mapping[str, Any]) -> None:
        try:
            read(Problem("", "", spec))
        except VerifierError as error:
            # Error messages use a placeholder problem, which has no id.
            # The caller, `RowCheck`, adds the row's name to the message.
            raise VerifierError(str(error).removeprefix("problem : spec.")) from error

    return check


@dataclass(frozen=True, slots=True)
class Limits:
    """Resource limits for one completion.

    If a limit is None, the verifier does not set this limit itself.

    seconds: wall time. None: the service's deadline applies.
    cpu_seconds: limit of CPU time for one test.
    memory_mib: memory of a worker's data during a judgment, or of a program in a sandbox.
    output_kib: KiB that a sandboxed program may write to each output stream.
    processes: threads of a sandboxed program, or processes of a sandboxed command.
    """

    seconds: float | None = None
    cpu_seconds: float | None = None
    memory_mib: int | None = None
    output_kib: int | None = None
    processes: int | None = None


@dataclass(frozen=True, slots=True)
class Part:
    """The unweighted result of one verifier on one completion.

    value: any finite number, which the term's weight multiplies. None: not judged.
    score: correctness in [0, 1], needed only for the first term. If `score` is None, `value` is the
        score.
    passed: whether the completion passed. If `passed` is None, the completion passes only with a
        score of 1.
    """

    value: float | None
    score: float | None = None
    passed: bool | None = None
    reason: NotJudgedReason | None = None
    extracted: str | None = None
    detail: str = ""
    components: Mapping[str, float] = field(default_factory=dict[str, float])
    step_scores: tuple[StepScore, ...] = ()
    seconds: float = 0.0

    @property
    def correctness(self) -> float | None:
        """The score of a part, or the value if the part has no score."""
        return self.value if self.score is None else self.score

    @property
    def accepted(self) -> bool:
        """Whether the completion was judged and passed."""
        right = (self.correctness or 0.0) >= 1.0 if self.passed is None else self.passed
        return right and self.value is not None

    @classmethod
    def not_judged(cls, reason: NotJudgedReason, detail: str, seconds: float = 0.0) -> Part:
        """Return a result without a value, for a completion that was not judged."""
        return cls(None, reason=reason, detail=_text(detail), seconds=seconds)


@dataclass(frozen=True, eq=False)
class Verifier:
    """A judging function with its options, limits and metadata.

    judge: function whose signature depends on `takes`:

    - ``completion``: ``(problem, completion) -> result``. `as_part` lists the accepted results.
    - ``group``: the signature is ``(problem, group) -> list of results``.
    - ``verdicts``: ``(problem, group, parts) -> list of results``. The argument ``parts`` has the
      parts of the expression's first term, one per completion. Length rewards read correctness
      there.
    - ``batch``: ``(list of (problem, completion)) -> list of results``, with mixed groups.

    executor: where the verifier runs. ``worker``: a process that is killed at its deadline. User
        code requires a worker. ``thread``: the verifier runs in threads of the trainer's process,
        for network calls. ``device``: one thread of this process that shares the learner's device.
        ``inline``: the thread that calls the service, for verifiers of pure arithmetic.
    weight: default weight of the verifier as a later term (not the first) of a weighted sum.
    bounds: (lowest, highest) value that the verifier can return. None: unknown.
    limits: limits that the worker or the sandbox enforces.
    text_only: the verifier reads only a completion's text, think format and finish reason. For such
        a verifier, the service sends no tokens and no rendered prompt to the worker.
    cached: whether the verdict depends only on text, spec and version, so that the service caches
        verdicts.
    fallible: whether the verifier is a detector with a known error rate. The labelled set of a
        detector measures the detector's error rate, so wrong verdicts on the set do not stop a run
        from starting.
    measure_only: whether the value must not be used as a reward. A run refuses any weight except 0,
        unless the option ``as_reward`` is true.
    by_itself: whether the verifier takes verdicts, but judges each completion independently of its
        siblings.
    modules, packages: modules and packages that the content hash covers besides the module of
        ``judge``. For a built-in verifier the hash always covers its whole package.
    extra: name of the optional dependency group, such as ``judge`` for ``assay-rl[judge]``.
    check_options: called before a run. Raises VerifierError if the options are inconsistent or this
        machine does not support them.
    check_spec: function that is called when rows are loaded. Raises VerifierError for a spec that
        is invalid although each key is valid. The error message begins with the key.
    evidence: function of the options. The function `evidence` returns facts that a run records,
        such as the hash of a model.
    versions: function of the options. The function `versions` returns the versions of programs and
        packages on which verdicts depend. A run records the versions, and the content hash includes
        them.
    lacks: function with a row's spec as its argument. The function `lacks` returns why this machine
        cannot judge the row, or "". A run does not start if no row of the run can be judged on this
        machine.

    The function ``judge`` gets a problem whose spec also contains the configured options. A row's
    own keys override the verifier's configured options.
    """

    name: str
    version: int
    judge: Callable[..., Any]
    takes: Takes = "completion"
    executor: Literal["worker", "thread", "device", "inline"] = "worker"
    domain: str = ""
    fields: tuple[Field, ...] = ()
    accepts: str = ""
    partial_credit: str = "none"
    weight: float = 1.0
    bounds: tuple[float, float] | None = (0.0, 1.0)
    limits: Limits = Limits()
    text_only: bool = False
    cached: bool = False
    by_itself: bool = False
    fallible: bool = False
    measure_only: bool = False
    modules: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()
    extra: str | None = None
    check_options: Callable[[Mapping[str, Any]], None] | None = None
    check_spec: Callable[[Mapping[str, Any]], None] | None = None
    evidence: Callable[[Mapping[str, Any]], Mapping[str, Any]] | None = None
    versions: Callable[[Mapping[str, Any]], Mapping[str, str]] | None = None
    lacks: Callable[[Mapping[str, Any]], str] | None = None

    @property
    def label(self) -> str:
        """``name@version``."""
        return f"{self.name}@{self.version}"

    @property
    def compares_siblings(self) -> bool:
        """Whether the verdict of a completion can depend on the other completions of its group."""
        return self.takes in ("group", "verdicts") and not self.by_itself

    @cached_property
    def known_errors(self) -> tuple[KnownError, ...]:
        """Known misjudgments, recorded for built-in verifiers only."""
        return known_errors(self.name)

    @cached_property
    def hash(self) -> str:
        """Twelve hexadecimal digits of a hash over the verifier's source and the versions of
        `packages`."""
        digest = hashlib.sha256()
        module = str(getattr(self.judge, "__module__", ""))
        # A built-in verifier uses other files of its package, so the hash covers the whole package.
        home = module.rpartition(".")[0] if module.startswith("assay.") else module
        # All verifiers read the answer text that `assay.types` and `assay.think` extract.
        for module in (home, *self.modules, "assay.types", "assay.think"):
            digest.update(f"{module}\n".encode() + _source_of(module))
        for package in self.packages:
            digest.update(f"{package}=={_version_of(package)}\n".encode())
        return digest.hexdigest()[:12]

    def hash_with(self, versions: Mapping[str, str]) -> str:
        """Return the content hash; if the options have `versions`, the hash covers the versions
        too."""
        if not versions:
            return self.hash
        lines = [self.hash, *(f"{name}=={version}" for name, version in sorted(versions.items()))]
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:12]

    @cached_property
    def source(self) -> dict[str, str]:
        """Source text of each module that the content hash covers.

        Empty for a built-in verifier.
        """
        home = str(getattr(self.judge, "__module__", ""))
        modules = dict.fromkeys([home, *self.modules])
        if home.startswith("assay."):
            return {}
        return {one: _source_of(one).decode("utf-8", "replace")[:MAX_SOURCE] for one in modules}


def known_errors(name: str) -> tuple[KnownError, ...]:
    """Return a built-in verifier's known errors, read from ``labelled/known_errors.jsonl``."""
    text = Path(__file__).with_name("labelled").joinpath("known_errors.jsonl").read_text("utf-8")
    rows = map(json.loads, text.splitlines())
    return tuple(KnownError(**row) for row in rows if row.pop("verifier") == name)


def resolve(name: str) -> Verifier:
    """Return the built-in verifier or the object named by ``package.module:object``.

    The named object is a `Verifier`, or a function of ``(problem, completion)`` or ``(problem,
    group)``. A function with a second parameter called ``group`` gets whole groups. Raises
    VerifierError.
    """
    place, _, pinned = name.partition("@")
    if place.startswith(REMOTE):
        # The module is named in a string, because `remote` imports the module `base`.
        return find_object("assay.verify.remote:remote", name, VerifierError)(place, pinned)
    verifier = _load(BUILT_IN.get(place, place), name)
    if pinned and pinned != str(verifier.version):
        raise VerifierError(
            message("verifier", name, verifier.label, "the version pinned is not the one installed")
        )
    return verifier


def _load(place: str, name: str) -> Verifier:
    found: Any = find_object(place, f"verifier {name}", VerifierError)
    if isinstance(found, Verifier):
        return found
    if not callable(found):
        raise VerifierError(message(f"verifier {name}", type(found).__name__, "a function"))
    return _of_function(found, name, place.partition(":")[0])


def _of_function(function: Callable[..., Any], name: str, module: str) -> Verifier:
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        # Functions written in C can lack a Python signature.
        # A function without a readable signature is accepted unchecked.
        parameters = []
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    takes_any = not parameters or any(p.kind == p.VAR_POSITIONAL for p in parameters)
    if len(positional) < 2 and not takes_any:
        found = f"parameters ({', '.join(p.name for p in parameters)})"
        accepted = "(problem, completion) or (problem, group)"
        raise VerifierError(message(f"verifier {name}", found, accepted))
    takes = "group" if len(positional) > 1 and positional[1].name == "group" else "completion"
    version = getattr(function, "version", 1)
    return Verifier(
        name=name.partition("@")[0],
        version=version if isinstance(version, int) else 1,
        judge=function,
        takes=takes,
        domain=(inspect.getdoc(function) or "").partition("\n")[0],
        modules=(module,),
    )


def _source_of(module: str) -> bytes:
    """Return a module's source.

    If the module is a package, return the bytes of all its code and data files.
    """
    try:
        spec = importlib.util.find_spec(module)
    except ValueError:
        # find_spec raises for ``__main__``, whose ``__spec__`` is None in a started script.
        return b""
    if spec is None or spec.origin is None or not Path(spec.origin).is_file():
        return b""
    path = Path(spec.origin)
    paths = sorted(path.parent.glob("*.*")) if path.name == "__init__.py" else [path]
    return b"".join(path.read_bytes() for path in paths)


def _version_of(package: str) -> str:
    """Return a package's version, or "absent" for an optional dependency that is not installed."""
    # Importing importlib.metadata takes a sixth of a worker's start-up time, so import it late.
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(package)
    except PackageNotFoundError:
        return "absent"


def as_part(result: Any, seconds: float = 0.0) -> Part:
    """Convert a verifier's result: a Part, Verdict, number, bool, dict with ``score``, or None.

    For any other value, NaN or infinity, the completion is not judged. Its detail shows the value.
    """
    try:
        part = _as_part(result)
        extracted = None if part.extracted is None else _text(part.extracted)
        return replace(part, extracted=extracted, detail=_text(part.detail), seconds=seconds)
    except Exception as error:  # Methods of a user's result can raise.
        return Part.not_judged("error", f"returned {_shown(result)}: {error}", seconds)


def _as_part(result: Any) -> Part:
    if isinstance(result, Part):
        return result
    if result is None:
        return Part.not_judged("unavailable", "the verifier returned None")
    if isinstance(result, Verdict):
        return _of_verdict(result)
    if isinstance(result, Mapping):
        return _of_mapping(cast("Mapping[str, Any]", result))
    return Part(_number(result))


def _of_verdict(verdict: Verdict) -> Part:
    if verdict.score is None:
        return Part.not_judged(verdict.reason or "error", verdict.detail)
    value = verdict.score if verdict.reward is None else verdict.reward
    return Part(
        _number(value),
        score=_number(verdict.score),
        passed=verdict.status == "passed",
        extracted=verdict.extracted,
        detail=verdict.detail,
        components=_components(verdict.components),
        step_scores=tuple(verdict.step_scores),
    )


def _of_mapping(result: Mapping[str, Any]) -> Part:
    """Convert a dict with the keys ``score``, ``extracted`` and ``detail``.

    Other keys become components.
    """
    if "score" not in result:
        raise ValueError('accepted: a dict with the key "score"')
    if result["score"] is None:
        return Part.not_judged("unavailable", _text(result.get("detail") or "the score is None"))
    known = ("score", "extracted", "detail", "components")
    rest = {key: value for key, value in result.items() if key not in known}
    return Part(
        _number(result["score"]),
        extracted=result.get("extracted"),
        detail=result.get("detail") or "",
        components=_components({**result.get("components", {}), **rest}),
    )


def _number(value: Any) -> float:
    if not isinstance(value, Real) and hasattr(value, "item"):
        # Scalars of torch, and bool scalars of numpy, are not `Real` but have `item`.
        value = value.item()
    if not isinstance(value, Real):
        raise TypeError("accepted: a number, a dict with score, a Verdict or None")
    number = float(value)
    if not math.isfinite(number):
        raise ValueError("accepted: a finite number")
    return number


def _components(components: Mapping[Any, Any]) -> dict[str, float]:
    # Each component becomes a metric.
    # The number of components is limited, because a verifier with a component per word would flood
    # the log.
    if len(components) > MAX_COMPONENTS:
        raise ValueError(f"accepted: at most {MAX_COMPONENTS} components")
    return {_text(str(name))[:100]: _number(value) for name, value in components.items()}


def _shown(value: Any) -> str:
    try:
        text = repr(value)
    except Exception:  # The `__repr__` of a user's value can raise.
        text = "a value without a repr"
    return f"{text[:200]} ({type(value).__name__})"


def _text(text: Any) -> str:
    """Truncate a text and replace characters that UTF-8 cannot encode."""
    # Verdicts are written to logs in UTF-8.
    # The text is sanitized, because a model can emit half of a surrogate pair.
    return str(text)[:MAX_TEXT].encode("utf-8", "replace").decode("utf-8")
