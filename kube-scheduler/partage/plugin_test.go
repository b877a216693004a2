package partage

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	policy "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"
	core "k8s.io/client-go/testing"
	"k8s.io/client-go/util/flowcontrol"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"

	"partage.io/kube-scheduler/protocol"
)

const card = "example.com/card"

// hangUp is the answer of an engine that ends the connection instead.
var hangUp = &protocol.Answer{}

// fakeEngine answers questions by a test's rules, and remembers them.
type fakeEngine struct {
	t        *testing.T
	listener net.Listener
	answer   func(protocol.Question) *protocol.Answer

	mu    sync.Mutex
	asked []protocol.Question
	conn  net.Conn
}

func startEngine(t *testing.T, answer func(protocol.Question) *protocol.Answer) *fakeEngine {
	t.Helper()
	folder, err := os.MkdirTemp("", "engine") // t.TempDir is too long for a socket's path
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(folder) })
	listener, err := net.Listen("unix", filepath.Join(folder, "s"))
	if err != nil {
		t.Fatal(err)
	}
	e := &fakeEngine{t: t, listener: listener, answer: answer}
	t.Cleanup(func() { listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go e.serve(conn)
		}
	}()
	return e
}

func (e *fakeEngine) serve(conn net.Conn) {
	defer conn.Close()
	reader := bufio.NewReader(conn)
	for {
		var question protocol.Question
		if protocol.Read(reader, &question) != nil {
			return
		}
		e.mu.Lock()
		e.asked = append(e.asked, question)
		e.conn = conn
		e.mu.Unlock()
		var answer *protocol.Answer
		if question.Verb == protocol.VerbHello {
			yes := true
			answer = &protocol.Answer{Protocol: protocol.Version, Ready: &yes}
		}
		if given := e.answer(question); given == hangUp {
			return
		} else if given != nil {
			answer = given
		}
		if answer != nil && question.ID != 0 {
			answer.ID = question.ID
			_ = protocol.Write(conn, answer)
		}
		if question.Verb == protocol.VerbHello {
			e.push(protocol.Answer{Vocabulary: &protocol.Vocabulary{Resources: []string{card}, Annotations: []string{"partage.io/allocation"}, Prefixes: []string{"qgpu-"}}})
		}
	}
}

func (e *fakeEngine) push(push protocol.Answer) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.conn != nil {
		_ = protocol.Write(e.conn, push)
	}
}

func (e *fakeEngine) verbs() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	var found []string
	for _, question := range e.asked {
		if question.Verb != protocol.VerbHello && question.Verb != protocol.VerbLeading {
			found = append(found, question.Verb)
		}
	}
	return found
}

func (e *fakeEngine) last(verb string) protocol.Question {
	e.mu.Lock()
	defer e.mu.Unlock()
	for i := len(e.asked) - 1; i >= 0; i-- {
		if e.asked[i].Verb == verb {
			return e.asked[i]
		}
	}
	return protocol.Question{}
}

// handle is the part of a framework handle that the plugin uses.
type handle struct {
	fwk.Handle
	client    kubernetes.Interface
	mu        sync.Mutex
	activated []string
	extenders []fwk.Extender
	informers informers.SharedInformerFactory
	claims    *claims
}

func (h *handle) SharedInformerFactory() informers.SharedInformerFactory { return h.informers }
func (h *handle) SharedDRAManager() fwk.SharedDRAManager                 { return h.claims }
func (h *handle) SnapshotSharedLister() fwk.SharedLister                 { return snapshot{} }

// snapshot knows every requested node.
type snapshot struct{ fwk.SharedLister }

func (snapshot) NodeInfos() fwk.NodeInfoLister { return nodes{} }

type nodes struct{ fwk.NodeInfoLister }

func (nodes) Get(name string) (fwk.NodeInfo, error) { return nodeInfo(name), nil }
func (nodes) List() ([]fwk.NodeInfo, error)         { return nil, nil }

func (h *handle) ClientSet() kubernetes.Interface { return h.client }
func (h *handle) Extenders() []fwk.Extender       { return h.extenders }
func (h *handle) Activate(_ klog.Logger, pods map[string]*v1.Pod) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for uid := range pods {
		h.activated = append(h.activated, uid)
	}
}

func plugged(t *testing.T, answer func(protocol.Question) *protocol.Answer) (*Plugin, *fakeEngine, *handle) {
	t.Helper()
	engine := startEngine(t, answer)
	s := newShared(engine.listener.Addr().String(), uint32(os.Getuid()))
	client := fake.NewSimpleClientset(device("web"))
	h := &handle{client: client, informers: informers.NewSharedInformerFactory(client, 0)}
	s.handles = []fwk.Handle{h}
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	go s.engine.run(ctx)
	until(t, "the vocabulary", func() bool { return s.words.Load() != nil && s.away() == "" })
	send := func(ctx context.Context, binding *v1.Binding) error {
		return client.CoreV1().Pods(binding.Namespace).Bind(ctx, binding, metav1.CreateOptions{})
	}
	return &Plugin{handle: h, shared: s, send: send}, engine, h
}

func until(t *testing.T, what string, done func() bool) {
	t.Helper()
	for range 6000 {
		if done() {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatalf("%s: not within a minute", what)
}

func device(name string) *v1.Pod {
	return &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "team", UID: "uid", ResourceVersion: "7"},
		Spec: v1.PodSpec{Containers: []v1.Container{{Resources: v1.ResourceRequirements{
			Limits: v1.ResourceList{card: resource.MustParse("1")},
		}}}},
	}
}

func nodeInfo(name string, pods ...string) fwk.NodeInfo {
	var there []*v1.Pod
	for _, uid := range pods {
		there = append(there, &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: uid, UID: types.UID(uid)}})
	}
	info := framework.NewNodeInfo(there...)
	info.SetNode(&v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}})
	return info
}

func proposing(nodes ...string) func(protocol.Question) *protocol.Answer {
	return func(q protocol.Question) *protocol.Answer {
		switch q.Verb {
		case protocol.VerbPropose:
			return &protocol.Answer{Nodes: nodes}
		case protocol.VerbBind:
			return &protocol.Answer{Annotations: map[string]string{"a": "b"}, Labels: map[string]string{"c": "d"}, Within: 4}
		case protocol.VerbHello, protocol.VerbLeading:
			return nil
		}
		return &protocol.Answer{}
	}
}

func TestPodsWithoutDevicesNeverTouchTheSocket(t *testing.T) {
	p, engine, _ := plugged(t, proposing("n1"))
	ctx, state, pod := context.Background(), framework.NewCycleState(), &v1.Pod{}

	if _, status := p.PreFilter(ctx, state, pod, nil); !status.IsSkip() {
		t.Fatal(status)
	}
	if status := p.PreScore(ctx, state, pod, nil); !status.IsSkip() {
		t.Error(status)
	}
	if status := p.Reserve(ctx, state, pod, "n1"); !status.IsSuccess() {
		t.Error(status)
	}
	p.Unreserve(ctx, state, pod, "n1")
	if status := p.Bind(ctx, state, pod, "n1"); !status.IsSkip() {
		t.Error(status)
	}
	if _, status := p.PostFilter(ctx, state, pod, nil); status.Code() != fwk.Unschedulable {
		t.Error(status)
	}
	if _, status := p.SignPod(ctx, pod); !status.IsSuccess() {
		t.Error(status)
	}
	if asked := engine.verbs(); len(asked) != 0 {
		t.Errorf("asked %v", asked)
	}
}

