//go:build kube135

package partage

import (
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	fwk "k8s.io/kube-scheduler/framework"
)

// simulated is false, because Kubernetes 1.35 tries no pod group as a whole.
func simulated(fwk.CycleState) bool { return false }

// lookup is the part of a pod by which kube-scheduler finds it in its queue. A tenant writes the rest, up to a megabyte.
func lookup(pod *v1.Pod) *v1.Pod {
	return &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID}}
}
