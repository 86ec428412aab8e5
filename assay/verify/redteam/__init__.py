"""Try known reward hacks on verifiers: ``assay redteam``."""
