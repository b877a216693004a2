package partage

import (
	"context"
	"encoding/json"
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"

	"partage.io/kube-scheduler/protocol"
)

// claims is the part of kube-scheduler's view of ResourceClaims that the plugin uses.
type claims struct {
	fwk.SharedDRAManager
	fwk.ResourceClaimTracker
	there   map[string]*resourceapi.ResourceClaim
	pending map[types.UID]*resourceapi.AllocationResult
	slices  []*resourceapi.ResourceSlice
	fails   error
}

func (c *claims) ResourceSlices() fwk.ResourceSliceLister { return c }
func (c *claims) ListWithDeviceTaintRules() ([]*resourceapi.ResourceSlice, error) {
	return c.slices, c.fails
}
func (c *claims) ResourceClaims() fwk.ResourceClaimTracker { return c }
func (c *claims) GetPendingAllocation(uid types.UID) *resourceapi.AllocationResult {
	return c.pending[uid]
}
func (c *claims) Get(namespace, name string) (*resourceapi.ResourceClaim, error) {
	if claim, found := c.there[namespace+"/"+name]; found {
		return claim, nil
	}
	return nil, errors.New("not found")
}

// claimant is a pod that asks for devices by a claim of its own, made from a template, and by a shared one.
func claimant() *v1.Pod {
	template, shared, made := "template", "shared", "web-card-x7"
	pod := device("web")
	pod.Spec.Containers[0].Resources = v1.ResourceRequirements{}
	pod.Spec.ResourceClaims = []v1.PodResourceClaim{
		{Name: "card", ResourceClaimTemplateName: &template},
		{Name: "other", ResourceClaimName: &shared},
	}
	pod.Status.ResourceClaimStatuses = []v1.PodResourceClaimStatus{{Name: "card", ResourceClaimName: &made}}
	return pod
}

// withClaims is a plugin whose engine compares nodes for claims, and whose claims exist.
func withClaims(t *testing.T, answer func(protocol.Question) *protocol.Answer) (*Plugin, *fakeEngine, *handle) {
	t.Helper()
	p, engine, h := plugged(t, answer)
	h.claims = &claims{there: map[string]*resourceapi.ResourceClaim{}}
	for _, name := range []string{"web-card-x7", "shared"} {
		h.claims.there["team/"+name] = &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{
			Namespace: "team", Name: name, UID: types.UID(name), ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "x"}},
		}}
	}
	engine.push(protocol.Answer{Vocabulary: &protocol.Vocabulary{Resources: []string{card}, Claims: true}})
	until(t, "the vocabulary", func() bool { return p.shared.words.Load().byClaims(claimant()) })
	return p, engine, h
}

func TestNodesAreTriedFirstForPodsWithClaims(t *testing.T) {
	p, engine, h := withClaims(t, proposing("n2", "n1"))
	ctx, state, pod := context.Background(), framework.NewCycleState(), claimant()

	result, status := p.PreFilter(ctx, state, pod, []fwk.NodeInfo{nodeInfo("n1", "other"), nodeInfo("n2")})
	if !status.IsSuccess() || !result.NodeNames.HasAll("n1", "n2") || result.NodeNames.Len() != 2 {
		t.Fatal(result, status)
	}
	asked := engine.last(protocol.VerbPropose)
	if asked.Wide || len(asked.Pod) == 0 || len(asked.Claims) != 2 || len(asked.Taken) != 2 {
		t.Errorf("%+v", asked)
	}
	var sent resourceapi.ResourceClaim
	if err := json.Unmarshal(asked.Claims[0], &sent); err != nil || sent.Name != "web-card-x7" || sent.ManagedFields != nil {
		t.Error(sent, err)
	}
	if !p.Filter(ctx, state, pod, nodeInfo("n1")).IsSuccess() || p.Filter(ctx, state, pod, nodeInfo("n3")).IsSuccess() {
		t.Error("the nodes that were proposed pass, and no others")
	}
	scores := fwk.NodeScoreList{{Name: "n1", Score: 1}, {Name: "n2", Score: 2}}
	p.NormalizeScore(ctx, state, pod, scores)
	if scores[0].Score != 0 || scores[1].Score != maxScore {
		t.Error(scores)
	}
	if status := p.Reserve(ctx, state, pod, "n2"); !status.IsSuccess() {
		t.Error(status)
	}
	if status := p.Bind(ctx, state, pod, "n2"); !status.IsSkip() {
		t.Error("kube-scheduler's own plugin binds the pod:", status)
	}
	if verbs := engine.verbs(); !slices.Equal(verbs, []string{protocol.VerbPropose}) {
		t.Error("nothing is allocated that is not stored:", verbs)
	}
	if len(h.activated) > 0 {
		t.Error(h.activated)
	}
}

