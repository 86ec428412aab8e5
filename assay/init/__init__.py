"""`assay init`: write a configuration for the rows and the model at hand.

configuration.py   the command: choose a stage and its settings, write the files
detection.py       recognize the format of rows and the properties of a model
lengths.py         token lengths of prompts and completions
sizes.py           batch, group and memory sizes
holdout.py         the held-out split
draft.py           the configuration text
starter.py         a tiny model that guesses among the rows' answers
tiny_model.py      its architecture and tokenizer, with random weights
templates/         configuration templates and example rows
"""
