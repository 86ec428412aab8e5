"""Training data: problems with checkable answers, traces to imitate, and their rendering as
prompts.
"""
