"""Read recorded runs and show them. Writing a run is `assay.run`.

loaded.py                          a run's records, opened for reading
report.py, charts.py, template/    the HTML report
listing.py, table.py               the list of runs
compare_runs.py                    differences between two runs
rollouts.py, rollout_pages.py      recorded completions as text and as pages
trackers.py                        export of metrics to experiment trackers
"""
