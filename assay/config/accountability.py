"""Section ``[decision]``: who decides about a run, and the plan that the decision record shows."""

from __future__ import annotations

from assay.config.section import Positive, Section, Text


class DecisionConfig(Section):
    """Plan and responsibilities of a run, for its decision record.

    Contradictions with the rest of the configuration are errors before the run starts.
    docs/trust.md describes the record.
    """

    question: Text | None = None
    """Question that the run answers. None: not given."""
    owner: Text | None = None
    """Person or team that is responsible for the run. None: not given."""
    approvers: tuple[Text, ...] = ()
    """Names that ``--approved-by`` accepts when a run continues after a severe stop of the guard.
    Empty: any name."""
    fallback: Text | None = None
    """Model that stays in use if the run is rejected: a checkpoint (``RUN@best``, ``RUN@120``), a
    folder or a hub name. A missing checkpoint or folder is an error. None: the model in
    `model.path`."""
    stops: tuple[Text, ...] = ()
    """Guard rules that must be able to end the run. A rule that is off, or only warns, is an
    error."""
    gates: tuple[Text, ...] = ()
    """Sources of the problems on which `assay gate` must accept the checkpoint. A source that the
    run trains on or evaluates is an error."""
    hours: Positive | None = None
    """Predicted hours of the run, for example of `assay plan` or ``assay train --dry-run``. The
    record compares the hours with the spent hours, and with `guard.price_per_hour` the cost.
    None: unknown."""
