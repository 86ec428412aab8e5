"""``assay plan``: open a session of the configuration, measure it, and recommend a method.

plan.py      The command: facts, decision, pilot, estimates, and the written files.
measure.py   Measured facts of the model, the problems and the verifier.
seconds.py   Seconds of a step, calibrated with short generations and updates.
"""
