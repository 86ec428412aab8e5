"""Search at test time: sample many completions or a tree of reasoning steps, and choose one answer.

- search.py: the ``assay search`` command.
- methods.py: search methods: best of n, beam, tree search, and others.
- drawing.py, tree.py: sampling of nodes; the shared tree of a problem.
- scorer.py, choice.py: scores of nodes; the choice of an answer.
- measure.py, result.py: accuracy of each method and budget.
- tree_rows.py: trees as JSONL rows.
"""
