"""Tools and environments, whose replies to the policy divide a completion into turns."""
