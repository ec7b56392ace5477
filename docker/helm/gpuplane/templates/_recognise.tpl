{{/*
CEL over a pod: whether it concerns gpuplane. Made of files/recognised.yaml, so that the names stand in one place.
Every field that may be absent is asked for as an optional: an expression that fails would refuse the pod.
*/}}
{{- define "gpuplane.cel.strings" -}}
{{- $quoted := list }}
{{- range . }}{{ $quoted = append $quoted (printf "'%s'" .) }}{{ end -}}
[{{ join ", " $quoted }}]
{{- end }}

{{/* Asks for devices: by an annotation, or by a resource of any container. What is asked for with quantity 0 is not asked for. */}}
{{- define "gpuplane.cel.asks" -}}
{{- $names := .Files.Get "files/recognised.yaml" | fromYaml -}}
object.metadata.?annotations.orValue({}).exists(key, key in {{ include "gpuplane.cel.strings" $names.askingAnnotations }})
|| (object.spec.containers + object.spec.?initContainers.orValue([])).exists(one,
  [one.?resources.?limits.orValue({}), one.?resources.?requests.orValue({})].exists(amounts,
    amounts.exists(name, amounts[name] != '0' && (name in {{ include "gpuplane.cel.strings" $names.resources }}
      {{- range $names.resourceStarts }} || name.startsWith('{{ . }}'){{ end }}))))
{{- end }}

{{/* This update adds an annotation that asks for devices. */}}
{{- define "gpuplane.cel.asksAnew" -}}
{{- $names := .Files.Get "files/recognised.yaml" | fromYaml -}}
object.metadata.?annotations.orValue({}).exists(key, key in {{ include "gpuplane.cel.strings" $names.askingAnnotations }}
  && !(key in oldObject.metadata.?annotations.orValue({})))
{{- end }}

{{/* Names gpuplane's scheduler, or asks in a way that nobody else understands. */}}
{{- define "gpuplane.cel.isOurs" -}}
object.spec.?schedulerName.orValue('') == '{{ .Values.scheduler.name }}'
|| 'gpu.scheduling/claim' in object.metadata.?annotations.orValue({})
{{- end }}

{{/* Has a container that takes of the resource by which pods with devices are counted. */}}
{{- define "gpuplane.cel.isCounted" -}}
{{- $names := .Files.Get "files/recognised.yaml" | fromYaml -}}
(object.spec.containers + object.spec.?initContainers.orValue([])).exists(one,
  [one.?resources.?limits.orValue({}), one.?resources.?requests.orValue({})].exists(amounts,
    amounts.exists(name, amounts[name] != '0' && name == '{{ $names.counted }}')))
{{- end }}

{{/* Whether `key` is the result of an allocation. Takes root and prefix: of those only that begin so. */}}
{{- define "gpuplane.cel.isResult" -}}
{{- $results := (.root.Files.Get "files/recognised.yaml" | fromYaml).results -}}
{{- $prefix := .prefix }}
{{- $exact := list }}
{{- range $results.exact }}{{ if hasPrefix $prefix . }}{{ $exact = append $exact . }}{{ end }}{{ end -}}
(key in {{ include "gpuplane.cel.strings" $exact }}
{{- range $results.starts }}{{ if hasPrefix $prefix . }} || key.startsWith('{{ . }}'){{ end }}{{ end }}
{{- if hasPrefix $prefix $results.framed.start }}
{{- range $results.framed.ends }} || (key.startsWith('{{ $results.framed.start }}') && key.endsWith('{{ . }}')){{ end }}
{{- end }})
{{- end }}

{{/* Carries a result among its annotations or labels. Takes root and prefix. */}}
{{- define "gpuplane.cel.carriesResult" -}}
[object.metadata.?annotations.orValue({}), object.metadata.?labels.orValue({})].exists(written,
  written.exists(key, {{ include "gpuplane.cel.isResult" . }}))
{{- end }}

{{/* This update touches an annotation or a label. Few do, and to look at each key costs the API server ten times as much. */}}
{{- define "gpuplane.cel.touchesMetadata" -}}
(object.metadata.?annotations.orValue({}) != oldObject.metadata.?annotations.orValue({})
 || object.metadata.?labels.orValue({}) != oldObject.metadata.?labels.orValue({}))
{{- end }}

{{/* A result is set, changed or taken away by this update. Takes root and prefix. */}}
{{- define "gpuplane.cel.changesResult" -}}
[[object.metadata.?annotations.orValue({}), oldObject.metadata.?annotations.orValue({})],
 [object.metadata.?labels.orValue({}), oldObject.metadata.?labels.orValue({})]].exists(pair,
  pair[0].exists(key, {{ include "gpuplane.cel.isResult" . }} && !(key in pair[1] && pair[1][key] == pair[0][key]))
  || pair[1].exists(key, {{ include "gpuplane.cel.isResult" . }} && !(key in pair[0])))
{{- end }}
