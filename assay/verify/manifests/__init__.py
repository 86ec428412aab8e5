"""Verifier of Kubernetes manifests: strict YAML, the API's schemas, references, security."""
