// Package partage is a kube-scheduler plugin that asks Partage's engine about pods with devices.
//
// It contains no rule about a device. The engine, in the other container of the pod, defines which
// resources are devices, proposes nodes, reserves and releases, and gives the contents of a Binding.
// This package only connects kube-scheduler's extension points with the socket.
// docs/reference/plugin.md describes each point and its reason.
package partage

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"runtime/debug"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/component-base/version"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"

	"partage.io/kube-scheduler/protocol"
)

// Name is the plugin's name in KubeSchedulerConfiguration.
const Name = "Partage"

// Weight is the weight of the plugin that the profile must have. If kube-scheduler has no wishes of its own for
// a pod, the best node must win over the sum of all other plugins' scores, about 1,300.
const Weight = 20

// maxScore is kube-scheduler's MaxNodeScore, whose name differs from version to version; the least is 0.
const maxScore int64 = 100

// Version is set when the program is linked.
var Version = "dev"

const (
	// SocketVariable and UserVariable are the environment variables with the engine's socket and its user.
	SocketVariable = "PARTAGE_SOCKET"
	UserVariable   = "PARTAGE_ENGINE_USER"

	socketDefault = "/run/partage/engine.sock"

	answerWithin = 2 * time.Second
	// The engine allows a Binding when its turn comes: in a burst it waits for all earlier ones.
	bindWithin  = 10 * time.Minute
	boundWithin = 30 * time.Second
	// Far fewer than the questions that may wait, so that questions about other pods have room.
	mostBinding = 1024
	// Each claim is checked before it is stored. With more at once than five seconds' answers, the API server has none in time.
	mostStoring = 16
	// A pod that waited this long for its turn goes on without it. A turn is no longer than a write should be:
	// kube-scheduler may wait for a pod's volumes meanwhile.
	turnWithin = 2 * time.Minute
	turnLasts  = 10 * time.Second
	// A question that takes longer than this keeps all other pods from being scheduled.
	slowAfter   = time.Second
	slowAtMost  = 3
	slowPause   = 5 * time.Second
	mostRetries = 10_000
	mostTaken   = 1000   // nodes of one question, so that the first question does not count as slow
	mostPools   = 10_000 // names of one question, within a frame with the longest there are
)

const stateKey fwk.StateKey = Name

// attempt is the plugin's memory of one scheduling attempt, in kube-scheduler's CycleState.
type attempt struct {
	number int64
	order  map[string]int
	names  []string
	scores map[string]int64
	// The best nodes of each domain were proposed; if a filter rejects one, others could have fitted.
	soft bool
	left atomic.Int64 // of the proposed nodes, after the filters
	// The pod asks by claims: kube-scheduler allocates them, and the plugin reserves and binds nothing.
	claimed bool

	// If the pod was refused: the pods that must be gone from each node before it fits, and the reason.
	victims map[string]map[types.UID]struct{}
	reason  string
}

func newAttempt(number int64, nodes []string) *attempt {
	made := &attempt{number: number, names: nodes, order: make(map[string]int, len(nodes))}
	for i, name := range nodes {
		made.order[name] = i
	}
	return made
}

// proposedBy makes the attempt of a proposal.
func proposedBy(answer *protocol.Answer, number int64) *attempt {
	made := newAttempt(number, answer.Nodes)
	if len(answer.Scores) == len(answer.Nodes) && len(answer.Scores) > 0 {
		made.scores = make(map[string]int64, len(answer.Scores))
		for i, name := range answer.Nodes {
			made.scores[name] = answer.Scores[i]
		}
	}
	return made
}

// Clone gives the same attempt: after PreFilter, only the number of passed nodes changes.
func (a *attempt) Clone() fwk.StateData { return a }

// Plugin is one profile's plugin; all profiles share one connection.
type Plugin struct {
	handle fwk.Handle
	shared *shared
	send   func(context.Context, *v1.Binding) error
}

// shared is the common state of all profiles of one kube-scheduler.
type shared struct {
	engine   *engine
	attempts atomic.Int64
	words    atomic.Pointer[words]
	breaker  breaker
	told     told
	binding  chan struct{}
	storing  chan struct{}

	mu      sync.Mutex
	handles []fwk.Handle
	refused map[types.UID]*v1.Pod
	waiting map[string]int         // the number of refused pods by namespace
	unasked map[types.UID]struct{} // the refused pods about which the engine was not asked, because it was too slow
}

var (
	once    sync.Once
	process *shared
)

