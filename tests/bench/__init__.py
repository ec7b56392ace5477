"""`make bench`: how long the hot paths take, each figure beside the floor measured in the same run.

`serving` is the product's web process with a floor beside it; `wire` the client; `bodies` and `fleets`
what is asked and of what; `over_http` and `in_process` measure; `figures` prints. Read docs/benchmarks.md.
"""
