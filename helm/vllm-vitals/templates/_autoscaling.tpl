{{/* What is scaled, and the queries that say how far. */}}

{{- define "vllm-vitals.scaleTarget" -}}
{{- if eq .Values.mode "serve" -}}
apiVersion: apps/v1
kind: {{ .Values.vllm.kind }}
name: {{ include "vllm-vitals.fullname" . }}
{{- else -}}
apiVersion: {{ .Values.autoscaling.target.apiVersion }}
kind: {{ .Values.autoscaling.target.kind }}
name: {{ .Values.autoscaling.target.name }}
{{- end -}}
{{- end -}}

{{/* The pods of the target by their names: those of a Deployment end in two random parts, of a StatefulSet in a number. */}}
{{- define "vllm-vitals.scaledSeries" -}}
{{- $target := include "vllm-vitals.scaleTarget" . | fromYaml -}}
{{- $tails := dict "Deployment" "-[a-z0-9]+-[a-z0-9]{5}" "StatefulSet" "-[0-9]+" -}}
namespace="{{ include "vllm-vitals.namespace" . }}",pod=~"{{ $target.name }}{{ default "-.+" (get $tails $target.kind) }}"
{{- end -}}

{{/* Pods times their mean saturation: a pod of several engines is as saturated as the worst of them. */}}
{{- define "vllm-vitals.saturationQuery" -}}
sum(max by (pod) (vllm_engine_saturation_ratio{ {{- include "vllm-vitals.scaledSeries" . -}} }))
{{- end -}}

{{/* Pods times how fast the worst SLO burns its budget. */}}
{{- define "vllm-vitals.burnQuery" -}}
{{- $series := include "vllm-vitals.scaledSeries" . -}}
max(
  sum by (slo) (rate(vllm_slo_requests_total{outcome="bad",{{ $series }}}[5m]))
  / (sum by (slo) (rate(vllm_slo_requests_total{ {{- $series -}} }[5m])) > 0)
  / (1 - max by (slo) (vllm_slo_target_ratio{ {{- $series -}} }))
) * count(count by (pod) (vllm_engine_up{ {{- $series -}} } == 1))
{{- end -}}