var (
	_ fwk.PreFilterPlugin   = &Plugin{}
	_ fwk.FilterPlugin      = &Plugin{}
	_ fwk.PostFilterPlugin  = &Plugin{}
	_ fwk.PreScorePlugin    = &Plugin{}
	_ fwk.ScorePlugin       = &Plugin{}
	_ fwk.ReservePlugin     = &Plugin{}
	_ fwk.PreBindPlugin     = &Plugin{}
	_ fwk.BindPlugin        = &Plugin{}
	_ fwk.EnqueueExtensions = &Plugin{}
	_ fwk.SignPlugin        = &Plugin{}
)

// New makes the plugin of one profile. It implies no leadership, and the engine may start later.
// Without an engine, New waits for electsAfter: a kube-scheduler that released the Lease because its
// engine was missing is restarted at once, and another instance must win the election.
func New(ctx context.Context, _ runtime.Object, handle fwk.Handle) (fwk.Plugin, error) {
	if extender := bindsInstead(handle.Extenders(), &v1.Pod{}); extender != "" {
		return nil, fmt.Errorf("the extender %s binds every pod, so the plugin %s could bind none; remove one of the two, or the extender's bindVerb", extender, Name)
	}
	user := uint32(os.Getuid())
	if given := os.Getenv(UserVariable); given != "" {
		number, err := strconv.ParseUint(given, 10, 32)
		if err != nil {
			return nil, fmt.Errorf("%s=%q is not a user id", UserVariable, given)
		}
		user = uint32(number)
	}
	once.Do(func() {
		path := os.Getenv(SocketVariable)
		if path == "" {
			path = socketDefault
		}
		process = newShared(path, user)
		go process.engine.run(ctx)
		go process.follow(ctx)
		if pod, namespace := os.Getenv(PodVariable), os.Getenv(NamespaceVariable); pod != "" && namespace != "" {
			pods := handle.SharedInformerFactory().Core().V1().Pods().Lister()
			go process.watch(ctx, func() bool { return otherReady(pods, namespace, pod) })
		}
		if !process.engine.await(ctx, electsAfter) {
			klog.FromContext(ctx).Info("Partage's engine is not connected; kube-scheduler starts without it", "socket", path)
		}
	})
	handle.SharedInformerFactory().Policy().V1().PodDisruptionBudgets().Informer() // is listed when others could make room
	client, err := bindingClient(handle.KubeConfig(), handle.ClientSet().CoreV1().RESTClient().GetRateLimiter())
	if err != nil {
		return nil, fmt.Errorf("the client for Bindings: %w", err)
	}
	process.mu.Lock()
	process.handles = append(process.handles, handle)
	process.mu.Unlock()
	return &Plugin{handle: handle, shared: process, send: binder(client)}, nil
}

func newShared(path string, user uint32) *shared {
	s := &shared{refused: map[types.UID]*v1.Pod{}, waiting: map[string]int{}, unasked: map[types.UID]struct{}{}, binding: make(chan struct{}, mostBinding), storing: make(chan struct{}, mostStoring)}
	s.engine = &engine{
		accepted: make(chan struct{}),
		path:     path,
		user:     user,
		hello: protocol.Question{
			Verb: protocol.VerbHello, Protocol: protocol.Version, Incarnation: string(uuid.NewUUID()),
			Plugin: Version, Kubernetes: version.Get().GitVersion,
		},
		connected: func() { s.told.forget(); s.sayLeading() },
		pushed:    s.pushed,
	}
	return s
}

// follow tells the engine when the Lease is got or lost.
func (s *shared) follow(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-holding.changed:
			unbroken(s.sayLeading)
		}
	}
}

func (s *shared) sayLeading() {
	err := s.engine.tellNow(func() protocol.Question {
		leading := holding.held.Load()
		return protocol.Question{Verb: protocol.VerbLeading, Leading: &leading}
	})
	if err != nil && !errors.Is(err, errAway) {
		klog.Background().Error(err, "The plugin could not tell the engine which instance leads")
	}
}

// pushed handles a push of the engine.
func (s *shared) pushed(push protocol.Answer) {
	if push.Vocabulary != nil {
		s.words.Store(wordsOf(push.Vocabulary))
	}
	if push.Ready != nil && *push.Ready {
		s.breaker.close()
		s.retry()
	}
	if len(push.Activate) > 0 {
		wanted := make(map[types.UID]struct{}, len(push.Activate))
		for _, uid := range push.Activate {
			wanted[types.UID(uid)] = struct{}{}
		}
		s.activate(func(uid types.UID) bool { _, found := wanted[uid]; return found })
	}
}

// retry retries every pod that was refused because the engine was away.
func (s *shared) retry() { s.activate(func(types.UID) bool { return true }) }

