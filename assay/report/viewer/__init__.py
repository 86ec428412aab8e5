"""The viewer, a local web server that shows runs, curves and rollouts (``assay run view``)."""