func TestAPodIsProposedFilteredReservedAndBound(t *testing.T) {
	p, engine, h := plugged(t, proposing("n2", "n1"))
	ctx, state, pod := context.Background(), framework.NewCycleState(), device("web")

	result, status := p.PreFilter(ctx, state, pod, nil)
	if !status.IsSuccess() || !result.NodeNames.HasAll("n1", "n2") || result.NodeNames.Len() != 2 {
		t.Fatal(result, status)
	}
	if !p.Filter(ctx, state, pod, nodeInfo("n1")).IsSuccess() {
		t.Error("a proposed node was rejected")
	}
	if p.Filter(ctx, state, pod, nodeInfo("n3")).Code() != fwk.UnschedulableAndUnresolvable {
		t.Error("a node that was not proposed was accepted")
	}
	scores := fwk.NodeScoreList{{Name: "n1"}, {Name: "n2"}}
	for i := range scores {
		scores[i].Score, _ = p.Score(ctx, state, pod, nodeInfo(scores[i].Name))
	}
	p.NormalizeScore(ctx, state, pod, scores)
	if scores[0].Score != 0 || scores[1].Score != maxScore {
		t.Error(scores)
	}
	if status := p.Reserve(ctx, state, pod, "n2"); !status.IsSuccess() {
		t.Error(status)
	}
	if status := p.Bind(ctx, state, pod, "n2"); !status.IsSuccess() {
		t.Fatal(status)
	}
	until(t, "bound", func() bool { return engine.last(protocol.VerbBound).Outcome == protocol.OutcomeDone })
	var binding *v1.Binding
	for _, action := range h.client.(*fake.Clientset).Actions() {
		if create, ok := action.(core.CreateAction); ok && action.GetSubresource() == "binding" {
			binding = create.GetObject().(*v1.Binding)
		}
	}
	if binding == nil || binding.UID != pod.UID || binding.Annotations["a"] != "b" || binding.Labels["c"] != "d" || binding.Target.Name != "n2" {
		t.Errorf("%+v", binding)
	}
	first := engine.last(protocol.VerbPropose).Attempt
	p.PreFilter(ctx, framework.NewCycleState(), pod, nil)
	if second := engine.last(protocol.VerbPropose).Attempt; second <= first {
		t.Errorf("attempt %d after %d", second, first)
	}
}

func TestABurstOfBindingsLeavesRoomForOtherQuestions(t *testing.T) {
	propose := proposing("n1")
	p, engine, _ := plugged(t, func(q protocol.Question) *protocol.Answer {
		if q.Verb == protocol.VerbBind {
			return nil // its turn does not come
		}
		return propose(q)
	})
	ctx, cancel := context.WithCancel(context.Background())
	var bound sync.WaitGroup
	for range mostWaiting {
		state := framework.NewCycleState()
		state.Write(stateKey, &attempt{number: 1})
		bound.Go(func() {
			if p.Bind(ctx, state, device("web"), "n1").IsSuccess() {
				t.Error("bound without leave")
			}
		})
	}
	asked := func() (count int) {
		for _, verb := range engine.verbs() {
			if verb == protocol.VerbBind {
				count++
			}
		}
		return count
	}
	until(t, "as many as may", func() bool { return asked() == mostBinding })
	if _, status := p.PreFilter(ctx, framework.NewCycleState(), device("web"), nil); !status.IsSuccess() {
		t.Error(status)
	}
	if now := asked(); now != mostBinding {
		t.Errorf("%d Bindings were asked for at once", now)
	}
	cancel()
	bound.Wait()
}

func TestScoresOfAWidePodAreWeighedAgainstOthers(t *testing.T) {
	p, engine, _ := plugged(t, func(q protocol.Question) *protocol.Answer {
		if q.Verb == protocol.VerbPropose {
			return &protocol.Answer{Nodes: []string{"n1", "n2"}, Scores: []int64{100, 20}}
		}
		return nil
	})
	ctx, state, pod := context.Background(), framework.NewCycleState(), device("web")
	pod.Spec.TopologySpreadConstraints = []v1.TopologySpreadConstraint{{MaxSkew: 1}}
	p.PreFilter(ctx, state, pod, nil)
	if !engine.last(protocol.VerbPropose).Wide {
		t.Error("a pod that is spread was not asked about as wide")
	}
	scores := fwk.NodeScoreList{{Name: "n1", Score: 100}, {Name: "n2", Score: 20}}
	p.NormalizeScore(ctx, state, pod, scores)
	if scores[0].Score*Weight != 100 || scores[1].Score*Weight != 20 {
		t.Error(scores)
	}
}

func TestASpreadPodAsksForTheBestOfEachDomain(t *testing.T) {
	p, engine, _ := plugged(t, func(q protocol.Question) *protocol.Answer {
		if q.Verb == protocol.VerbPropose {
			return &protocol.Answer{Nodes: []string{"n1", "n2", "n3"}, Scores: []int64{100, 20, 10}}
		}
		if q.Verb == protocol.VerbReserve {
			return &protocol.Answer{}
		}
		return nil
	})
	ctx := context.Background()
	spread := func(key string, when v1.UnsatisfiableConstraintAction) v1.TopologySpreadConstraint {
		return v1.TopologySpreadConstraint{MaxSkew: 1, TopologyKey: key, WhenUnsatisfiable: when}
	}
	soft, hard := v1.ScheduleAnyway, v1.DoNotSchedule
	zone, rack := v1.LabelTopologyZone, "rack"
	preferred := &v1.Affinity{NodeAffinity: &v1.NodeAffinity{
		PreferredDuringSchedulingIgnoredDuringExecution: []v1.PreferredSchedulingTerm{{Weight: 1}},
	}}
	for _, one := range []struct {
		name        string
		constraints []v1.TopologySpreadConstraint
		affinity    *v1.Affinity
		keys        []string
		passed      int
		filtered    bool
	}{
		{"softly over zones", []v1.TopologySpreadConstraint{spread(zone, soft)}, nil, []string{zone}, 3, false},
		{"a filter rejects one", []v1.TopologySpreadConstraint{spread(zone, soft)}, nil, []string{zone}, 2, true},
		{"one is left, which is not scored", []v1.TopologySpreadConstraint{spread(zone, soft)}, nil, []string{zone}, 0, true},
		{"hard rules reject nodes", []v1.TopologySpreadConstraint{spread(zone, hard)}, nil, []string{zone}, 1, false},
		{"two keys", []v1.TopologySpreadConstraint{spread(zone, soft), spread(rack, soft)}, nil, []string{zone, rack}, 3, false},
		{"hard and soft", []v1.TopologySpreadConstraint{spread(zone, hard), spread(rack, soft)}, nil, nil, 1, false},
		{"over nodes", []v1.TopologySpreadConstraint{spread(v1.LabelHostname, soft)}, nil, nil, 1, false},
		{"three keys", []v1.TopologySpreadConstraint{spread(zone, soft), spread(rack, soft), spread("row", soft)}, nil, nil, 1, false},
		{"with another wish", []v1.TopologySpreadConstraint{spread(zone, soft)}, preferred, nil, 1, false},
	} {
		pod, state := device("web"), framework.NewCycleState()
		pod.Spec.TopologySpreadConstraints, pod.Spec.Affinity = one.constraints, one.affinity
		p.PreFilter(ctx, state, pod, nil)
		asked := engine.last(protocol.VerbPropose)
		if !asked.Wide || !slices.Equal(asked.Domains, one.keys) {
			t.Errorf("%s: wide %v, domains %v", one.name, asked.Wide, asked.Domains)
		}
		if one.passed > 0 {
			p.PreScore(ctx, state, pod, make([]fwk.NodeInfo, one.passed))
		}
		p.Reserve(ctx, state, pod, "n2")
		if said := engine.last(protocol.VerbReserve); said.Attempt != asked.Attempt || said.Filtered != one.filtered {
			t.Errorf("%s: %+v", one.name, said)
		}
	}
}

