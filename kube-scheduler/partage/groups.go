//go:build !kube135

package partage

import fwk "k8s.io/kube-scheduler/framework"

// simulated reports whether this is the cycle of a pod group, which is reverted before anything is bound.
func simulated(state fwk.CycleState) bool { return state.IsPodGroupSchedulingCycle() }
