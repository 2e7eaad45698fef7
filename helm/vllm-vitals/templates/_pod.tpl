{{/* The pod of the chart's vLLM: Deployment and StatefulSet share it. */}}

{{- define "vllm-vitals.podTemplate" -}}
{{- $vllm := .Values.vllm -}}
metadata:
  labels:
    {{- include "vllm-vitals.labels" (list . "vllm") | nindent 4 }}
    {{- with $vllm.podLabels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  annotations:
    checksum/settings: {{ include "vllm-vitals.settings" . | sha256sum }}
    kubectl.kubernetes.io/default-container: vllm
    {{- with $vllm.podAnnotations }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
spec:
  serviceAccountName: {{ include "vllm-vitals.serviceAccountName" . }}
  automountServiceAccountToken: false
  enableServiceLinks: false
  {{- with .Values.imagePullSecrets }}
  imagePullSecrets:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  securityContext:
    {{- toYaml .Values.podSecurityContext | nindent 4 }}
  terminationGracePeriodSeconds: {{ int $vllm.terminationGracePeriodSeconds }}
  {{- with $vllm.runtimeClassName }}
  runtimeClassName: {{ . }}
  {{- end }}
  {{- with $vllm.priorityClassName }}
  priorityClassName: {{ . }}
  {{- end }}
  {{- with $vllm.nodeSelector }}
  nodeSelector:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $vllm.tolerations }}
  tolerations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $vllm.affinity }}
  affinity:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $vllm.topologySpreadConstraints }}
  topologySpreadConstraints:
    {{- range . }}
    {{- $selector := dict "matchLabels" (include "vllm-vitals.selectorLabels" (list $ "vllm") | fromYaml) }}
    - {{ toYaml (merge (deepCopy .) (dict "labelSelector" $selector)) | indent 6 | trim }}
    {{- end }}
  {{- end }}
  {{- if or .Values.inject.enabled .Values.sidecar.enabled }}
  initContainers:
    {{- if .Values.inject.enabled }}
    - name: vitals-inject
      image: {{ include "vllm-vitals.image" (list .Values.image .Chart.AppVersion) }}
      imagePullPolicy: {{ .Values.image.pullPolicy }}
      command: [cp, -r, /opt/vllm-vitals/package/., /package]
      securityContext:
        {{- toYaml .Values.securityContext | nindent 8 }}
      resources:
        {{- toYaml .Values.inject.resources | nindent 8 }}
      volumeMounts:
        - name: vitals-package
          mountPath: /package
    {{- end }}
    {{- if .Values.sidecar.enabled }}
    {{- include "vllm-vitals.sidecar" . | nindent 4 }}
    {{- end }}
  {{- end }}
  containers:
    - name: vllm
      image: {{ include "vllm-vitals.image" (list $vllm.image "latest") }}
      imagePullPolicy: {{ $vllm.image.pullPolicy }}
      command:
        {{- toYaml $vllm.command | nindent 8 }}
      args:
        - {{ $vllm.model | quote }}
        - --port={{ int $vllm.port }}
        {{- range $vllm.args }}
        - {{ . | quote }}
        {{- end }}
      env:
        {{- include "vllm-vitals.vllmEnv" . | nindent 8 }}
      {{- with $vllm.envFrom }}
      envFrom:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      ports:
        - name: http
          containerPort: {{ int $vllm.port }}
        {{- if and .Values.exporters.prometheus.enabled (not .Values.sidecar.enabled) }}
        - name: vitals
          containerPort: {{ int .Values.exporters.prometheus.port }}
        {{- end }}
      {{- range $probe := list "startupProbe" "livenessProbe" "readinessProbe" }}
      {{- with index $vllm $probe }}
      {{ $probe }}:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- end }}
      securityContext:
        {{- toYaml .Values.securityContext | nindent 8 }}
      resources:
        {{- include "vllm-vitals.vllmResources" . | nindent 8 }}
      volumeMounts:
        {{- include "vllm-vitals.vllmMounts" . | nindent 8 }}
  volumes:
    {{- include "vllm-vitals.volumes" . | nindent 4 }}
{{- end -}}

{{- define "vllm-vitals.sidecar" -}}
- name: vitals
  image: {{ include "vllm-vitals.image" (list .Values.image .Chart.AppVersion) }}
  imagePullPolicy: {{ .Values.image.pullPolicy }}
  command: [vllm-vitals, sidecar]
  restartPolicy: Always
  env:
    {{- include "vllm-vitals.settingsEnv" . | nindent 4 }}
    {{- with include "vllm-vitals.exportEnv" . | trim }}
    {{- . | nindent 4 }}
    {{- end }}
    - name: K8S_CONTAINER_NAME
      value: vitals
    {{- with .Values.sidecar.nvidiaVisibleDevices }}
    - name: NVIDIA_VISIBLE_DEVICES
      value: {{ . | quote }}
    - name: NVIDIA_DRIVER_CAPABILITIES
      value: utility
    {{- end }}
    {{- with .Values.sidecar.env }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- if .Values.exporters.prometheus.enabled }}
  ports:
    - name: vitals
      containerPort: {{ int .Values.exporters.prometheus.port }}
  livenessProbe:
    {{- include "vllm-vitals.sidecarProbe" (list . "/healthz") | nindent 4 }}
    periodSeconds: 10
    timeoutSeconds: 5
    failureThreshold: 6
  readinessProbe:
    {{- include "vllm-vitals.sidecarProbe" (list . "/readyz") | nindent 4 }}
    periodSeconds: 10
  {{- end }}
  securityContext:
    {{- toYaml .Values.securityContext | nindent 4 }}
  resources:
    {{- toYaml .Values.sidecar.resources | nindent 4 }}
  volumeMounts:
    - name: vitals-settings
      mountPath: /etc/vllm-vitals
      readOnly: true
    - name: vitals-wire
      mountPath: /run/vllm-vitals
    {{- with include "vllm-vitals.exportMounts" . | trim }}
    {{- . | nindent 4 }}
    {{- end }}
{{- end -}}

