"""Publish a trained model: export, merge, lineage, model card, upload.

export.py       write a checkpoint as a standalone Hugging Face folder
merge.py        combine the weights of several models
lineage.py      the chain of runs and data that a model came from
model_card.py   the model card, written from the run's records
publish.py      upload to a hub
"""
