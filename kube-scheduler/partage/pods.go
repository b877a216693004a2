package partage

import (
	"encoding/json"
	"fmt"
	"strings"

	v1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
	fwk "k8s.io/kube-scheduler/framework"

	"partage.io/kube-scheduler/protocol"
)

// words is a vocabulary ready for use. It is data of the engine, because the Go code contains no name of a device.
type words struct {
	resources   map[v1.ResourceName]struct{}
	annotations map[string]struct{}
	prefixes    []string
	claims      bool
	driver      string
}

func wordsOf(given *protocol.Vocabulary) *words {
	w := &words{map[v1.ResourceName]struct{}{}, map[string]struct{}{}, given.Prefixes, given.Claims, given.Driver}
	for _, name := range given.Resources {
		w.resources[v1.ResourceName(name)] = struct{}{}
	}
	for _, key := range given.Annotations {
		w.annotations[key] = struct{}{}
	}
	return w
}

// concerns reports whether the plugin must ask the engine about a pod. Until the engine has reported which
// resources are devices, every resource with a domain in its name may be one.
func (w *words) concerns(pod *v1.Pod) bool {
	names := func(list v1.ResourceList) bool {
		for name := range list {
			if w == nil {
				if strings.Contains(string(name), "/") {
					return true
				}
			} else if _, known := w.resources[name]; known {
				return true
			}
		}
		return false
	}
	asks := func(r *v1.ResourceRequirements) bool { return names(r.Limits) || names(r.Requests) }
	for i := range pod.Spec.Containers {
		if asks(&pod.Spec.Containers[i].Resources) {
			return true
		}
	}
	for i := range pod.Spec.InitContainers {
		if asks(&pod.Spec.InitContainers[i].Resources) {
			return true
		}
	}
	if pod.Spec.Resources != nil && asks(pod.Spec.Resources) || names(pod.Spec.Overhead) {
		return true
	}
	return w != nil && w.carries(pod.Annotations)
}

func (w *words) carries(annotations map[string]string) bool {
	for key := range annotations {
		if _, known := w.annotations[key]; known {
			return true
		}
		for _, prefix := range w.prefixes {
			if strings.HasPrefix(key, prefix) {
				return true
			}
		}
	}
	return false
}

// byClaims reports whether a pod asks by ResourceClaims alone, and the engine wants questions about those.
func (w *words) byClaims(pod *v1.Pod) bool {
	return w.mayClaim(pod) && !w.concerns(pod)
}

// mayClaim reports whether a pod asks by ResourceClaims, perhaps with other requests, and the engine wants questions about those.
func (w *words) mayClaim(pod *v1.Pod) bool {
	return w != nil && w.claims && len(pod.Spec.ResourceClaims) > 0
}

// wide reports whether kube-scheduler needs every node that can host the pod's devices, because rules
// of its own compare nodes, or may reject any of them for other pods or volumes.
func wide(spec *v1.PodSpec) bool {
	if len(spec.TopologySpreadConstraints) > 0 {
		return true
	}
	if affinity := spec.Affinity; affinity != nil {
		if affinity.PodAffinity != nil || affinity.PodAntiAffinity != nil {
			return true
		}
		if affinity.NodeAffinity != nil && len(affinity.NodeAffinity.PreferredDuringSchedulingIgnoredDuringExecution) > 0 {
			return true
		}
	}
	for i := range spec.Volumes {
		if spec.Volumes[i].PersistentVolumeClaim != nil || spec.Volumes[i].Ephemeral != nil {
			return true
		}
	}
	return len(spec.ResourceClaims) > 0
}

// mostDomains is the number of labels that distinguish domains; for a pod with more, every node counts.
const mostDomains = 2