// retryUnasked retries the pods that were refused because the engine was too slow. It has no push for them.
func (s *shared) retryUnasked() {
	s.activate(func(uid types.UID) bool { _, unasked := s.unasked[uid]; return unasked })
}

// activate retries the chosen of the refused pods. It holds the lock while it asks which are chosen.
func (s *shared) activate(chosen func(types.UID) bool) {
	s.mu.Lock()
	pods := map[string]*v1.Pod{}
	for uid, pod := range s.refused {
		if chosen(uid) {
			pods[string(uid)] = pod
			s.drop(uid)
		}
	}
	handles := s.handles
	s.mu.Unlock()
	// All profiles share one queue.
	if len(pods) > 0 && len(handles) > 0 {
		handles[0].Activate(klog.Background(), pods)
	}
}

// remember keeps a refused pod, so that a push can activate it. Nothing reports that the pod is gone.
func (s *shared) remember(pod *v1.Pod) { s.keep(pod, false) }

// unaskable gives the reason why the engine cannot be asked about a pod now, because it is away or too slow. It keeps the pod
// for the time when it can, and looks again afterwards: the retry of kept pods may have come before.
func (s *shared) unaskable(pod *v1.Pod) string {
	if s.away() == "" {
		return ""
	}
	s.keep(pod, true)
	return s.away()
}

func (s *shared) keep(pod *v1.Pod, unasked bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.drop(pod.UID)
	if len(s.refused) >= mostRetries {
		s.crowdOut()
	}
	s.refused[pod.UID] = lookup(pod)
	s.waiting[pod.Namespace]++
	if unasked {
		s.unasked[pod.UID] = struct{}{}
	}
}

func (s *shared) forget(pod *v1.Pod) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.drop(pod.UID)
}

// drop forgets a pod; the caller holds the lock.
func (s *shared) drop(uid types.UID) {
	if pod, found := s.refused[uid]; found {
		if s.waiting[pod.Namespace]--; s.waiting[pod.Namespace] == 0 {
			delete(s.waiting, pod.Namespace)
		}
	}
	delete(s.refused, uid)
	delete(s.unasked, uid)
}

// crowdOut forgets a pod of the namespace with the most, so that no user's pods, gone ones included, take the place of
// others'. kube-scheduler itself tries it again within five minutes.
func (s *shared) crowdOut() {
	most := ""
	for namespace, count := range s.waiting {
		if count > s.waiting[most] {
			most = namespace
		}
	}
	for uid, pod := range s.refused {
		if pod.Namespace == most {
			s.drop(uid)
			return
		}
	}
}

// Name is the plugin's name.
func (p *Plugin) Name() string { return Name }

// PreFilter asks the engine for nodes. Pods without devices are recognized before the socket is touched.
func (p *Plugin) PreFilter(ctx context.Context, state fwk.CycleState, pod *v1.Pod, nodes []fwk.NodeInfo) (result *fwk.PreFilterResult, status *fwk.Status) {
	defer p.guard(&status, state, pod, fwk.Skip)
	words := p.shared.words.Load()
	if words.byClaims(pod) {
		holding.set(true)
		return p.forClaims(ctx, state, pod, nodes)
	}
	if !words.concerns(pod) {
		return nil, fwk.NewStatus(fwk.Skip)
	}
	holding.set(true) // only a leader schedules, also one without an election
	if extender := bindsInstead(p.handle.Extenders(), pod); extender != "" {
		return nil, fwk.NewStatus(fwk.UnschedulableAndUnresolvable, fmt.Sprintf(
			"the extender %s binds the pod in place of the plugin %s, without its devices; remove the extender or its bindVerb", extender, Name))
	}
	if why := p.shared.unaskable(pod); why != "" {
		return nil, fwk.NewStatus(fwk.UnschedulableAndUnresolvable, why)
	}
	number := p.shared.attempts.Add(1)
	p.shared.remember(pod) // before the question: a push may follow the refusal at once
	answer, err := p.propose(ctx, pod, number, simulated(state), nodes)
	if err != nil {
		return nil, fwk.AsStatus(err) // kube-scheduler tries it again in a while
	}
	if answer.Skip {
		p.shared.forget(pod)
		return nil, fwk.NewStatus(fwk.Skip)
	}
	if answer.Code != "" {
		made, err := p.preempt(ctx, pod, number, answer)
		if err != nil {
			return nil, fwk.AsStatus(err)
		}
		if made == nil {
			return nil, refusal(answer)
		}
		state.Write(stateKey, made)
		return &fwk.PreFilterResult{NodeNames: sets.New(made.names...)}, nil
	}
	p.shared.forget(pod)
	made := proposedBy(&answer, number)
	if made.scores != nil {
		_, made.soft = domains(&pod.Spec)
	}
	state.Write(stateKey, made)
	return &fwk.PreFilterResult{NodeNames: sets.New(answer.Nodes...)}, nil
}

