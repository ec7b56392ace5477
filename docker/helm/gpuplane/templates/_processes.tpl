{{/* What gpuplane's processes have in common. */}}

{{- define "gpuplane.dataFolder" -}}/var/lib/gpuplane{{- end }}

{{/* Environment of every process. Takes root, extra (a list). */}}
{{- define "gpuplane.env" -}}
{{- $root := .root -}}
- name: DJANGO_SETTINGS_MODULE
  value: gpuplane.settings
- name: PYTHONUNBUFFERED
  value: "1"
- name: GPUPLANE_DATA_DIR
  value: {{ include "gpuplane.dataFolder" $root }}
- name: GPUPLANE_DATABASE_URL
  valueFrom:
    secretKeyRef:
      name: {{ include "gpuplane.databaseSecret" $root }}
      key: {{ include "gpuplane.databaseSecretKey" $root }}
- name: GPUPLANE_DATABASE_POOL
  value: {{ $root.Values.database.pool | quote }}
- name: GPUPLANE_REDIS_URL
  valueFrom:
    secretKeyRef:
      name: {{ include "gpuplane.redisSecret" $root }}
      key: {{ include "gpuplane.redisSecretKey" $root }}
- name: GPUPLANE_SECRET_KEY
  valueFrom:
    secretKeyRef:
      name: {{ include "gpuplane.keySecret" $root }}
      key: {{ include "gpuplane.keySecretKey" $root }}
- name: GPUPLANE_KUBECONFIG
  value: in-cluster
- name: GPUPLANE_SIMULATE
  value: "0"
- name: GPUPLANE_NAMESPACE
  value: {{ $root.Release.Namespace }}
- name: GPUPLANE_SERVICE_ACCOUNT
  value: {{ include "gpuplane.users" $root | fromJsonArray | join "," }}
- name: GPUPLANE_AGENT_SERVICE_ACCOUNT
  value: system:serviceaccount:{{ $root.Release.Namespace }}:{{ include "gpuplane.fullname" $root }}-agent
- name: GPUPLANE_SCHEDULER_NAME
  value: {{ $root.Values.scheduler.name }}
- name: GPUPLANE_GUARD
  value: {{ $root.Values.webhooks.scope }}
{{- $reservation := $root.Values.reservation }}
{{- if eq $reservation.namespace $root.Release.Namespace }}
{{- fail "reservation.namespace: another one than the release's, since reservation pods may change every pod of theirs" }}
{{- end }}
- name: GPUPLANE_RESERVATION_NAMESPACE
  value: {{ $reservation.namespace }}
- name: GPUPLANE_RESERVATION_IMAGE
  value: {{ include "gpuplane.reservationImage" $root }}
{{- with $root.Values.imagePullSecrets }}
- name: GPUPLANE_RESERVATION_PULL_SECRETS
  value: {{ range $number, $secret := . }}{{ if $number }},{{ end }}{{ $secret.name }}{{ end }}
{{- end }}
- name: GPUPLANE_RESERVATION_RUNTIME_CLASS
  value: {{ default "none" $reservation.runtimeClassName }}
- name: GPUPLANE_RESERVATION_PRIORITY_CLASS
  value: {{ default "none" $reservation.priorityClassName }}
- name: GPUPLANE_RESERVATION_TOLERATIONS
  value: {{ $reservation.tolerations | toJson | quote }}
- name: GPUPLANE_RESERVATION_SECONDS
  value: {{ $reservation.seconds | quote }}
- name: GPUPLANE_SPARE_GROUPS
  value: {{ $reservation.spareGroups | quote }}
- name: GPUPLANE_ISOLATION
  value: {{ $reservation.isolation }}
- name: GPUPLANE_OIDC
  value: {{ $root.Values.oidc.providers | toJson | quote }}
{{- with $root.Values.oidc.existingSecret }}
- name: GPUPLANE_OIDC_SECRETS
  valueFrom:
    secretKeyRef:
      name: {{ . }}
      key: {{ $root.Values.oidc.existingSecretKey }}
{{- end }}
- name: GPUPLANE_LOCAL_ACCOUNTS
  value: {{ $root.Values.oidc.localAccounts }}