func TestTheEngineIsToldWhatIsAllocatedAndNotStoredYet(t *testing.T) {
	for name, answer := range map[string]*protocol.Answer{"on a node that was proposed": {Nodes: []string{"n2"}}, "on any": {Skip: true}} {
		t.Run(name, func(t *testing.T) {
			p, engine, h := withClaims(t, func(q protocol.Question) *protocol.Answer {
				if q.Verb == protocol.VerbPropose {
					return answer
				}
				return nil
			})
			ctx, state, pod := context.Background(), framework.NewCycleState(), claimant()
			p.PreFilter(ctx, state, pod, nil)
			result := resourceapi.DeviceRequestAllocationResult{Pool: "n2", Device: "gpu-0"}
			h.claims.pending = map[types.UID]*resourceapi.AllocationResult{
				"shared": {Devices: resourceapi.DeviceAllocationResult{Results: []resourceapi.DeviceRequestAllocationResult{result}}},
			}

			if status := p.Reserve(ctx, state, pod, "n2"); !status.IsSuccess() {
				t.Error(status)
			}
			until(t, "what was allocated", func() bool { return engine.last(protocol.VerbReserve).UID != "" })
			said := engine.last(protocol.VerbReserve)
			var sent resourceapi.ResourceClaim
			if len(said.Claims) != 1 || json.Unmarshal(said.Claims[0], &sent) != nil || said.ID != 0 || said.Node != "n2" {
				t.Fatalf("%+v", said)
			}
			if sent.Name != "shared" || len(sent.ManagedFields) > 0 || sent.Status.Allocation.Devices.Results[0].Device != "gpu-0" {
				t.Errorf("%+v", sent)
			}
			if h.claims.there["team/shared"].Status.Allocation != nil {
				t.Error("kube-scheduler's own claim is changed")
			}
			p.Unreserve(ctx, state, pod, "n2")
			until(t, "the end", func() bool { return engine.last(protocol.VerbUnreserve).Attempt == said.Attempt })
			if status := p.Bind(ctx, state, pod, "n2"); !status.IsSkip() {
				t.Error("kube-scheduler's own plugin binds the pod:", status)
			}
		})
	}
}

func TestWhereAllNodesForClaimsWereRejectedThePodIsTriedAgainWhateverTheEngineSays(t *testing.T) {
	for name, answer := range map[string]*protocol.Answer{
		"others": {Again: true}, "none": {}, "refused": {Code: "StaleAttempt"}, "away": hangUp,
	} {
		t.Run(name, func(t *testing.T) {
			p, engine, h := withClaims(t, func(q protocol.Question) *protocol.Answer {
				switch q.Verb {
				case protocol.VerbPropose:
					// Also with scores, where every node that fits was proposed: the allocator knows more.
					return &protocol.Answer{Nodes: []string{"n1"}, Scores: []int64{90}}
				case protocol.VerbAnother:
					return answer
				}
				return nil
			})
			ctx, state, pod := context.Background(), framework.NewCycleState(), claimant()
			p.PreFilter(ctx, state, pod, nil)
			if _, status := p.PostFilter(ctx, state, pod, nil); status.Code() != fwk.UnschedulableAndUnresolvable {
				t.Error("a pod is evicted before all nodes were looked at:", status)
			}
			if rejected := engine.last(protocol.VerbAnother).Rejected; !slices.Equal(rejected, []string{"n1"}) {
				t.Error(rejected)
			}
			if !slices.Equal(h.activated, []string{"uid"}) {
				t.Error(h.activated)
			}
		})
	}
}

