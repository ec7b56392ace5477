"""The only door to the Kubernetes API: client, manifests, CRDs, watches, typed errors.

Also home of the formats that Kubernetes defines and every room speaks (quantities, names,
annotation keys, the few fields of a Pod that we read); those modules import no network code.
"""
