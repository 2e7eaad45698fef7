{{/* The rules: files/rules.yaml with what `prometheusRule.defaultRules` says otherwise. */}}

{{/* What is said of a place in defaultRules, or else a default; call it with (list $ path default). */}}
{{- define "vllm-vitals.ruleSetting" -}}
{{- $found := (index . 0).Values.prometheusRule.defaultRules -}}
{{- range splitList "." (index . 1) -}}
{{- if kindIs "map" $found }}{{- $found = get $found . }}{{- end -}}
{{- end -}}
{{- if or (kindIs "map" $found) (eq (toString $found) "") -}}
{{- index . 2 -}}
{{- else -}}
{{- $found -}}
{{- end -}}
{{- end -}}

{{/* Seconds of a duration such as 5m. */}}
{{- define "vllm-vitals.seconds" -}}
{{- mul (trimSuffix (trunc -1 .) . | int64) (get (dict "s" 1 "m" 60 "h" 3600 "d" 86400) (trunc -1 .)) -}}
{{- end -}}

{{/* A number without a needless exponent or fraction. */}}
{{- define "vllm-vitals.number" -}}
{{- if eq (floor .) (float64 .) }}{{ int64 . }}{{ else }}{{ . }}{{ end -}}
{{- end -}}

{{/* A text with every @{setting:form} as it is set; call it with (list text settings). */}}
{{- define "vllm-vitals.ruleText" -}}
{{- $text := index . 0 -}}
{{- $settings := index . 1 -}}
{{- range $mark := regexFindAll "@\\{[^}]+\\}" $text -1 | uniq -}}
{{- $parts := $mark | trimPrefix "@{" | trimSuffix "}" | splitList ":" -}}
{{- $form := index $parts 1 -}}
{{- $value := get $settings (index $parts 0) -}}
{{- $shown := $value -}}
{{- if eq $form "number" }}{{- $shown = include "vllm-vitals.number" (float64 $value) }}{{- end -}}
{{- if eq $form "percent" }}{{- $shown = printf "%d%%" (round (mulf (float64 $value) 100) 0 | int64) }}{{- end -}}
{{- if eq $form "odds" }}{{- $shown = include "vllm-vitals.number" (divf (float64 $value) (subf 1 (float64 $value))) }}{{- end -}}
{{- if eq $form "seconds" }}{{- $shown = include "vllm-vitals.seconds" $value }}{{- end -}}
{{- if eq $form "twice" }}{{- $shown = include "vllm-vitals.seconds" $value | int64 | mul 2 | toString }}{{- end -}}
{{- $text = replace $mark $shown $text -}}
{{- end -}}
{{- $text -}}
{{- end -}}

{{/* The groups, as YAML. */}}
{{- define "vllm-vitals.ruleGroups" -}}
{{- $root := . -}}
{{- $rule := .Values.prometheusRule -}}
{{- $file := .Files.Get "files/rules.yaml" | fromYaml -}}
{{- $settings := dict -}}
{{- range $path, $default := $file.defaults -}}
{{- $_ := set $settings $path (include "vllm-vitals.ruleSetting" (list $root $path $default)) -}}
{{- end -}}
{{- $groups := list -}}
{{- range $section := list "slo" "engine" "capacity" "latency" "efficiency" "gpu" "telemetry" -}}
{{- if eq (include "vllm-vitals.ruleSetting" (list $root (printf "%s.enabled" $section) true)) "true" -}}
{{- range $group := get $file.sections $section -}}
{{- $rules := list -}}
{{- range $each := $group.rules -}}
{{- $key := default "" $each.key -}}
{{- if or (not $key) (eq (include "vllm-vitals.ruleSetting" (list $root (printf "%s.enabled" $key) true)) "true") -}}
{{- $expr := eq $rule.histograms "exponential" | ternary (default $each.expr $each.exponential) $each.expr -}}
{{- $made := dict "expr" (include "vllm-vitals.ruleText" (list $expr $settings)) -}}
{{- with $each.record }}{{- $_ := set $made "record" (include "vllm-vitals.ruleText" (list . $settings)) }}{{- end -}}
{{- with $each.labels }}{{- $_ := set $made "labels" (deepCopy .) }}{{- end -}}
{{- if $each.alert -}}
{{- $_ := set $made "alert" $each.alert -}}
{{- $for := include "vllm-vitals.ruleSetting" (list $root (printf "%s.for" $key) (default "0s" $each.for)) -}}
{{- if ne $for "0s" }}{{- $_ := set $made "for" $for }}{{- end -}}
{{- $severity := include "vllm-vitals.ruleSetting" (list $root (printf "%s.severity" $key) $each.labels.severity) -}}
{{- $severity = include "vllm-vitals.ruleSetting" (list $root (printf "%s.severity" $section) $severity) -}}
{{- $_ := set $made "labels" (merge (dict "severity" $severity) $each.labels $rule.alertLabels) -}}
{{- $annotations := dict "runbook_url" (printf "%s%s.md" $rule.runbooks $each.alert) -}}
{{- range $name, $text := $each.annotations }}{{- $_ := set $annotations $name (include "vllm-vitals.ruleText" (list $text $settings)) }}{{- end -}}
{{- $_ := set $made "annotations" $annotations -}}
{{- end -}}
{{- $rules = append $rules $made -}}
{{- end -}}
{{- end -}}
{{- if $rules }}{{- $groups = append $groups (merge (dict "rules" $rules) (omit $group "rules")) }}{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- toYaml (concat $groups $rule.extraGroups) -}}
{{- end -}}
