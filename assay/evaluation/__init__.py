"""Comparisons and audits of models, verifiers and recorded runs.

- compare.py, compare_result.py, preference_judge.py: compare two models on the same problems.
- gate.py, gate_checks.py, gate_thresholds.py: checks of a checkpoint before release.
- divergence.py, frontier.py: measure KL between models, and accuracy by tokens.
- rejudge.py, replay.py, replay_result.py: compare logged and new verdicts, replay a step.
- drift.py: compare files of verdicts of the same completions.
- audit.py, step_audit.py: queue verifier disagreements for people.
- reward_terms.py: measure the effect of each term of a reward.
- test_time/: search for answers at inference time.
"""
