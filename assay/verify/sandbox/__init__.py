"""A sandbox for untrusted Python programs (the walls are being built; the interface stands)."""

from assay.verify.sandbox.outcome import (
    Answer,
    Outcome,
    SandboxTrouble,
    SandboxUnavailable,
    Status,
    SubmissionError,
)
from assay.verify.sandbox.sandbox import Sandbox, sandbox_report
from assay.verify.sandbox.session import Session
from assay.verify.sandbox.values import Handle, Iterator, Record

__all__ = [
    "Answer",
    "Handle",
    "Iterator",
    "Outcome",
    "Record",
    "Sandbox",
    "SandboxTrouble",
    "SandboxUnavailable",
    "Session",
    "Status",
    "SubmissionError",
    "sandbox_report",
]
