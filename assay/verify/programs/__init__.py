"""Verifier ``code``: programs, their tests, and what may cross between the two."""
