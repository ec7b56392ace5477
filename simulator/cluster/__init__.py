"""The simulated cluster's API server: objects, watches and tokens behind the HTTP of Kubernetes.

gpuplane calls it as it calls any cluster; the simulator's own scheduler, kubelets, Karpenter and users read and write
the store in this process. Invariants: what gpuplane depends on is as in kube-apiserver (one counter of
resourceVersions, preconditions, 409 for a stale write, a Binding that merges its metadata into the pod, status apart
from spec, 410 for a version that is too old); objects survive a restart. Left out: admission (`simulator.admission`
does it), validation by schema, finalizers, owners, strategic merge patches.
"""
