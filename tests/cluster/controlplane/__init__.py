"""Starts, stops, kills and restarts the programs of a Kubernetes control plane and of gpuplane, on loopback, without
containers.

Used by the cluster tests, by `make cluster-up` and by `make bench-cluster`.
"""
