"""Verifiers of programs: ``code`` for Python with tests, ``program`` for several languages."""
