"""The run directory: rollout log, checkpoints, metrics, events, guard and resume.

directory.py                                Class `Run`, the run directory.
rollout_log.py, rollout_schema.py           Recorded completions and verdicts (Parquet).
checkpoints.py, resume.py, rollback.py      Saved state, resume and rollback.
metrics.py, listeners.py, progress.py       Metrics, events, and their listeners.
guard.py, guard_checks.py, evidence.py      Checks that may stop a run, and their evidence.
environment.py, decision.py                 Provenance of a run.
evaluations.py, paired.py, intervals.py     Recorded evaluations and their statistics.
"""
