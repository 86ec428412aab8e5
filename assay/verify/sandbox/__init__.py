"""A sandbox for untrusted Python programs (the walls are being built; the interface stands)."""

from assay.verify.sandbox.codec import Handle, Iterator, Record
from assay.verify.sandbox.outcome import (
    Answer,
    Outcome,
    SandboxTrouble,
    SandboxUnavailable,
    Status,
    SubmissionError,
)
from assay.verify.sandbox.sandbox import Sandbox
from assay.verify.sandbox.session import Session

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
]
