"""Verifiers of form, length, language and repetition: components beside the correctness."""
