"""Verifiers of short answers: mathematics, choices, exact text, patterns, JSON, function calls."""
