"""Verifier ``instructions``: IFEval's types, strict and loose; languages."""
