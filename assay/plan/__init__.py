"""Choose a training method and estimate its cost before a run, without opening a model.

facts.py         facts about the reward, problems, policy, verifier and machine, and their sources
methods.toml     table of methods: rules for and against each, settings, questions, pilots
decision.py      reads the table and applies it to facts: a recommendation and its settings
pilot.py         a small first run, with stop and promotion criteria
record.py        ``decision.md``: the decision of a plan or of a run, written and read
memory.py        memory of a run, part by part
arithmetic.py    seconds of a run from the machine's measured rates
step_seconds.py  seconds of one training step from unit times
devices.py       GPUs with their data sheets
on_device.py     a run on a GPU that this machine does not have

`assay.plan.measured` opens a session, measures it, and implements ``assay plan``.
"""
