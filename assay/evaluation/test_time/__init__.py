"""Search at test time: many completions of a problem, or a tree of their steps, and one answer."""
