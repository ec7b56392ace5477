"""The program in a reservation pod: names the GPUs that the kubelet gave to the pod (SHARE-4).

`python -m agent.reserve` finds the UUIDs of its GPUs (`gpus`), writes them into the annotation
`run.ai/reserve_for_gpu_index` of its own pod (`pod`), sorted by PCI address, and sleeps. One of it runs for each shared
GPU of the fleet, so it is small: the standard library only, and nothing of the agent but this package.

Invariants:
- A UUID is written only if the driver shows it, and only as many as the pod was given; otherwise the program waits.
- Another pod of the same name is never changed.
- SIGTERM ends it at once, whatever it is doing, with exit code 0.
"""
