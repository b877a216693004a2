package partage

import (
	"sync/atomic"

	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
)

var leaderGauge = metrics.NewGaugeVec(&metrics.GaugeOpts{
	Name:           "leader_election_master_status",
	StabilityLevel: metrics.ALPHA,
	Help:           "Gauge of if the reporting system is master of the relevant lease, 0 indicates backup, 1 indicates master. 'name' is the string used to identify the lease. Please make sure to group by name.",
}, []string{"name"})

// leadership records whether this process holds kube-scheduler's Lease, as the election reports it.
type leadership struct {
	held    atomic.Bool
	changed chan struct{}
}

// holding is the leadership of this process.
var holding = &leadership{changed: make(chan struct{}, 1)}

// WatchElection follows kube-scheduler's election; it is called once, before the command is created.
// It replaces kube-scheduler's own provider, and exports the same series.
func WatchElection() {
	legacyregistry.MustRegister(leaderGauge)
	leaderelection.SetProvider(provider{})
}

func (l *leadership) set(held bool) {
	if l.held.Swap(held) != held {
		select {
		case l.changed <- struct{}{}:
		default:
		}
	}
}

type provider struct{}

func (provider) NewLeaderMetric() leaderelection.LeaderMetric { return election{} }

type election struct{}

func (election) On(name string) {
	leaderGauge.WithLabelValues(name).Set(1)
	holding.set(true)
}

func (election) Off(name string) {
	leaderGauge.WithLabelValues(name).Set(0)
	holding.set(false)
}

func (election) SlowpathExercised(string) {}
