"""Studies: short CPU runs that test claims of the literature, and report failures to reproduce
them."""
