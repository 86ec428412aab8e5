"""Verifier of patches: changes to a small file tree, judged by tests in the sandbox."""
