"""Verifier ``chemistry``: chemical formulas and balanced equations."""
