{{- /* Names of objects: the one given, or the prefix of all with its part. */ -}}
{{- define "partage.scheduler" -}}
{{ .Values.names.scheduler | default (printf "%s-scheduler" (.Values.fullnameOverride | default "partage")) }}
{{- end }}

{{- define "partage.kubeScheduler" -}}
{{ .Values.names.kubeScheduler | default (printf "%s-kube-scheduler" (.Values.fullnameOverride | default "partage")) }}
{{- end }}

{{- define "partage.webhook" -}}
{{ .Values.names.webhook | default (printf "%s-webhook" (.Values.fullnameOverride | default "partage")) }}
{{- end }}

{{- define "partage.agent" -}}
{{ .Values.names.agent | default (printf "%s-agent" (.Values.fullnameOverride | default "partage")) }}
{{- end }}

{{- define "partage.metrics" -}}
{{ .Values.names.metrics | default (printf "%s-metrics" (.Values.fullnameOverride | default "partage")) }}
{{- end }}

{{- define "partage.labels" -}}
app.kubernetes.io/name: partage
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/part-of: partage
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
{{- end }}

{{- define "partage.image" -}}
{{ include "partage.imageNamed" (dict "image" .Values.image "tag" .Chart.AppVersion) }}
{{- end }}

{{- /* A digest says which image is meant, whatever a tag says later. */ -}}
{{- define "partage.imageNamed" -}}
{{ .image.repository }}{{ with .image.digest }}@{{ . }}{{ else }}:{{ .image.tag | default .tag }}{{ end }}
{{- end }}

{{- /* Not empty where kube-scheduler asks by its plugin, in one pod with the scheduler service. */ -}}
{{- define "partage.plugged" -}}
{{- if eq .Values.scheduler.seam "plugin" }}true{{ end -}}
{{- end }}

{{- /* kube-scheduler may be one minor older than the API server, and never newer. */ -}}
{{- define "partage.seamFits" -}}
{{- $built := .Values.kubeScheduler.pluginImage.kubernetes -}}
{{- $minor := regexFind "[0-9]+$" $built | int -}}
{{- $fits := printf ">=1.%d.0-0 <1.%d.0-0" $minor (add $minor 2) -}}
{{- if and (include "partage.plugged" .) (not (semverCompare $fits .Capabilities.KubeVersion.Version)) -}}
{{- fail (printf "scheduler.seam: plugin brings kube-scheduler %s, which works with that Kubernetes and the next minor; this cluster has %s. Set scheduler.seam=extender, or kubeScheduler.pluginImage.kubernetes to what the image was built for; for helm template set --kube-version" $built .Capabilities.KubeVersion.Version) -}}
{{- end -}}
{{- if eq .Values.scheduler.leaseName .Values.kubeScheduler.leaseName -}}
{{- fail (printf "scheduler.leaseName and kubeScheduler.leaseName are both %s: kube-scheduler and the service each hold a Lease of their own" .Values.scheduler.leaseName) -}}
{{- end -}}
{{- end }}

{{- /* Pods that ask by claims need agents that offer cards to claims, and a service that counts them. */ -}}
{{- define "partage.claimsFit" -}}
{{- if and .Values.scheduler.claimTemplates (not (and .Values.scheduler.claims .Values.agent.enabled .Values.agent.dra.enabled .Values.webhook.enabled)) -}}
{{- fail "scheduler.claimTemplates needs scheduler.claims, agent.enabled, agent.dra.enabled and webhook.enabled" -}}
{{- end -}}
{{- end }}

{{- /* User of kube-scheduler's container beside the service's; the service is 65532. */ -}}
{{- define "partage.kubeSchedulerUser" -}}
65533
{{- end }}

{{- /* Clusters' versions may have a vendor's suffix, the image has none. */ -}}
{{- define "partage.kubeSchedulerImage" -}}
{{- if include "partage.plugged" . -}}
{{- $beside := printf "%s/kube-scheduler" (dir .Values.image.repository) -}}
{{- $image := merge (dict "repository" (.Values.kubeScheduler.pluginImage.repository | default $beside)) .Values.kubeScheduler.pluginImage -}}
{{ include "partage.imageNamed" (dict "image" $image "tag" (.Values.image.tag | default .Chart.AppVersion)) }}
{{- else -}}
{{ include "partage.imageNamed" (dict "image" .Values.kubeScheduler.image "tag" (regexFind "^v[0-9]+\\.[0-9]+\\.[0-9]+" .Capabilities.KubeVersion.Version)) }}
{{- end -}}
{{- end }}

{{- /* The provider that enforces shares, by the agent's values: no program computes on simulated cards. */ -}}
{{- define "partage.isolation" -}}
{{- .isolation.provider | default (ternary "none" "partage" (gt (len .simulated) 0)) -}}
{{- end }}

{{- define "partage.account" -}}
system:serviceaccount:{{ .root.Release.Namespace }}:{{ .name }}
{{- end }}

