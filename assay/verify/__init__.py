"""Verifiers: what a completion is worth, judged in processes that can be killed."""
