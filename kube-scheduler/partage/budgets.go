package partage

import (
	"cmp"
	"encoding/json"
	"slices"

	policy "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"partage.io/kube-scheduler/protocol"
)

// mostBudgetsOfOne and mostBudgetsOfAll are the bytes of disruption budgets to send, of one namespace and together. A user
// may create budgets of a megabyte each; a frame that is too large would end preemption for all.
const (
	mostBudgetsOfOne = 64 << 10
	mostBudgetsOfAll = 4 << 20
)

// budgetsOf gives the disruption budgets that the engine receives. For a namespace with too many bytes of them it gives one
// budget instead, which counts all pods and permits no eviction. It replaces those of the namespaces with most bytes first.
func budgetsOf(listed []*policy.PodDisruptionBudget) ([]protocol.Budget, error) {
	sizes, total := map[string]int{}, 0
	found := make([]protocol.Budget, 0, len(listed))
	for _, one := range listed {
		if sizes[one.Namespace] > mostBudgetsOfOne {
			continue
		}
		made := protocol.Budget{}
		made.Metadata.Namespace, made.Metadata.Name = one.Namespace, one.Name
		made.Spec.Selector = one.Spec.Selector
		made.Status.DisruptionsAllowed = one.Status.DisruptionsAllowed
		made.Status.DisruptedPods = one.Status.DisruptedPods
		body, err := json.Marshal(&made)
		if err != nil {
			return nil, err
		}
		sizes[one.Namespace] += len(body)
		total += len(body)
		found = append(found, made)
	}
	names := make([]string, 0, len(sizes))
	for name := range sizes {
		names = append(names, name)
	}
	slices.SortFunc(names, func(a, b string) int {
		return cmp.Or(cmp.Compare(sizes[b], sizes[a]), cmp.Compare(a, b))
	})
	left := map[string]bool{}
	for _, name := range names {
		if sizes[name] > mostBudgetsOfOne || total > mostBudgetsOfAll {
			left[name] = true
			total -= sizes[name]
		}
	}
	found = slices.DeleteFunc(found, func(one protocol.Budget) bool { return left[one.Metadata.Namespace] })
	for _, name := range names {
		if left[name] {
			none := protocol.Budget{}
			none.Metadata.Namespace = name
			none.Spec.Selector = &metav1.LabelSelector{}
			found = append(found, none)
		}
	}
	return found, nil
}