// bindsInstead names the extender that binds a pod, if there is one: kube-scheduler then calls no plugin's Bind. Partage's own
// extender binds every pod, whatever its address.
func bindsInstead(extenders []fwk.Extender, pod *v1.Pod) string {
	for _, extender := range extenders {
		if extender.IsBinder() && extender.IsInterested(pod) {
			return extender.Name()
		}
	}
	return ""
}

// forClaims asks on which nodes to try a pod's claims first. If that fails for any reason,
// kube-scheduler decides by itself, over all nodes, because it allocates the claims.
func (p *Plugin) forClaims(ctx context.Context, state fwk.CycleState, pod *v1.Pod, nodes []fwk.NodeInfo) (*fwk.PreFilterResult, *fwk.Status) {
	skip := fwk.NewStatus(fwk.Skip)
	dra := p.handle.SharedDRAManager()
	// A group's filters may not run again, and a nominated node must be filtered whatever is proposed.
	if dra == nil || simulated(state) || pod.Status.NominatedNodeName != "" || p.shared.away() != "" {
		return nil, skip
	}
	claims, err := claimsOf(dra.ResourceClaims(), pod)
	if err != nil || claims == nil {
		return nil, skip
	}
	spec := withoutClaims(&pod.Spec)
	question := protocol.Question{
		Verb: protocol.VerbPropose, UID: string(pod.UID), Attempt: p.shared.attempts.Add(1), Version: pod.ResourceVersion,
		Wide: wide(spec),
	}
	question.Domains, _ = domains(spec)
	if question.Pod, err = encoded(pod); err != nil {
		return nil, skip
	}
	if question.Claims, err = encodedClaims(claims, len(question.Pod)); err != nil {
		return nil, skip
	}
	slices, err := dra.ResourceSlices().ListWithDeviceTaintRules()
	if err != nil {
		return nil, skip
	}
	// This is the last step: it marks the changes as reported, which would be wrong without the question.
	if driver := p.shared.words.Load().driver; driver != "" {
		question.Pools = p.shared.told.whole(slices, driver)
	}
	question.Taken = p.shared.told.changed(nodes)
	answer, err := p.shared.timed(ctx, question)
	if err != nil || answer.Code != "" || len(answer.Nodes) == 0 {
		return nil, skip
	}
	made := proposedBy(&answer, question.Attempt)
	made.claimed = true
	state.Write(stateKey, made)
	return &fwk.PreFilterResult{NodeNames: sets.New(answer.Nodes...)}, nil
}

func (p *Plugin) propose(ctx context.Context, pod *v1.Pod, number int64, inGroup bool, nodes []fwk.NodeInfo) (protocol.Answer, error) {
	question := protocol.Question{
		Verb: protocol.VerbPropose, UID: string(pod.UID), Attempt: number, Version: pod.ResourceVersion,
		Wide: wide(&pod.Spec), Nominated: pod.Status.NominatedNodeName, Simulated: inGroup,
		Taken: p.shared.told.changed(nodes),
	}
	question.Domains, _ = domains(&pod.Spec)
	answer, err := p.shared.timed(ctx, question)
	if err != nil || !answer.Unseen {
		return answer, err
	}
	if question.Pod, err = encoded(pod); err != nil {
		return answer, err
	}
	question.Taken = nil // the first question said it
	return p.shared.timed(ctx, question)
}

// preempt asks where less important pods could make room for a pod that the engine refused. It gives
// nil if there is no such node. kube-scheduler's own preemption then finds that its filters pass
// once those pods are gone, adds those that its own resources need, and evicts them. If the engine could not
// name the victims, kube-scheduler tries the pod again in a while, because no push would come for it.
func (p *Plugin) preempt(ctx context.Context, pod *v1.Pod, number int64, refused protocol.Answer) (*attempt, error) {
	if !refused.Preempt {
		return nil, nil
	}
	budgets, err := p.budgets()
	if err != nil {
		return nil, fmt.Errorf("the plugin could not list the disruption budgets: %w", err)
	}
	answer, err := p.shared.timed(ctx, protocol.Question{
		Verb: protocol.VerbPreempt, UID: string(pod.UID), Attempt: number, Budgets: budgets,
	})
	if err != nil {
		return nil, err
	}
	if answer.Code != "" {
		return nil, fmt.Errorf("%s: %s", answer.Code, answer.Message)
	}
	if answer.Again {
		p.handle.Activate(klog.FromContext(ctx), map[string]*v1.Pod{string(pod.UID): pod})
		return nil, nil
	}
	if len(answer.Nodes) == 0 || len(answer.Victims) != len(answer.Nodes) {
		return nil, nil
	}
	made := newAttempt(number, answer.Nodes)
	made.reason = refused.Code + ": " + refused.Message
	made.victims = make(map[string]map[types.UID]struct{}, len(answer.Nodes))
	for i, name := range answer.Nodes {
		victims := make(map[types.UID]struct{}, len(answer.Victims[i]))
		for _, uid := range answer.Victims[i] {
			victims[types.UID(uid)] = struct{}{}
		}
		made.victims[name] = victims
	}
	return made, nil
}

