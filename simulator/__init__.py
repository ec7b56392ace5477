"""A simulated cluster: nodes, agents and workload that call gpuplane over HTTP as a real cluster would.

In come gpuplane's answers, out go inventories, frames, admission reviews, filters and binds. Started by `make run` as
`python -m simulator`; imported by nothing. Invariants: no Django, and nothing of gpuplane but the agents' and runners'
modules and the names in `kube`; pods go the whole way of real ones, and every policy and way of sharing occurs.
"""
