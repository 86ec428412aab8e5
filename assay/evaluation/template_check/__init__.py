"""`assay model check-template`: what training makes of a chat template, token by token."""
