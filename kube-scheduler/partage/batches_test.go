//go:build !kube135

package partage

import (
	"context"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/backend/cache"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins"
	scheduling "k8s.io/kubernetes/pkg/scheduler/framework/runtime"
	"k8s.io/kubernetes/pkg/scheduler/metrics"

	"partage.io/kube-scheduler/protocol"
)

// kube-scheduler batches pods with equal signatures, and signs none if one of its plugins cannot.
func TestKubeSchedulerStillBatchesPlainPods(t *testing.T) {
	metrics.Register()
	p := &Plugin{shared: &shared{}}
	p.shared.words.Store(wordsOf(&protocol.Vocabulary{Resources: []string{card}}))
	registry := plugins.NewInTreeRegistry()
	registry[Name] = func(context.Context, runtime.Object, fwk.Handle) (fwk.Plugin, error) { return p, nil }
	enabled := config.Plugins{}
	for _, name := range []string{"PrioritySort", "PodTopologySpread", "TaintToleration", "NodeAffinity", "DefaultBinder", Name} {
		enabled.MultiPoint.Enabled = append(enabled.MultiPoint.Enabled, config.Plugin{Name: name, Weight: Weight})
	}
	for defaulting, signs := range map[config.PodTopologySpreadConstraintsDefaulting]bool{
		config.ListDefaulting:   true,
		config.SystemDefaulting: false, // what kube-scheduler does if its configuration does not say more
	} {
		profile := &config.KubeSchedulerProfile{SchedulerName: "partage-scheduler", Plugins: &enabled, PluginConfig: []config.PluginConfig{
			{Name: "PodTopologySpread", Args: &config.PodTopologySpreadArgs{DefaultingType: defaulting}},
			{Name: "NodeAffinity", Args: &config.NodeAffinityArgs{}},
		}}
		client := fake.NewClientset()
		made, err := scheduling.NewFramework(t.Context(), registry, profile, scheduling.WithClientSet(client),
			scheduling.WithInformerFactory(informers.NewSharedInformerFactory(client, 0)),
			scheduling.WithSnapshotSharedLister(cache.NewEmptySnapshot()))
		if err != nil {
			t.Fatal(err)
		}
		if got := made.SignPod(t.Context(), plainPod()) != nil; got != signs {
			t.Error(defaulting, "a plain pod is signed:", got)
		}
		if signature := made.SignPod(t.Context(), device("web")); signature != nil {
			t.Error(defaulting, "a pod with devices is signed", string(signature))
		}
	}
}
