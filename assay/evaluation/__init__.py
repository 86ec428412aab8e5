"""Comparisons and audits of models, verifiers and recorded runs.

compare.py, compare_result.py, preference_judge.py   two models on the same problems
gate.py, gate_checks.py, gate_thresholds.py          release checks of a checkpoint, with canaries
divergence.py, frontier.py                           KL between models; accuracy against tokens
rejudge.py, replay.py, replay_result.py              logged and new verdicts; replay of a step
drift.py                                             files of verdicts, compared
audit.py, step_audit.py                              verifier disagreements for people to label
reward_terms.py                                      effect of each term of a reward
test_time/                                           search at inference time
"""
