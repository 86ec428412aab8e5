"""Verifier ``instructions``: IFEval's instruction types, with sentence and language detection."""
