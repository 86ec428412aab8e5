"""Readers of recorded runs: reports, lists, comparisons, the viewer. `assay.run` writes runs.

loaded.py, table.py                  The records of a run, loaded into tables.
report.py, charts.py, template/      The HTML report of a run.
listing.py                           The list of runs.
compare_runs.py                      Differences between runs.
rollout_index.py, selection.py       Index, filters and orders of recorded rollouts.
rollouts.py, rollout_pages.py        Recorded rollouts as text and as HTML.
viewer/                              The local web viewer.
alerts.py, alert_sender.py            Messages about a run: webhook, e-mail, command.
trackers.py                          Export of metrics to experiment trackers.
"""