func (p *Plugin) budgets() ([]protocol.Budget, error) {
	listed, err := p.handle.SharedInformerFactory().Policy().V1().PodDisruptionBudgets().Lister().List(labels.Everything())
	if err != nil {
		return nil, err
	}
	return budgetsOf(listed)
}

// timed asks, and counts how often the engine is slow.
func (s *shared) timed(ctx context.Context, question protocol.Question) (protocol.Answer, error) {
	begun := time.Now()
	answer, err := s.engine.ask(ctx, question, answerWithin)
	s.answered(time.Since(begun), errors.Is(err, errSlow))
	return answer, err
}

// answered counts an answer. After a pause it retries the pods that the pause has held up.
func (s *shared) answered(spent time.Duration, timedOut bool) {
	if s.breaker.took(spent, timedOut) {
		s.retryAfterPause()
	}
}

func (s *shared) retryAfterPause() {
	time.AfterFunc(slowPause, func() { unbroken(s.retryUnasked) })
}

// retryLater retries a pod after a pause: at once, a slow engine would have no end of questions about it.
func (s *shared) retryLater(pod *v1.Pod) {
	s.keep(pod, true)
	s.retryAfterPause()
}

func (s *shared) away() string {
	if why := s.engine.away(); why != "" {
		return why
	}
	return s.breaker.open()
}

// PreFilterExtensions is nil, because the engine knows which pods leave.
func (p *Plugin) PreFilterExtensions() fwk.PreFilterExtensions { return nil }

// Filter accepts the nodes that were proposed in this attempt, and no other. If room must be made first,
// a node passes once the pods that hold it are gone, because kube-scheduler's preemption asks that way.
func (p *Plugin) Filter(_ context.Context, state fwk.CycleState, pod *v1.Pod, node fwk.NodeInfo) (status *fwk.Status) {
	defer p.guard(&status, state, pod, fwk.Success)
	made := attemptOf(state)
	if made != nil {
		name := node.Node().Name
		if _, proposed := made.order[name]; proposed {
			for _, other := range node.GetPods() {
				if _, victim := made.victims[name][other.GetPod().UID]; victim {
					return fwk.NewStatus(fwk.Unschedulable, made.reason)
				}
			}
			return nil
		}
	}
	return fwk.NewStatus(fwk.UnschedulableAndUnresolvable, "node was not proposed for the pod's devices")
}

// PostFilter retries the pod if the engine knows further nodes, and otherwise lets
// kube-scheduler preempt, on the proposed nodes or on those where others can make room.
func (p *Plugin) PostFilter(ctx context.Context, state fwk.CycleState, pod *v1.Pod, statuses fwk.NodeToStatusReader) (_ *fwk.PostFilterResult, status *fwk.Status) {
	defer p.guard(&status, state, pod, fwk.Unschedulable)
	made := attemptOf(state)
	if made == nil && !p.shared.words.Load().concerns(pod) {
		return nil, fwk.NewStatus(fwk.Unschedulable)
	}
	if made == nil {
		// The engine found no place for its devices, and no pod that could make room: PreFilter reported every node as
		// unresolvable. Later plugins still run: a group's plugin releases what its other pods hold.
		if pod.Status.NominatedNodeName == "" {
			return nil, fwk.NewStatus(fwk.Unschedulable)
		}
		// Preemption would remove a nomination whose victims are still leaving.
		return nil, fwk.NewStatus(fwk.UnschedulableAndUnresolvable)
	}
	if made.victims != nil {
		nodes, err := statuses.NodesForStatusCode(p.handle.SnapshotSharedLister().NodeInfos(), fwk.Unschedulable)
		if err != nil || len(nodes) > 0 {
			return nil, fwk.NewStatus(fwk.Unschedulable)
		}
		// kube-scheduler's own filters reject all of them, whichever pods go.
	}
	if !made.claimed {
		p.shared.remember(pod) // before the question: the engine may activate it at once where there are devices for it elsewhere
	}
	answer, err := p.shared.timed(ctx, protocol.Question{
		Verb: protocol.VerbAnother, UID: string(pod.UID), Attempt: made.number, Rejected: made.names,
	})
	if err != nil && !made.claimed {
		p.shared.retryLater(pod) // no push would come for it
		return nil, fwk.NewStatus(fwk.UnschedulableAndUnresolvable, err.Error())
	}
	// A pod with claims is retried in any case: the last attempt is kube-scheduler's own, over all nodes.
	if !answer.Again && !made.claimed {
		return nil, fwk.NewStatus(fwk.Unschedulable)
	}
	p.handle.Activate(klog.FromContext(ctx), map[string]*v1.Pod{string(pod.UID): pod})
	return nil, fwk.NewStatus(fwk.UnschedulableAndUnresolvable, "kube-scheduler tries other nodes next")
}

