//go:build !kube135

package partage

import (
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	fwk "k8s.io/kube-scheduler/framework"
)

// simulated reports whether this is the cycle of a pod group, which is reverted before anything is bound.
func simulated(state fwk.CycleState) bool { return state.IsPodGroupSchedulingCycle() }

// lookup is the part of a pod by which kube-scheduler finds it in its queue. A tenant writes the rest, up to a megabyte.
func lookup(pod *v1.Pod) *v1.Pod {
	return &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID},
		Spec:       v1.PodSpec{SchedulingGroup: pod.Spec.SchedulingGroup},
	}
}
