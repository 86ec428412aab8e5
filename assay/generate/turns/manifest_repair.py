"""Environment in which the policy repairs Kubernetes manifests by the verifier's messages.

    [data]
    train = ["assay.data.manifest_tasks:broken_manifests?size=2000&num_faults=3"]
    verifier = "assay.generate.turns.manifest_repair:REPAIR"

    [tools]
    environment = "assay.generate.turns.manifest_repair:REPAIR"

Rows are those of the verifier ``manifests``, and may have two more keys: ``turns``, the number of
replies (default 3), and ``faults_shown``, the number of faults in one message (default 5). In rows
of the form ``changes``, each reply lists changes to the manifest that the previous reply produced.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random

from assay.data.small_manifests import SmallRepair, check, draw
from assay.data.sources import source
from assay.data.tasks import Generated, Split, check_share
from assay.data.traces import Trace
from assay.errors import VerifierError
from assay.generate.turns.environment import Environment, Messages
from assay.host.fields import Field, whole
from assay.types import Message, Problem
from assay.verify.base import Part
from assay.verify.manifests.changes import apply_changes
from assay.verify.manifests.manifests import (
    as_part,
    find_yaml,
    original_documents,
    read_documents,
    read_manifest_spec,
    review,
)
from assay.verify.manifests.schemas import INSTALL, installed
from assay.verify.manifests.yaml_documents import BadYaml

TURNS = Field("turns", "a whole number of replies, up to 50", default=3, check=whole(1, 50))
SHOWN = Field("faults_shown", "a whole number of faults", default=5, check=whole(1, 50))


class ManifestRepair:
    """The environment replies to each attempt of the policy with the remaining faults."""

    def start(self, problem: Problem) -> Messages:
        """Return the row's prompt."""
        if not installed():
            raise VerifierError(INSTALL)
        self.spec = read_manifest_spec(problem)
        self.left, self.shown = TURNS.read(problem), SHOWN.read(problem)
        self.documents = original_documents(self.spec) if self.spec.form == "changes" else []
        prompt = problem.prompt
        return prompt if isinstance(prompt, str) else list(prompt)

    def respond(self, messages: Sequence[Message]) -> str | Part:
        """Return a message about the remaining faults; at the end, return the reward and the number
        of unused turns."""
        self.left -= 1
        text = find_yaml(messages[-1]["content"])
        documents, fault = self._attempted(text)
        found = review(self.spec, documents, fault)
        if found.passed or not self.left:
            if fault and self.documents:
                # Like a cluster, the environment ignores an invalid reply and keeps old changes.
                found = review(self.spec, self.documents)
            part = as_part(self.spec, found, text)
            return replace(part, components={**part.components, "turns_left": float(self.left)})
        return "\n".join(found.faults()[: self.shown])

    def _attempted(self, text: str | None) -> tuple[list[object], str]:
        if self.spec.form == "manifests":
            return read_documents(self.spec, text)
        try:
            self.documents = apply_changes(self.documents, text or "")
        except BadYaml as error:
            return [], f"not valid YAML: {error}"
        return self.documents, ""


REPAIR = Environment(ManifestRepair)


@source
def imperfect_repairs(
    size: int = 1000,
    seed: int = 0,
    split: Split = "train",
    num_faults: int = 1,
    turns: int = 1,
    right: float = 0.5,
) -> Sequence[Trace]:
    """Return conversations about small manifests.

    Of the simulated replies, a share ``right`` is right.

    A right reply repairs one wrong value of the manifest. A wrong reply sets a random field to a
    random value of the same type. The environment's messages are masked from the loss.
    """
    check(split, num_faults)
    check_share("right", right)

    def make(index: int) -> Trace:
        random = Random(f"small repairs {seed} {index}")
        task = draw(random, split, num_faults)
        play = ManifestRepair()
        play.start(
            Problem(f"{index}", task.prompt, {**task.spec, "turns": turns, "faults_shown": 1})
        )
        text, said = "", list[tuple[int, int]]()
        now = dict(task.broken)
        while True:
            place, value = _reply(task, now, random, right)
            now[place] = value
            reply = f"{place}: {value}\n"
            said.append((len(text), len(text) + len(reply)))
            text += reply
            answer = play.respond([{"role": "assistant", "content": reply}])
            if not isinstance(answer, str):
                return Trace(task.prompt, text, said=tuple(said))
            text += f"{answer}\n"

    return Generated(size, make)


def _reply(
    task: SmallRepair, now: dict[str, object], random: Random, right: float
) -> tuple[str, object]:
    """Return the field that the next reply changes, and the field's new value."""
    wrong = [place for place, value in now.items() if value != task.right[place]]
    if wrong and random.random() < right:
        place = random.choice(wrong)
        return place, task.right[place]
    place = random.choice([*task.right])
    kind = type(now[place])
    return place, random.choice([one for one in task.broken.values() if type(one) is kind])
