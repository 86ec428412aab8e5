"""Write a run: its directory, rollout log, checkpoints, metrics and events, guard and resume.

directory.py                                `Run`, the run directory
rollout_log.py, rollout_schema.py           recorded completions and verdicts (Parquet)
checkpoints.py, resume.py, rollback.py      saved state, and continuing from it
metrics.py, listeners.py, progress.py       metrics, events, and their listeners
guard.py, guard_checks.py                   checks that may stop a run
environment.py, evidence.py, decision.py    provenance of a run
evaluations.py, intervals.py                recorded evaluations and their statistics
"""
