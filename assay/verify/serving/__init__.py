"""Internals of `VerifierService`: jobs, worker processes and threads, cache, statistics."""
