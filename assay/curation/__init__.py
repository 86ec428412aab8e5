"""Data transforms: read rows, write rows, and record removed rows in a manifest."""
