"""`assay plan`: open a session of the configuration, measure it, and recommend a method.

plan.py      the command: facts, decision, pilot, estimates, and the files it writes
measure.py   facts of the opened model, problems and verifier
seconds.py   step seconds, calibrated with short generations and updates
"""
