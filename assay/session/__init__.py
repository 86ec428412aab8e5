"""Open the model, the generator and the verifiers of a run; sample, judge and evaluate.

`open_session` (assemble.py) opens the model, generator and verifiers of a configuration.
`Stage` (stage.py) has the training loop that every training stage shares. `evaluate` (evaluate.py)
measures pass rates. The other modules load teachers, check consent for a run's code, test user
rewards before a model is loaded, compare completions in pairs, reuse the rollout log on resume, and
read recorded groups with their problems.
"""