func TestAnUnseenPodTravels(t *testing.T) {
	p, engine, _ := plugged(t, func(q protocol.Question) *protocol.Answer {
		if q.Verb != protocol.VerbPropose {
			return nil
		}
		if q.Pod == nil {
			return &protocol.Answer{Unseen: true}
		}
		return &protocol.Answer{Nodes: []string{"n1"}}
	})
	pod := device("web")
	pod.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "kubectl"}}
	result, status := p.PreFilter(context.Background(), framework.NewCycleState(), pod, nil)
	if !status.IsSuccess() || !result.NodeNames.Has("n1") {
		t.Fatal(status)
	}
	var travelled v1.Pod
	if err := json.Unmarshal(engine.last(protocol.VerbPropose).Pod, &travelled); err != nil || travelled.UID != pod.UID || travelled.ManagedFields != nil {
		t.Error(travelled, err)
	}
}

func TestRefusalsSayWhyAndAreTriedAgainWhenPushed(t *testing.T) {
	p, engine, h := plugged(t, func(q protocol.Question) *protocol.Answer {
		if q.Verb == protocol.VerbPropose {
			return &protocol.Answer{Code: "InsufficientCards", Message: "no card is free"}
		}
		return nil
	})
	pod := device("web")
	_, status := p.PreFilter(context.Background(), framework.NewCycleState(), pod, nil)
	if status.Code() != fwk.UnschedulableAndUnresolvable || status.Message() != "InsufficientCards: no card is free" {
		t.Fatal("kube-scheduler would preempt where the engine found no place", status)
	}
	if _, status := p.PostFilter(context.Background(), framework.NewCycleState(), pod, nil); status.Code() != fwk.Unschedulable {
		t.Error("plugins of groups do not hear of it", status)
	}
	nominated := pod.DeepCopy()
	nominated.Status.NominatedNodeName = "n1"
	if _, status := p.PostFilter(context.Background(), framework.NewCycleState(), nominated, nil); status.Code() != fwk.UnschedulableAndUnresolvable {
		t.Error("kube-scheduler takes the nomination away", status)
	}
	engine.push(protocol.Answer{Activate: []string{"another pod"}})
	engine.push(protocol.Answer{Activate: []string{string(pod.UID)}})
	until(t, "activated", func() bool { h.mu.Lock(); defer h.mu.Unlock(); return len(h.activated) == 1 })
}

// The engine may find room as soon as it has refused: its push and its answer come at once.
func TestAPushBesideTheRefusalIsNotLost(t *testing.T) {
	var engine *fakeEngine
	p, engine, h := plugged(t, func(q protocol.Question) *protocol.Answer {
		switch q.Verb {
		case protocol.VerbPropose:
			engine.push(protocol.Answer{Activate: []string{q.UID}})
			return &protocol.Answer{Code: "InsufficientCards", Message: "no card is free"}
		case protocol.VerbAnother:
			engine.push(protocol.Answer{Activate: []string{q.UID}})
			return &protocol.Answer{}
		}
		return nil
	})
	activated := func() int { h.mu.Lock(); defer h.mu.Unlock(); return len(h.activated) }
	state := framework.NewCycleState()
	if _, status := p.PreFilter(context.Background(), state, device("web"), nil); status.Code() != fwk.UnschedulableAndUnresolvable {
		t.Fatal(status)
	}
	until(t, "activated after the refusal", func() bool { return activated() == 1 })
	state.Write(stateKey, newAttempt(1, []string{"n1"}))
	if _, status := p.PostFilter(context.Background(), state, device("web"), nil); status.Code() != fwk.Unschedulable {
		t.Fatal(status)
	}
	until(t, "activated after the rejection", func() bool { return activated() == 2 })
}

func TestOtherNodesAreTriedWhereAllProposedWereRejected(t *testing.T) {
	again := true
	p, engine, h := plugged(t, func(q protocol.Question) *protocol.Answer {
		switch q.Verb {
		case protocol.VerbPropose:
			return &protocol.Answer{Nodes: []string{"n1", "n2"}}
		case protocol.VerbAnother:
			return &protocol.Answer{Again: again}
		}
		return nil
	})
	ctx, state, pod := context.Background(), framework.NewCycleState(), device("web")
	p.PreFilter(ctx, state, pod, nil)
	result, status := p.PostFilter(ctx, state, pod, nil)
	if result != nil || status.Code() != fwk.UnschedulableAndUnresolvable {
		t.Fatal("preemption goes on though other nodes are free", result, status)
	}
	if rejected := engine.last(protocol.VerbAnother).Rejected; len(rejected) != 2 {
		t.Error(rejected)
	}
	if len(h.activated) != 1 {
		t.Error("the pod is not tried again")
	}
	again = false
	if _, status = p.PostFilter(ctx, state, pod, nil); status.Code() != fwk.Unschedulable {
		t.Error("kube-scheduler may not preempt for its own resources", status)
	}
}

func TestAPodIsTriedAgainWhereTheEngineDoesNotSayWhetherThereAreOtherNodes(t *testing.T) {
	p, _, h := plugged(t, func(q protocol.Question) *protocol.Answer {
		switch q.Verb {
		case protocol.VerbPropose:
			return &protocol.Answer{Nodes: []string{"n1"}}
		case protocol.VerbAnother:
			return hangUp
		}
		return nil
	})
	ctx, state, pod := context.Background(), framework.NewCycleState(), device("web")
	p.PreFilter(ctx, state, pod, nil)
	if _, status := p.PostFilter(ctx, state, pod, nil); status.Code() != fwk.UnschedulableAndUnresolvable {
		t.Error("a pod may be evicted for nothing", status)
	}
	until(t, "the pod is tried again", func() bool { h.mu.Lock(); defer h.mu.Unlock(); return len(h.activated) == 1 })
}

