"""Verifiers of puzzles and formal logic."""
