//go:build kube135

package partage

import fwk "k8s.io/kube-scheduler/framework"

// simulated is false, because Kubernetes 1.35 tries no pod group as a whole.
func simulated(fwk.CycleState) bool { return false }
