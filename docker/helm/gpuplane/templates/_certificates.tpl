{{/* Certificates of the TLS listeners. */}}
{{- define "gpuplane.tlsSecret" -}}
{{- default (printf "%s-tls" (include "gpuplane.fullname" .)) .Values.certificates.existingSecret }}
{{- end }}

{{/* Whether helm makes them: "true" or nothing. */}}
{{- define "gpuplane.tlsGenerated" -}}
{{- if not (or .Values.certificates.existingSecret .Values.certificates.certManager.enabled) }}true{{ end }}
{{- end }}

{{/* The names that the API server, schedulers in other pods, agents, Prometheus and a port-forward ask under, as JSON. */}}
{{- define "gpuplane.tlsNames" -}}
{{- $namespace := .Release.Namespace }}
{{- $fullname := include "gpuplane.fullname" . }}
{{- $names := list }}
{{- range $name := list $fullname (printf "%s-telemetry" $fullname) }}
{{- $names = concat $names (list (printf "%s.%s.svc" $name $namespace) (printf "%s.%s.svc.cluster.local" $name $namespace) (printf "%s.%s" $name $namespace) $name) }}
{{- end }}
{{- concat $names (list "localhost") .Values.certificates.extraNames | uniq | toJson }}
{{- end }}

{{/* Of the main listener: also the name of its port. */}}
{{- define "gpuplane.scheme" -}}
{{- ternary "https" "http" .Values.web.tls }}
{{- end }}

{{/*
Where clients in the cluster have the CA of the main listener from, as kind and name: a ConfigMap of ours (ca.crt), or, where cert-manager alone
knows it, the Secret of a certificate that is for nothing. Never the Secret of the listeners: whoever may mount that has their key.
*/}}
{{- define "gpuplane.caSource" -}}
{{- $own := and .Values.certificates.certManager.enabled (not .Values.certificates.existingSecret) (not .Values.certificates.caBundle) }}
{{- dict "kind" (ternary "secret" "configMap" $own) "name" (printf "%s-ca-%s" (include "gpuplane.fullname" .) (ternary "holder" "bundle" $own)) | toJson }}
{{- end }}

{{/* The volume `ca` of a client, with ca.crt. */}}
{{- define "gpuplane.caVolume" -}}
{{- $source := include "gpuplane.caSource" . | fromJson -}}
- name: ca
  {{- if eq $source.kind "secret" }}
  secret:
    secretName: {{ $source.name }}
    defaultMode: 0444
  {{- else }}
  configMap:
    name: {{ $source.name }}
  {{- end }}
    items: [{key: ca.crt, path: ca.crt}]
{{- end }}

{{/* tlsConfig of Prometheus' objects. Takes root, serverName. */}}
{{- define "gpuplane.scrapeTls" -}}
{{- $source := include "gpuplane.caSource" .root | fromJson -}}
tlsConfig:
  serverName: {{ .serverName }}
  ca:
    {{ $source.kind }}: {name: {{ $source.name }}, key: ca.crt}
{{- end }}

{{/* The CA as PEM, where it is known while rendering. */}}
{{- define "gpuplane.caPem" -}}
{{- if .Values.certificates.caBundle }}
{{- .Values.certificates.caBundle }}
{{- else if .Values.certificates.existingSecret }}
{{- required "certificates.caBundle: the CA of certificates.existingSecret, as PEM" .Values.certificates.caBundle }}
{{- else }}
{{- (include "gpuplane.tlsPair" . | fromJson).ca | b64dec }}
{{- end }}
{{- end }}

{{/*
ca.crt, tls.crt and tls.key in base64 and their annotations, as JSON. The Secret that is there is kept while its names are
the right ones and its end is far. Remembered for the time of one rendering: Secret and webhooks must show the same CA.
*/}}
{{- define "gpuplane.tlsPair" -}}
{{- if not (hasKey .Values "_tlsPair") }}
{{- $names := include "gpuplane.tlsNames" . | fromJsonArray }}
{{- $annotations := dict "gpu.scheduling/certificate-for" (join "," $names) }}
{{- $found := lookup "v1" "Secret" .Release.Namespace (include "gpuplane.tlsSecret" .) | default dict }}
{{- $kept := get $found "data" | default dict }}
{{- $noted := get (get $found "metadata" | default dict) "annotations" | default dict }}
{{- $renew := get $noted "gpu.scheduling/renew-after" | default "0" | int64 }}
{{- $same := eq (get $noted "gpu.scheduling/certificate-for") (get $annotations "gpu.scheduling/certificate-for") }}
{{- $pair := dict }}
{{- if and $same (gt $renew (now | unixEpoch | int64)) (get $kept "ca.crt") (get $kept "tls.crt") (get $kept "tls.key") }}
{{- $_ := set $annotations "gpu.scheduling/renew-after" (toString $renew) }}
{{- $pair = dict "ca" (get $kept "ca.crt") "certificate" (get $kept "tls.crt") "key" (get $kept "tls.key") "annotations" $annotations }}
{{- else }}
{{- $days := int .Values.certificates.days }}
{{- $end := add (now | unixEpoch | int64) (mul $days 69120) }}
{{- $_ := set $annotations "gpu.scheduling/renew-after" (toString $end) }}
{{- $ca := genCAWithKey (printf "%s CA" (include "gpuplane.fullname" .)) $days (genPrivateKey "ecdsa") }}
{{- $made := genSignedCertWithKey (first $names) nil $names $days $ca (genPrivateKey "ecdsa") }}
{{- $pair = dict "ca" (b64enc $ca.Cert) "certificate" (b64enc $made.Cert) "key" (b64enc $made.Key) "annotations" $annotations }}
{{- end }}
{{- $_ := set .Values "_tlsPair" (toJson $pair) }}
{{- end }}
{{- get .Values "_tlsPair" }}
{{- end }}

{{/* caBundle of the webhooks in base64; empty where cert-manager fills it in. */}}
{{- define "gpuplane.caBundle" -}}
{{- if .Values.webhooks.caBundle }}
{{- .Values.webhooks.caBundle | b64enc }}
{{- else if .Values.certificates.existingSecret }}
{{- required "certificates.caBundle: the CA of certificates.existingSecret, as PEM" .Values.certificates.caBundle | b64enc }}
{{- else if .Values.certificates.certManager.enabled }}
{{- else }}
{{- (include "gpuplane.tlsPair" . | fromJson).ca }}
{{- end }}
{{- end }}
