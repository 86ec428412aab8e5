"""Tools that a policy calls while it is sampled, and the turns that this makes of a completion."""
