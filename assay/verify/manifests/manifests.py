"""Verifier ``manifests``: the completion is a set of Kubernetes manifests in YAML.

A row of manifests lists required values (``require``), manifests that must stay unchanged
(``keep``), and rules (``rules``). A row needs ``require`` or ``keep``. Rules are combined with
expectations, because an empty set of manifests, or a set without the faulty resource, violates no
rule.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, cast

from assay.errors import VerifierError, message
from assay.host.fields import Field, is_number, list_of
from assay.types import Completion, Problem
from assay.verify.base import Limits, Part, Verifier, spec_check
from assay.verify.manifests import references, security, values
from assay.verify.manifests.changes import apply_changes
from assay.verify.manifests.checks import Rule, RuleCheck
from assay.verify.manifests.expectations import (
    Kept,
    is_place,
    is_requirement,
    is_resource,
    required,
)
from assay.verify.manifests.resources import Bundle, Resource, resource, tables
from assay.verify.manifests.schemas import (
    DEFAULT_VERSION,
    INSTALL,
    check_version,
    installed,
    schema_faults,
)
from assay.verify.manifests.yaml_documents import (
    MAX_DEPTH,
    MAX_DOCUMENTS,
    MAX_VALUES,
    MAX_YAML,
    BadYaml,
    parse_documents,
)
from assay.verify.programs.fences import fenced_blocks, normalized

LABELS = ("yaml", "yml", "kubernetes", "k8s")
FORMS = ("manifests", "changes")
CREDITS = ("all_or_nothing", "weighted")
GROUPS: Mapping[str, Mapping[str, Rule]] = {
    "references": references.RULES,
    "values": values.RULES,
    "security": security.RULES,
}
RULES: Mapping[str, Rule] = {
    name: rule for group in GROUPS.values() for name, rule in group.items()
}
DEFAULT_RULES = ("references", "values")
# An empty file violates no rule, so the row's own expectations have the largest weights.
WEIGHTS: Mapping[str, float] = {"schema": 2.0, "require": 4.0, "keep": 4.0}
"""Default weights of components. All other components have weight 1."""
ALLOWED = ("may_change", "may_remove", "may_add")
PARTS = ("schema", "unknown_keys", *RULES, "require", "keep")
MAX_SHOWN = 12


# Specs are compared by identity: the spec is the key of a cache, and its tables are not hashable.
@dataclass(frozen=True, eq=False)
class ManifestSpec:
    """The parsed spec of a row with manifests. `FIELDS` describes its attributes."""

    require: tuple[Mapping[str, Any], ...]
    keep: Kept | None
    rules: tuple[str, ...]
    external: frozenset[str]
    weights: Mapping[str, float]
    credit: str
    kubernetes: str
    original: str
    form: str


@dataclass(frozen=True, slots=True)
class Review:
    """All checks of a completion, by component.

    present: share of the row's resources that the completion has.
    fault: reason why the completion contains no set of manifests, or "" for a set of manifests.
    """

    checks: Mapping[str, Sequence[RuleCheck]]
    present: float = 0.0
    fault: str = ""

    @property
    def passed(self) -> bool:
        """Whether every check passed."""
        return not self.fault and not any(self.faults())

    def faults(self) -> list[str]:
        """Return descriptions of all violations without duplicates."""
        found = [self.fault] if self.fault else []
        for checks in self.checks.values():
            found += [
                f"{check.where}: {check.fault}".lstrip(": ") for check in checks if check.fault
            ]
        return list(dict.fromkeys(found))

    def shares(self) -> dict[str, float]:
        """Return the share of passed checks of each component that has checks."""
        return {
            name: sum(not check.fault for check in checks) / len(checks)
            for name, checks in self.checks.items()
            if checks
        }

    def credit(self, weights: Mapping[str, float]) -> float:
        """Return the weighted mean of the components' shares, multiplied by `present`."""
        shares = self.shares()
        weighed = {name: weights.get(name, WEIGHTS.get(name, 1.0)) for name in shares}
        total = sum(weighed.values())
        gained = sum(share * weighed[name] for name, share in shares.items())
        # Without the factor `present`, a policy could delete faulty resources and break no rule.
        return self.present * gained / total if total else 0.0