func TestClaimsAreLeftToKubeSchedulerWhereTheEngineCannotTell(t *testing.T) {
	for name, prepare := range map[string]func(*Plugin, *handle, *v1.Pod){
		"a claim is not there yet": func(_ *Plugin, h *handle, _ *v1.Pod) { delete(h.claims.there, "team/shared") },
		"a claim is not made yet":  func(_ *Plugin, _ *handle, pod *v1.Pod) { pod.Status.ResourceClaimStatuses = nil },
		"a node is nominated":      func(_ *Plugin, _ *handle, pod *v1.Pod) { pod.Status.NominatedNodeName = "n1" },
		"the engine does not ask for claims": func(p *Plugin, _ *handle, _ *v1.Pod) {
			p.shared.words.Store(wordsOf(&protocol.Vocabulary{}))
		},
		"the engine was slow": func(p *Plugin, _ *handle, _ *v1.Pod) {
			for range slowAtMost {
				p.shared.breaker.took(slowAfter+1, true)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			p, engine, h := withClaims(t, proposing("n1"))
			pod := claimant()
			prepare(p, h, pod)
			left(t, p, pod)
			if asked := engine.verbs(); len(asked) != 0 {
				t.Errorf("asked %v", asked)
			}
		})
	}
	for name, answer := range map[string]*protocol.Answer{
		"skip": {Skip: true}, "a code": {Code: "EngineNotReady"}, "no node": {}, "no answer": hangUp,
	} {
		t.Run(name, func(t *testing.T) {
			p, _, _ := withClaims(t, func(q protocol.Question) *protocol.Answer {
				if q.Verb == protocol.VerbPropose {
					return answer
				}
				return nil
			})
			left(t, p, claimant())
		})
	}
}

func TestClaimsAndPodsThatAreTooLargeToTellAreLeftAndNodesAreToldOfAllTheSame(t *testing.T) {
	p, engine, h := withClaims(t, proposing("n1"))
	large := *h.claims.there["team/shared"]
	large.Annotations = map[string]string{"x": strings.Repeat("x", mostOfClaims)}
	small := h.claims.there["team/shared"]
	nodes := []fwk.NodeInfo{nodeInfo("n1"), nodeInfo("n2")}
	ctx := context.Background()

	h.claims.there["team/shared"] = &large
	if result, status := p.PreFilter(ctx, framework.NewCycleState(), claimant(), nodes); !status.IsSkip() || result != nil {
		t.Error(result, status)
	}
	h.claims.there["team/shared"] = small
	long := claimant()
	long.Spec.Containers[0].Env = []v1.EnvVar{{Name: "X", Value: strings.Repeat("<", protocol.MaxFrame/6+1)}} // each is \u003c
	if result, status := p.PreFilter(ctx, framework.NewCycleState(), long, nodes); !status.IsSkip() || result != nil {
		t.Error(result, status)
	}
	if asked := engine.verbs(); len(asked) != 0 {
		t.Errorf("asked %v", asked)
	}
	if _, status := p.PreFilter(ctx, framework.NewCycleState(), claimant(), nodes); !status.IsSuccess() {
		t.Error(status)
	}
	if asked := engine.last(protocol.VerbPropose); len(asked.Taken) != 2 {
		t.Errorf("heard of %v", asked.Taken)
	}
}

func TestParametersOfDriversDoNotTravel(t *testing.T) {
	deep := runtime.RawExtension{Raw: []byte(`{"a":` + strings.Repeat("[", 4900) + strings.Repeat("]", 4900) + `}`)}
	opaque := resourceapi.DeviceConfiguration{Opaque: &resourceapi.OpaqueDeviceConfiguration{Driver: "x", Parameters: deep}}
	claim := &resourceapi.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Name: "x"},
		Spec: resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{
			Requests: []resourceapi.DeviceRequest{{Name: "r"}},
			Config:   []resourceapi.DeviceClaimConfiguration{{DeviceConfiguration: opaque}},
		}},
		Status: resourceapi.ResourceClaimStatus{
			Allocation: &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{
				Results: []resourceapi.DeviceRequestAllocationResult{{Request: "r"}},
				Config:  []resourceapi.DeviceAllocationConfiguration{{DeviceConfiguration: opaque}},
			}},
			Devices: []resourceapi.AllocatedDeviceStatus{{Data: &deep}},
		},
	}
	before := claim.DeepCopy()

	sent, err := encodedClaims([]*resourceapi.ResourceClaim{claim}, 0)
	if err != nil || len(sent) != 1 || strings.Contains(string(sent[0]), "[[") {
		t.Error(err, len(sent))
	}
	var read resourceapi.ResourceClaim
	if err := json.Unmarshal(sent[0], &read); err != nil || read.Spec.Devices.Requests[0].Name != "r" ||
		read.Status.Allocation.Devices.Results[0].Request != "r" {
		t.Error(read, err)
	}
	if !reflect.DeepEqual(claim, before) {
		t.Error("kube-scheduler's own claim has changed")
	}
}

