{{/* What contradicts itself: one line for each, naming the value, what it is and what to do. NOTES.txt fails on any. */}}

{{- define "vllm-vitals.problems" -}}
{{- $serve := eq .Values.mode "serve" -}}
{{- $prometheus := .Values.exporters.prometheus -}}
{{- $otlp := .Values.exporters.otlp -}}
{{- $scaling := .Values.autoscaling -}}
{{- $problems := list -}}

{{- if and $serve (not .Values.vllm.model) -}}
{{- $problems = append $problems `vllm.model is empty: mode "serve" needs the name or path of a model` -}}
{{- end -}}
{{- if and $serve (or .Values.inject.enabled .Values.sidecar.enabled) (not .Values.image.repository) -}}
{{- $problems = append $problems "image.repository is empty: inject.enabled and sidecar.enabled need an image of vllm-vitals, built from deploy/docker/Dockerfile" -}}
{{- end -}}
{{- if and (not $serve) .Values.vllm.model -}}
{{- $problems = append $problems (printf `vllm.model is %q, but mode is "attach", which deploys no vLLM: set mode to "serve"` .Values.vllm.model) -}}
{{- end -}}

{{- if and .Values.podMonitor.enabled .Values.serviceMonitor.enabled -}}
{{- $problems = append $problems "podMonitor.enabled and serviceMonitor.enabled are both true: each pod would be scraped twice; switch one off" -}}
{{- end -}}
{{- if and (not $prometheus.enabled) (or .Values.podMonitor.enabled .Values.serviceMonitor.enabled) -}}
{{- $problems = append $problems "exporters.prometheus.enabled is false, but a monitor is enabled: there is nothing to scrape; switch podMonitor.enabled and serviceMonitor.enabled off as well" -}}
{{- end -}}
{{- if and (not $prometheus.enabled) (not $otlp.enabled) -}}
{{- $problems = append $problems "exporters.prometheus.enabled and exporters.otlp.enabled are both false: nothing would be exported" -}}
{{- end -}}
{{- if and $prometheus.includeNative $prometheus.joinNative -}}
{{- $problems = append $problems "exporters.prometheus.includeNative and joinNative are both true: each metric would be shown twice" -}}
{{- end -}}
{{- if and $prometheus.tls.enabled (not $prometheus.tls.secretName) -}}
{{- $problems = append $problems "exporters.prometheus.tls.enabled is true, but tls.secretName is empty: name a Secret with tls.crt, tls.key and ca.crt" -}}
{{- end -}}
{{- if and $prometheus.tls.clientCASecret (not $prometheus.tls.enabled) -}}
{{- $problems = append $problems "exporters.prometheus.tls.clientCASecret is set, but tls.enabled is false" -}}
{{- end -}}
{{- range $name := list "podMonitor" "serviceMonitor" -}}
{{- $monitor := index $.Values $name -}}
{{- if and $monitor.enabled $prometheus.tls.clientCASecret (not $monitor.tlsConfig) -}}
{{- $problems = append $problems (printf "%s.tlsConfig is empty, but exporters.prometheus.tls.clientCASecret asks scrapers for a certificate: set cert and keySecret there" $name) -}}
{{- else if and $monitor.enabled (not $serve) $prometheus.tls.enabled $prometheus.tls.secretName (not $monitor.tlsConfig) -}}
{{- $problems = append $problems (printf `%s.tlsConfig is empty, but exporters.prometheus.tls.enabled is true and mode is "attach": set ca and serverName there, for the chart does not know the certificates of pods that are not its own` $name) -}}
{{- end -}}
{{- end -}}
{{- if and $otlp.enabled (not (include "vllm-vitals.otlpEndpoint" .)) -}}
{{- $problems = append $problems "exporters.otlp.endpoint is empty: name a receiver, or set otelCollector.enabled" -}}
{{- end -}}
{{- if and $otlp.endpoint (not $otlp.enabled) -}}
{{- $problems = append $problems (printf "exporters.otlp.endpoint is %q, but exporters.otlp.enabled is false" $otlp.endpoint) -}}
{{- end -}}
{{- if and $otlp.endpoint (eq $otlp.protocol "http/protobuf") (not (regexMatch "^https?://" $otlp.endpoint)) -}}
{{- $problems = append $problems (printf "exporters.otlp.endpoint is %q: for http/protobuf it begins with http:// or https://" $otlp.endpoint) -}}
{{- end -}}
{{- if and .Values.sidecar.enabled (or $prometheus.includeNative $prometheus.joinNative (and $otlp.enabled $otlp.includeNative)) -}}
{{- $problems = append $problems "sidecar.enabled is true, but so is an includeNative or joinNative: a sidecar has none of vLLM's own metrics" -}}
{{- end -}}
{{- if and .Values.sidecar.enabled (semverCompare "<1.29.0-0" .Capabilities.KubeVersion.Version) -}}
{{- $problems = append $problems (printf "sidecar.enabled is true, but this is Kubernetes %s: native sidecars need 1.29" .Capabilities.KubeVersion.Version) -}}
{{- end -}}
{{- if and .Values.sidecar.enabled (not $serve) -}}
{{- $problems = append $problems `sidecar.enabled is true, but mode is "attach", which has no pods of its own: docs/kubernetes.md has the patch for yours` -}}
{{- end -}}

