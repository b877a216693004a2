package partage

import (
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
)

func TestALeaderWithoutItsEngineGivesUp(t *testing.T) {
	begun := time.Unix(1000, 0)
	yes, no := func() bool { return true }, func() bool { return false }
	var h handover
	connected := true
	at := func(seconds int, leading, serving bool, standby func() bool, want bool) {
		t.Helper()
		if got := h.due(begun.Add(time.Duration(seconds)*time.Second), leading, connected, serving, standby); got != want {
			t.Errorf("after %d s: %v", seconds, got)
		}
	}
	at(0, true, false, yes, false) // it builds its books
	at(59, true, false, yes, false)
	at(60, true, false, no, false) // no other could
	at(60, true, false, yes, true)
	at(61, true, true, yes, false)
	at(70, true, false, yes, false)
	at(74, true, false, yes, false)
	at(75, true, false, no, false)
	at(75, true, false, yes, true)
	at(76, true, true, yes, false) // it came back
	at(77, true, false, yes, false)
	at(81, false, false, yes, false) // a standby has nothing to give up
	at(82, true, false, yes, false)
	at(90, true, false, yes, false) // a new reign begins with building the books
	connected = false
	at(91, true, false, no, false) // its engine went away while it built
	at(91, true, false, yes, true)
}

func TestAnotherReplicaIsReady(t *testing.T) {
	indexer := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})
	controller := true
	addWith := func(name string, labels map[string]string, ready v1.ConditionStatus) {
		_ = indexer.Add(&v1.Pod{
			ObjectMeta: metav1.ObjectMeta{
				Name: name, Namespace: "system", Labels: labels,
				OwnerReferences: []metav1.OwnerReference{{Kind: "ReplicaSet", Name: name, Controller: &controller}},
			},
			Status: v1.PodStatus{Conditions: []v1.PodCondition{{Type: v1.PodReady, Status: ready}}},
		})
	}
	const instance, part = "app.kubernetes.io/instance", "app.kubernetes.io/component"
	add := func(name, component string, ready v1.ConditionStatus) {
		addWith(name, map[string]string{instance: "partage", part: component}, ready)
	}
	lister := corelisters.NewPodLister(indexer)
	if otherReady(lister, "system", "a") {
		t.Error("without ourselves")
	}
	add("a", "scheduler", v1.ConditionTrue)
	add("w", "webhook", v1.ConditionTrue)
	add("b", "scheduler", v1.ConditionFalse)
	if otherReady(lister, "system", "a") {
		t.Error("no other replica is ready")
	}
	add("b", "scheduler", v1.ConditionTrue)
	if !otherReady(lister, "system", "a") || otherReady(lister, "elsewhere", "a") {
		t.Error("the other replica is ready")
	}
	for i, labels := range []map[string]string{nil, {"app": "web"}, {instance: "partage"}, {part: "scheduler"}} {
		addWith("unlabelled", labels, v1.ConditionTrue)
		addWith("foreign", labels, v1.ConditionTrue)
		if otherReady(lister, "system", "unlabelled") {
			t.Error(i, "a pod of another ReplicaSet is no standby")
		}
	}
}