// left expects that kube-scheduler goes on as without the plugin.
func left(t *testing.T, p *Plugin, pod *v1.Pod) {
	t.Helper()
	ctx, state := context.Background(), framework.NewCycleState()
	if result, status := p.PreFilter(ctx, state, pod, nil); !status.IsSkip() || result != nil {
		t.Error(result, status)
	}
	if _, status := p.PostFilter(ctx, state, pod, nil); status.Code() != fwk.Unschedulable {
		t.Error("preemption goes on:", status)
	}
	if status := p.Bind(ctx, state, pod, "n1"); !status.IsSkip() {
		t.Error(status)
	}
}

func TestAPodWithDevicesByNamesAndClaimsIsAskedAboutByItsNames(t *testing.T) {
	p, engine, _ := withClaims(t, proposing("n1"))
	pod := claimant()
	pod.Spec.Containers[0].Resources.Limits = v1.ResourceList{card: resource.MustParse("1")}
	p.PreFilter(context.Background(), framework.NewCycleState(), pod, nil)
	if asked := engine.last(protocol.VerbPropose); !asked.Wide || asked.Claims != nil {
		t.Errorf("%+v", asked)
	}
}

func TestThePlaceByNamesIsAskedForAfterItIsSaidWhatClaimsHave(t *testing.T) {
	p, engine, h := withClaims(t, proposing("n1"))
	ctx, state, pod := context.Background(), framework.NewCycleState(), claimant()
	pod.Spec.Containers[0].Resources.Limits = v1.ResourceList{card: resource.MustParse("1")}
	reserved := func() (found []protocol.Question) {
		engine.mu.Lock()
		defer engine.mu.Unlock()
		for _, asked := range engine.asked {
			if asked.Verb == protocol.VerbReserve {
				found = append(found, asked)
			}
		}
		return found
	}

	p.PreFilter(ctx, state, pod, nil)
	result := resourceapi.DeviceRequestAllocationResult{Pool: "n1", Device: "gpu-0"}
	h.claims.pending = map[types.UID]*resourceapi.AllocationResult{
		"shared": {Devices: resourceapi.DeviceAllocationResult{Results: []resourceapi.DeviceRequestAllocationResult{result}}},
	}
	if status := p.Reserve(ctx, state, pod, "n1"); !status.IsSuccess() {
		t.Fatal(status)
	}
	asked := reserved()
	if len(asked) != 2 || len(asked[0].Claims) != 1 || asked[1].Claims != nil || asked[1].ID == 0 {
		t.Errorf("%+v", asked)
	}

	h.claims.pending = nil // what was stored before needs no word, and the place no answer
	if status := p.Reserve(ctx, state, pod, "n1"); !status.IsSuccess() {
		t.Fatal(status)
	}
	until(t, "the place", func() bool { return len(reserved()) == 3 })
	if last := reserved()[2]; last.ID != 0 || last.Claims != nil {
		t.Errorf("%+v", last)
	}
}

