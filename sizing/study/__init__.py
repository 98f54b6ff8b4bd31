"""Studies of thousands of questions: on every core of this machine, or on a Dask cluster, with the same results.

Read `machines` first: work, items and their seeds go in, results come out in the order of the items. `scenarios`,
`answers` and `table` are the study file and its results, `replications` splits a long simulation, `command` is the
command line. Nothing is imported here: a worker process loads what its work needs.
"""
