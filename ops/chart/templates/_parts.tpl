{{- define "toolfleet.metricsVariables" -}}
{{- if .Values.metrics.enabled }}
- name: TOOLFLEET_METRICS_PORT
  value: {{ .Values.metrics.port | quote }}
- name: TOOLFLEET_METRICS_ADDRESS
  value: "0.0.0.0"
{{- end }}
{{- end -}}

{{- define "toolfleet.metricsPort" -}}
{{- if .Values.metrics.enabled }}
- {name: metrics, containerPort: {{ .Values.metrics.port }}}
{{- end }}
{{- end -}}

{{- /* How many pods may be away by intention. Takes {about, budget, name}. */ -}}
{{- define "toolfleet.disruptionBudget" }}
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: {{ include "toolfleet.fullname" .about.root }}-{{ .name }}
  labels:
    {{- include "toolfleet.labels" .about | nindent 4 }}
spec:
  maxUnavailable: {{ .budget.maxUnavailable }}
  # A pod that is not ready takes no calls: it holds up no drain of its node.
  unhealthyPodEvictionPolicy: AlwaysAllow
  selector:
    matchLabels:
      {{- include "toolfleet.selector" .about | nindent 6 }}
{{- end -}}