func TestTheEngineHearsWhereAPodWithWishesOfItsOwnWasRejected(t *testing.T) {
	p, engine, h := plugged(t, func(q protocol.Question) *protocol.Answer {
		switch q.Verb {
		case protocol.VerbPropose:
			return &protocol.Answer{Nodes: []string{"n1", "n2"}, Scores: []int64{100, 10}}
		case protocol.VerbAnother:
			return &protocol.Answer{}
		}
		return nil
	})
	ctx, state, pod := context.Background(), framework.NewCycleState(), device("web")
	pod.Spec.TopologySpreadConstraints = []v1.TopologySpreadConstraint{{TopologyKey: v1.LabelTopologyZone, WhenUnsatisfiable: v1.DoNotSchedule}}
	p.PreFilter(ctx, state, pod, nil)
	if _, status := p.PostFilter(ctx, state, pod, nil); status.Code() != fwk.Unschedulable {
		t.Error("kube-scheduler may not preempt for its own resources", status)
	}
	if rejected := engine.last(protocol.VerbAnother).Rejected; !slices.Equal(rejected, []string{"n1", "n2"}) {
		t.Error("it cannot wait for devices elsewhere:", rejected)
	}
	engine.push(protocol.Answer{Activate: []string{string(pod.UID)}})
	until(t, "activated", func() bool { h.mu.Lock(); defer h.mu.Unlock(); return len(h.activated) == 1 })
}

func TestRoomIsMadeWhereTheEngineSays(t *testing.T) {
	offer := &protocol.Answer{Nodes: []string{"n1", "n2"}, Victims: [][]string{{"low", "lower"}, {"other"}}}
	p, engine, h := plugged(t, func(q protocol.Question) *protocol.Answer {
		switch q.Verb {
		case protocol.VerbPropose:
			return &protocol.Answer{Code: "InsufficientCards", Message: "no card is free", Preempt: true}
		case protocol.VerbPreempt:
			return offer
		case protocol.VerbAnother:
			return &protocol.Answer{Again: true}
		}
		return nil
	})
	budget := &policy.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "web"}}
	budget.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}
	budget.Status.DisruptionsAllowed = 2
	if err := h.informers.Policy().V1().PodDisruptionBudgets().Informer().GetStore().Add(budget); err != nil {
		t.Fatal(err)
	}
	ctx, state, pod := context.Background(), framework.NewCycleState(), device("web")

	result, status := p.PreFilter(ctx, state, pod, nil)
	if !status.IsSuccess() || result.NodeNames.Len() != 2 {
		t.Fatal(result, status)
	}
	if told := engine.last(protocol.VerbPreempt).Budgets; len(told) != 1 || told[0].Metadata.Name != "web" ||
		told[0].Status.DisruptionsAllowed != 2 || told[0].Spec.Selector.MatchLabels["app"] != "web" {
		t.Error("the engine does not know the budgets", told)
	}
	for _, one := range []struct {
		node string
		pods []string
		want fwk.Code
	}{
		{"n1", []string{"low", "lower", "else"}, fwk.Unschedulable},
		{"n1", []string{"lower", "else"}, fwk.Unschedulable},
		{"n1", []string{"else", "other"}, fwk.Success},
		{"n2", []string{"low", "other"}, fwk.Unschedulable},
		{"n2", []string{"low"}, fwk.Success},
		{"n3", nil, fwk.UnschedulableAndUnresolvable},
	} {
		status := p.Filter(ctx, state, pod, nodeInfo(one.node, one.pods...))
		if status.Code() != one.want {
			t.Error(one, status)
		}
		if one.want == fwk.Unschedulable && status.Message() != "InsufficientCards: no card is free" {
			t.Error("the pod would not say why it waits:", status.Message())
		}
	}

	// While one of them may be resolved, kube-scheduler's own preemption has its turn.
	statuses := framework.NewDefaultNodeToStatus()
	statuses.Set("n1", fwk.NewStatus(fwk.Unschedulable))
	statuses.Set("n2", fwk.NewStatus(fwk.UnschedulableAndUnresolvable))
	if _, status := p.PostFilter(ctx, state, pod, statuses); status.Code() != fwk.Unschedulable {
		t.Error(status)
	}
	statuses.Set("n1", fwk.NewStatus(fwk.UnschedulableAndUnresolvable))
	if _, status := p.PostFilter(ctx, state, pod, statuses); status.Code() != fwk.UnschedulableAndUnresolvable {
		t.Error(status)
	}
	if rejected := engine.last(protocol.VerbAnother).Rejected; len(rejected) != 2 || len(h.activated) != 1 {
		t.Error("other nodes are not tried", rejected, h.activated)
	}

	// The engine's push retries the pod when there is room.
	engine.push(protocol.Answer{Activate: []string{string(pod.UID)}})
	until(t, "activated", func() bool { h.mu.Lock(); defer h.mu.Unlock(); return len(h.activated) == 2 })

	for _, none := range []*protocol.Answer{{}, {Again: true}, {Nodes: []string{"n1"}}} {
		offer = none
		state := framework.NewCycleState()
		_, status = p.PreFilter(ctx, state, pod, nil)
		if status.Code() != fwk.UnschedulableAndUnresolvable || status.Message() != "InsufficientCards: no card is free" {
			t.Error("a pod may be evicted for nothing", none, status)
		}
	}
	if len(h.activated) != 3 {
		t.Error("the pod is not tried again where the engine wants it", h.activated)
	}
}

func TestWithoutTheEnginePlainPodsGoOnAndOthersWait(t *testing.T) {
	s := newShared(filepath.Join(t.TempDir(), "absent"), uint32(os.Getuid()))
	p := &Plugin{handle: &handle{}, shared: s}
	ctx := context.Background()
	if _, status := p.PreFilter(ctx, framework.NewCycleState(), &v1.Pod{}, nil); !status.IsSkip() {
		t.Error(status)
	}
	if _, status := p.PreFilter(ctx, framework.NewCycleState(), device("web"), nil); status.Code() != fwk.UnschedulableAndUnresolvable || !strings.Contains(status.Message(), "not connected") {
		t.Error(status)
	}
	if len(s.refused) != 1 {
		t.Error("the pod would not be tried again")
	}
}

func TestACandidateComesToTheElectionAtOnceWithAnEngineAndLaterWithout(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	s := newShared(filepath.Join(t.TempDir(), "absent"), uint32(os.Getuid()))
	if s.engine.await(ctx, time.Millisecond) || s.engine.isConnected() {
		t.Error("there is no engine")
	}
	engine := startEngine(t, proposing("n1"))
	s = newShared(engine.listener.Addr().String(), uint32(os.Getuid()))
	go s.engine.run(ctx)
	if !s.engine.await(ctx, time.Hour) {
		t.Error("the engine is there")
	}
	until(t, "connected", s.engine.isConnected)
}

