//go:build kube135

package partage

import (
	"context"

	v1 "k8s.io/api/core/v1"
	fwk "k8s.io/kube-scheduler/framework"
)

func preflight(p *Plugin, state fwk.CycleState, pod *v1.Pod) *fwk.Status {
	return p.PreBindPreFlight(context.Background(), state, pod, "n1")
}
