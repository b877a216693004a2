package partage

import (
	"sync"

	fwk "k8s.io/kube-scheduler/framework"

	"partage.io/kube-scheduler/protocol"
)

// told remembers what the engine was told of nodes on this connection: what pods request of them beside
// devices. The engine knows devices alone, and compares nodes by what is left of the rest too.
type told struct {
	mu    sync.Mutex
	nodes map[string]protocol.Taken
}

// forget is for a new connection, behind which the engine may be another one.
func (t *told) forget() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.nodes = nil
}

// changed gives what the engine has not been told, of so many nodes at most; it counts as told from now on.
func (t *told) changed(nodes []fwk.NodeInfo) []protocol.Taken {
	t.mu.Lock()
	defer t.mu.Unlock()
	var found []protocol.Taken
	kept := make(map[string]protocol.Taken, len(nodes))
	for _, node := range nodes {
		name, requested := node.Node().Name, node.GetRequested()
		now := protocol.Taken{Node: name, CPU: requested.GetMilliCPU(), Memory: requested.GetMemory(), Pods: len(node.GetPods())}
		before, known := t.nodes[name]
		if known && before == now {
			kept[name] = now
		} else if len(found) < mostTaken {
			kept[name] = now
			found = append(found, now)
		} else if known {
			kept[name] = before
		}
	}
	t.nodes = kept // of nodes that are gone nothing is known
	return found
}