// Two tell it where the Lease is got just when the engine connects.
func TestWhatIsToldLastOfTheLeaseIsTrue(t *testing.T) {
	s := newShared(filepath.Join(t.TempDir(), "absent"), uint32(os.Getuid()))
	ours, theirs := net.Pipe()
	defer ours.Close()
	defer theirs.Close()
	defer holding.held.Store(false)
	s.engine.mu.Lock()
	s.engine.conn = ours
	holding.held.Store(false)
	go s.sayLeading()
	time.Sleep(20 * time.Millisecond) // it waits for the connection, which another uses
	holding.held.Store(true)
	s.engine.mu.Unlock()
	var told protocol.Question
	if err := protocol.Read(bufio.NewReader(theirs), &told); err != nil || told.Leading == nil || !*told.Leading {
		t.Error("the engine heard what was so before", told, err)
	}
}

func TestAnEngineOfAnotherVersionIsRefusedWithASentence(t *testing.T) {
	engine := startEngine(t, func(q protocol.Question) *protocol.Answer {
		return &protocol.Answer{Code: "Version", Message: "install the same release", Protocol: 2}
	})
	s := newShared(engine.listener.Addr().String(), uint32(os.Getuid()))
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go s.engine.run(ctx)
	until(t, "refused", func() bool { return strings.Contains(s.away(), "same release") })
}

func TestAnotherUserAtTheSocketIsNotAsked(t *testing.T) {
	engine := startEngine(t, proposing("n1"))
	s := newShared(engine.listener.Addr().String(), uint32(os.Getuid())+1)
	if err := s.engine.talk(context.Background()); err == nil || !strings.Contains(err.Error(), "user") {
		t.Error(err)
	}
	if len(engine.asked) != 0 {
		t.Error("it was greeted")
	}
}

func TestAfterTheEngineCameBackPodsAreTriedAgain(t *testing.T) {
	p, engine, h := plugged(t, proposing("n1"))
	engine.mu.Lock()
	engine.conn.Close()
	engine.mu.Unlock()
	until(t, "away", func() bool { return p.shared.away() != "" })
	p.shared.remember(device("web"))
	until(t, "back", func() bool { return p.shared.away() == "" })
	yes := true
	engine.push(protocol.Answer{Ready: &yes})
	until(t, "activated", func() bool { h.mu.Lock(); defer h.mu.Unlock(); return len(h.activated) == 1 })
}

func TestOfARefusedPodOnlyItsPlaceInTheQueueIsKept(t *testing.T) {
	s := newShared(filepath.Join(t.TempDir(), "absent"), uint32(os.Getuid()))
	pod := device("web")
	pod.Annotations = map[string]string{"large": strings.Repeat("x", 1<<20)}
	s.remember(pod)
	kept := s.refused[pod.UID]
	if kept.Name != pod.Name || kept.Namespace != pod.Namespace || kept.UID != pod.UID {
		t.Error("kube-scheduler would not find it", kept)
	}
	if kept.Annotations != nil || kept.Spec.Containers != nil {
		t.Error("what its author wrote stays when the pod is gone")
	}
}

// Nothing tells the plugin that a refused pod is gone, so a user may have had any number.
func TestAnyNumberOfRefusedPodsOfOneNamespaceTakesNoPlaceOfOthers(t *testing.T) {
	s := newShared(filepath.Join(t.TempDir(), "absent"), uint32(os.Getuid()))
	var others []types.UID
	for i := range 3 * mostRetries {
		pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "crowd", UID: types.UID(fmt.Sprint(i))}}
		if i%1000 == 0 {
			pod.Namespace = fmt.Sprint("team", i%3)
			others = append(others, pod.UID)
		}
		s.remember(pod)
	}
	for _, uid := range others {
		if s.refused[uid] == nil {
			t.Error("it would not be tried again when there is room:", uid)
		}
	}
	if len(s.refused) != mostRetries {
		t.Error("more are kept than may be", len(s.refused))
	}
	s.remember(s.refused[others[0]]) // it is refused again
	s.activate(func(types.UID) bool { return true })
	if len(s.refused) != 0 || len(s.waiting) != 0 {
		t.Error("pods are counted that are not kept", s.waiting)
	}
}

// The API server may lack the definition of any other kind, and then kube-scheduler would not start.
func TestOnlyPodsAreRegisteredAsEvents(t *testing.T) {
	events, err := (&Plugin{}).EventsToRegister(context.Background())
	if err != nil || len(events) != 1 || events[0].Event.Resource != fwk.Pod {
		t.Error(events, err)
	}
}

func TestPodsWithDevicesAreNotBatched(t *testing.T) {
	p, _, _ := plugged(t, proposing("n1"))
	if _, status := p.SignPod(context.Background(), device("web")); status.Code() != fwk.Unschedulable {
		t.Error(status)
	}
}

func TestASlowEngineIsLeftAloneForAWhile(t *testing.T) {
	var b breaker
	for range slowAtMost - 1 {
		b.took(slowAfter, false)
	}
	if b.open() != "" {
		t.Error("open too soon")
	}
	b.took(0, true)
	if b.open() == "" {
		t.Error("not open")
	}
	b.close()
	if b.open() != "" {
		t.Error("not closed")
	}
}

func TestAPodThatASlowEngineWasNotAskedAboutIsTriedAgainAfterThePause(t *testing.T) {
	p, engine, h := plugged(t, proposing("n1"))
	asked := device("asked")
	asked.UID = "asked"
	p.shared.remember(asked) // the engine refused it, and pushes when there is room
	for range slowAtMost {
		p.shared.answered(slowAfter, false)
	}
	for _, uid := range []string{"first", "second"} {
		pod := device(uid)
		pod.UID = types.UID(uid)
		if _, status := p.PreFilter(context.Background(), framework.NewCycleState(), pod, nil); status.Code() != fwk.UnschedulableAndUnresolvable {
			t.Fatal(status)
		}
	}
	if found := engine.verbs(); len(found) != 0 {
		t.Fatal(found)
	}

	retried := func() []string {
		h.mu.Lock()
		defer h.mu.Unlock()
		return slices.Sorted(slices.Values(h.activated))
	}
	until(t, "the pods are tried again", func() bool { return len(retried()) > 0 })
	if found := retried(); !slices.Equal(found, []string{"first", "second"}) {
		t.Error(found)
	}
	if why := p.shared.away(); why != "" {
		t.Error(why)
	}
}

func TestAnEngineThatIsReadyWhileAPodIsKeptForItIsAsked(t *testing.T) {
	p, engine, _ := plugged(t, proposing("n1"))
	p.shared.engine.ready.Store(false)
	p.shared.mu.Lock() // keeps PreFilter between its look at the engine and what it keeps
	done := make(chan *fwk.Status)
	go func() {
		_, status := p.PreFilter(context.Background(), framework.NewCycleState(), device("web"), nil)
		done <- status
	}()
	time.Sleep(100 * time.Millisecond)
	p.shared.engine.ready.Store(true) // with the push, which finds no pod to try again
	p.shared.mu.Unlock()
	if status := <-done; !status.IsSuccess() || len(engine.verbs()) != 1 {
		t.Error("the pod is not tried again", status, engine.verbs())
	}
}

