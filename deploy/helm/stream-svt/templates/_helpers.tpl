{{- define "stream-svt.name" -}}
{{- $of := ternary .Release.Name (printf "%s-stream-svt" .Release.Name) (contains "stream-svt" .Release.Name) -}}
{{- default $of .Values.nameOverride | trunc 43 | trimSuffix "-" -}}
{{- end -}}

{{- define "stream-svt.selector" -}}
app.kubernetes.io/name: stream-svt
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end -}}

{{- define "stream-svt.labels" -}}
{{ include "stream-svt.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version }}
{{- end -}}

{{- define "stream-svt.image" -}}
{{- with .Values.image -}}
{{ .repository }}{{ if .digest }}@{{ .digest }}{{ else }}:{{ default $.Chart.AppVersion .tag }}{{ end }}
{{- end -}}
{{- end -}}

{{/* The configuration as an object; a text that is no YAML ends the rendering. */}}
{{- define "stream-svt.config" -}}
{{- $config := fromYaml .text -}}
{{- if or (hasKey $config "Error") (not $config) -}}
{{- fail (printf "%s: give the file with --set-file %s=FILE; %s" .key .key (get $config "Error" | default "it is empty")) -}}
{{- end -}}
{{- toYaml $config -}}
{{- end -}}

{{/* Port of the pages, from the configuration. */}}
{{- define "stream-svt.port" -}}
{{- $config := fromYaml (include "stream-svt.config" .) -}}
{{- dig "port" .default ($config.web | default dict) | int -}}
{{- end -}}

{{/* What every pod has: .component, .secret, .configMap, .args, .resources, .port where it has pages, .username of another user. */}}
{{- define "stream-svt.pod" -}}
automountServiceAccountToken: false
enableServiceLinks: false # else its variables would look like STREAM_SVT_... settings
{{- with .root.Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  seccompProfile: {type: RuntimeDefault}
containers:
  - name: {{ .component }}
    image: {{ include "stream-svt.image" .root }}
    imagePullPolicy: {{ .root.Values.image.pullPolicy }}
    args: {{ toJson .args }}
    {{- with .username }}
    env:
      - {name: STREAM_SVT_KAFKA_USERNAME, value: {{ . | quote }}}
    {{- end }}
    securityContext:
      allowPrivilegeEscalation: false
      readOnlyRootFilesystem: true
      capabilities: {drop: [ALL]}
    {{- with .port }}
    ports:
      - {name: web, containerPort: {{ . }}}
    # Up within seconds, but brokers that do not answer get time before the process gives up and starts anew.
    startupProbe:
      httpGet: {path: /health/live, port: web}
      periodSeconds: 2
      failureThreshold: 30
    livenessProbe:
      httpGet: {path: /health/live, port: web}
      periodSeconds: 10
      timeoutSeconds: 5
      failureThreshold: 3
    # Not ready while a shard or a destination waits for an operator; the others go on.
    readinessProbe:
      httpGet: {path: /health/ready, port: web}
      periodSeconds: 5
      timeoutSeconds: 5
    {{- end }}
    resources: {{ toJson .resources }}
    volumeMounts:
      - {name: config, mountPath: /etc/stream-svt, readOnly: true}
      - {name: secrets, mountPath: /run/secrets/stream-svt, readOnly: true}
      - {name: tmp, mountPath: /tmp}
volumes:
  - name: config
    configMap:
      name: {{ .configMap }}
  - name: secrets
    secret:
      secretName: {{ .secret }}
      defaultMode: 0440 # for the group of the pod (fsGroup) alone
  - name: tmp
    emptyDir: {medium: Memory, sizeLimit: 16Mi}
{{- end -}}

{{/* Where pods are placed: on different nodes, then zones, and as .values say. */}}
{{- define "stream-svt.placement" -}}
topologySpreadConstraints:
  {{- range list "kubernetes.io/hostname" "topology.kubernetes.io/zone" }}
  - maxSkew: 1
    topologyKey: {{ . }}
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels:
        {{- include "stream-svt.selector" $ | nindent 8 }}
  {{- end }}
{{- with .values.nodeSelector }}
nodeSelector: {{ toJson . }}
{{- end }}
{{- with .values.tolerations }}
tolerations: {{ toJson . }}
{{- end }}
{{- with .values.affinity }}
affinity: {{ toJson . }}
{{- end }}
{{- with .values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- end -}}

{{/* Egress to names, Kafka, and what is given. */}}
{{- define "stream-svt.egress" -}}
- to: {{ toJson .dns.to }}
  ports:
    - {protocol: UDP, port: {{ .dns.port }}}
    - {protocol: TCP, port: {{ .dns.port }}}
{{- range prepend .more .kafka }}
{{ include "stream-svt.peers" . }}
{{- end }}
{{- end -}}

{{- define "stream-svt.peers" -}}
- to: {{ toJson .to }}
  ports:
    {{- range .ports }}
    - {protocol: TCP, port: {{ . }}}
    {{- end }}
{{- end -}}