def judge_manifests(problem: Problem, completion: Completion) -> Part:
    """Score 1 if the manifests are valid, follow every rule, and meet the row's expectations.

    Raises VerifierError for a malformed spec.
    """
    if not installed():
        return Part.not_judged("unavailable", INSTALL)
    spec = read_manifest_spec(problem)
    text = find_yaml(completion.answer_text)
    return as_part(spec, review(spec, *read_documents(spec, text)), text)


def as_part(spec: ManifestSpec, found: Review, text: str | None) -> Part:
    """Return the verifier part that summarizes a review. text: the YAML that was read from the
    completion."""
    value = float(found.passed)
    if spec.credit == "weighted" and not found.passed:
        # The original manifests earn 0, so that a policy gains nothing by copying them.
        floor = _floor(spec) if spec.original else 0.0
        gained = found.credit(spec.weights)
        value = max(0.0, (gained - floor) / (1.0 - floor)) if floor < 1.0 else 0.0
    faults = found.faults()
    hidden = f"; and {len(faults) - MAX_SHOWN} more" if len(faults) > MAX_SHOWN else ""
    return Part(
        value,
        passed=found.passed,
        extracted=text,
        detail="; ".join(faults[:MAX_SHOWN]) + hidden,
        components={"yaml": float(not found.fault), "present": found.present, **found.shares()},
    )


def read_documents(spec: ManifestSpec, text: str | None) -> tuple[list[Any], str]:
    """Return (documents, "") of a text, or ([], reason) for a text that is not valid."""
    if text is None:
        return [], "no YAML"
    try:
        if spec.form == "changes":
            return apply_changes(original_documents(spec), text), ""
        documents = expanded(parse_documents(text))
    except BadYaml as error:
        return [], f"not valid YAML: {error}"
    if not 0 < len(documents) <= MAX_DOCUMENTS:
        return [], f"{len(documents)} documents; accepted: 1 to {MAX_DOCUMENTS}"
    return documents, ""


def original_documents(spec: ManifestSpec) -> list[Any]:
    """Return the manifests in the row's ``original``, which the prompt shows. Raises BadYaml."""
    return expanded(parse_documents(find_yaml(spec.original) or ""))


def review(spec: ManifestSpec, documents: Sequence[Any], fault: str = "") -> Review:
    """Check documents against a row's schema version, rules and expectations.

    All rules are checked, even if earlier rules fail.
    """
    if fault:
        return Review({}, fault=fault)
    resources: list[Resource] = []
    schema: list[RuleCheck] = []
    unknown: list[RuleCheck] = []
    for number, body in enumerate(documents, 1):
        found = resource(body)
        if isinstance(found, str):
            schema.append(RuleCheck(f"document {number}", found))
            continue
        resources.append(found)
        faults = list(schema_faults(found, spec.kubernetes))
        for part, checks in (("schema", schema), ("unknown_keys", unknown)):
            mine = [(where, what) for name, where, what in faults if name == part]
            # A resource without a fault counts as one passed check of the component.
            checks += [
                RuleCheck(f"{found.label} {w}".strip(), what) for w, what in mine or [("", "")]
            ]
    bundle = Bundle(tuple(resources), spec.external)
    checks = {"schema": schema, "unknown_keys": unknown}
    checks |= {name: list(RULES[name](bundle)) for name in spec.rules}
    checks["require"] = list(required(bundle, spec.require))
    checks["keep"] = list(spec.keep.checks(bundle)) if spec.keep else []
    return Review(checks, _present(bundle, spec))


