"""Preemption: a node refuses a pod in kube-scheduler's own terms, so that its preemption finds whom to evict there.

kube-scheduler looks for victims by what it counts itself. A pod that asks by GpuClaim passes all of its filters and is
refused by the extender alone, so it would never evict anybody. Therefore such a pod asks for one `gpu.scheduling/pods`
too (`claims.admission.counted`). Nodes have plenty of them, until filter refuses a pod everywhere and the engine finds
a node where less important pods could give it their devices: that node is reserved, and advertises as many as pods have
them there now. So kube-scheduler refuses it, offers the least important pod as a victim, and the preempt verb answers
with those whose devices are needed.

`reservations` keeps what is reserved for whom, `candidates` reads who could go, `nominate` is filter's part and
`preempt_response` the verb's; `node_check` checks one node. Invariants: a pod that is placed takes no step of this; a
reservation ends by time alone when whoever made it has died; a node never advertises less than its pods have, so a
kubelet turns nobody away; what is reserved is kept by every process and every verb that takes devices.
"""

from allocations.scheduling.preemption.candidates import held_by
from allocations.scheduling.preemption.nominate import begin
from allocations.scheduling.preemption.preempt_response import answer
from allocations.scheduling.preemption.reservations import Preemptor, end_stale, has_reservation, pod_bound, pod_gone

__all__ = ["Preemptor", "answer", "begin", "end_stale", "has_reservation", "held_by", "pod_bound", "pod_gone"]
