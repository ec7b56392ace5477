{{/*
Who may come to the webhook listener, as JSON: what networkPolicy.webhookFrom says; where that is null the API server, at the addresses that the
cluster has: the endpoints of the Service `kubernetes`, and of the nodes among them those of the overlay networks of Calico and flannel, by
which such a node comes to a pod. A provider's API server that comes through konnectivity's agents comes as one of their pods. Empty, for
everybody: without a cluster to ask (helm template), with Cilium, where a policy of addresses matches no node, and where those agents are on
their nodes' network.
*/}}
{{- define "gpuplane.webhookFrom" -}}
{{- $from := .Values.networkPolicy.webhookFrom }}
{{- if kindIs "slice" $from }}
{{- $from | toJson }}
{{- else }}
{{- $blocks := list }}
{{- range include "gpuplane.apiServerAddresses" . | fromJsonArray }}
{{- $blocks = append $blocks (dict "ipBlock" (dict "cidr" (printf "%s/%s" . (ternary "128" "32" (contains ":" .))))) }}
{{- end }}
{{- if $blocks }}
{{- range $kind := list "Deployment" "DaemonSet" }}
{{- with lookup "apps/v1" $kind "kube-system" "konnectivity-agent" }}
{{- $kubeSystem := dict "matchLabels" (dict "kubernetes.io/metadata.name" "kube-system") }}
{{- $blocks = ternary list (append $blocks (dict "namespaceSelector" $kubeSystem "podSelector" .spec.selector)) (default false .spec.template.spec.hostNetwork) }}
{{- end }}
{{- end }}
{{- end }}
{{- $blocks | toJson }}
{{- end }}
{{- end }}

{{/* Addresses from which the API server comes, sorted, as JSON; none where they cannot be known. Remembered for the time of one rendering. */}}
{{- define "gpuplane.apiServerAddresses" -}}
{{- if not (hasKey .Values "_apiServerAddresses") }}
{{- $addresses := list }}
{{- if not (.Capabilities.APIVersions.Has "cilium.io/v2") }}
{{- $slices := lookup "discovery.k8s.io/v1" "EndpointSlice" "default" "" | default dict }}
{{- range get $slices "items" | default list }}
{{- if eq (get (.metadata.labels | default dict) "kubernetes.io/service-name" | default "") "kubernetes" }}
{{- range .endpoints | default list }}{{ $addresses = concat $addresses .addresses }}{{ end }}
{{- end }}
{{- end }}
{{- if $addresses }}
{{- range get (lookup "v1" "Node" "" "" | default dict) "items" | default list }}
{{- $here := false }}
{{- range .status.addresses | default list }}{{ if has .address $addresses }}{{ $here = true }}{{ end }}{{ end }}
{{- if $here }}
{{- range .status.addresses | default list }}
{{- if eq .type "InternalIP" }}{{ $addresses = append $addresses .address }}{{ end }}
{{- end }}
{{- $annotations := .metadata.annotations | default dict }}
{{- range list "projectcalico.org/IPv4VXLANTunnelAddr" "projectcalico.org/IPv4IPIPTunnelAddr" "projectcalico.org/IPv6VXLANTunnelAddr" }}
{{- with get $annotations . }}{{ $addresses = append $addresses . }}{{ end }}
{{- end }}
{{- if hasKey $annotations "flannel.alpha.coreos.com/backend-type" }}
{{- range .spec.podCIDRs | default list }}{{ $addresses = append $addresses (regexReplaceAll "/.*$" . "") }}{{ end }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
{{- $_ := set .Values "_apiServerAddresses" ($addresses | uniq | sortAlpha | toJson) }}
{{- end }}
{{- get .Values "_apiServerAddresses" }}
{{- end }}
