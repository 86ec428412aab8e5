"""Verifier ``sql``: queries that run on databases in the sandbox and are judged by their rows."""
