"""Tools and environments that reply to a policy during sampling, and the turns of a completion."""
