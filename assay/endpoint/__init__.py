"""Client of OpenAI-compatible servers, used by judges, teachers, the router and data collection.

client.py     requests with retries and deadlines
costs.py      requests, tokens and money by model, and budgets
replies.py    parsing of a judge's JSON reply
settings.py   options from the configuration and the environment
"""
