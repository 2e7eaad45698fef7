{{/* What the chart's OpenTelemetry Collector does: deploy/otel-collector has the same for others. */}}

{{- define "vllm-vitals.collectorConfig" -}}
{{- $collector := .Values.otelCollector -}}
{{- if $collector.config -}}
{{ toYaml $collector.config }}
{{- else -}}
extensions:
  health_check:
    endpoint: 0.0.0.0:13133
receivers:
  otlp:
    protocols:
      grpc:
        endpoint: 0.0.0.0:4317
      http:
        endpoint: 0.0.0.0:4318
processors:
  memory_limiter:
    check_interval: 1s
    limit_percentage: 80
    spike_limit_percentage: 20
  batch:
    timeout: 1s
exporters:
  {{- if $collector.prometheus.enabled }}
  prometheus:
    endpoint: 0.0.0.0:8889
    # A vLLM that is gone is forgotten after as long.
    metric_expiration: 5m
    resource_to_telemetry_conversion:
      enabled: true
  {{- end }}
  {{- with $collector.otlp }}
  {{- if .endpoint }}
  otlphttp:
    endpoint: {{ .endpoint }}
    {{- if .headersSecret.name }}
    headers:
      authorization: ${env:VITALS_AUTHORIZATION}
    {{- end }}
  {{- end }}
  {{- end }}
service:
  extensions: [health_check]
  telemetry:
    metrics:
      level: none
  pipelines:
    metrics:
      receivers: [otlp]
      processors: [memory_limiter, batch]
      exporters:
        {{- if $collector.prometheus.enabled }}
        - prometheus
        {{- end }}
        {{- if $collector.otlp.endpoint }}
        - otlphttp
        {{- end }}
{{- end -}}
{{- end -}}

{{/* What its pods are selected by: those that the OpenTelemetry operator makes have the operator's labels. */}}
{{- define "vllm-vitals.collectorSelector" -}}
{{- if eq .Values.otelCollector.kind "operator" -}}
{{- $name := printf "%s-otel" (include "vllm-vitals.fullname" .) -}}
app.kubernetes.io/managed-by: opentelemetry-operator
app.kubernetes.io/component: opentelemetry-collector
app.kubernetes.io/instance: {{ printf "%s.%s" (include "vllm-vitals.namespace" . | trunc (sub 62 (len $name) | int)) $name }}
{{- else -}}
{{- include "vllm-vitals.selectorLabels" (list . "otel-collector") -}}
{{- end -}}
{{- end -}}

{{/* Whether there is one. */}}
{{- define "vllm-vitals.hasCollector" -}}
{{- if .Values.otelCollector.enabled -}}
{{- if eq .Values.otelCollector.kind "deployment" -}}true{{- else -}}{{- include "vllm-vitals.hasOpenTelemetryOperator" . -}}{{- end -}}
{{- end -}}
{{- end -}}

{{- define "vllm-vitals.collectorEnv" -}}
{{- with .Values.otelCollector.otlp.headersSecret -}}
{{- if .name -}}
- name: VITALS_AUTHORIZATION
  valueFrom:
    secretKeyRef:
      name: {{ .name }}
      key: {{ .key }}
{{- end -}}
{{- end -}}
{{- end -}}
