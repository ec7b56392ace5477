{{/*
What each process may do at the API server beside the Leases of rbac.yaml. Each rule names the code that needs it;
tests/cluster/test_chart_rights.py asks the API server for each, and for what none may do.
*/}}

{{/* Listeners, pages and REST: decides, binds, guards, passes claims on, and asks whose an agent's token is. */}}
{{- define "gpuplane.rights.web" -}}
# kube/pods.py: bind and preempt, the guard of Bindings, explanations, evictions by REST; a node's pods where some have just ended
- apiGroups: [""]
  resources: [pods]
  verbs: [get, list]
# allocations/bindings.py: a bind that is given up shuts out its Bindings that may come late; a resized share's results
- apiGroups: [""]
  resources: [pods]
  verbs: [patch]
# bind; release with evict=true
- apiGroups: [""]
  resources: [pods/binding, pods/eviction]
  verbs: [create]
# kube/volumes.py: whether kube-scheduler has to wait between filter and bind, for pods that name such claims
- apiGroups: [""]
  resources: [persistentvolumeclaims]
  verbs: [get, list]
- apiGroups: [storage.k8s.io]
  resources: [storageclasses]
  verbs: [list]
- apiGroups: [resource.k8s.io]
  resources: [resourceclaims]
  verbs: [get, list]
# kube/requeue_notify.py: an annotation of ours; allocations/scheduling/preemption: the amount of gpu.scheduling/pods
- apiGroups: [""]
  resources: [nodes]
  verbs: [list, patch]
- apiGroups: [""]
  resources: [nodes/status]
  verbs: [patch]
# claims/cluster_store.py: claims, gangs and queues over REST go through to the API server
- apiGroups: [gpu.scheduling]
  resources: [gpuclaims, gpugangs, gpuqueues]
  verbs: [get, create, patch, delete]
# gpuplane/listeners/agent_tokens.py: whose token an agent's is
- apiGroups: [authentication.k8s.io]
  resources: [tokenreviews]
  verbs: [create]
# gpuplane/start/definitions.py: waits until our definitions are served
- apiGroups: [apiextensions.k8s.io]
  resources: [customresourcedefinitions]
  verbs: [get, list, watch{{ if .Values.rbac.createDefinitions }}, create{{ end }}]
{{- end }}

{{/* Collection, reconciling, what is published; `manage.py reconcile` and `takeover` run in its pod. */}}
{{- define "gpuplane.rights.worker" -}}
# kube/pods.py: collection, reconciling
- apiGroups: [""]
  resources: [pods]
  verbs: [get, list]
# allocations/bindings.py: a bind that is given up shuts out its Bindings that may come late; a resized share's results
- apiGroups: [""]
  resources: [pods]
  verbs: [patch]
# allocations/reconcile/sweep.py: Bindings sent again until an answer is definite; the end of ttlSeconds
- apiGroups: [""]
  resources: [pods/binding, pods/eviction]
  verbs: [create]
# allocations/publish/pending_events.py, allocations/reconcile/sweep.py: why a pod waits, or was evicted
- apiGroups: [""]
  resources: [events]
  verbs: [create]
# nodes/advertise.py, kube/requeue_notify.py: annotations, labels and amounts of our own names
- apiGroups: [""]
  resources: [nodes]
  verbs: [get, list, patch]
- apiGroups: [""]
  resources: [nodes/status]
  verbs: [patch]
# allocations/waiting.py reads the claim of a pod that waits; allocations/publish writes the status
- apiGroups: [gpu.scheduling]
  resources: [gpuclaims]
  verbs: [get]
- apiGroups: [gpu.scheduling]
  resources: [gpuclaims/status, gpugangs/status, gpuqueues/status]
  verbs: [patch]
# nodes/device_objects.py: one object a node
- apiGroups: [scheduling.koordinator.sh]
  resources: [devices]
  verbs: [list, create, patch, delete]
# allocations/publish/node_statuses.py: one object a node
- apiGroups: [gpu.scheduling]
  resources: [gpunodestatuses]
  verbs: [list, create, delete]
- apiGroups: [gpu.scheduling]
  resources: [gpunodestatuses/status]
  verbs: [patch]
# manage.py takeover --check: which namespaces are taken over, and which webhooks are in place
- apiGroups: [""]
  resources: [namespaces]
  verbs: [list]
- apiGroups: [admissionregistration.k8s.io]
  resources: [mutatingwebhookconfigurations, validatingwebhookconfigurations]
  verbs: [list]
{{- end }}

{{/* Follows pods, nodes, claims and events; compares everything where a watch has lost its place. Binds nothing. */}}
{{- define "gpuplane.rights.watch" -}}
# allocations/watching.py, allocations/reconcile
- apiGroups: [""]
  resources: [pods]
  verbs: [get, list, watch]
# allocations/scheduling/queueing: takes its gates off pods that it admits, and has others evicted for them
- apiGroups: [""]
  resources: [pods]
  verbs: [patch]
- apiGroups: [""]
  resources: [pods/eviction]
  verbs: [create]
# kube/volumes.py: how long a hold of a pod lasts that is admitted
- apiGroups: [""]
  resources: [persistentvolumeclaims]
  verbs: [get, list]
- apiGroups: [storage.k8s.io]
  resources: [storageclasses]
  verbs: [list]
- apiGroups: [resource.k8s.io]
  resources: [resourceclaims]
  verbs: [get, list]
# allocations/watching.py: kube-scheduler's events, by which a hold ends with its attempt
- apiGroups: [""]
  resources: [events]
  verbs: [list, watch]
# autoscaling/rounds/pod_events.py: which node a pod waits for
- apiGroups: [""]
  resources: [events]
  verbs: [create]
# autoscaling/watching.py: Karpenter's objects, of which gpuplane writes none
- apiGroups: [karpenter.sh]
  resources: [nodepools]
  verbs: [list, watch]
- apiGroups: [karpenter.sh]
  resources: [nodeclaims]
  verbs: [get, list, watch]
# nodes/watching.py; nodes/advertise.py and kube/requeue_notify.py, as reconciling does it
- apiGroups: [""]
  resources: [nodes]
  verbs: [get, list, watch, patch]
- apiGroups: [""]
  resources: [nodes/status]
  verbs: [patch]
# claims/watching.py
- apiGroups: [gpu.scheduling]
  resources: [gpuclaims, gpugangs, gpuqueues]
  verbs: [get, list, watch]
{{- end }}

{{/* Agents alone. */}}
{{- define "gpuplane.rights.telemetry" -}}
# gpuplane/listeners/agent_tokens.py: whose token an agent's is
- apiGroups: [authentication.k8s.io]
  resources: [tokenreviews]
  verbs: [create]
{{- end }}