func plainPod() *v1.Pod {
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "plain", Annotations: map[string]string{"a": "b"}}}
	pod.Spec.Containers = []v1.Container{{Resources: v1.ResourceRequirements{Limits: v1.ResourceList{"cpu": resource.MustParse("1")}}}}
	return pod
}

// A panic in one of these would end kube-scheduler.
func TestAPanicIsAnErrorOfThatPodAloneAndDelaysNoPlainPod(t *testing.T) {
	p := &Plugin{} // everything in it is nil
	ctx, node := context.Background(), nodeInfo("n1")
	for point, one := range map[string]struct {
		plain fwk.Code
		reach func(*v1.Pod) *fwk.Status
	}{
		"PreFilter":        {fwk.Skip, func(pod *v1.Pod) *fwk.Status { _, status := p.PreFilter(ctx, nil, pod, nil); return status }},
		"Filter":           {fwk.Success, func(pod *v1.Pod) *fwk.Status { return p.Filter(ctx, nil, pod, node) }},
		"PostFilter":       {fwk.Unschedulable, func(pod *v1.Pod) *fwk.Status { _, status := p.PostFilter(ctx, nil, pod, nil); return status }},
		"PreScore":         {fwk.Skip, func(pod *v1.Pod) *fwk.Status { return p.PreScore(ctx, nil, pod, nil) }},
		"Score":            {fwk.Success, func(pod *v1.Pod) *fwk.Status { _, status := p.Score(ctx, nil, pod, node); return status }},
		"NormalizeScore":   {fwk.Success, func(pod *v1.Pod) *fwk.Status { return p.NormalizeScore(ctx, nil, pod, nil) }},
		"Reserve":          {fwk.Success, func(pod *v1.Pod) *fwk.Status { return p.Reserve(ctx, nil, pod, "n1") }},
		"PreBindPreFlight": {fwk.Skip, func(pod *v1.Pod) *fwk.Status { return preflight(p, nil, pod) }},
		"PreBind":          {fwk.Success, func(pod *v1.Pod) *fwk.Status { return p.PreBind(ctx, nil, pod, "n1") }},
		"Bind":             {fwk.Skip, func(pod *v1.Pod) *fwk.Status { return p.Bind(ctx, nil, pod, "n1") }},
		"SignPod":          {fwk.Success, func(pod *v1.Pod) *fwk.Status { _, status := p.SignPod(ctx, pod); return status }},
	} {
		if status := one.reach(device("web")); status.Code() != fwk.Error {
			t.Error(point, "of a pod with devices", status)
		}
		if status := one.reach(plainPod()); status.Code() != one.plain {
			t.Error(point, "of a plain pod", status)
		}
	}
	p.Unreserve(ctx, nil, device("web"), "n1")
	if _, err := ownChange(klog.Background(), nil, device("web"), device("web")); err == nil {
		t.Error("no error")
	}
}

func TestAfterAPanicAPodGoesOnIfTheEngineIsNotAskedAboutIt(t *testing.T) {
	devices := plainPod()
	devices.Spec.Containers[0].Resources.Limits["example.com/nic"] = resource.MustParse("1")
	annotated := plainPod()
	annotated.Annotations["partage.io/allocation"] = "{}"
	engaged := framework.NewCycleState()
	engaged.Write(stateKey, newAttempt(1, []string{"n1"}))
	unknown, known, claims := &Plugin{}, &Plugin{shared: &shared{}}, &Plugin{shared: &shared{}}
	vocabulary := protocol.Vocabulary{Resources: []string{card}, Annotations: []string{"partage.io/allocation"}}
	known.shared.words.Store(wordsOf(&vocabulary))
	vocabulary.Claims = true
	claims.shared.words.Store(wordsOf(&vocabulary))
	for name, one := range map[string]struct {
		plugin *Plugin
		state  fwk.CycleState
		pod    *v1.Pod
		want   fwk.Code
	}{
		"nothing is known":                        {unknown, nil, plainPod(), fwk.Skip},
		"it asks for no device":                   {known, framework.NewCycleState(), plainPod(), fwk.Skip},
		"it asks for devices of others":           {known, nil, devices, fwk.Skip},
		"they may be others' devices":             {unknown, nil, devices, fwk.Error},
		"it has a claim":                          {known, nil, claimant(), fwk.Skip},
		"it has a claim that the engine compares": {claims, nil, claimant(), fwk.Error},
		"its claim may be one of those":           {unknown, nil, claimant(), fwk.Error},
		"it asks for devices":                     {known, nil, device("web"), fwk.Error},
		"it has an annotation of ours":            {known, nil, annotated, fwk.Error},
		"it is in an attempt":                     {known, engaged, plainPod(), fwk.Error},
	} {
		var status *fwk.Status
		func() {
			defer one.plugin.guard(&status, one.state, one.pod, fwk.Skip)
			panic("a fault")
		}()
		if status.Code() != one.want {
			t.Error(name, status)
		}
	}
}

// A panic there would end kube-scheduler, or the connection for ever.
func TestAPanicBesideTheCycleEndsNothing(t *testing.T) {
	p, engine, _ := plugged(t, proposing("n1"))
	p.shared.handles = []fwk.Handle{nil}
	p.shared.remember(device("web"))
	engine.push(protocol.Answer{Activate: []string{"uid"}})
	until(t, "it connects again", func() bool {
		engine.mu.Lock()
		defer engine.mu.Unlock()
		greeted := 0
		for _, question := range engine.asked {
			if question.Verb == protocol.VerbHello {
				greeted++
			}
		}
		return greeted > 1
	})
	until(t, "it asks again", func() bool { return p.shared.away() == "" })
}

// A page to log in, with code 200, has bound no pod.
func TestABindingIsDoneOnlyWhereTheServerSaysSo(t *testing.T) {
	for body, want := range map[string]string{
		`{"kind": "Status", "apiVersion": "v1", "status": "Success", "code": 201}`: protocol.OutcomeDone,
		`{"kind": "Status", "apiVersion": "v1", "status": "Failure"}`:              protocol.OutcomeUnknown,
		`{"kind": "Pod", "apiVersion": "v1", "metadata": {"name": "web"}}`:         protocol.OutcomeUnknown,
		`{}`:            protocol.OutcomeUnknown,
		`<html></html>`: protocol.OutcomeUnknown,
		``:              protocol.OutcomeUnknown,
	} {
		var path string
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			path = r.URL.Path
			w.Header().Set("Content-Type", "application/json")
			_, _ = w.Write([]byte(body))
		}))
		client := kubernetes.NewForConfigOrDie(&rest.Config{Host: server.URL})
		binding := &v1.Binding{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "web"}}
		err := binder(client.CoreV1().RESTClient())(context.Background(), binding)
		if got := outcomeOf(err); got != want || path != "/api/v1/namespaces/team/pods/web/binding" {
			t.Errorf("%s: %s (%v) at %s, not %s", body, got, err, path, want)
		}
		server.Close()
	}
}

