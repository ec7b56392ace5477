"""Making way: a node that kube-scheduler would let everybody on refuses a pod, so that its preemption finds whom to evict there (DESIGN §4).

kube-scheduler looks for victims by what it counts itself. A pod that asks by GpuClaim passes all of its filters and is refused by ours alone,
so it would never evict anybody. Therefore such a pod asks for one `gpu.scheduling/pods` too (`claims.admission.counted`). Nodes have plenty of them,
until filter refuses a pod everywhere and the engine finds a node where less important pods could give it their devices: that node
advertises as many as pods have them there now, so kube-scheduler refuses it, offers the least important pod as a victim, and our
preempt verb puts those in its place whose devices are needed.

`promises` keeps who is promised what, `holders` reads who could go, `beginning` is filter's part and `answering` the verb's. Kept true: nothing of
this is on the way of a pod that is placed; a promise ends by time alone when whoever made it has died; a node never advertises less than its
pods have, so a kubelet turns nobody away; what is promised is kept by every process and every verb that takes devices.
"""

from allocations.making_way.answering import Answer, Preemptor, answer
from allocations.making_way.beginning import begin
from allocations.making_way.promises import gone, is_promised, served, tidy

__all__ = [
    "Answer",
    "Preemptor",
    "answer",
    "begin",
    "gone",
    "is_promised",
    "served",
    "tidy",
]
