"""A make-believe cluster: nodes, agents and workload that call gpuplane's doors over HTTP as a cluster would.

Started by `make run` as `python -m simulator`. No Django, and nothing of gpuplane but the agents'
protocol and the cluster's names: what works here works from outside.
"""
