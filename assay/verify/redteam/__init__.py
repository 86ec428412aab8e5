"""Known reward hacks, tried on verifiers: ``assay redteam``."""
