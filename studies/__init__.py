"""Studies: small runs on a CPU that reproduce a claim of the literature, or honestly fail to."""
