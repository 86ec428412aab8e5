"""A sweep trains several variants (arms) of one configuration with the same seeds, and compares
them.
"""
