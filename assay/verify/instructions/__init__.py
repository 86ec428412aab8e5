"""Verifier ``instructions``: IFEval's instruction types, and language detection."""
