{{/* Names and labels. */}}
{{- define "gpuplane.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
{{- end }}

{{- define "gpuplane.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 50 | trimSuffix "-" }}
{{- else if contains (include "gpuplane.name" .) .Release.Name }}
{{- .Release.Name | trunc 50 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name (include "gpuplane.name" .) | trunc 50 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{/* ClusterRoles, webhook configurations and flow schemas share one space of names with other releases. */}}
{{- define "gpuplane.clusterName" -}}
{{- if eq .Release.Namespace "gpuplane-system" }}
{{- include "gpuplane.fullname" . }}
{{- else }}
{{- printf "%s-%s" .Release.Namespace (include "gpuplane.fullname" .) }}
{{- end }}
{{- end }}

{{- define "gpuplane.selector" -}}
app.kubernetes.io/name: {{ include "gpuplane.name" .root }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{- define "gpuplane.ownLabels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
app.kubernetes.io/name: {{ include "gpuplane.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/part-of: gpuplane
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{/*
Labels, each once. Takes root; optional: component, labels (those of the object). Our own win, by which selectors find
pods; then the object's; then commonLabels.
*/}}
{{- define "gpuplane.labels" -}}
{{- $own := include "gpuplane.ownLabels" .root | fromYaml }}
{{- with .component }}
{{- $_ := set $own "app.kubernetes.io/component" . }}
{{- end }}
{{- merge $own (.labels | default dict) .root.Values.commonLabels | toYaml }}
{{- end }}

{{/*
metadata of an object. Takes root, name; optional: namespaced (default true), namespace (default: the release's), component, labels,
annotations.
*/}}
{{- define "gpuplane.metadata" -}}
name: {{ .name }}
{{- if ne (toString .namespaced) "false" }}
namespace: {{ default .root.Release.Namespace .namespace }}
{{- end }}
labels:
  {{- include "gpuplane.labels" . | nindent 2 }}
{{- with merge (dict) (.annotations | default dict) .root.Values.commonAnnotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* repository, tag and digest of an image. */}}
{{- define "gpuplane.image" -}}
{{- if .digest }}
{{- printf "%s@%s" .repository .digest }}
{{- else }}
{{- printf "%s:%s" .repository .tag }}
{{- end }}
{{- end }}

{{/* Of reservation pods: the same unless another is given. */}}
{{- define "gpuplane.reservationImage" -}}
{{- $own := .Values.reservation.image }}
{{- if or $own.repository $own.tag $own.digest }}
{{- include "gpuplane.image" (dict "repository" (default .Values.image.repository $own.repository) "tag" (coalesce $own.tag .Values.image.tag .Chart.AppVersion) "digest" $own.digest) }}
{{- else }}
{{- include "gpuplane.ownImage" . }}
{{- end }}
{{- end }}

{{- define "gpuplane.ownImage" -}}
{{- $image := .Values.image }}
{{- include "gpuplane.image" (dict "repository" $image.repository "tag" (default .Chart.AppVersion $image.tag) "digest" $image.digest) }}
{{- end }}

{{/* Secrets: given, or ours. */}}
{{- define "gpuplane.databaseSecret" -}}
{{- default (printf "%s-connections" (include "gpuplane.fullname" .)) .Values.database.existingSecret }}
{{- end }}
{{- define "gpuplane.databaseSecretKey" -}}
{{- ternary .Values.database.existingSecretKey "database-url" (not (empty .Values.database.existingSecret)) }}
{{- end }}
{{- define "gpuplane.redisSecret" -}}
{{- default (printf "%s-connections" (include "gpuplane.fullname" .)) .Values.redis.existingSecret }}
{{- end }}
{{- define "gpuplane.redisSecretKey" -}}
{{- ternary .Values.redis.existingSecretKey "redis-url" (not (empty .Values.redis.existingSecret)) }}
{{- end }}
{{- define "gpuplane.adminSecret" -}}
{{- default (printf "%s-admin" (include "gpuplane.fullname" .)) .Values.admin.existingSecret }}
{{- end }}
{{- define "gpuplane.adminSecretKey" -}}
{{- ternary .Values.admin.existingSecretKey "password" (not (empty .Values.admin.existingSecret)) }}
{{- end }}
{{- define "gpuplane.keySecret" -}}
{{- default (printf "%s-secret-key" (include "gpuplane.fullname" .)) .Values.secretKey.existingSecret }}
{{- end }}
{{- define "gpuplane.keySecretKey" -}}
{{- ternary .Values.secretKey.existingSecretKey "secret-key" (not (empty .Values.secretKey.existingSecret)) }}
{{- end }}

{{/* The value kept in a Secret of ours, else a fresh random one. Takes root, name, key, length. Already in base64. */}}
{{- define "gpuplane.keptOrRandom" -}}
{{- $found := lookup "v1" "Secret" .root.Release.Namespace .name }}
{{- $kept := get (get ($found | default dict) "data" | default dict) .key }}
{{- $kept | default (randAlphaNum .length | b64enc) }}
{{- end }}

{{/* host:port of a listening address, with the brackets of IPv6. */}}
{{- define "gpuplane.listen" -}}
{{- ternary (printf "[%s]:%d" .host (int .port)) (printf "%s:%d" .host (int .port)) (contains ":" .host) }}
{{- end }}

{{- define "gpuplane.extenderPort" -}}
{{- regexReplaceAll "^.*:" .Values.scheduler.extender.listen "" }}
{{- end }}

{{/* "true" where the extender listener can be reached from outside the pod. */}}
{{- define "gpuplane.extenderOpen" -}}
{{- $host := .Values.scheduler.extender.listen | trimPrefix "https://" | trimPrefix "http://" | regexFind "^.*:" | trimSuffix ":" }}
{{- if not (or (eq $host "localhost") (hasPrefix "127." $host) (eq $host "[::1]")) }}true{{ end }}
{{- end }}

{{- define "gpuplane.extenderUrl" -}}
{{- default (printf "http://127.0.0.1:%s/extender" (include "gpuplane.extenderPort" .)) .Values.scheduler.extender.urlPrefix }}
{{- end }}

{{/*
Feature gates of kube-scheduler. With asynchronous preemption a pod whose victim ends in the very moment in which it is chosen (another preemptor had it
evicted) misses the event and waits for five minutes, or for some other pod to end. Versions that do not know the gate refuse it.
*/}}
{{- define "gpuplane.schedulerGates" -}}
{{- $tag := .Values.scheduler.image.tag }}
{{- if and (regexMatch "^v?[0-9]+[.][0-9]+[.][0-9]+" $tag) (semverCompare ">=1.33.0-0 <1.37.0-0" $tag) -}}
SchedulerAsyncPreemption=false
{{- end }}
{{- end }}
