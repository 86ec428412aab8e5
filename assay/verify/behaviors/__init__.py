"""What a completion's reasoning does: detectors of behaviors, and a monitor of the trace.

Detectors are deterministic rules for English. Their errors are measured on labelled passages
(`assay.verify.selftest`, ``labelled/behaviors.jsonl``), and docs/behaviors.md shows them.
"""
