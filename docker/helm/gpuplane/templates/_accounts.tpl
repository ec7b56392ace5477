{{/*
ServiceAccounts: one a process, so that each may do what it does and no more. web's is that of `serviceAccount`; the others are called
after it. Agents and beat have one without rights, and pods that get no token of it.
*/}}
{{- define "gpuplane.serviceAccountName" -}}
{{- if .Values.serviceAccount.create }}
{{- default (include "gpuplane.fullname" .) .Values.serviceAccount.name }}
{{- else }}
{{- required "serviceAccount.name: which one, when serviceAccount.create is false?" .Values.serviceAccount.name }}
{{- end }}
{{- end }}

{{/* Of one process. Takes root, component. */}}
{{- define "gpuplane.accountOf" -}}
{{- $own := include "gpuplane.serviceAccountName" .root }}
{{- ternary $own (printf "%s-%s" $own .component) (eq .component "web") }}
{{- end }}

{{/* The processes that ask the API server for something, as JSON. */}}
{{- define "gpuplane.askingComponents" -}}
{{- $components := list "web" "worker" "watch" }}
{{- if .Values.telemetry.replicas }}{{ $components = append $components "telemetry" }}{{ end }}
{{- $components | toJson }}
{{- end }}

{{/* The user names under which gpuplane binds pods and writes results, as JSON: no other process does. */}}
{{- define "gpuplane.users" -}}
{{- $users := list }}
{{- range list "web" "worker" }}
{{- $users = append $users (printf "system:serviceaccount:%s:%s" $.Release.Namespace (include "gpuplane.accountOf" (dict "root" $ "component" .))) }}
{{- end }}
{{- $users | toJson }}
{{- end }}