func TestWhatIsTakenOfANodeIsToldOnceOnAConnection(t *testing.T) {
	var t1 told
	names := func(found []protocol.Taken) (names []string) {
		for _, one := range found {
			names = append(names, one.Node)
		}
		return names
	}
	a, b := nodeInfo("a"), nodeInfo("b", "pod")
	if got := t1.changed([]fwk.NodeInfo{a, b}); !slices.Equal(names(got), []string{"a", "b"}) || got[1].Pods != 1 {
		t.Error(got)
	}
	if got := t1.changed([]fwk.NodeInfo{a, b}); got != nil {
		t.Error(got)
	}
	if got := t1.changed([]fwk.NodeInfo{nodeInfo("a", "new")}); !slices.Equal(names(got), []string{"a"}) {
		t.Error(got)
	}
	if got := t1.changed([]fwk.NodeInfo{nodeInfo("a", "new"), b}); !slices.Equal(names(got), []string{"b"}) {
		t.Error("a node that came back is another one:", got)
	}
	t1.forget()
	if got := t1.changed([]fwk.NodeInfo{b}); !slices.Equal(names(got), []string{"b"}) {
		t.Error(got)
	}
	var many []fwk.NodeInfo
	for i := range mostTaken + 5 {
		many = append(many, nodeInfo(string(rune('一'+i))))
	}
	if got := t1.changed(many); len(got) != mostTaken {
		t.Error(len(got))
	}
	if got := t1.changed(many); len(got) != 5 {
		t.Error("the others come with the next question:", len(got))
	}
}

// slice is one of so many slices of a pool.
func slice(driver, pool string, generation, count int64) *resourceapi.ResourceSlice {
	return &resourceapi.ResourceSlice{Spec: resourceapi.ResourceSliceSpec{
		Driver: driver, Pool: resourceapi.ResourcePool{Name: pool, Generation: generation, ResourceSliceCount: count},
	}}
}

func TestOnlyPoolsOfWhichEverySliceIsThereAreTold(t *testing.T) {
	var t1 told
	told := func(there ...*resourceapi.ResourceSlice) protocol.Pools {
		found := *t1.whole(there, "ours")
		slices.Sort(found.Whole)
		return found
	}
	same := func(got protocol.Pools, whole, gone []string) {
		t.Helper()
		if !slices.Equal(got.Whole, whole) || !slices.Equal(got.Gone, gone) {
			t.Error(got)
		}
	}
	half, alone := slice("ours", "a", 1, 2), slice("ours", "b", 1, 1)
	same(told(half, slice("other", "a", 1, 2), slice("other", "c", 1, 1)), nil, nil)
	same(told(half, half, alone), []string{"a", "b"}, nil)
	same(told(half, half, alone), nil, nil)
	newer := slice("ours", "a", 2, 2)
	same(told(half, newer, half, alone), nil, []string{"a"})
	same(told(newer, half, newer, alone), []string{"a"}, nil)
	same(told(newer, newer), nil, []string{"b"})
	t1.forget()
	same(told(newer, newer), []string{"a"}, nil)
	var many []*resourceapi.ResourceSlice
	for i := range mostPools + 5 {
		many = append(many, slice("ours", string(rune('一'+i)), 1, 1))
	}
	if got := told(many...); len(got.Whole) != mostPools {
		t.Error(len(got.Whole))
	}
	if got := told(many...); len(got.Whole) != 5 {
		t.Error("the others come with the next question:", len(got.Whole))
	}
}

func TestAQuestionAboutClaimsTellsOfPoolsWhereTheEngineNamedItsDriver(t *testing.T) {
	p, engine, h := withClaims(t, proposing("n1"))
	ask := func() *protocol.Pools {
		t.Helper()
		if _, status := p.PreFilter(context.Background(), framework.NewCycleState(), claimant(), nil); !status.IsSuccess() {
			t.Fatal(status)
		}
		return engine.last(protocol.VerbPropose).Pools
	}
	h.claims.slices = []*resourceapi.ResourceSlice{slice("ours", "n1", 1, 1)}
	if pools := ask(); pools != nil {
		t.Error("pools were sent to an engine that named no driver:", pools)
	}
	engine.push(protocol.Answer{Vocabulary: &protocol.Vocabulary{Resources: []string{card}, Claims: true, Driver: "ours"}})
	until(t, "the driver", func() bool { return p.shared.words.Load().driver == "ours" })
	if pools := ask(); pools == nil || !slices.Equal(pools.Whole, []string{"n1"}) {
		t.Error(pools)
	}
	if pools := ask(); pools == nil || pools.Whole != nil || pools.Gone != nil {
		t.Error("where nothing has changed it says so:", pools)
	}
	h.claims.fails = errors.New("no slices")
	if _, status := p.PreFilter(context.Background(), framework.NewCycleState(), claimant(), nil); !status.IsSkip() {
		t.Error("where they cannot be listed kube-scheduler looks by itself:", status)
	}
}

