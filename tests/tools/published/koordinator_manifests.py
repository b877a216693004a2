"""The manifests that the Koordinator document prints, with their indentation restored and nothing else changed."""

from typing import Final

__all__ = ["DEVICE", "NODE", "POD", "PRINTED", "RECORD", "RUNNING"]

RECORD: Final = "scheduling.koordinator.sh/device-allocated"
DEVICE: Final = """
apiVersion: scheduling.koordinator.sh/v1alpha1
kind: Device
metadata:
  creationTimestamp: "2022-10-08T09:26:42Z"
  generation: 1
  managedFields:
    - apiVersion: scheduling.koordinator.sh/v1alpha1
      fieldsType: FieldsV1
      fieldsV1:
        f:metadata:
          f:ownerReferences: {}
        f:spec:
          .: {}
          f:devices: {}
        f:status: {}
      manager: koordlet
      operation: Update
      time: "2022-10-08T09:26:42Z"
  name: host04
  ownerReferences:
    - apiVersion: v1
      blockOwnerDeletion: true
      controller: true
      kind: Node
      name: host04
      uid: 09c4f912-6026-467a-85d2-6b2147c9557e
  resourceVersion: "39011943"
  selfLink: /apis/scheduling.koordinator.sh/v1alpha1/devices/host04
  uid: 5a498e1f-1357-4518-b74c-cab251d6c18c
spec:
  devices:
    - health: true
      id: GPU-04cea5cd-966f-7116-1d58-1ac34421541b
      minor: 0
      resources:
        kubernetes.io/gpu-core: "100"
        kubernetes.io/gpu-memory: 16Gi
        kubernetes.io/gpu-memory-ratio: "100"
      type: gpu
    - health: true
      id: GPU-3680858f-1753-371e-3c1a-7d8127fc7113
      minor: 1
      resources:
        kubernetes.io/gpu-core: "100"
        kubernetes.io/gpu-memory: 16Gi
        kubernetes.io/gpu-memory-ratio: "100"
      type: gpu
status: {}
"""
NODE: Final = """
apiVersion: v1
kind: Node
metadata:
  annotations:
    flannel.alpha.coreos.com/backend-data: '{"VtepMAC":"5a:69:48:10:29:25"}'
  creationTimestamp: "2022-08-29T09:12:55Z"
  labels:
    beta.kubernetes.io/os: linux
  name: host04
status:
  addresses:
    - address: 10.15.0.37
      type: InternalIP
    - address: host04
      type: Hostname
  allocatable:
    cpu: "6"
    ephemeral-storage: "200681483926"
    memory: 59274552Ki
    nvidia.com/gpu: "2"
    pods: "220"
"""
POD: Final = """
apiVersion: v1
kind: Pod
metadata:
  name: pod-example
  namespace: default
spec:
  schedulerName: koord-scheduler
  containers:
    - command:
        - sleep
        - 365d
      image: busybox
      imagePullPolicy: IfNotPresent
      name: curlimage
      resources:
        limits:
          cpu: 40m
          memory: 40Mi
        requests:
          cpu: 40m
          memory: 40Mi
          kubernetes.io/gpu: "100"
      terminationMessagePath: /dev/termination-log
      terminationMessagePolicy: File
  restartPolicy: Always
"""
PRINTED: Final = (
    '{"gpu":[{"minor":0,"resources":{"kubernetes.io/gpu-core":"100",'
    '"kubernetes.io/gpu-memory":"12508288Ki","kubernetes.io/gpu-memory-ratio":"100"}}]}'
)
RUNNING: Final = f"""
apiVersion: v1
kind: Pod
metadata:
  annotations:
    {RECORD}: '{PRINTED}'
  creationTimestamp: "2022-10-08T09:33:07Z"
  name: pod-example
  namespace: default
  resourceVersion: "39015044"
  selfLink: /api/v1/namespaces/xlf/pods/gpu-pod7
  uid: 6bf1ac3c-0c9f-472a-8b86-de350bbfa795
spec:
  nodeName: host04
  containers:
    - command:
        - sleep
        - 365d
      image: busybox
      imagePullPolicy: IfNotPresent
      name: curlimage
      resources:
        limits:
          cpu: "1"
          kubernetes.io/gpu: "100"
          memory: 256Mi
        requests:
          cpu: "1"
          kubernetes.io/gpu: "100"
          memory: 256Mi
status:
  hostIP: 10.0.0.149
  phase: Running
  podIP: 10.244.2.45
  podIPs:
    - ip: 10.244.2.45
  qosClass: Guaranteed
  startTime: "2022-10-08T09:33:07Z"
"""