{{- /* Resource names of the published tables, HAMi's replaced by the values, as a JSON list in order. */ -}}
{{- define "partage.renamed" -}}
{{- $to := dict "nvidia.com/gpu" .root.Values.resourceName "nvidia.com/gpumem" .root.Values.resourceMem "nvidia.com/gpumem-percentage" .root.Values.resourceMemPercentage "nvidia.com/gpucores" .root.Values.resourceCores "nvidia.com/priority" .root.Values.resourcePriority -}}
{{- $names := list -}}
{{- range .names -}}
{{- $names = append $names (get $to . | default .) -}}
{{- end -}}
{{- /* Koordinator's manifests ask for whole cards by this name, whatever HAMi's is. */ -}}
{{- if has "nvidia.com/gpu" .names }}{{- $names = append $names "nvidia.com/gpu" -}}{{- end -}}
{{- $names | uniq | sortAlpha | toJson -}}
{{- end }}

{{- define "partage.configNamespaces" -}}
{{- append .Values.configNamespaces .Release.Namespace | uniq | sortAlpha | toJson -}}
{{- end }}

{{- /* The right to read settings. */ -}}
{{- define "partage.readConfigs" -}}
- apiGroups: [""]
  resources: [configmaps]
  {{- with .Values.configNames }}
  resourceNames: {{ toJson . }}
  {{- end }}
  verbs: [list, watch]
{{- end }}

{{- define "partage.excluded" -}}
{{- concat (list "kube-system" "kube-public" "kube-node-lease" .Release.Namespace) .Values.webhook.excludeNamespaces | uniq | sortAlpha | toJson -}}
{{- end }}

{{- define "partage.writers" -}}
{{- $users := .Values.webhook.writers -}}
{{- range list "partage-scheduler" "partage-controller" "partage-agent" (include "partage.scheduler" .) (include "partage.agent" .) -}}
{{- $users = append $users (include "partage.account" (dict "root" $ "name" .)) -}}
{{- end -}}
{{- $users | uniq | sortAlpha | toJson -}}
{{- end }}

{{- define "partage.podSecurity" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "partage.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{- /* Where pods of a component go: its own node choice, and apart from each other. */ -}}
{{- define "partage.placed" -}}
{{- with .values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .values.nodeSelector }}
nodeSelector: {{ toYaml . | nindent 2 }}
{{- end }}
{{- with .values.tolerations }}
tolerations: {{ toYaml . | nindent 2 }}
{{- end }}
{{- with .values.affinity }}
affinity: {{ toYaml . | nindent 2 }}
{{- end }}
{{- with .root.Values.imagePullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
topologySpreadConstraints:
  - maxSkew: 1
    topologyKey: kubernetes.io/hostname
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels:
        app.kubernetes.io/instance: {{ .root.Release.Name }}
        app.kubernetes.io/component: {{ .component }}
{{- end }}

{{- /* Options of `partage webhook` that decide what is admitted. */ -}}
{{- define "partage.admission" -}}
- --namespace={{ .Release.Namespace }}
- --service={{ include "partage.webhook" . }}
- --configuration={{ .Values.webhook.configuration }}
{{- if .Values.webhook.certificate }}
- --tls-cert=/etc/partage/tls/tls.crt
- --tls-key=/etc/partage/tls/tls.key
{{- else }}
- --secret={{ .Values.webhook.tlsSecret }}
{{- end }}
- --scheduler-name={{ first .Values.schedulerNames }}
{{- range .Values.schedulerNames }}
- --serve={{ . }}
{{- end }}
- {{ .Values.webhook.convertDefault | ternary "--convert-default" "--keep-default" }}
{{- range .Values.webhook.excludeNamespaces }}
- --exclude-namespace={{ . }}
{{- end }}
{{- range include "partage.writers" . | fromJsonArray }}
- --writer={{ . }}
{{- end }}
{{- with .Values.webhook.breakGlass }}
- --break-glass={{ . }}
{{- end }}
- {{ .Values.webhook.denyPrivileged | ternary "--deny-privileged" "--allow-privileged" }}
{{- range include "partage.configNamespaces" . | fromJsonArray }}
- --config-namespace={{ . }}
{{- end }}
{{- range .Values.configNames }}
- --config-name={{ . }}
{{- end }}
{{- end }}

{{- /* Where and which traces are sent, in OpenTelemetry's variables. */ -}}
{{- define "partage.traceEnv" -}}
- name: OTEL_EXPORTER_OTLP_ENDPOINT
  value: {{ required "traces.enabled needs traces.endpoint, the collector's URL such as http://otel-collector.observability:4318" .endpoint | quote }}
- name: OTEL_TRACES_SAMPLER
  value: parentbased_traceidratio
- name: OTEL_TRACES_SAMPLER_ARG
  value: {{ .ratio | quote }}
{{- with .env }}
{{ toYaml . }}
{{- end }}
{{- end }}
