"""Verifier ``judge``: language models behind an endpoint, asked with a rubric."""
