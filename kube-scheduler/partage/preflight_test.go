//go:build !kube135

package partage

import (
	"context"

	v1 "k8s.io/api/core/v1"
	fwk "k8s.io/kube-scheduler/framework"
)

func skipped(p *Plugin, state fwk.CycleState, pod *v1.Pod) bool {
	_, status := p.PreBindPreFlight(context.Background(), state, pod, "n1")
	return status.IsSkip()
}
