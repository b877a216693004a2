package partage

import (
	"sync"

	resourceapi "k8s.io/api/resource/v1"
	fwk "k8s.io/kube-scheduler/framework"

	"partage.io/kube-scheduler/protocol"
)

// told remembers what the engine was told of nodes on this connection: what pods request of them beside
// devices, and from whose pools kube-scheduler can allocate. The engine knows devices alone, by other objects than ResourceSlices,
// and compares nodes by what is left of the rest too.
type told struct {
	mu    sync.Mutex
	nodes map[string]protocol.Taken
	at    []int64 // generations of kube-scheduler's nodes as they were gone through last, in their order; 0 is none
	pools map[string]struct{}
}

// forget is for a new connection, behind which the engine may be another one.
func (t *told) forget() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.nodes, t.at, t.pools = nil, nil, nil
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

// whole gives the pools of a driver that have become whole, or are so no more, since the engine was told; it counts as told
// from now on. A pool is whole where every slice of its newest generation is there, by which kube-scheduler's allocator goes.
func (t *told) whole(slices []*resourceapi.ResourceSlice, driver string) *protocol.Pools {
	type pool struct{ generation, missing int64 }
	t.mu.Lock()
	defer t.mu.Unlock()
	found := make(map[string]pool, len(t.pools))
	for _, one := range slices {
		of := &one.Spec.Pool
		if one.Spec.Driver != driver {
			continue
		}
		known, before := found[of.Name]
		if !before || of.Generation > known.generation {
			known = pool{of.Generation, of.ResourceSliceCount}
		}
		if of.Generation == known.generation {
			known.missing--
		}
		found[of.Name] = known
	}
	if t.pools == nil {
		t.pools = make(map[string]struct{}, len(found))
	}
	changed := &protocol.Pools{}
	for name, one := range found {
		if _, known := t.pools[name]; !known && one.missing == 0 && len(changed.Whole) < mostPools {
			t.pools[name] = struct{}{}
			changed.Whole = append(changed.Whole, name)
		}
	}
	for name := range t.pools {
		if one, there := found[name]; !there || one.missing != 0 {
			delete(t.pools, name)
			changed.Gone = append(changed.Gone, name)
		}
	}
	return changed
}
