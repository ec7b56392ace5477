"""Annotation, label and resource names that travel between gpuplane and the cluster.

Pure constants; every room may import them. What each one means is in docs/architecture.md.
"""

from typing import Final

GROUP: Final = "gpu.scheduling"
VERSION: Final = "v1"
API_VERSION: Final = f"{GROUP}/{VERSION}"

# GpuClaim dialect (written by users)
CLAIM: Final = "gpu.scheduling/claim"
# Device types of a pod that are to be under the same PCIe switch (written by users)
JOINT_ALLOCATE: Final = "scheduling.koordinator.sh/device-joint-allocate"
# Results (written by gpuplane in the Binding, never by users)
ALLOCATED: Final = "gpu.scheduling/allocated"
VISIBLE_DEVICES: Final = "gpu.scheduling/visible-devices"
# Which attempt at binding it was: <allocation>/<number>
ATTEMPT: Final = "gpu.scheduling/attempt"
# Instead of the two, in the Binding of a pod whose devices its node's kubelet chooses
CHOSEN_BY: Final = "gpu.scheduling/chosen-by"
KUBELET: Final = "kubelet"
KOORDINATOR_ALLOCATED: Final = "scheduling.koordinator.sh/device-allocated"
# Results of the dialects that later take part (guarded already, so that nobody plants one)
KAI_GPU_GROUP_LABEL: Final = "runai-gpu-group"
KAI_RESERVATION: Final = "run.ai/reserve_for_gpu_index"
HAMI_NODE: Final = "hami.io/vgpu-node"
HAMI_ALLOCATED: Final = "hami.io/vgpu-devices-allocated"
# HAMi also writes what it still has to allocate
HAMI_TO_ALLOCATE: Final = "hami.io/vgpu-devices-to-allocate"

# Nodes: who hands out their GPUs; without the label gpuplane does
MODE_LABEL: Final = "gpu.scheduling/mode"
MODE_EXCLUSIVE: Final = "exclusive"
MODE_DEVICE_PLUGIN: Final = "device-plugin"
CAPACITY_CHANGED: Final = "gpu.scheduling/capacity-changed"
MODEL_LABEL: Final = "gpu.scheduling/model"
# Resource names that gpuplane put into the node's status, so that it takes away only its own
ADVERTISED: Final = "gpu.scheduling/advertised"

# Namespaces whose new pods with devices are taken over from other schedulers, and pods there that are not
TAKEOVER: Final = "gpu.scheduling/takeover"
TAKEOVER_ENABLED: Final = "enabled"
TAKEOVER_DISABLED: Final = "disabled"

# Leases
SHARERS: Final = "gpu.scheduling/sharers"
SHARED_HOLDER: Final = "gpuplane/shares"

# Resource names
NATIVE_GPU: Final = "nvidia.com/gpu"
# Pods whose devices kube-scheduler does not count itself ask for one of these: by it its preemption counts them
PODS_RESOURCE: Final = "gpu.scheduling/pods"
KUBERNETES_PREFIX: Final = "kubernetes.io"
KOORDINATOR_PREFIX: Final = "koordinator.sh"

SCHEDULER_NAME: Final = "gpu-scheduler"
