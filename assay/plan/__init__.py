"""Recommend a training method and estimate its cost, without opening a model.

facts.py         Facts about the reward, problems, policy, verifier and machine.
methods.toml     Table of methods: rules for and against each method, settings, questions, pilots.
decision.py      Applies the table to facts: a recommended method, its settings, the reasons.
pilot.py         A small first run, with stop and promotion criteria.
record.py        Writes and reads ``decision.md``, the decision of a plan or of a run.
memory.py        Estimated memory of a run, by component.
arithmetic.py    Estimated seconds of a run, from the measured rates of the machine.
step_seconds.py  Estimated seconds of one training step, from unit times.
devices.py       GPUs with the figures of their data sheets.

`assay.plan.measured` opens a session, measures it, and implements ``assay plan``.
"""
