"""Verifiers of form, length, language and repetition, used as components besides correctness."""
