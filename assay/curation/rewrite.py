"""`assay data rewrite`: have a model rewrite completions for readability, and verify them again."""

from __future__ import annotations

from dataclasses import replace

from pydantic import field_validator

from assay.config.section import Count, Text, found_words
from assay.curation.asking import AskingSettings, filled
from assay.curation.base import DataStage
from assay.curation.collect import completion_row
from assay.curation.output import Output
from assay.data.completions import Record
from assay.data.rows import problem_row
from assay.types import Problem

ORIGINAL = "completion"
"""Key of the problem's spec under which the completion to rewrite is stored."""
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
    """Have a model rewrite completions for readability, and keep those that still pass.

    A row is a completion with its problem, as ``collect`` writes it. The problem's verifier judges
    the rewritten completions. A row is removed if all rewritten completions of the row fail.
    """

    num_samples: Count = 1
    """Number of rewritten completions per row. The first rewritten completion that passes is
    kept."""
    request: Text = REQUEST
    """Prompt for the model, with the placeholders ``{question}`` and ``{completion}``."""

    @field_validator("request")
    @classmethod
    def _holds_the_completion(cls, request: str) -> str:
        if "{completion}" not in request:
            raise ValueError(found_words(request, "a text with {completion} in it"))
        return request


def rewrite(settings: RewriteSettings, out: Output) -> None:
    """Write the rows for which a rewritten completion passes."""
    # The sampler imports PyTorch, which takes seconds; settings and help do not need the sampler.
    from assay.curation.sampler import sampled

    def ask(problem: Problem, template: str | None) -> Problem:
        texts = {"question": problem.question, "completion": problem.spec[ORIGINAL]}
        return replace(problem, prompt=filled(settings.request, texts), effort=None)

    out.add_filters("no longer verified")
    for row, (found,) in sampled(settings, out, to_rewrite, ask):
        passed = [n for n, one in enumerate(found.verdicts) if one is not None and one.correct]
        if not passed:
            shown = {**row.keys, "rewritten": found.group.completions[0].text}
            out.take("no longer verified", shown, f"0 of {len(found.verdicts)} passed")
            continue
        verdict = found.verdicts[passed[0]]
        made = completion_row(found.group, passed[0], verdict, settings, "rewrite")
        problem_id = row.keys.get("problem_id", row.keys["id"])
        more = {"problem_id": problem_id, "rewritten_from": row.keys["id"]}
        out.write({**problem_row(row.problem), **made, **more})


def to_rewrite(row: Record) -> Problem:
    """Return a row's problem, with the completion in its spec. Raises DataError for a bad row."""
    # The request to the model is made from a problem, so the problem's spec has the completion.
    return replace(row.problem, spec={**row.problem.spec, ORIGINAL: row.text("completion")})


STAGE = DataStage(RewriteSettings, rewrite)
