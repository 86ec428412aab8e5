"""Assay: train language models to reason from rewards that can be checked, and keep the evidence."""

__version__ = "0.1.0"
