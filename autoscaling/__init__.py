"""Growth: nodes that Karpenter makes for pods that lack nothing but devices.

Pools are Karpenter's NodePools, with the shape of one of their nodes (`pools`); one loop (`loop`, `rounds/`)
plans, makes trigger pods, follows NodeClaims, and keeps what comes for those it was made for. Rules: docs/scaling.md.

Invariants:
- gpuplane never makes or deletes a node, a NodePool or a NodeClaim: it makes and deletes pods that Karpenter sees.
- Everything is in the database: any round starts from the rows and the cluster, whatever the last one did.
- One worker plans at a time; a worker that lost its lock changes no row of a plan (`rounds.fence`).
"""