// PreScore skips pods without devices, and counts the nodes that passed; kube-scheduler does not call it for a single node.
func (p *Plugin) PreScore(_ context.Context, state fwk.CycleState, pod *v1.Pod, nodes []fwk.NodeInfo) (status *fwk.Status) {
	defer p.guard(&status, state, pod, fwk.Skip)
	made := attemptOf(state)
	if made == nil {
		return fwk.NewStatus(fwk.Skip)
	}
	made.left.Store(int64(len(nodes)))
	return nil
}

// Score is the engine's score, or the place in the engine's order.
func (p *Plugin) Score(_ context.Context, state fwk.CycleState, pod *v1.Pod, node fwk.NodeInfo) (_ int64, status *fwk.Status) {
	defer p.guard(&status, state, pod, fwk.Success)
	made := attemptOf(state)
	if made == nil {
		return 0, nil
	}
	name := node.Node().Name
	if made.scores != nil {
		return made.scores[name], nil
	}
	return int64(len(made.order) - made.order[name]), nil
}

// ScoreExtensions is the plugin itself.
func (p *Plugin) ScoreExtensions() fwk.ScoreExtensions { return p }

// NormalizeScore makes the best node win if only the order counts. If kube-scheduler has wishes of its own,
// it scales the engine's scores for the comparison with those of other plugins.
func (p *Plugin) NormalizeScore(_ context.Context, state fwk.CycleState, pod *v1.Pod, scores fwk.NodeScoreList) (status *fwk.Status) {
	defer p.guard(&status, state, pod, fwk.Success)
	made := attemptOf(state)
	if made == nil || len(scores) == 0 {
		return nil
	}
	if made.scores != nil {
		for i := range scores {
			scores[i].Score = scores[i].Score / Weight
		}
		return nil
	}
	best := 0
	for i := range scores {
		if scores[i].Score > scores[best].Score {
			best = i
		}
	}
	for i := range scores {
		scores[i].Score = 0
	}
	scores[best].Score = maxScore
	return nil
}

// Reserve turns the proposal into a reservation.
func (p *Plugin) Reserve(ctx context.Context, state fwk.CycleState, pod *v1.Pod, node string) (status *fwk.Status) {
	defer p.guard(&status, state, pod, fwk.Success)
	made := attemptOf(state)
	if made == nil && p.shared.words.Load().byClaims(pod) {
		made = newAttempt(p.shared.attempts.Add(1), nil) // it was kube-scheduler's own, over all nodes
		made.claimed = true
		state.Write(stateKey, made)
	}
	if made == nil {
		return nil
	}
	// The allocator does not know the proposal: a claim of the pod may have the very card that is held for its names.
	allocated := p.shared.words.Load().mayClaim(pod) && p.sayAllocated(ctx, pod, made.number, node)
	if made.claimed {
		return nil
	}
	question := protocol.Question{
		Verb: protocol.VerbReserve, UID: string(pod.UID), Attempt: made.number, Node: node,
		Simulated: simulated(state),
		Filtered:  made.soft && made.left.Load() < int64(len(made.names)),
	}
	if !allocated && !question.Simulated && made.victims == nil && node == made.names[0] {
		// The engine holds that place for the pod until a question about another one. If the place is
		// lost all the same, for example with its node, Bind reports it.
		if err := p.shared.engine.tell(question); err != nil {
			return fwk.AsStatus(err)
		}
		return nil
	}
	answer, err := p.shared.timed(ctx, question)
	if err != nil {
		return fwk.AsStatus(err)
	}
	if answer.Code != "" {
		return fwk.AsStatus(fmt.Errorf("%s: %s", answer.Code, answer.Message))
	}
	return nil
}

