"""Recipes (`assay recipe`): chains of training stages, each described by one TOML file."""