{{- range .Values.vllm.env -}}
{{- if has .name (list "PYTHONPATH" "VITALS_CONFIG") -}}
{{- $problems = append $problems (printf "vllm.env sets %s, which the chart sets: use %s" .name (eq .name "PYTHONPATH" | ternary "inject.pythonPath" "extraSettings")) -}}
{{- end -}}
{{- if and (eq .name "VLLM_PLUGINS") (not (contains "vitals_prometheus" (toString .value))) -}}
{{- $problems = append $problems (printf "vllm.env sets VLLM_PLUGINS to %q: without vitals_prometheus in it vLLM does not load the plugin" (toString .value)) -}}
{{- end -}}
{{- end -}}
{{- if and $serve .Values.vllm.cache.enabled (eq .Values.vllm.kind "Deployment") (or (gt (int .Values.vllm.replicas) 1) (include "vllm-vitals.scaled" .)) (not (has "ReadWriteMany" .Values.vllm.cache.accessModes)) -}}
{{- $problems = append $problems `vllm.cache.accessModes has no ReadWriteMany, but several pods of a Deployment share the claim: use vllm.kind "StatefulSet", which makes one for each` -}}
{{- end -}}
{{- if and .Values.pdb.enabled (ne (toString .Values.pdb.minAvailable) "") (ne (toString .Values.pdb.maxUnavailable) "") -}}
{{- $problems = append $problems "pdb.minAvailable and pdb.maxUnavailable are both set: a budget has one of them" -}}
{{- end -}}

{{- if and $scaling.hpa.enabled $scaling.keda.enabled -}}
{{- $problems = append $problems "autoscaling.hpa.enabled and autoscaling.keda.enabled are both true: KEDA makes an HPA of its own" -}}
{{- end -}}
{{- if and (or $scaling.hpa.enabled $scaling.keda.enabled) (gt (int $scaling.minReplicas) (int $scaling.maxReplicas)) -}}
{{- $problems = append $problems (printf "autoscaling.minReplicas is %d, more than maxReplicas, %d" (int $scaling.minReplicas) (int $scaling.maxReplicas)) -}}
{{- end -}}
{{- if and $scaling.hpa.enabled (lt (int $scaling.minReplicas) 1) -}}
{{- $problems = append $problems "autoscaling.minReplicas is 0: an HPA cannot wake a first pod; use KEDA" -}}
{{- end -}}
{{- if and $scaling.keda.enabled (lt (int $scaling.minReplicas) 1) (not $scaling.keda.wakeQuery) -}}
{{- $problems = append $problems "autoscaling.minReplicas is 0, but keda.wakeQuery is empty: with no pod nothing of ours tells that requests wait; name a query over a gateway's metrics" -}}
{{- end -}}
{{- if and $scaling.keda.enabled (not $scaling.keda.serverAddress) -}}
{{- $problems = append $problems "autoscaling.keda.serverAddress is empty: name the URL of the Prometheus to ask" -}}
{{- end -}}
{{- if and (or $scaling.hpa.enabled $scaling.keda.enabled) (not $serve) (not $scaling.target.name) -}}
{{- $problems = append $problems `autoscaling.target.name is empty: mode "attach" needs to be told what to scale` -}}
{{- end -}}
{{- if and $scaling.burnRate (not .Values.slos) $serve -}}
{{- $problems = append $problems "autoscaling.burnRate is set, but slos is empty: there is no budget to burn" -}}
{{- end -}}

{{- if and .Values.networkPolicy.enabled (not $serve) (not .Values.otelCollector.enabled) -}}
{{- $problems = append $problems `networkPolicy.enabled is true, but mode is "attach" without a collector: the chart does not cut off pods that are not its own` -}}
{{- end -}}
{{- if and .Values.otelCollector.enabled (not .Values.otelCollector.config) (not .Values.otelCollector.prometheus.enabled) (not .Values.otelCollector.otlp.endpoint) -}}
{{- $problems = append $problems "otelCollector has nowhere to put what it takes: enable otelCollector.prometheus, or set otelCollector.otlp.endpoint or otelCollector.config" -}}
{{- end -}}
{{- if and (gt (int .Values.otelCollector.replicas) 1) .Values.otelCollector.enabled .Values.otelCollector.prometheus.enabled (not .Values.otelCollector.config) -}}
{{- $problems = append $problems (printf "otelCollector.replicas is %d: with otelCollector.prometheus each of them would show part of the series, and old ones" (int .Values.otelCollector.replicas)) -}}
{{- end -}}

{{- range $problems }}
- {{ . }}
{{- end -}}
{{- end -}}
