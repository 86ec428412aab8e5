"""Detectors of behaviors in a completion's reasoning, and a monitor of the reasoning trace.

The behavior detectors are deterministic rules for English. `assay.verify.selftest` measures the
detectors' errors on labelled passages (``labelled/behaviors.jsonl``), and docs/behaviors.md shows
the errors.
"""