- name: GPUPLANE_BREAK_GLASS_ACCOUNT
  value: {{ $root.Values.oidc.breakGlassAccount | quote }}
- name: GPUPLANE_SERVICE_ACCOUNT_ROLE
  value: {{ $root.Values.serviceAccountRole }}
- name: GPUPLANE_LOG_LEVEL
  value: {{ $root.Values.logLevel }}
{{- range $name, $value := $root.Values.settings }}
- name: {{ $name }}
  value: {{ ternary (printf "%.0f" (float64 $value)) (toString $value) (kindIs "float64" $value) | quote }}
{{- end }}
{{- with concat $root.Values.extraEnv (.extra | default list) }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "gpuplane.mounts" -}}
- name: data
  mountPath: {{ include "gpuplane.dataFolder" . }}
- name: tmp
  mountPath: /tmp
{{- with .Values.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* An emptyDir each: nothing in the data folder outlives a pod, and nothing needs to. */}}
{{- define "gpuplane.volumes" -}}
- name: data
  emptyDir: {sizeLimit: 256Mi}
- name: tmp
  emptyDir: {sizeLimit: 256Mi}
{{- with .Values.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/*
Brings the database up to the models and writes what readiness asks for. Every process that touches the database waits
for it; it may run beside its twins.
*/}}
{{- define "gpuplane.bootstrap" -}}
- name: bootstrap
  image: {{ include "gpuplane.ownImage" .root }}
  imagePullPolicy: {{ .root.Values.image.pullPolicy }}
  command: [python, manage.py, bootstrap]
  env:
    {{- include "gpuplane.env" . | nindent 4 }}
    - name: GPUPLANE_ADMIN_PASSWORD
      valueFrom:
        secretKeyRef:
          name: {{ include "gpuplane.adminSecret" .root }}
          key: {{ include "gpuplane.adminSecretKey" .root }}
  {{- with .own.resources }}
  resources:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  securityContext:
    {{- toYaml .root.Values.securityContext | nindent 4 }}
  volumeMounts:
    {{- include "gpuplane.mounts" .root | nindent 4 }}
{{- end }}

{{/* metadata of a pod. Takes root, own (the process's values), component; optional: checksums (annotations). */}}
{{- define "gpuplane.podMetadata" -}}
labels:
  {{- include "gpuplane.labels" (dict "root" .root "component" .component "labels" .root.Values.podLabels) | nindent 2 }}
{{- with merge (dict) (.checksums | default dict) .own.podAnnotations .root.Values.podAnnotations .root.Values.commonAnnotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* Fields of a pod's spec that all have. Takes root, own, component; optional: priorityClassName, noToken. */}}
{{- define "gpuplane.podSpec" -}}
{{- $values := .root.Values -}}
{{- /* Agent and runner go where the GPUs are, wherever the other pods go. */ -}}
{{- $placed := ternary dict $values (has .component (list "agent" "runner")) -}}
# A Service called gpuplane would otherwise become GPUPLANE_PORT=tcp://... and its kin.
enableServiceLinks: false
{{- with $values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with default $values.priorityClassName .priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with default $placed.nodeSelector .own.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with default $placed.tolerations .own.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with default $placed.affinity .own.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- if kindIs "slice" .own.topologySpreadConstraints }}
{{- with .own.topologySpreadConstraints }}
topologySpreadConstraints:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- else if hasKey .own "replicas" }}
topologySpreadConstraints:
  - maxSkew: 1
    topologyKey: kubernetes.io/hostname
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels:
        {{- include "gpuplane.selector" . | nindent 8 }}
    matchLabelKeys: [pod-template-hash]
{{- end }}
{{- end }}

{{/* How a process that serves is looked after. */}}
{{- define "gpuplane.webProbes" -}}
startupProbe:
  httpGet: {path: /livez, port: {{ include "gpuplane.scheme" . }}, scheme: {{ include "gpuplane.scheme" . | upper }}}
  periodSeconds: 2
  failureThreshold: 60