// sayAllocated reports to the engine kube-scheduler's allocations for the pod's claims, in its own memory. Until they are
// stored, the engine would give these devices to others, or to the same pod's names. It returns whether there were any.
func (p *Plugin) sayAllocated(ctx context.Context, pod *v1.Pod, number int64, node string) bool {
	dra := p.handle.SharedDRAManager()
	if dra == nil || p.shared.engine.away() != "" {
		return false
	}
	allocated, err := allocatedNow(dra.ResourceClaims(), pod)
	if err == nil && len(allocated) > 0 {
		question := protocol.Question{Verb: protocol.VerbReserve, UID: string(pod.UID), Attempt: number, Node: node}
		if question.Claims, err = encodedClaims(allocated, 0); err == nil {
			err = p.shared.engine.tell(question)
		}
	}
	if err != nil && !errors.Is(err, errAway) {
		klog.FromContext(ctx).Error(err, "The plugin could not report the allocation to the engine", "pod", klog.KObj(pod))
	}
	return err == nil && len(allocated) > 0
}

// Unreserve releases; it may be called without Reserve, and more than once.
func (p *Plugin) Unreserve(ctx context.Context, state fwk.CycleState, pod *v1.Pod, _ string) {
	var status *fwk.Status
	defer p.guard(&status, state, pod, fwk.Success)
	made := attemptOf(state)
	if made == nil {
		return
	}
	// An engine that is away has released it already.
	if err := p.shared.engine.tell(protocol.Question{
		Verb: protocol.VerbUnreserve, UID: string(pod.UID), Attempt: made.number,
	}); err != nil && !errors.Is(err, errAway) {
		klog.FromContext(ctx).Error(err, "The plugin could not ask the engine to release the devices", "pod", klog.KObj(pod))
	}
}

// takesTurns reports whether kube-scheduler is about to store claims for the engine's own devices alone. Pods with
// other requests do not wait here.
func takesTurns(state fwk.CycleState) bool {
	made := attemptOf(state)
	return made != nil && made.claimed && len(made.names) > 0
}

// PreBind waits for the pod's turn to store its claims, which kube-scheduler's own next plugin does. The turn ends
// with that plugin, because kube-scheduler ends the context.
func (p *Plugin) PreBind(ctx context.Context, state fwk.CycleState, pod *v1.Pod, _ string) (status *fwk.Status) {
	defer p.guard(&status, state, pod, fwk.Success)
	if !takesTurns(state) {
		return nil
	}
	select {
	case p.shared.storing <- struct{}{}:
	case <-time.After(turnWithin):
		return nil
	case <-ctx.Done():
		return fwk.AsStatus(context.Cause(ctx))
	}
	turn, end := context.WithTimeout(ctx, turnLasts)
	context.AfterFunc(turn, func() { end(); <-p.shared.storing })
	return nil
}

// Bind sends the Binding with the allocation in it, after the engine has allowed it.
func (p *Plugin) Bind(ctx context.Context, state fwk.CycleState, pod *v1.Pod, node string) (status *fwk.Status) {
	defer p.guard(&status, state, pod, fwk.Skip)
	made := attemptOf(state)
	if made == nil || made.claimed {
		return fwk.NewStatus(fwk.Skip)
	}
	select {
	case p.shared.binding <- struct{}{}:
		defer func() { <-p.shared.binding }()
	case <-ctx.Done():
		return fwk.AsStatus(context.Cause(ctx))
	}
	answer, err := p.shared.engine.ask(ctx, protocol.Question{
		Verb: protocol.VerbBind, UID: string(pod.UID), Attempt: made.number, Node: node,
	}, bindWithin)
	if err != nil {
		return fwk.AsStatus(err)
	}
	if answer.Code != "" {
		return fwk.AsStatus(fmt.Errorf("%s: %s", answer.Code, answer.Message))
	}
	outcome, failed := p.sendBinding(ctx, pod, node, &answer)
	report := protocol.Question{
		Verb: protocol.VerbBound, UID: string(pod.UID), Attempt: made.number, Outcome: outcome,
	}
	if outcome == protocol.OutcomeDone {
		// An engine that is away now reads the pod back.
		_ = p.shared.engine.tell(report)
		return nil
	}
	report.Message = failed.Error()
	ended, err := p.shared.engine.ask(context.WithoutCancel(ctx), report, boundWithin)
	if err == nil && ended.Bound {
		return nil
	}
	return fwk.AsStatus(failed)
}

