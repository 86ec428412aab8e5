"""Client of OpenAI-compatible servers, used by judges, teachers, the router and data collection.

http_client.py  HTTP: one deadline for a request, bounded replies, retries, one error
client.py       chat completions: dialects of servers, budget, cost
costs.py        requests, tokens and money by model, and budgets
replies.py      parsing of a judge's JSON reply
settings.py     options from the configuration and the environment
"""
