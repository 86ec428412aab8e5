"""The service's inside: who is asked when, in which process or thread, and what is remembered."""
