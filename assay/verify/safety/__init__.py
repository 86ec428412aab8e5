"""The safety policy, and the verifier that judges answers by the policy."""
