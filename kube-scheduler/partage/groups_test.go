//go:build !kube135

package partage

import (
	"testing"

	v1 "k8s.io/api/core/v1"
)

func TestOfARefusedPodItsGroupIsKept(t *testing.T) {
	pod := device("web")
	pod.Spec.SchedulingGroup = &v1.PodSchedulingGroup{}
	if lookup(pod).Spec.SchedulingGroup != pod.Spec.SchedulingGroup {
		t.Error("kube-scheduler would not find it")
	}
}
