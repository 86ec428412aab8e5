"""Internals of the class `VerifierService`: jobs, worker processes and threads, cache,
statistics."""
