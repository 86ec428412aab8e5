"""`assay data rewrite`: a model makes completions readable; what is still verified stays."""

from __future__ import annotations

import re
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import field_validator

from assay.config.section import Count, Text, found_words
from assay.curation.asking import Asked, AskingSettings
from assay.curation.base import DataStage, Manifest, Output
from assay.curation.collect import completion_row
from assay.curation.judged import as_judged, read_collected
from assay.data.rows import problem_row
from assay.types import Problem

ORIGINAL = "completion"
"""The key of a problem's spec under which the completion stands that is to be rewritten."""
REQUEST = """\
Below are a problem and a solution. Rewrite the solution so that a reader can follow it: keep its \
reasoning and its final answer, write whole sentences in the language of the problem, leave out \
what leads nowhere and what is said twice. End with the final answer, in the form in which the \
solution gives it. Write the new solution and nothing else.

### Problem

{question}

### Solution

{completion}"""


class RewriteSettings(AskingSettings):
    """Have a model make completions readable, and keep what is still verified.

    A row is a completion with its problem, as ``collect`` writes it. Its new completion is judged
    by the problem's verifier. A row whose rewritings all fail goes.
    """

    num_samples: Count = 1
    """Rewritings of each completion, of which the first that passes stays."""
    request: Text = REQUEST
    """What the model is asked, with ``{question}`` and ``{completion}`` in it."""

    @field_validator("request")
    @classmethod
    def _holds_the_completion(cls, request: str) -> str:
        if "{completion}" not in request:
            raise ValueError(found_words(request, "a text with {completion} in it"))
        return request


def rewrite(settings: RewriteSettings, folder: Path) -> Manifest:
    """Write the rows whose completion could be rewritten."""
    from assay.curation.sampler import Sampler, Tally

    def ask(problem: Problem, template: str | None) -> Problem:
        texts = {"question": problem.question, "completion": problem.spec[ORIGINAL]}
        return replace(problem, prompt=filled(settings.request, texts))

    tally = Tally()
    with ExitStack() as stack:
        out = stack.enter_context(Output("rewrite", settings, folder))
        sampler = Sampler(settings, stack)
        rows = sampler.read(out, read=read_rewritable)
        out.add_filters("no longer verified")
        for part in sampler.parts(rows):
            for asked, group, verdicts in sampler.sample(part, out, ask):
                tally.add(group, verdicts)
                passed = [n for n, one in enumerate(verdicts) if one is not None and one.correct]
                if not passed:
                    shown = {**asked.row, "rewritten": group.completions[0].text}
                    out.take("no longer verified", shown, f"0 of {len(verdicts)} passed")
                    continue
                made = completion_row(group, passed[0], verdicts[passed[0]], settings, "rewrite")
                problem_id = asked.row.get("problem_id", asked.row["id"])
                more = {"problem_id": problem_id, "rewritten_from": asked.row["id"]}
                out.write({**problem_row(asked.problem), **made, **more})
            out.flush()
        out.manifest.measured = tally.as_dict()
    return out.manifest


def read_rewritable(row: Any, where: str, default_id: str) -> Asked:
    """Return a completion with its problem; raises DataError."""
    kept = read_collected(row, where, default_id)
    problem, completion = as_judged(kept)
    spec = {key: value for key, value in problem.spec.items() if key != "messages"}
    return Asked(kept, replace(problem, spec={**spec, ORIGINAL: completion.text}))


def filled(template: str, texts: dict[str, str]) -> str:
    """Return a template with each ``{name}`` replaced; other braces stay as they are."""
    names = "|".join(texts)
    return re.sub(rf"\{{({names})\}}", lambda found: texts[found[1]], template)


STAGE = DataStage("rewrite", RewriteSettings, rewrite)
