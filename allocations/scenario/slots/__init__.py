"""Models, runners, slots and requests of a scenario: read, planned, and told.

`parse.read_inference` for `allocations.scenario.parse`, `run.Inferred` for `allocations.scenario.run`, `told` for text
and page. The plan is `allocations.engine.slots`.
"""
