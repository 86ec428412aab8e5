"""Before a run: which method fits what is known, a narrow pilot, and what it takes.

methods.toml   the table: methods, what speaks for and against each, questions, pilots
table.py       how it is read: conditions, and texts with their figures
facts.py       what is known of reward, problems, policy, verifier and machine
decision.py    the table applied to facts, and the keys to set along with a method
pilot.py       a narrow first run             record.py    decision.md, of a plan and of a run
questions.py   facts that are told or asked for
configured.py  facts that a configuration tells by itself
memory.py      what a run takes, on the loaded model

`assay.init` has the rest: what opens a model to measure it, and what the command calls.
"""
