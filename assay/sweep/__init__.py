"""Sweeps: arms times paired seeds of one training configuration, and their comparison."""
