//go:build !kube135

package partage

import (
	"context"

	v1 "k8s.io/api/core/v1"
	fwk "k8s.io/kube-scheduler/framework"
)

// PreBindPreFlight keeps pods without a turn out of PreBind, because kube-scheduler writes the status of each pod that
// takes part. For pods with claims it writes the status anyway.
func (p *Plugin) PreBindPreFlight(_ context.Context, state fwk.CycleState, pod *v1.Pod, _ string) (_ *fwk.PreBindPreFlightResult, status *fwk.Status) {
	defer p.guard(&status, state, pod, fwk.Skip)
	if !takesTurns(state) {
		return nil, fwk.NewStatus(fwk.Skip)
	}
	return nil, nil
}
