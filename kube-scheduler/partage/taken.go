package partage

import (
	"sync"

	resourceapi "k8s.io/api/resource/v1"
	fwk "k8s.io/kube-scheduler/framework"

	"partage.io/kube-scheduler/protocol"
)

// told remembers the reports to the engine on this connection: the pods' requests of nodes beside devices, and the
// pools from which kube-scheduler can allocate. The engine knows only devices, from other objects than ResourceSlices,
// and also compares nodes by the rest of the other resources.
type told struct {
	mu    sync.Mutex
	nodes map[string]protocol.Taken
	at    []int64 // generations of kube-scheduler's nodes as they were gone through last, in their order; 0 is none
	pools map[string]struct{}
}

// forget is for a new connection, because it may lead to another engine.
func (t *told) forget() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.nodes, t.at, t.pools = nil, nil, nil
}

// changed gives the unreported changes, of a limited number of nodes, and marks them as reported.
// A generation is that of one node at one time, so an unchanged node costs only a comparison.
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
	if len(t.nodes) > len(nodes) { // forgets nodes that are gone
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

// whole gives the pools of a driver that are newly whole, or no longer whole, since the last report, and marks them as
// reported. A pool is whole if every slice of its newest generation is there; kube-scheduler's allocator uses the same rule.
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
