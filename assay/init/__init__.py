"""Before a run: `assay init` writes what a first one needs; `assay plan` measures, and advises.

init.py       a configuration, and what is missing      look.py      what rows and a model tell
starter.py    the tiny model
plan.py       what `assay plan` calls: from facts to a recommendation (`assay.plan`)
measure.py    facts that a configuration's model, problems and verifier tell, when they are opened
seconds.py    how long a step takes, on the loaded model
"""
