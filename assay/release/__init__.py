"""Publication of trained models: export, merge, lineage, model card, upload.

export.py       Writes a checkpoint as a Hugging Face folder or a GGUF file.
merge.py        Combines the weights of several models.
lineage.py      Lists the runs, verifiers and base model from which a checkpoint was made.
model_card.py   Writes the model card from the records of a run.
publish.py      Uploads a model to the Hugging Face Hub.
"""
