"""The viewer: a local web page of runs, their curves and their rollouts (`assay run view`)."""
