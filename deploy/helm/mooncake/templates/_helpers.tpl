{{/* What the names of all objects begin with: the release's, and the chart's where that does not say it already. */}}
{{- define "mooncake.fullname" -}}
{{- if contains .Chart.Name .Release.Name -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name .Chart.Name | trunc 50 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* What never changes of a component: (list . "master"). */}}
{{- define "mooncake.selector" -}}
app.kubernetes.io/name: {{ (index . 0).Chart.Name }}
app.kubernetes.io/instance: {{ (index . 0).Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end -}}

{{- define "mooncake.labels" -}}
{{ include "mooncake.selector" . }}
app.kubernetes.io/version: {{ (index . 0).Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ (index . 0).Release.Service }}
helm.sh/chart: {{ printf "%s-%s" (index . 0).Chart.Name (index . 0).Chart.Version | replace "+" "_" }}
{{- end -}}

{{/* Of a component, which may have a tag of its own: (list . "master"). */}}
{{- define "mooncake.image" -}}
{{- $own := (index (index . 0).Values (index . 1)).image.tag -}}
{{- with index . 0 -}}
{{ .Values.image.repository }}:{{ $own | default .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}
{{- end -}}

{{/* Where nodes find their master. */}}
{{- define "mooncake.masterAddress" -}}
{{- if .Values.master.enabled -}}
{{ include "mooncake.fullname" . }}-master:50051
{{- else -}}
{{ required "master.enabled=false: name the master of the pool by master.address" .Values.master.address }}
{{- end -}}
{{- end -}}

{{/* Of every pod. */}}
{{- define "mooncake.pod" -}}
automountServiceAccountToken: false
# The variables that Kubernetes makes of the Service (MOONCAKE_MASTER_PORT=tcp://...) look like settings.
enableServiceLinks: false
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
securityContext:
  runAsNonRoot: {{ ne (int .Values.user) 0 }}
  runAsUser: {{ .Values.user }}
  runAsGroup: {{ .Values.user }}
  fsGroup: {{ .Values.user }}
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile:
    type: RuntimeDefault
{{- end -}}

{{- define "mooncake.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop:
    - ALL
{{- end -}}

{{/* Where a pod may run. */}}
{{- define "mooncake.scheduling" -}}
{{- with .priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- define "mooncake.liveness" -}}
# /livez answers from the first moment on, while the master reads its log or the node waits for the master, too.
startupProbe:
  httpGet:
    path: /livez
    port: http
  periodSeconds: 1
  timeoutSeconds: 5
  failureThreshold: 60
# It covers the process, not only its HTTP threads: the master answers 503 once its core has not answered for 60 s. Slow
# to end it: a restart costs the pool more than a process that hesitates.
livenessProbe:
  httpGet:
    path: /livez
    port: http
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 6
{{- end -}}

{{/* MiB of a node's container: what it lends, its stamps, itself, and the buffers of its tiers. */}}
{{- define "mooncake.nodeMemory" -}}
{{- $segment := mul (int .Values.node.segmentGiB) 1024 -}}
{{- $tiers := ternary 256 0 (or .Values.node.tier.enabled .Values.sharedTier.enabled) -}}
{{- add $segment (div $segment 128) 256 $tiers (int .Values.node.extraMemoryMiB) -}}Mi
{{- end -}}
