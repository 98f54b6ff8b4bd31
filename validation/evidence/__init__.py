"""How good the answers are: claims with goals, each checked by a study, all in one table (`python -m sizing validate`).

`claim` is the form of a study: cases, an answer to each, rows of the table. `largest_rate`, `gpu_counts` and `coverage`
ask the product questions whose truth is simulated; `theory` asks the simulator questions whose answer is known exactly.
"""
