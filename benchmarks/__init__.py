"""How fast it is, measured against the machine's own limits: `python -m benchmarks`.

A benchmark compares one way of doing a job with a plain way of moving the same bytes. Both run in
turn in one process, round by round, so that whatever else the machine does meets both; the ratio
is taken within each round. benchmarks/results/README.md holds the figures.
"""
