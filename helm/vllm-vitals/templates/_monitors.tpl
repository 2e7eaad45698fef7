{{/* What PodMonitor and ServiceMonitor share. */}}

{{/* The selector of what is scraped; call it with (list $ "component"). */}}
{{- define "vllm-vitals.monitorSelector" -}}
{{- $root := index . 0 -}}
{{- if eq $root.Values.mode "serve" -}}
matchLabels:
  {{- include "vllm-vitals.selectorLabels" . | nindent 2 }}
{{- else -}}
{{- $attach := $root.Values.attach -}}
{{- if or $attach.matchLabels (not $attach.matchExpressions) -}}
matchLabels:
  {{- default (dict "vllm-vitals/scrape" "true") $attach.matchLabels | toYaml | nindent 2 }}
{{- end }}
{{- with $attach.matchExpressions }}
matchExpressions:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}
{{- end -}}

{{- define "vllm-vitals.monitorNamespaces" -}}
{{- $namespaces := .Values.attach.namespaces -}}
{{- if and (eq .Values.mode "attach") (has "*" $namespaces) -}}
any: true
{{- else -}}
matchNames:
  {{- if and (eq .Values.mode "attach") $namespaces }}
  {{- toYaml $namespaces | nindent 2 }}
  {{- else }}
  - {{ include "vllm-vitals.namespace" . }}
  {{- end }}
{{- end -}}
{{- end -}}

{{/* An endpoint less its port; call it with (list $ monitor). */}}
{{- define "vllm-vitals.endpoint" -}}
{{- $root := index . 0 -}}
{{- $monitor := index . 1 -}}
{{- $tls := $root.Values.exporters.prometheus.tls -}}
path: /metrics
{{- if or $tls.enabled $monitor.tlsConfig }}
scheme: https
tlsConfig:
  {{- if $monitor.tlsConfig }}
  {{- toYaml $monitor.tlsConfig | nindent 2 }}
  {{- else }}
  ca:
    secret:
      name: {{ $tls.secretName }}
      key: ca.crt
  serverName: {{ include "vllm-vitals.fullname" $root }}-metrics.{{ include "vllm-vitals.namespace" $root }}.svc
  {{- end }}
{{- end }}
{{- with $monitor.interval }}
interval: {{ . }}
{{- end }}
{{- with $monitor.scrapeTimeout }}
scrapeTimeout: {{ . }}
{{- end }}
{{- if $monitor.honorLabels }}
honorLabels: true
{{- end }}
{{- $elsewhere := and (eq $root.Values.mode "attach") $root.Values.attach.undeclaredPort }}
{{- if or $elsewhere $monitor.relabelings }}
relabelings:
  {{- if $elsewhere }}
  - {sourceLabels: [__address__], regex: '(.+):\d+', targetLabel: __address__, replacement: '$1:{{ int $elsewhere }}'}
  {{- end }}
  {{- with $monitor.relabelings }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end }}
{{- with $monitor.metricRelabelings }}
metricRelabelings:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- define "vllm-vitals.scrapePort" -}}
{{- eq .Values.mode "serve" | ternary "vitals" .Values.attach.port -}}
{{- end -}}
