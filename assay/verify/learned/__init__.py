"""Verifiers that query language models or reward models: judges, pairwise comparison, scorers."""
