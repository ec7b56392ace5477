"""Thousands of agents into one web process, and one agent by itself.

`crowd` is the process that makes the load and looks at the fleet as browsers do, `frames` the bytes that it sends,
`sight` what a browser sees and how old it is; `minute` is the worker's roll-up in a process of its own; `measuring`
puts them together, `alone` measures the agent.
"""
