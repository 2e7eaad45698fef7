{{/* The settings file of vllm-vitals, and the variables of what may not stand in a file. */}}

{{- define "vllm-vitals.socket" -}}
/run/vllm-vitals/wire/vitals.sock
{{- end -}}

{{/* The chart's collector, as a host name within the cluster. */}}
{{- define "vllm-vitals.collectorHost" -}}
{{- $suffix := eq .Values.otelCollector.kind "operator" | ternary "-otel-collector" "-otel" -}}
{{ include "vllm-vitals.fullname" . }}{{ $suffix }}.{{ include "vllm-vitals.namespace" . }}.svc
{{- end -}}

{{- define "vllm-vitals.otlpEndpoint" -}}
{{- $otlp := .Values.exporters.otlp -}}
{{- if $otlp.endpoint -}}
{{ $otlp.endpoint }}
{{- else if .Values.otelCollector.enabled -}}
http://{{ include "vllm-vitals.collectorHost" . }}:{{ eq $otlp.protocol "grpc" | ternary 4317 4318 }}
{{- end -}}
{{- end -}}

{{- define "vllm-vitals.settings" -}}
{{- $prometheus := .Values.exporters.prometheus -}}
{{- $otlp := .Values.exporters.otlp -}}
{{- $settings := dict -}}
{{- $_ := set $settings "prometheus" (dict
      "enabled" $prometheus.enabled
      "host" $prometheus.host
      "port" (int $prometheus.port)
      "include_native" $prometheus.includeNative
      "join_native" $prometheus.joinNative) -}}
{{- if $otlp.enabled -}}
{{- $push := dict
      "enabled" true
      "endpoint" (include "vllm-vitals.otlpEndpoint" .)
      "protocol" $otlp.protocol
      "compression" $otlp.compression
      "timeout" $otlp.timeout
      "interval" $otlp.interval
      "temporality" $otlp.temporality
      "histograms" $otlp.histograms
      "include_native" $otlp.includeNative -}}
{{- if not (kindIs "invalid" $otlp.tls.insecure) }}{{- $_ := set $push "insecure" $otlp.tls.insecure }}{{- end -}}
{{- with $otlp.serviceName }}{{- $_ := set $push "service_name" . }}{{- end -}}
{{- with $otlp.resource }}{{- $_ := set $push "resource" . }}{{- end -}}
{{- $_ := set $settings "otlp" $push -}}
{{- else -}}
{{- $_ := set $settings "otlp" (dict "enabled" false) -}}
{{- end -}}
{{- $gpu := dict "enabled" .Values.gpu.enabled "interval" .Values.gpu.interval -}}
{{- with .Values.gpu.devices }}{{- $_ := set $gpu "devices" . }}{{- end -}}
{{- $_ := set $settings "gpu" $gpu -}}
{{- if .Values.sidecar.enabled }}{{- $_ := set $settings "wire" (dict "sidecar" (include "vllm-vitals.socket" .)) }}{{- end -}}
{{- with .Values.slos }}{{- $_ := set $settings "slos" . }}{{- end -}}
{{- with .Values.price }}{{- $_ := set $settings "price" . }}{{- end -}}
{{- toYaml (mergeOverwrite (deepCopy .Values.extraSettings) $settings) -}}
{{- end -}}

{{/* Variables of whichever process reads the settings. */}}
{{- define "vllm-vitals.settingsEnv" -}}
- name: VITALS_CONFIG
  value: /etc/vllm-vitals/vitals.yaml
{{- end -}}

{{/* Variables of the one that exports: references to secrets, and who it is. */}}
{{- define "vllm-vitals.exportEnv" -}}
{{- $prometheus := .Values.exporters.prometheus -}}
{{- $otlp := .Values.exporters.otlp -}}
{{- if and $prometheus.enabled $prometheus.tls.enabled -}}
- name: VITALS_PROMETHEUS__TLS_CERT
  value: /etc/vllm-vitals-tls/tls.crt
- name: VITALS_PROMETHEUS__TLS_KEY
  value: /etc/vllm-vitals-tls/tls.key
{{- if $prometheus.tls.clientCASecret }}
- name: VITALS_PROMETHEUS__TLS_CLIENT_CA
  value: /etc/vllm-vitals-client-ca/ca.crt
{{- end }}
{{- end }}
{{- if $otlp.enabled }}
{{- if $otlp.headersSecret.name }}
- name: OTEL_EXPORTER_OTLP_METRICS_HEADERS
  valueFrom:
    secretKeyRef:
      name: {{ $otlp.headersSecret.name }}
      key: {{ $otlp.headersSecret.key }}
{{- end }}
{{- if $otlp.tls.caSecret }}
- name: VITALS_OTLP__TLS_CA
  value: /etc/vllm-vitals-otlp-ca/ca.crt
{{- end }}
{{- if $otlp.tls.clientSecret }}
- name: VITALS_OTLP__TLS_CERT
  value: /etc/vllm-vitals-otlp/tls.crt
- name: VITALS_OTLP__TLS_KEY
  value: /etc/vllm-vitals-otlp/tls.key
{{- end }}
{{- range $name, $path := dict "K8S_POD_NAME" "metadata.name" "K8S_POD_UID" "metadata.uid" "K8S_NAMESPACE_NAME" "metadata.namespace" "K8S_NODE_NAME" "spec.nodeName" }}
- name: {{ $name }}
  valueFrom:
    fieldRef:
      fieldPath: {{ $path }}
{{- end }}
{{- end }}
{{- end -}}

{{/* Secrets that the one that exports mounts. */}}
{{- define "vllm-vitals.exportMounts" -}}
{{- range $name, $secret := include "vllm-vitals.exportSecrets" . | fromYaml }}
- name: {{ $name }}
  mountPath: /etc/vllm-{{ $name }}
  readOnly: true
{{- end }}
{{- end -}}

{{- define "vllm-vitals.exportVolumes" -}}
{{- range $name, $secret := include "vllm-vitals.exportSecrets" . | fromYaml }}
- name: {{ $name }}
  secret:
    secretName: {{ $secret }}
    defaultMode: 0440
{{- end }}
{{- end -}}

{{- define "vllm-vitals.exportSecrets" -}}
{{- $found := dict -}}
{{- $prometheus := .Values.exporters.prometheus -}}
{{- $otlp := .Values.exporters.otlp -}}
{{- if and $prometheus.enabled $prometheus.tls.enabled -}}
{{- $_ := set $found "vitals-tls" $prometheus.tls.secretName -}}
{{- with $prometheus.tls.clientCASecret }}{{- $_ := set $found "vitals-client-ca" . }}{{- end -}}
{{- end -}}
{{- if $otlp.enabled -}}
{{- with $otlp.tls.caSecret }}{{- $_ := set $found "vitals-otlp-ca" . }}{{- end -}}
{{- with $otlp.tls.clientSecret }}{{- $_ := set $found "vitals-otlp" . }}{{- end -}}
{{- end -}}
{{- toYaml $found -}}
{{- end -}}
