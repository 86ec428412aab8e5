"""Verifier of Kubernetes manifests: strict YAML, schemas of the API, references, security."""