func (p *Plugin) sendBinding(ctx context.Context, pod *v1.Pod, node string, answer *protocol.Answer) (string, error) {
	end, err := endOf(answer)
	if err != nil {
		return protocol.OutcomeRefused, err
	}
	ctx, cancel := context.WithDeadline(ctx, end)
	defer cancel()
	binding := &v1.Binding{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID,
			Annotations: answer.Annotations, Labels: answer.Labels,
		},
		Target: v1.ObjectReference{Kind: "Node", Name: node},
	}
	err = p.send(ctx, binding)
	return outcomeOf(err), err
}

// EventsToRegister names only the pod's own changes. The engine follows all other events that could
// make room, and activates the pods that fit. Kinds without a definition would block the start.
func (p *Plugin) EventsToRegister(context.Context) ([]fwk.ClusterEventWithHint, error) {
	return []fwk.ClusterEventWithHint{{
		Event:          fwk.ClusterEvent{Resource: fwk.Pod, ActionType: fwk.Update},
		QueueingHintFn: ownChange,
	}}, nil
}

// ownChange reports whether a change of the pod may make it schedulable. kube-scheduler writes a condition
// on every pod that it refuses. If that counted as a change, each refused pod would be tried twice.
func ownChange(_ klog.Logger, pod *v1.Pod, old, changed any) (hint fwk.QueueingHint, err error) {
	defer func() {
		if caught := recover(); caught != nil {
			err = panicked(caught) // kube-scheduler tries the pod again
		}
	}()
	after, found := changed.(*v1.Pod)
	if !found || after.UID != pod.UID {
		return fwk.QueueSkip, nil
	}
	if before, known := old.(*v1.Pod); known && asksTheSame(before, after) {
		return fwk.QueueSkip, nil
	}
	return fwk.Queue, nil
}

// asksTheSame compares all fields of a pod that decide its nodes.
func asksTheSame(before, after *v1.Pod) bool {
	return equality.Semantic.DeepEqual(before.Spec, after.Spec) &&
		maps.Equal(before.Labels, after.Labels) && maps.Equal(before.Annotations, after.Annotations)
}

// SignPod keeps pods with devices out of batches, because the devices of one are no information about the next.
func (p *Plugin) SignPod(_ context.Context, pod *v1.Pod) (_ []fwk.SignFragment, status *fwk.Status) {
	defer p.guard(&status, nil, pod, fwk.Success)
	if p.shared.words.Load().concerns(pod) {
		return nil, fwk.NewStatus(fwk.Unschedulable, "the pod asks for devices")
	}
	return nil, nil
}

func attemptOf(state fwk.CycleState) *attempt {
	data, err := state.Read(stateKey)
	if err != nil {
		return nil
	}
	made, _ := data.(*attempt)
	return made
}

// refusal is PreFilter's answer: no pod's end would help, since the engine was asked who could make room.
func refusal(answer protocol.Answer) *fwk.Status {
	if answer.Code == protocol.CodeStale {
		// No known change would reach kube-scheduler, so it tries the pod again in a while.
		return fwk.AsStatus(fmt.Errorf("%s: %s", answer.Code, answer.Message))
	}
	return fwk.NewStatus(fwk.UnschedulableAndUnresolvable, answer.Code+": "+answer.Message)
}

// guard turns a panic into an error of this pod alone. A pod about which the engine is not asked goes on without the
// plugin, with the code that the plugin has for such pods.
func (p *Plugin) guard(status **fwk.Status, state fwk.CycleState, pod *v1.Pod, without fwk.Code) {
	if caught := recover(); caught != nil {
		*status = fwk.AsStatus(panicked(caught))
		if p.plain(state, pod) {
			*status = fwk.NewStatus(without)
		}
	}
}

// plain reports whether the engine is not asked about a pod. If that cannot be found out after a panic, then a pod is plain if it
// names no extended resource and no claim.
func (p *Plugin) plain(state fwk.CycleState, pod *v1.Pod) (plain bool) {
	plain = len(pod.Spec.ResourceClaims) == 0 && !(*words)(nil).concerns(pod)
	defer func() { _ = recover() }()
	w := p.shared.words.Load()
	return (state == nil || attemptOf(state) == nil) && !w.concerns(pod) && !w.mayClaim(pod)
}

// unbroken does work beside kube-scheduler's own goroutines. A panic would end the whole kube-scheduler.
func unbroken(work func()) {
	defer func() {
		if caught := recover(); caught != nil {
			_ = panicked(caught)
		}
	}()
	work()
}

// panicked logs a panic and gives it as an error.
func panicked(caught any) error {
	klog.Background().Error(nil, "The plugin panicked", "panic", caught, "stack", string(debug.Stack()))
	return fmt.Errorf("panic in plugin %s: %v", Name, caught)
}
