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
	at    []int64 // generations of kube-scheduler's nodes as they were gone through last, in their order; 0 is none
}

// forget is for a new connection, behind which the engine may be another one.
func (t *told) forget() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.nodes, t.at = nil, nil
}

// changed gives what the engine has not been told, of so many nodes at most; it counts as told from now on.
// A generation is that of one node at one time, so that nodes which are as they were cost a comparison.
func (t *told) changed(nodes []fwk.NodeInfo) []protocol.Taken {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.nodes == nil {
		t.nodes = make(map[string]protocol.Taken, len(nodes))
	}
	if len(t.at) > len(nodes) {
		t.at = t.at[:len(nodes)]
	}
	t.at = append(t.at, make([]int64, len(nodes)-len(t.at))...)
	var found []protocol.Taken
	for i, node := range nodes {
		generation := node.GetGeneration()
		if generation != 0 && t.at[i] == generation {
			continue
		}
		name, requested := node.Node().Name, node.GetRequested()
		now := protocol.Taken{Node: name, CPU: requested.GetMilliCPU(), Memory: requested.GetMemory(), Pods: len(node.GetPods())}
		if before, known := t.nodes[name]; known && before == now {
			t.at[i] = generation
		} else if len(found) < mostTaken {
			t.at[i], t.nodes[name] = generation, now
			found = append(found, now)
		} else {
			t.at[i] = 0
		}
	}
	if len(t.nodes) > len(nodes) { // of nodes that are gone nothing is known
		there := make(map[string]protocol.Taken, len(nodes))
		for _, node := range nodes {
			if one, known := t.nodes[node.Node().Name]; known {
				there[one.Node] = one
			}
		}
		t.nodes = there
	}
	return found
}
