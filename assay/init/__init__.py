"""`assay init`: write a configuration for a user's rows and model.

configuration.py   the command: choose a stage and its settings, write the files
detection.py       detect the format of rows and the properties of a model
lengths.py         estimate token lengths of prompts and completions
sizes.py           choose batch sizes, group sizes and memory settings
holdout.py         split rows into training and held-out rows
draft.py           collect the lines of the configuration file
starter.py         create a tiny model that guesses among the rows' answers
tiny_model.py      create a tiny model with random weights, and its tokenizer
templates/         configuration templates and example rows
"""
