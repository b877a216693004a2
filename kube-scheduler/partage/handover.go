package partage

import (
	"context"
	"os"
	"syscall"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/klog/v2"

	"partage.io/kube-scheduler/protocol"
)

const (
	// PodVariable and NamespaceVariable are the environment variables with the name and namespace of this pod.
	PodVariable       = "POD_NAME"
	NamespaceVariable = "POD_NAMESPACE"

	pingEvery  = time.Second
	pingWithin = 2 * time.Second
	// A leader without its engine gives up the Lease after this long, if another instance is ready.
	givesUpAfter = 5 * time.Second
	// The same for a connected engine that has not served yet: it builds its books, as any
	// other engine would have to.
	startsWithin = time.Minute
	// For this long, a kube-scheduler without an engine stays out of the election at its start. A candidate
	// tries every 2 s, and up to 2.4 s later by chance, so another one has had its turn by then.
	electsAfter = 5 * time.Second
)

// handover decides when a leader without its engine gives the leadership to another instance.
type handover struct {
	served bool
	since  time.Time
}

// due reports whether to release the Lease now. connected means that there is an engine, serving
// that it answers questions about pods, and standby that another instance could lead.
func (h *handover) due(now time.Time, leading, connected, serving bool, standby func() bool) bool {
	if !leading {
		*h = handover{}
		return false
	}
	if serving {
		h.served, h.since = true, time.Time{}
		return false
	}
	if h.since.IsZero() {
		h.since = now
	}
	patience := givesUpAfter
	if connected && !h.served {
		patience = startsWithin
	}
	return now.Sub(h.since) >= patience && standby()
}

// watch pings the engine, and ends this kube-scheduler in order if the Lease must be released:
// it releases the Lease on SIGTERM, and the kubelet restarts its container.
func (s *shared) watch(ctx context.Context, standby func() bool) {
	var h handover
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(pingEvery):
		}
		due := false
		unbroken(func() {
			serving := s.engine.away() == ""
			if serving {
				answer, err := s.engine.ask(ctx, protocol.Question{Verb: protocol.VerbPing}, pingWithin)
				serving = err == nil && answer.Ready != nil && *answer.Ready
			}
			due = h.due(time.Now(), holding.held.Load(), s.engine.isConnected(), serving, standby)
		})
		if due {
			klog.FromContext(ctx).Info("The engine does not serve, and another instance is ready: kube-scheduler gives up the Lease")
			_ = syscall.Kill(os.Getpid(), syscall.SIGTERM)
			return
		}
	}
}

// otherReady reports whether another pod of this pod's own controller is ready.
func otherReady(pods corelisters.PodLister, namespace, name string) bool {
	own, err := pods.Pods(namespace).Get(name)
	if err != nil {
		return false
	}
	owner := ownerOf(own)
	if owner == "" {
		return false
	}
	found, err := pods.Pods(namespace).List(labels.Everything())
	if err != nil {
		return false
	}
	for _, pod := range found {
		if pod.Name != name && ownerOf(pod) == owner && pod.DeletionTimestamp == nil && isReady(pod) {
			return true
		}
	}
	return false
}

// ownerOf is equal for all replicas of one Deployment, across its ReplicaSets, and different for other pods. It is empty for a
// pod without the labels: no other pod of its namespace is known to be a replica of it.
func ownerOf(pod *v1.Pod) string {
	instance, component := pod.Labels["app.kubernetes.io/instance"], pod.Labels["app.kubernetes.io/component"]
	owner := metav1.GetControllerOf(pod)
	if instance == "" || component == "" || owner == nil {
		return ""
	}
	return instance + "/" + component + "/" + owner.Kind
}

func isReady(pod *v1.Pod) bool {
	for _, condition := range pod.Status.Conditions {
		if condition.Type == v1.PodReady {
			return condition.Status == v1.ConditionTrue
		}
	}
	return false
}