func TestWhatIsTakenIsToldWithTheFirstQuestionAboutAnyPod(t *testing.T) {
	p, engine, _ := plugged(t, func(asked protocol.Question) *protocol.Answer {
		if asked.Verb == protocol.VerbPropose && len(asked.Pod) == 0 {
			return &protocol.Answer{Unseen: true}
		}
		return proposing("n1")(asked)
	})
	nodes := []fwk.NodeInfo{nodeInfo("n1", "other"), nodeInfo("n2")}
	for _, name := range []string{"web", "more"} {
		if _, status := p.PreFilter(context.Background(), framework.NewCycleState(), device(name), nodes); !status.IsSuccess() {
			t.Fatal(status)
		}
	}
	var told []int
	engine.mu.Lock()
	for _, asked := range engine.asked {
		if asked.Verb == protocol.VerbPropose {
			told = append(told, len(asked.Taken))
		}
	}
	engine.mu.Unlock()
	if !slices.Equal(told, []int{2, 0, 0, 0}) { // each is asked again with the pod
		t.Error(told)
	}
}

func TestFewClaimsAreStoredAtATime(t *testing.T) {
	p, _, _ := withClaims(t, proposing("n1"))
	gone, leave := context.WithCancel(context.Background())
	leave()
	var ends []context.CancelFunc
	store := func(ctx context.Context) *fwk.Status {
		state := framework.NewCycleState()
		p.PreFilter(context.Background(), state, claimant(), nil)
		if preflight(p, state, claimant()).IsSkip() {
			t.Error("a pod whose claims are to be stored takes no turn")
		}
		return p.PreBind(ctx, state, claimant(), "n1")
	}
	for range mostStoring {
		ctx, end := context.WithCancel(context.Background())
		ends = append(ends, end)
		if status := store(ctx); !status.IsSuccess() {
			t.Fatal(status)
		}
	}
	if status := store(gone); status.IsSuccess() {
		t.Error("there is no turn left for a pod that waits no more")
	}

	ends[3]() // kube-scheduler has stored the claims, or failed
	if status := store(context.Background()); !status.IsSuccess() {
		t.Fatal(status)
	}
	if status := store(gone); status.IsSuccess() {
		t.Error("one turn that ended is taken once")
	}
}

func TestNoPodWaitsForOthersForEver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &Plugin{shared: newShared("", 0)}
		begun := time.Now()
		waited := make(chan time.Duration, 14*mostStoring)
		for range cap(waited) {
			state := framework.NewCycleState()
			made := newAttempt(1, []string{"n1"})
			made.claimed = true
			state.Write(stateKey, made)
			go func() {
				// kube-scheduler waits for volumes of all these pods.
				p.PreBind(t.Context(), state, claimant(), "n1")
				waited <- time.Since(begun)
			}()
		}
		for i := range cap(waited) {
			if after := <-waited; after != min(time.Duration(i/mostStoring)*turnLasts, turnWithin) {
				t.Errorf("pod %d waited %v", i, after)
			}
		}
	})
}

func TestOtherPodsTakeNoTurn(t *testing.T) {
	p, _, _ := withClaims(t, proposing("n1"))
	named := claimant()
	named.Spec.Containers[0].Resources.Limits = v1.ResourceList{card: resource.MustParse("1")}
	left := claimant()
	left.Status.NominatedNodeName = "n1"
	for name, pod := range map[string]*v1.Pod{"by names": named, "kube-scheduler's own": left, "by names alone": device("web")} {
		state := framework.NewCycleState()
		p.PreFilter(context.Background(), state, pod, nil)
		p.Reserve(context.Background(), state, pod, "n1")
		if !preflight(p, state, pod).IsSkip() {
			t.Errorf("%s: kube-scheduler writes its status for nothing", name)
		}
		if status := p.PreBind(context.Background(), state, pod, "n1"); !status.IsSuccess() || len(p.shared.storing) != 0 {
			t.Error(name, status)
		}
	}
}
