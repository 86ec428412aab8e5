"""What stands between a checkpoint and its users: gates, and the canaries that they ask."""
