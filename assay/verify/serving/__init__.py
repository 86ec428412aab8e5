"""Internals of the service: scheduling, worker processes and threads, cache, statistics."""
