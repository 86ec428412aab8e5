"""Verifiers that query models: judges, pairwise comparison by judges, and reward models."""