def expanded(documents: Iterable[Any]) -> list[Any]:
    """Return the manifest documents; a document of kind List is replaced by its items."""
    found: list[Any] = []
    for each in documents:
        if isinstance(each, dict) and each.get("kind") == "List" and "items" in each:
            found += tables(each["items"])
        else:
            found.append(each)
    return found


def _present(bundle: Bundle, spec: ManifestSpec) -> float:
    """Return the share of the row's resources that the completion's manifests contain."""
    wanted = {row["resource"] for row in spec.require if row.get("exists") is not False}
    wanted |= {each.label for each in spec.keep.resources} if spec.keep else set()
    there = {each.label for each in bundle.resources}
    return len(wanted & there) / len(wanted) if wanted else 0.0


def find_yaml(text: str) -> str | None:
    """Return the last block labeled as YAML, else the last unlabeled block, else the whole text."""
    found: dict[bool, str] = {}
    for label, content in fenced_blocks(text):
        if label in LABELS or (not label and content.strip()):
            found[label in LABELS] = content
    if found:
        return found.get(True, found.get(False))
    # A reply with a block in another language is prose, not YAML.
    has_block = next(fenced_blocks(text), None) is not None
    return normalized(text) if text.strip() and not has_block else None


def read_manifest_spec(problem: Problem) -> ManifestSpec:
    """Return the parsed spec of a problem with manifests.

    Raises VerifierError for a malformed spec.
    """
    where = f"problem {problem.id}: spec"
    read = {each.name: each.of(problem.spec, where) for each in FIELDS}
    # `_spec` caches its result by this text, because all completions of a group have the same spec.
    return _spec(json.dumps([where, read], sort_keys=True))


@lru_cache(maxsize=1024)
def _spec(key: str) -> ManifestSpec:
    where, row = json.loads(key)
    if not row["require"] and not row["keep"]:
        accepted = "require or keep, without which an empty set of manifests holds every rule"
        raise VerifierError(message(f"{where}.require", "missing", accepted))
    if unused := [name for name in ALLOWED if row[name] and not row["keep"]]:
        raise VerifierError(message(f"{where}.keep", "missing", f"a text, for {unused[0]}"))
    if row["form"] == "changes" and not row["original"]:
        raise VerifierError(message(f"{where}.original", "missing", "the manifests to change"))
    try:
        check_version(row["kubernetes"])
    except VerifierError as error:
        raise VerifierError(f"{where}.{error}") from error
    rules = [rule for name in row["rules"] for rule in GROUPS.get(name, (name,))]
    return ManifestSpec(
        tuple(row["require"]),
        _kept(row, where) if row["keep"] else None,
        tuple(dict.fromkeys(rules)),
        frozenset(row["external"]),
        row["weights"],
        row["credit"],
        row["kubernetes"],
        row["original"],
        row["form"],
    )


def _kept(row: Mapping[str, Any], where: str) -> Kept:
    accepted = "manifests in YAML, each with apiVersion, kind and metadata.name"
    try:
        found = [resource(each) for each in expanded(parse_documents(row["keep"]))]
    except BadYaml as error:
        raise VerifierError(message(f"{where}.keep", str(error), accepted)) from error
    if faults := [each for each in found if isinstance(each, str)]:
        raise VerifierError(message(f"{where}.keep", faults[0], accepted))
    kept = tuple(each for each in found if isinstance(each, Resource))
    if not kept:
        raise VerifierError(message(f"{where}.keep", "no document", accepted))
    labels = {each.label for each in kept}
    for key in ("may_change", "may_remove"):
        for place in row[key]:
            if place.partition(" ")[0] not in labels:
                raise VerifierError(
                    message(f"{where}.{key}", repr(place), ", ".join(sorted(labels)))
                )
    return Kept(kept, *(tuple(row[key]) for key in ALLOWED))


@lru_cache(maxsize=1024)
def _floor(spec: ManifestSpec) -> float:
    """Return the credit that the unchanged original manifests would earn."""
    whole = replace(spec, form="manifests")
    return review(whole, *read_documents(whole, find_yaml(spec.original))).credit(spec.weights)