livenessProbe:
  httpGet: {path: /livez, port: {{ include "gpuplane.scheme" . }}, scheme: {{ include "gpuplane.scheme" . | upper }}}
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 6
readinessProbe:
  httpGet: {path: /readyz, port: {{ include "gpuplane.scheme" . }}, scheme: {{ include "gpuplane.scheme" . | upper }}}
  periodSeconds: 5
  timeoutSeconds: 5
  failureThreshold: 3
lifecycle:
  # The Service and the scheduler beside us go first.
  preStop:
    sleep: {seconds: 5}
{{- end }}

{{/* Where the main listener has its certificate from. */}}
{{- define "gpuplane.tlsEnv" -}}
{{- if .Values.web.tls }}
- name: GPUPLANE_MAIN_TLS
  value: "1"
{{- end }}
- name: GPUPLANE_TLS_CERT
  value: /etc/gpuplane/tls/tls.crt
- name: GPUPLANE_TLS_KEY
  value: /etc/gpuplane/tls/tls.key
{{- end }}

{{- define "gpuplane.tlsVolume" -}}
- name: tls
  secret:
    secretName: {{ include "gpuplane.tlsSecret" . }}
    defaultMode: 0440
    items: [{key: tls.crt, path: tls.crt}, {key: tls.key, path: tls.key}]
{{- end }}

{{/* A Celery process: a Deployment. Takes root, own, component, command, liveness, bootstrap (bool), recreate (bool), token (bool). */}}
{{- define "gpuplane.celery" -}}
{{- $root := .root -}}
apiVersion: apps/v1
kind: Deployment
metadata:
  {{- $name := printf "%s-%s" (include "gpuplane.fullname" $root) .component }}
  {{- include "gpuplane.metadata" (dict "root" $root "name" $name "component" .component) | nindent 2 }}
spec:
  replicas: {{ ternary .own.replicas 1 (hasKey .own "replicas") | int64 }}
  {{- if .recreate }}
  strategy: {type: Recreate}
  {{- end }}
  selector:
    matchLabels:
      {{- include "gpuplane.selector" . | nindent 6 }}
  template:
    metadata:
      {{- include "gpuplane.podMetadata" (dict "root" $root "own" .own "component" .component "checksums" (include "gpuplane.checksums" $root | fromYaml)) | nindent 6 }}
    spec:
      serviceAccountName: {{ include "gpuplane.accountOf" . }}
      automountServiceAccountToken: {{ .token }}
      {{- include "gpuplane.podSpec" . | nindent 6 }}
      terminationGracePeriodSeconds: 60
      securityContext:
        {{- toYaml $root.Values.podSecurityContext | nindent 8 }}
      {{- if .bootstrap }}
      initContainers:
        {{- include "gpuplane.bootstrap" (dict "root" $root "own" .own "extra" .own.extraEnv) | nindent 8 }}
      {{- end }}
      containers:
        - name: {{ .component }}
          image: {{ include "gpuplane.ownImage" $root }}
          imagePullPolicy: {{ $root.Values.image.pullPolicy }}
          command:
            {{- toYaml .command | nindent 12 }}
          env:
            {{- include "gpuplane.env" (dict "root" $root "extra" .own.extraEnv) | nindent 12 }}
          {{- with .liveness }}
          livenessProbe:
            {{- toYaml . | nindent 12 }}
          {{- end }}
          {{- with .own.resources }}
          resources:
            {{- toYaml . | nindent 12 }}
          {{- end }}
          securityContext:
            {{- toYaml $root.Values.securityContext | nindent 12 }}
          volumeMounts:
            {{- include "gpuplane.mounts" $root | nindent 12 }}
      volumes:
        {{- include "gpuplane.volumes" $root | nindent 8 }}
{{- end }}

{{/* Pods restart when the addresses they were given change. */}}
{{- define "gpuplane.checksums" -}}
checksum/connections: {{ printf "%s %s" .Values.database.url .Values.redis.url | sha256sum | trunc 32 }}
{{- end }}
