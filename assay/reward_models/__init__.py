"""Verifiers ``reward_model`` and ``process_reward_model``: learned reward models."""
