"""Verifier of patches: changes to a small tree of files, judged by tests in the sandbox."""