def lacks(_: Mapping[str, Any]) -> str:
    """Return why this machine cannot judge manifests, or ""."""
    return "" if installed() else INSTALL


def _are_weights(value: Any) -> bool:
    if not isinstance(value, dict):
        return False
    weights = cast("dict[str, Any]", value)
    return all(name in PARTS and is_number(weight, 0, 1000) for name, weight in weights.items())


def _is_yaml(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= MAX_YAML


FIELDS: tuple[Field, ...] = (
    Field(
        "require",
        'a list of {"resource": "Kind/name", "path": path, one test}: equals, one_of, matches, '
        "exists, at_least or at_most; without a path the resource must exist",
        default=[],
        check=list_of(is_requirement, 200),
    ),
    Field(
        "keep",
        "manifests in YAML: the completion must have these resources with the same values, and no "
        "other resources",
        default="",
        check=_is_yaml,
    ),
    Field(
        "may_change",
        'a list of "Kind/name path": values of keep that may change but must exist',
        default=[],
        check=list_of(is_place, 200),
    ),
    Field(
        "may_remove",
        'a list of "Kind/name path": values of keep that may change or be absent',
        default=[],
        check=list_of(is_place, 200),
    ),
    Field(
        "may_add",
        'a list of "Kind/name": resources that may be added to those of keep',
        default=[],
        check=list_of(is_resource, 200),
    ),
    Field(
        "rules",
        f"a list of {', '.join(GROUPS)} (groups) and {', '.join(RULES)}",
        default=[*DEFAULT_RULES],
        check=list_of(lambda name: name in GROUPS or name in RULES, 40),
    ),
    Field(
        "external",
        'a list of "Kind/name": resources outside the manifests that references may name',
        default=[],
        check=list_of(is_resource, 200),
    ),
    Field(
        "form",
        f'{" or ".join(FORMS)}: the whole manifests, or a YAML mapping of "Kind/name path" to the '
        "new value, which changes the original (null: remove)",
        default=FORMS[0],
        check=FORMS.__contains__,
    ),
    Field("credit", ", ".join(CREDITS), default="all_or_nothing", check=CREDITS.__contains__),
    Field(
        "weights",
        "a table of weights for credit = weighted; keys: " + ", ".join(PARTS),
        default={},
        check=_are_weights,
    ),
    Field(
        "original",
        "the broken manifests that the prompt shows; with credit = weighted they earn 0",
        default="",
        check=_is_yaml,
    ),
    Field(
        "kubernetes",
        "the version of the API, 1.25 to 1.37",
        default=DEFAULT_VERSION,
        check=lambda value: isinstance(value, str),
    ),
)

MANIFESTS = Verifier(
    name="manifests",
    version=1,
    judge=judge_manifests,
    domain="Kubernetes manifests in YAML: schemas of the API, references between documents, "
    "values, security, and what a row asks for",
    fields=FIELDS,
    accepts="the last fenced block outside the think block that is labeled yaml, yml, kubernetes "
    "or k8s, else the last unlabeled block, else the whole text; at most "
    f"{MAX_YAML} characters, {MAX_DOCUMENTS} documents, {MAX_DEPTH} levels and {MAX_VALUES} values "
    "with aliases expanded; each key once, and no tags except those of plain values",
    partial_credit="with spec.credit = weighted, the weighted mean of the components, multiplied "
    "by the share of the row's resources that are present, and rescaled so that the original earns "
    "0. The component of a rule is the share of its checks that pass. Default weights are 1, but 2 "
    "for schema and 4 for require and keep",
    limits=Limits(seconds=20.0),
    text_only=True,
    cached=True,
    modules=("assay.verify.programs.fences",),
    packages=("jsonschema", "kubernetes-validate", "pyyaml"),
    extra="infrastructure",
    check_spec=spec_check(read_manifest_spec),
    lacks=lacks,
)
