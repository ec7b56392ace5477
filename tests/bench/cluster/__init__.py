"""Schedulers side by side on one real cluster: kube-scheduler alone, with DRA, with a constant extender, and with
gpuplane.

Run by `make bench-cluster`. What can be compared are figures of one run, and there of one round.
"""
