{{- define "toolfleet.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 30 | trimSuffix "-" -}}
{{- end -}}

{{- /* At most 30 characters, so that the longest name of a part fits into 63. */ -}}
{{- define "toolfleet.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 30 | trimSuffix "-" -}}
{{- else if contains (include "toolfleet.name" .) .Release.Name -}}
{{- .Release.Name | trunc 30 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "toolfleet.name" .) | trunc 30 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- /* Takes {root, component}. */ -}}
{{- define "toolfleet.selector" -}}
app.kubernetes.io/name: {{ include "toolfleet.name" .root }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end -}}

{{- define "toolfleet.labels" -}}
{{ include "toolfleet.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" }}
{{- end -}}

{{- define "toolfleet.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ default .Chart.AppVersion .Values.image.tag }}
{{- end -}}
{{- end -}}

{{- define "toolfleet.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "toolfleet.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{- /* A setting as its variable has it: text as it is, everything else as JSON, in which no number becomes 1e+07. */ -}}
{{- define "toolfleet.setting" -}}
{{- if kindIs "string" . }}{{ . }}{{ else }}{{ toJson . }}{{ end -}}
{{- end -}}

{{- /* Lanes that scale from zero, comma-separated: their calls wait for a worker to be started. */ -}}
{{- define "toolfleet.zeroLanes" -}}
{{- $lanes := list -}}
{{- range $lane, $own := .Values.workers -}}
{{- $worker := mergeOverwrite (deepCopy $.Values.workerDefaults) (default dict $own) -}}
{{- if and $worker.enabled (ne $worker.autoscaling.by "none") (eq (int $worker.autoscaling.minReplicas) 0) -}}
{{- $lanes = append $lanes $lane -}}
{{- end -}}
{{- end -}}
{{- join "," $lanes -}}
{{- end -}}

{{- /* The longest limit that the settings give a call of a lane, in seconds. Takes {root, lane}. */ -}}
{{- define "toolfleet.longestLimit" -}}
{{- $settings := .root.Values.settings -}}
{{- $usual := float64 (default 30 $settings.TOOLFLEET_DEFAULT_TIMEOUT) -}}
{{- $slow := float64 (default 120 $settings.TOOLFLEET_TOOL_EXECUTION_TIMEOUT) -}}
{{- $longest := ternary $slow $usual (eq .lane "slow") -}}
{{- if eq .lane "all" -}}{{- $longest = maxf $usual $slow -}}{{- end -}}
{{- $slowModules := include "toolfleet.slowModules" .root | splitList "," -}}
{{- $limits := default dict $settings.TOOLFLEET_MODULE_TIMEOUTS -}}
{{- if kindIs "string" $limits -}}{{- $limits = fromJson $limits -}}{{- end -}}
{{- range $module, $limit := $limits -}}
{{- $lane := ternary "slow" "fast" (has $module $slowModules) -}}
{{- if or (eq $.lane "all") (eq $.lane $lane) -}}{{- $longest = maxf $longest (float64 $limit) -}}{{- end -}}
{{- end -}}
{{- ceil $longest | int -}}
{{- end -}}

{{- define "toolfleet.slowModules" -}}
{{- $slow := default "claude_code,deployer,garmin,myfitnesspal,renpho_biometrics" .Values.settings.TOOLFLEET_SLOW_MODULES -}}
{{- if and (kindIs "string" $slow) (hasPrefix "[" $slow) -}}{{- $slow = fromJsonArray $slow -}}{{- end -}}
{{- if kindIs "string" $slow -}}{{- $slow | nospace -}}{{- else -}}{{- join "," $slow -}}{{- end -}}
{{- end -}}

{{- /* Seconds that a worker drains: its longest call, ten to report it, and ten to put back what has not ended. */ -}}
{{- define "toolfleet.drain" -}}
{{- add (int .longestCallSeconds) 20 -}}
{{- end -}}

{{- /* Fails for a grace that is too short, or says what it is. Takes {given, needed, what}. */ -}}
{{- define "toolfleet.grace" -}}
{{- $grace := int (default .needed .given) -}}
{{- if lt $grace (int .needed) -}}
{{- fail (printf "%s has terminationGracePeriodSeconds %d, and needs %d: what runs would be torn apart." .what $grace (int .needed)) -}}
{{- end -}}
{{- $grace -}}
{{- end -}}

{{- define "toolfleet.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{- define "toolfleet.containerSecurity" -}}
allowPrivilegeEscalation: false
privileged: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end -}}

{{- /* What every pod begins with. Takes {root, pod}. Variables of Services would look like our settings: TOOLFLEET_GATEWAY_PORT. */ -}}
{{- define "toolfleet.pod" -}}
serviceAccountName: {{ include "toolfleet.serviceAccount" .root }}
automountServiceAccountToken: false
enableServiceLinks: false
securityContext:
  {{- include "toolfleet.podSecurity" . | nindent 2 }}
{{- with .root.Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- range $field := list "nodeSelector" "tolerations" "affinity" "topologySpreadConstraints" "priorityClassName" }}
{{- with index $.pod $field }}
{{ $field }}:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}
{{- end -}}

{{- /* Labels and annotations of a pod. Takes {root, component, pod}. */ -}}
{{- define "toolfleet.podMetadata" -}}
labels:
  {{- include "toolfleet.labels" . | nindent 2 }}
  {{- with .pod.labels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
annotations:
  checksum/settings: {{ include "toolfleet.settingsData" .root | sha256sum }}
  {{- with .pod.annotations }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end -}}

{{- /* Liveness asks no Redis: who is alive and cannot reach Redis waits for it, and a restart would tear its calls apart. Takes the port's name. */ -}}
{{- define "toolfleet.probes" -}}
startupProbe:
  httpGet: {path: /livez, port: {{ . }}}
  periodSeconds: 2
  timeoutSeconds: 5
  failureThreshold: 60
livenessProbe:
  httpGet: {path: /livez, port: {{ . }}}
  periodSeconds: 15
  timeoutSeconds: 5
  failureThreshold: 4
readinessProbe:
  httpGet: {path: /readyz, port: {{ . }}}
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 2
{{- end -}}

{{- define "toolfleet.lifecycle" -}}
lifecycle:
  preStop:
    sleep: {seconds: {{ .Values.preStopSeconds }}}
{{- end -}}

{{- /* Variables out of Secrets. Takes a map of name -> {secret, key}. */ -}}
{{- define "toolfleet.secretVariables" -}}
{{- range $name, $from := . }}
- name: {{ $name }}
  valueFrom:
    secretKeyRef: {name: {{ $from.secret }}, key: {{ $from.key }}}
{{- end }}
{{- end -}}

{{- define "toolfleet.plainVariables" -}}
{{- range $name, $value := . }}
- name: {{ $name }}
  value: {{ $value | quote }}
{{- end }}
{{- end -}}

{{- /* Redis, and the secret settings that a process of this kind needs. Takes {root, kind}. */ -}}
{{- define "toolfleet.secrets" -}}
{{- $workersOnly := list "TOOLFLEET_MODULE_HEADERS" -}}
{{- $notGateways := list "TOOLFLEET_CORE_SECRET" "TOOLFLEET_CORE_URL" -}}
- name: TOOLFLEET_REDIS_URL
  valueFrom:
    secretKeyRef:
      name: {{ required "redis.existingSecret must name the Secret with the URL of Redis." .root.Values.redis.existingSecret }}
      key: {{ .root.Values.redis.urlKey }}
{{- $needed := dict -}}
{{- range $name, $from := .root.Values.secretSettings -}}
{{- if not (or (and (has $name $workersOnly) (ne $.kind "worker")) (and (has $name $notGateways) (eq $.kind "gateway"))) -}}
{{- $_ := set $needed $name $from -}}
{{- end -}}
{{- end -}}
{{- include "toolfleet.secretVariables" $needed }}
{{- end -}}

{{- define "toolfleet.settingsRef" -}}
envFrom:
  - configMapRef:
      name: {{ include "toolfleet.fullname" . }}-settings
{{- end -}}

{{- define "toolfleet.redisTlsMount" -}}
{{- if .Values.redis.tls.existingSecret }}
- name: redis-tls
  mountPath: /etc/toolfleet/redis-tls
  readOnly: true
{{- end }}
{{- end -}}

{{- define "toolfleet.redisTlsVolume" -}}
{{- with .Values.redis.tls.existingSecret }}
- name: redis-tls
  secret:
    secretName: {{ . }}
    defaultMode: 0440
{{- end }}
{{- end -}}

{{- define "toolfleet.gatewayName" -}}
{{ include "toolfleet.fullname" . }}-gateway
{{- end -}}

{{- define "toolfleet.gatewayUrl" -}}
{{- if .Values.keda.gatewayUrl -}}
{{- .Values.keda.gatewayUrl | trimSuffix "/" -}}
{{- else if .Values.gateway.enabled -}}
http://{{ include "toolfleet.gatewayName" . }}.{{ .Release.Namespace }}.svc:{{ .Values.gateway.service.port }}
{{- else -}}
{{- fail "autoscaling by keda asks a gateway: enable it, or set keda.gatewayUrl." -}}
{{- end -}}
{{- end -}}
