package partage

import (
	"fmt"
	"strings"
	"testing"

	policy "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"partage.io/kube-scheduler/protocol"
)

// budget has a selector of so many bytes.
func budget(namespace, name string, size int) *policy.PodDisruptionBudget {
	made := &policy.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	made.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": strings.Repeat("x", size)}}
	made.Status.DisruptionsAllowed = 1
	return made
}

func TestBudgetsOfAMegabyteEndPreemptionForNobody(t *testing.T) {
	listed := []*policy.PodDisruptionBudget{budget("team", "web", 10)}
	for i := range 12 {
		listed = append(listed, budget("hostile", fmt.Sprint(i), 1<<20))
	}
	found, err := budgetsOf(listed)
	if err != nil || len(found) != 2 || found[0].Metadata.Name != "web" || found[0].Status.DisruptionsAllowed != 1 {
		t.Fatal(found, err)
	}
	last := found[1]
	if last.Metadata.Namespace != "hostile" || last.Status.DisruptionsAllowed != 0 || last.Spec.Selector == nil || len(last.Spec.Selector.MatchLabels) != 0 {
		t.Error(last)
	}
}

func TestManyNamespacesOfBudgetsFitIntoAFrame(t *testing.T) {
	listed := []*policy.PodDisruptionBudget{budget("team", "web", 10)}
	for i := range 300 {
		listed = append(listed, budget(fmt.Sprint("hostile-", i), "b", mostBudgetsOfOne-1000))
	}
	found, err := budgetsOf(listed)
	if err != nil || len(found) != len(listed) {
		t.Fatal(len(found), err)
	}
	if found[0].Metadata.Name != "web" || found[0].Status.DisruptionsAllowed != 1 {
		t.Error(found[0])
	}
	if _, err := protocol.Append(nil, protocol.Question{Verb: protocol.VerbPreempt, Budgets: found}); err != nil {
		t.Error(err)
	}
}