{{- define "vllm-vitals.sidecarProbe" -}}
{{- $prometheus := (first .).Values.exporters.prometheus -}}
{{- if $prometheus.tls.clientCASecret -}}
tcpSocket: {port: vitals}
{{- else -}}
httpGet:
  path: {{ last . }}
  port: vitals
  scheme: {{ $prometheus.tls.enabled | ternary "HTTPS" "HTTP" }}
{{- end }}
{{- end -}}

{{- define "vllm-vitals.vllmEnv" -}}
{{- if .Values.inject.enabled -}}
- name: PYTHONPATH
  value: {{ list "/opt/vllm-vitals/package" .Values.inject.pythonPath | compact | join ":" }}
{{- end }}
{{ include "vllm-vitals.settingsEnv" . }}
{{- if not .Values.sidecar.enabled }}
{{ include "vllm-vitals.exportEnv" . | trim }}
- name: K8S_CONTAINER_NAME
  value: vllm
{{- end }}
- name: HOME
  value: /home/vllm
- name: USER
  value: vllm
- name: HF_HOME
  value: /cache/huggingface
- name: VLLM_CACHE_ROOT
  value: /cache/vllm
{{- if .Values.vllm.huggingface.tokenSecret.name }}
- name: HF_TOKEN
  valueFrom:
    secretKeyRef:
      name: {{ .Values.vllm.huggingface.tokenSecret.name }}
      key: {{ .Values.vllm.huggingface.tokenSecret.key }}
{{- end }}
{{- with .Values.vllm.env }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "vllm-vitals.vllmResources" -}}
{{- $resources := deepCopy .Values.vllm.resources -}}
{{- if gt (int .Values.vllm.gpus.count) 0 -}}
{{- range $side := list "limits" "requests" -}}
{{- $device := dict $.Values.vllm.gpus.resource (int $.Values.vllm.gpus.count) -}}
{{- $_ := set $resources $side (merge $device (default dict (get $resources $side))) -}}
{{- end -}}
{{- end -}}
{{- toYaml $resources -}}
{{- end -}}

{{- define "vllm-vitals.vllmMounts" -}}
{{- if .Values.inject.enabled -}}
- name: vitals-package
  mountPath: /opt/vllm-vitals/package
  readOnly: true
{{- end }}
- name: vitals-settings
  mountPath: /etc/vllm-vitals
  readOnly: true
{{- if .Values.sidecar.enabled }}
- name: vitals-wire
  mountPath: /run/vllm-vitals
{{- else }}
{{- with include "vllm-vitals.exportMounts" . | trim }}
{{ . }}
{{- end }}
{{- end }}
- name: cache
  mountPath: /cache
- name: home
  mountPath: /home/vllm
- name: tmp
  mountPath: /tmp
- name: shm
  mountPath: /dev/shm
{{- with .Values.vllm.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "vllm-vitals.volumes" -}}
{{- $cache := .Values.vllm.cache -}}
{{- if .Values.inject.enabled -}}
- name: vitals-package
  emptyDir: {sizeLimit: 1Gi}
{{- end }}
- name: vitals-settings
  configMap:
    name: {{ include "vllm-vitals.fullname" . }}-settings
{{- if .Values.sidecar.enabled }}
- name: vitals-wire
  emptyDir: {medium: Memory, sizeLimit: 1Mi}
{{- end }}
{{- with include "vllm-vitals.exportVolumes" . | trim }}
{{ . }}
{{- end }}
{{- if not $cache.enabled }}
- name: cache
  emptyDir: {}
{{- else if or $cache.existingClaim (eq .Values.vllm.kind "Deployment") }}
- name: cache
  persistentVolumeClaim:
    claimName: {{ default (printf "%s-cache" (include "vllm-vitals.fullname" .)) $cache.existingClaim }}
{{- end }}
- name: home
  emptyDir: {}
- name: tmp
  emptyDir: {}
- name: shm
  emptyDir: {medium: Memory, sizeLimit: {{ .Values.vllm.shmSize }}}
{{- with .Values.vllm.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "vllm-vitals.cacheClaim" -}}
accessModes:
  {{- toYaml .Values.vllm.cache.accessModes | nindent 2 }}
{{- with .Values.vllm.cache.storageClass }}
storageClassName: {{ . }}
{{- end }}
resources:
  requests:
    storage: {{ .Values.vllm.cache.size }}
{{- end -}}

{{/* Whether something else than `vllm.replicas` says how many pods there are. */}}
{{- define "vllm-vitals.scaled" -}}
{{- if or .Values.autoscaling.hpa.enabled (and .Values.autoscaling.keda.enabled (include "vllm-vitals.hasKeda" .)) -}}true{{- end -}}
{{- end -}}
