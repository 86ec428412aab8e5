"""`assay model check-template`: show how training tokenizes and masks a chat, and check it."""