// A Binding that the kernel or the API server held back would bind the pod after another leader gave its card away.
func TestNoBindingIsCarriedOutLongAfterItsTime(t *testing.T) {
	var limits []time.Duration
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		limit, _ := time.ParseDuration(r.URL.Query().Get("timeout"))
		limits = append(limits, limit)
		w.Header().Set("Content-Type", "application/json")
		if len(limits) == 1 {
			w.Header().Set("Retry-After", "1")
			w.WriteHeader(http.StatusTooManyRequests)
			return
		}
		_, _ = w.Write([]byte(`{"kind": "Status", "apiVersion": "v1", "status": "Success", "code": 201}`))
	}))
	defer server.Close()
	limiter := flowcontrol.NewTokenBucketRateLimiter(1000, 1000)
	given := &rest.Config{Host: server.URL}
	client, err := bindingClient(given, limiter)
	if err != nil || client.GetRateLimiter() != limiter || given.Dial != nil || given.WrapTransport != nil {
		t.Fatal("no client of its own with the common limit", err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	binding := &v1.Binding{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "web"}}
	if err := binder(client)(ctx, binding); err != nil {
		t.Fatal(err)
	}
	if len(limits) != 2 || limits[0] <= 0 || limits[0] > 48*time.Second || limits[1] <= 0 || limits[1] >= limits[0] {
		t.Error("the API server has longer than the sender", limits)
	}

	conn, err := (&net.Dialer{Control: notLate}).Dial("tcp", server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	raw, err := conn.(*net.TCPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	if err := raw.Control(func(fd uintptr) {
		if got, err := syscall.GetsockoptInt(int(fd), syscall.IPPROTO_TCP, tcpUserTimeout); err != nil || got != 3000 {
			t.Error("the kernel repeats a Binding for longer", got, err)
		}
	}); err != nil {
		t.Fatal(err)
	}
}

// A process that stood still after the engine's answer would bind the pod after another leader gave its card away.
func TestABindingIsNotSentAfterItsTime(t *testing.T) {
	for name, one := range map[string]struct {
		left float64       // as the engine says it; 0: it says nothing
		most time.Duration // 0: it is not sent
	}{
		"its time is over":        {-0.001, 0},
		"its time is nearly over": {3, 3 * time.Second},
		"its time is longer":      {60, 4 * time.Second},
		"the engine is older":     {0, 4 * time.Second},
	} {
		p, engine, _ := plugged(t, func(q protocol.Question) *protocol.Answer {
			answer := proposing("n1")(q)
			if q.Verb == protocol.VerbBind && one.left != 0 {
				answer.Until = sinceBoot().Seconds() + one.left
			}
			return answer
		})
		var left []time.Duration
		p.send = func(ctx context.Context, _ *v1.Binding) error {
			end, _ := ctx.Deadline()
			left = append(left, time.Until(end))
			return nil
		}
		ctx, state, pod := context.Background(), framework.NewCycleState(), device("web")
		p.PreFilter(ctx, state, pod, nil)
		status := p.Bind(ctx, state, pod, "n1")
		if one.most == 0 {
			said := engine.last(protocol.VerbBound)
			if status.Code() != fwk.Error || len(left) != 0 || said.Outcome != protocol.OutcomeRefused || !strings.Contains(said.Message, "not sent") {
				t.Error(name, status, left, said)
			}
		} else if !status.IsSuccess() || len(left) != 1 || left[0] > one.most {
			t.Error(name, status, left)
		}
	}
}

// waits is a request whose time ended while its process stood still, before its context could end.
type waits struct{ context.Context }

func (waits) Deadline() (time.Time, bool) { return time.Now().Add(-time.Millisecond), true }

func TestNoRequestForABindingLeavesAfterItsTime(t *testing.T) {
	sent := false
	next := inTime{transport(func(*http.Request) (*http.Response, error) { sent = true; return nil, errors.New("no server") })}
	request := httptest.NewRequestWithContext(waits{context.Background()}, http.MethodPost, "/binding", strings.NewReader("{}"))
	_, err := next.RoundTrip(request)
	if sent || !errors.Is(err, context.DeadlineExceeded) {
		t.Error("it was sent", err)
	}
}

type transport func(*http.Request) (*http.Response, error)

func (t transport) RoundTrip(request *http.Request) (*http.Response, error) { return t(request) }

func TestWhatBecameOfABinding(t *testing.T) {
	kind := schema.GroupResource{Resource: "pods"}
	for _, one := range []struct {
		err  error
		want string
	}{
		{nil, protocol.OutcomeDone},
		{apierrors.NewConflict(kind, "web", errors.New("bound")), protocol.OutcomeConflict},
		{apierrors.NewNotFound(kind, "web"), protocol.OutcomeRefused},
		{apierrors.NewTooManyRequests("later", 1), protocol.OutcomeRefused},
		{apierrors.NewTimeoutError("slow", 1), protocol.OutcomeUnknown},
		{apierrors.NewServerTimeout(kind, "create", 1), protocol.OutcomeUnknown},
		{apierrors.NewInternalError(errors.New("etcd")), protocol.OutcomeUnknown},
		{apierrors.NewServiceUnavailable("down"), protocol.OutcomeUnknown},
		{context.DeadlineExceeded, protocol.OutcomeUnknown},
		{&net.OpError{Op: "read", Err: errors.New("reset")}, protocol.OutcomeUnknown},
		{&net.OpError{Op: "dial", Err: errors.New("refused")}, protocol.OutcomeRefused},
	} {
		if got := outcomeOf(one.err); got != one.want {
			t.Errorf("%v: %s, not %s", one.err, got, one.want)
		}
	}
}

func TestAnUnknownEndIsAskedBack(t *testing.T) {
	bound := true
	p, engine, h := plugged(t, func(q protocol.Question) *protocol.Answer {
		if q.Verb == protocol.VerbBound {
			return &protocol.Answer{Bound: bound}
		}
		return proposing("n1")(q)
	})
	h.client.(*fake.Clientset).PrependReactor("create", "pods", func(core.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewInternalError(errors.New("etcd is away"))
	})
	ctx, state, pod := context.Background(), framework.NewCycleState(), device("web")
	p.PreFilter(ctx, state, pod, nil)
	if status := p.Bind(ctx, state, pod, "n1"); !status.IsSuccess() {
		t.Error("the pod is bound after all", status)
	}
	if engine.last(protocol.VerbBound).Outcome != protocol.OutcomeUnknown {
		t.Error(engine.last(protocol.VerbBound))
	}
	bound = false
	if status := p.Bind(ctx, state, pod, "n1"); status.Code() != fwk.Error {
		t.Error(status)
	}
}

func TestPodsThatConcernTheEngine(t *testing.T) {
	w := wordsOf(&protocol.Vocabulary{Resources: []string{card}, Annotations: []string{"partage.io/allocation"}, Prefixes: []string{"qgpu-"}})
	one := v1.ResourceList{card: resource.MustParse("1")}
	other := v1.ResourceList{"example.com/other": resource.MustParse("1"), "cpu": resource.MustParse("1")}
	spec := func(s v1.PodSpec) *v1.Pod { return &v1.Pod{Spec: s} }
	limits := func(l v1.ResourceList) v1.ResourceRequirements { return v1.ResourceRequirements{Limits: l} }
	for i, one := range []struct {
		pod          *v1.Pod
		known, fresh bool
	}{
		{spec(v1.PodSpec{}), false, false},
		{spec(v1.PodSpec{Containers: []v1.Container{{Resources: limits(one)}}}), true, true},
		{spec(v1.PodSpec{Containers: []v1.Container{{Resources: v1.ResourceRequirements{Requests: one}}}}), true, true},
		{spec(v1.PodSpec{InitContainers: []v1.Container{{Resources: limits(one)}}}), true, true},
		{spec(v1.PodSpec{Overhead: one}), true, true},
		{spec(v1.PodSpec{Containers: []v1.Container{{Resources: limits(other)}}}), false, true},
		{&v1.Pod{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{"partage.io/allocation": "x"}}}, true, false},
		{&v1.Pod{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{"qgpu-main": "x"}}}, true, false},
	} {
		if got := w.concerns(one.pod); got != one.known {
			t.Errorf("%d: %v with the engine's words", i, got)
		}
		if got := (*words)(nil).concerns(one.pod); got != one.fresh {
			t.Errorf("%d: %v before the engine spoke", i, got)
		}
	}
}

