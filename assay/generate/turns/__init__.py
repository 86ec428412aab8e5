"""Tools and environments, which reply to a policy during sampling and divide a completion into
turns."""
