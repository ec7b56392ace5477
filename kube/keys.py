"""Names of annotations, labels and resources, explained in docs/architecture.md."""

from typing import Final

GROUP: Final = "gpu.scheduling"
VERSION: Final = "v1"
API_VERSION: Final = f"{GROUP}/{VERSION}"

# GpuClaim dialect (written by users)
CLAIM: Final = "gpu.scheduling/claim"
# Device types of a pod to take from under the same PCIe switch (written by users)
JOINT_ALLOCATE: Final = "scheduling.koordinator.sh/device-joint-allocate"
# How the shares of a pod are kept to their amounts (written by users)
ISOLATION: Final = "gpu.scheduling/isolation"
# Queues and gangs (labels, written by users)
QUEUE_LABEL: Final = "gpu.scheduling/queue"
GANG_LABEL: Final = "gpu.scheduling/gang"
PREEMPTIBLE_LABEL: Final = "gpu.scheduling/preemptible"
BORROW_IDLE_LABEL: Final = "gpu.scheduling/borrow-idle"
KAI_QUEUE_LABEL: Final = "kai.scheduler/queue"
KAI_PREEMPTIBILITY_LABEL: Final = "kai.scheduler/preemptibility"
# Nodes that Karpenter made: its NodePool
NODEPOOL_LABEL: Final = "karpenter.sh/nodepool"
# Trigger pods, and nodes that they keep off
COMPONENT_LABEL: Final = "gpu.scheduling/component"
TRIGGER: Final = "trigger"
# Pods that are slots of models, and the id of the slot
SLOT: Final = "slot"
SLOT_LABEL: Final = "gpu.scheduling/slot"
IN_USE_LABEL: Final = "gpu.scheduling/in-use"
# The scheduling gate of pods that queues admit
QUEUE_GATE: Final = "gpu.scheduling/queue"
# Results (written by gpuplane in the Binding, never by users)
ALLOCATED: Final = "gpu.scheduling/allocated"
VISIBLE_DEVICES: Final = "gpu.scheduling/visible-devices"
# The values of the variables that keep a share to its amounts
ISOLATION_THREADS: Final = "gpu.scheduling/isolation-threads"
ISOLATION_MEMORY: Final = "gpu.scheduling/isolation-memory"
# The attempt at binding: <allocation>/<number>
ATTEMPT: Final = "gpu.scheduling/attempt"
# Instead of the first two, where the kubelet chooses the devices
CHOSEN_BY: Final = "gpu.scheduling/chosen-by"
KUBELET: Final = "kubelet"
KOORDINATOR_ALLOCATED: Final = "scheduling.koordinator.sh/device-allocated"
KAI_GPU_GROUP_LABEL: Final = "runai-gpu-group"
KAI_RESERVATION: Final = "run.ai/reserve_for_gpu_index"
HAMI_NODE: Final = "hami.io/vgpu-node"
HAMI_ALLOCATED: Final = "hami.io/vgpu-devices-allocated"
HAMI_TO_ALLOCATE: Final = "hami.io/vgpu-devices-to-allocate"

# Nodes: their names, by the kubelet
HOSTNAME_LABEL: Final = "kubernetes.io/hostname"
# Nodes: who allocates their GPUs; gpuplane without the label
MODE_LABEL: Final = "gpu.scheduling/mode"
MODE_EXCLUSIVE: Final = "exclusive"
MODE_DEVICE_PLUGIN: Final = "device-plugin"
CAPACITY_CHANGED: Final = "gpu.scheduling/capacity-changed"
MODEL_LABEL: Final = "gpu.scheduling/model"
# Resource names that gpuplane added to the node's status, and may remove
ADVERTISED: Final = "gpu.scheduling/advertised"

# Namespaces whose new pods with devices are taken over from other schedulers, and exempt pods
TAKEOVER: Final = "gpu.scheduling/takeover"
TAKEOVER_ENABLED: Final = "enabled"
TAKEOVER_DISABLED: Final = "disabled"

# Objects that gpuplane creates
MANAGED_BY: Final = "app.kubernetes.io/managed-by"
MANAGER: Final = "gpuplane"

# Leases
SHARERS: Final = "gpu.scheduling/sharers"
SHARED_HOLDER: Final = "gpuplane/shares"

# Resource names
NATIVE_GPU: Final = "nvidia.com/gpu"
# Instead of nvidia.com/gpu of HAMi's pods on nodes whose device plugin would give them GPUs for that name
VGPU: Final = "gpu.scheduling/vgpu"
# Prefix of MIG profiles: nvidia.com/mig-1g.10gb
MIG_RESOURCES: Final = "nvidia.com/mig-"
# Set to 1 on pods whose devices kube-scheduler does not count itself, for its preemption
PODS_RESOURCE: Final = "gpu.scheduling/pods"
KUBERNETES_PREFIX: Final = "kubernetes.io"
KOORDINATOR_PREFIX: Final = "koordinator.sh"

SCHEDULER_NAME: Final = "gpu-scheduler"
