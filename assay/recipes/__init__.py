"""`assay recipe`: run a chain of stages that one TOML file describes."""
