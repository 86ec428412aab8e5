"""The first hour: `assay init` looks at rows and a model, and writes what a first run needs."""
