"""Data stages: rows in, rows out, and a manifest that says what happened to each of them."""
