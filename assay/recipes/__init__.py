"""Chains of stages, each in one TOML file: `assay recipe`."""