// domains gives the labels whose values tell nodes apart for kube-scheduler's rules on a wide pod, if no rule needs
// more. The best nodes of each domain are then as good as all of them. It is empty if every node counts.
// The second result reports whether the rules are soft; hard ones reject nodes themselves.
func domains(spec *v1.PodSpec) (keys []string, soft bool) {
	constraints := spec.TopologySpreadConstraints
	if len(constraints) == 0 || len(constraints) > mostDomains {
		return nil, false
	}
	others := *spec
	others.TopologySpreadConstraints = nil
	if wide(&others) {
		return nil, false
	}
	soft = constraints[0].WhenUnsatisfiable == v1.ScheduleAnyway
	for i := range constraints {
		key := constraints[i].TopologyKey
		if key == v1.LabelHostname || (constraints[i].WhenUnsatisfiable == v1.ScheduleAnyway) != soft {
			return nil, false
		}
		keys = append(keys, key)
	}
	return keys, soft
}

// withoutClaims is the pod's spec without its claims, which are no wishes for kube-scheduler to weigh.
func withoutClaims(spec *v1.PodSpec) *v1.PodSpec {
	others := *spec
	others.ResourceClaims = nil
	return &others
}

// encoded is the pod as sent to an engine that has not seen it yet.
func encoded(pod *v1.Pod) (json.RawMessage, error) {
	slim := pod.DeepCopy()
	slim.ManagedFields = nil
	return json.Marshal(slim)
}

// claimsOf gives the ResourceClaims that a pod names, as kube-scheduler knows them; nil if one is missing.
func claimsOf(claims fwk.ResourceClaimTracker, pod *v1.Pod) ([]*resourceapi.ResourceClaim, error) {
	found := make([]*resourceapi.ResourceClaim, 0, len(pod.Spec.ResourceClaims))
	for i := range pod.Spec.ResourceClaims {
		name, _, err := resourceclaim.Name(pod, &pod.Spec.ResourceClaims[i])
		if err != nil || name == nil {
			return nil, err
		}
		claim, err := claims.Get(pod.Namespace, *name)
		if err != nil {
			return nil, err
		}
		found = append(found, claim)
	}
	return found, nil
}

// pending gives kube-scheduler's allocations that are not stored yet, which exist since Kubernetes 1.36.
type pending interface {
	GetPendingAllocation(claim types.UID) *resourceapi.AllocationResult
}

// allocatedNow gives the claims of a pod that kube-scheduler has allocated and not stored yet, as it will store them.
func allocatedNow(claims fwk.ResourceClaimTracker, pod *v1.Pod) ([]*resourceapi.ResourceClaim, error) {
	tracker, tells := claims.(pending)
	if !tells {
		return nil, nil
	}
	named, err := claimsOf(claims, pod)
	var found []*resourceapi.ResourceClaim
	for _, claim := range named {
		if allocation := tracker.GetPendingAllocation(claim.UID); allocation != nil {
			allocated := *claim
			allocated.Status.Allocation = allocation
			found = append(found, &allocated)
		}
	}
	return found, err
}

// mostOfClaims is the bytes of a pod and its claims to send. The engine compares nodes for far fewer. A tenant may
// create claims of a megabyte each, and name many of them, or a pod whose text takes six times its bytes in JSON.
const mostOfClaims = 1 << 20

// encodedClaims are claims as sent to the engine beside `size` bytes of their pod, without the free-form fields of
// drivers and field managers: deep nesting in them would be unreadable, and would end the connection.
func encodedClaims(claims []*resourceapi.ResourceClaim, size int) ([]json.RawMessage, error) {
	found := make([]json.RawMessage, len(claims))
	for i, claim := range claims {
		slim := *claim
		slim.ManagedFields, slim.Spec.Devices.Config, slim.Status.Devices = nil, nil, nil
		if allocation := claim.Status.Allocation; allocation != nil {
			bare := *allocation
			bare.Devices.Config = nil
			slim.Status.Allocation = &bare
		}
		body, err := json.Marshal(&slim)
		if err != nil {
			return nil, err
		}
		if size += len(body); size > mostOfClaims {
			return nil, fmt.Errorf("the claims, with their pod, have more than %d bytes", mostOfClaims)
		}
		found[i] = body
	}
	return found, nil
}
