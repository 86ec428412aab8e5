"""The run directory: rollout log, checkpoints, metrics, events, guard and resume.

- directory.py: class `Run`, the run directory.
- rollout_log.py, rollout_schema.py: recorded completions and verdicts (Parquet).
- checkpoints.py, resume.py, rollback.py: saved state, resume and rollback.
- metrics.py, listeners.py, progress.py: metrics, events, and their listeners.
- guard.py, guard_checks.py, evidence.py: checks that may stop a run, and their evidence.
- environment.py, decision.py: provenance of a run.
- evaluations.py, paired.py, intervals.py: recorded evaluations and their statistics.
"""