// extender is configured for a resource, or for all pods.
type extender struct {
	fwk.Extender
	binds    bool
	resource v1.ResourceName
}

func (extender) Name() string     { return "https://example.com/a-path" }
func (e extender) IsBinder() bool { return e.binds }
func (e extender) IsInterested(pod *v1.Pod) bool {
	if e.resource == "" {
		return true
	}
	for i := range pod.Spec.Containers {
		if _, found := pod.Spec.Containers[i].Resources.Limits[e.resource]; found {
			return true
		}
	}
	return false
}

func TestAnExtenderThatBindsEveryPodIsRefused(t *testing.T) {
	_, err := New(context.Background(), nil, &handle{extenders: []fwk.Extender{extender{}, extender{binds: true}}})
	if err == nil || !strings.Contains(err.Error(), "https://example.com/a-path binds every pod") {
		t.Error(err)
	}
}

func TestAPodThatAnExtenderBindsIsNotPlacedByThePlugin(t *testing.T) {
	p, engine, h := plugged(t, proposing("n1"))
	for name, one := range map[string]struct {
		extenders []fwk.Extender
		pod       *v1.Pod
		want      fwk.Code
	}{
		"it binds pods with devices":          {[]fwk.Extender{extender{binds: true, resource: card}}, device("web"), fwk.UnschedulableAndUnresolvable},
		"it binds others":                     {[]fwk.Extender{extender{binds: true, resource: "example.com/other"}}, device("web"), fwk.Success},
		"it binds none":                       {[]fwk.Extender{extender{}, extender{resource: card}}, device("web"), fwk.Success},
		"pods without devices are its matter": {[]fwk.Extender{extender{binds: true}}, plainPod(), fwk.Skip},
	} {
		before := len(engine.verbs())
		h.extenders = one.extenders
		_, status := p.PreFilter(context.Background(), framework.NewCycleState(), one.pod, nil)
		if status.Code() != one.want || (len(engine.verbs()) > before) != status.IsSuccess() {
			t.Error(name, status)
		}
		if one.want == fwk.UnschedulableAndUnresolvable && !strings.Contains(status.Message(), "https://example.com/a-path binds the pod") {
			t.Error("it does not say why:", status)
		}
	}
}

func TestOnlyChangesOfWhatAPodAsksAreAReasonToTryItAgain(t *testing.T) {
	changed := func(change func(*v1.Pod)) *v1.Pod {
		pod := device("web")
		change(pod)
		return pod
	}
	for name, one := range map[string]struct {
		after *v1.Pod
		want  fwk.QueueingHint
	}{
		"kube-scheduler's condition": {changed(func(pod *v1.Pod) {
			pod.ResourceVersion = "2"
			pod.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "kube-scheduler"}}
			pod.Status.Conditions = []v1.PodCondition{{Type: v1.PodScheduled, Status: v1.ConditionFalse}}
		}), fwk.QueueSkip},
		"a nomination": {changed(func(pod *v1.Pod) { pod.Status.NominatedNodeName = "n1" }), fwk.QueueSkip},
		"a finalizer":  {changed(func(pod *v1.Pod) { pod.Finalizers = []string{"a/b"} }), fwk.QueueSkip},
		"a label":      {changed(func(pod *v1.Pod) { pod.Labels = map[string]string{"a": "b"} }), fwk.Queue},
		"an annotation": {changed(func(pod *v1.Pod) {
			pod.Annotations = map[string]string{"partage.io/woken": "now"}
		}), fwk.Queue},
		"a toleration": {changed(func(pod *v1.Pod) {
			pod.Spec.Tolerations = []v1.Toleration{{Operator: v1.TolerationOpExists}}
		}), fwk.Queue},
		"another pod": {changed(func(pod *v1.Pod) { pod.UID, pod.Labels = "other", map[string]string{"a": "b"} }), fwk.QueueSkip},
	} {
		if hint, err := ownChange(klog.Background(), device("web"), device("web"), one.after); hint != one.want || err != nil {
			t.Error(name, hint, err)
		}
	}
}

func TestAQuestionThatIsOutOfDateIsAskedAgainLater(t *testing.T) {
	stale := &protocol.Answer{Code: protocol.CodeStale, Message: "the pod's Binding is on its way"}
	refused := &protocol.Answer{Code: "InsufficientCards", Message: "no card is free", Preempt: true}
	for name, one := range map[string]struct {
		propose, preempt *protocol.Answer
	}{
		"propose":              {propose: stale},
		"preempt":              {propose: refused, preempt: stale},
		"it leads no longer":   {propose: refused, preempt: &protocol.Answer{Code: "EngineNotReady"}},
		"it is gone meanwhile": {propose: refused},
	} {
		p, _, _ := plugged(t, func(q protocol.Question) *protocol.Answer {
			switch q.Verb {
			case protocol.VerbPropose:
				return one.propose
			case protocol.VerbPreempt:
				if one.preempt == nil {
					return hangUp
				}
				return one.preempt
			}
			return nil
		})
		_, status := p.PreFilter(context.Background(), framework.NewCycleState(), device("web"), nil)
		if status.Code() != fwk.Error {
			t.Error(name, status)
		}
	}
}
