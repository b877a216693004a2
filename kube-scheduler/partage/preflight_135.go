//go:build kube135

package partage

import (
	"context"

	v1 "k8s.io/api/core/v1"
	fwk "k8s.io/kube-scheduler/framework"
)

// PreBindPreFlight keeps pods without a turn out of PreBind.
func (p *Plugin) PreBindPreFlight(_ context.Context, state fwk.CycleState, pod *v1.Pod, _ string) (status *fwk.Status) {
	defer p.guard(&status, state, pod, fwk.Skip)
	if !takesTurns(state) {
		return fwk.NewStatus(fwk.Skip)
	}
	return nil
}
