"""Reservation pods: GPUs of nodes in mode device-plugin, taken from the kubelet for pods of gpuplane (SHARE-3 to 7).

`steps` are the steps of binds and releases, `pod_watch` the watch that binds wait by, `settle` follows what becomes of
groups: reservation pods that die, groups that nobody has any more, pods without a group. In come reservations of the
ledger, out go reservation pods and the GPUs that they reported. Called by `scheduling.binder`, `reconcile` and the
watch of pods.

Invariants: running pods are never touched; a reservation pod is made only for a group of the ledger and deleted only
under its uid; every step may be repeated, and a process that is killed between two leaves rows from which others go on.
"""
