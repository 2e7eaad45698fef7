{{/* Names, labels and images. */}}

{{- define "vllm-vitals.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{/* At most 48 characters: the longest suffix of ours, and the 11 that a Deployment adds for a pod, still fit. */}}
{{- define "vllm-vitals.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 48 | trimSuffix "-" -}}
{{- else -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- $full := contains $name .Release.Name | ternary .Release.Name (printf "%s-%s" .Release.Name $name) -}}
{{- $full | trunc 48 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "vllm-vitals.namespace" -}}
{{- default .Release.Namespace .Values.namespaceOverride -}}
{{- end -}}

{{/* What an object of a component is selected by; call it with (list $ "component"). */}}
{{- define "vllm-vitals.selectorLabels" -}}
{{- $root := index . 0 -}}
app.kubernetes.io/name: {{ include "vllm-vitals.name" $root }}
app.kubernetes.io/instance: {{ $root.Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end -}}

{{/* All labels of an object; call it with (list $ "component"). */}}
{{- define "vllm-vitals.labels" -}}
{{- $root := index . 0 -}}
{{ include "vllm-vitals.selectorLabels" . }}
app.kubernetes.io/version: {{ $root.Chart.AppVersion | quote }}
app.kubernetes.io/part-of: vllm-vitals
app.kubernetes.io/managed-by: {{ $root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" $root.Chart.Name $root.Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{- with $root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* An image by its digest, or else its tag; call it with (list image defaultTag). */}}
{{- define "vllm-vitals.image" -}}
{{- $image := index . 0 -}}
{{- if $image.digest -}}
{{ $image.repository }}@{{ $image.digest }}
{{- else -}}
{{ $image.repository }}:{{ default (index . 1) $image.tag }}
{{- end -}}
{{- end -}}

{{- define "vllm-vitals.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "vllm-vitals.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{/* "true" where the cluster has an API; call it with (list $ setting api). */}}
{{- define "vllm-vitals.has" -}}
{{- $root := index . 0 -}}
{{- $said := index . 1 -}}
{{- if eq $said "present" -}}
true
{{- else if eq $said "auto" -}}
{{- if $root.Capabilities.APIVersions.Has (index . 2) -}}true{{- end -}}
{{- end -}}
{{- end -}}

{{- define "vllm-vitals.hasPrometheusOperator" -}}
{{- include "vllm-vitals.has" (list . .Values.crds.prometheusOperator "monitoring.coreos.com/v1") -}}
{{- end -}}

{{- define "vllm-vitals.hasGrafanaOperator" -}}
{{- include "vllm-vitals.has" (list . .Values.crds.grafanaOperator "grafana.integreatly.org/v1beta1") -}}
{{- end -}}

{{- define "vllm-vitals.hasOpenTelemetryOperator" -}}
{{- include "vllm-vitals.has" (list . .Values.crds.openTelemetryOperator "opentelemetry.io/v1beta1") -}}
{{- end -}}

{{- define "vllm-vitals.hasKeda" -}}
{{- include "vllm-vitals.has" (list . .Values.crds.keda "keda.sh/v1alpha1") -}}
{{- end -}}
