// Command policies enforces NetworkPolicies on one node by iptables: kube-router's controller of them, without its router and proxy.
//
//	NODE_NAME=a policies KUBECONFIG
package main

import (
	"log"
	"os"
	"sync"

	"github.com/cloudnativelabs/kube-router/v2/pkg/controllers/netpol"
	"github.com/cloudnativelabs/kube-router/v2/pkg/healthcheck"
	"github.com/cloudnativelabs/kube-router/v2/pkg/options"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
)

func main() {
	config, err := clientcmd.BuildConfigFromFlags("", os.Args[1])
	if err != nil {
		log.Fatal(err)
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		log.Fatal(err)
	}
	watched := informers.NewSharedInformerFactory(client, 0)
	pods := watched.Core().V1().Pods().Informer()
	policies := watched.Networking().V1().NetworkPolicies().Informer()
	namespaces := watched.Core().V1().Namespaces().Informer()
	settings := options.NewKubeRouterConfig()
	settings.EnableIPv4 = true
	tables, sets, err := netpol.NewIPTablesHandlers(settings)
	if err != nil {
		log.Fatal(err)
	}
	controller, err := netpol.NewNetworkPolicyController(client, settings, pods, policies, namespaces, &sync.Mutex{}, tables, sets)
	if err != nil {
		log.Fatal(err)
	}
	for informer, handler := range map[cache.SharedIndexInformer]cache.ResourceEventHandler{
		pods: controller.PodEventHandler, policies: controller.NetworkPolicyEventHandler, namespaces: controller.NamespaceEventHandler,
	} {
		if _, err := informer.AddEventHandler(handler); err != nil {
			log.Fatal(err)
		}
	}
	stop := make(chan struct{})
	watched.Start(stop)
	watched.WaitForCacheSync(stop)
	// Heartbeats are for kube-router's own probe.
	beats := make(chan *healthcheck.ControllerHeartbeat)
	go func() {
		for range beats {
		}
	}()
	var group sync.WaitGroup
	group.Add(1)
	controller.Run(beats, stop, &group)
}
