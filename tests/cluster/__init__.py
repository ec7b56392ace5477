"""A real control plane on loopback: kube-apiserver, etcd, kube-scheduler, kube-controller-manager and KWOK.

Run by `make cluster-test`; `make test` does not come here. `controlplane` starts and stops the programs, `invariants`
compares from outside what gpuplane believes with what the cluster holds.
"""
