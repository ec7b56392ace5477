"""A make-believe Karpenter: NodeClaims and nodes for pods that wait, and none for nodes that nobody uses.

`pools` has the NodePools and what their instances have, `provisioner` chooses, `lifecycle` makes nodes step by step,
`disruption` takes empty ones away; `controller` runs them. As with the real one (v1.14), a pod's requests, selectors,
taints and anti-affinity decide, limits bound, an event says what is made for a pod or why nothing is, and
`karpenter.sh/do-not-disrupt` keeps a node. Left out: consolidation of nodes in use, drift, expiry, budgets.
Invariants: everything but what clouds lack at the moment follows from the store's objects, so a restart goes on.
"""
