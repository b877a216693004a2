// Command kube-scheduler is Kubernetes' own, with one plugin more: Partage.
package main

import (
	"os"

	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/restclient"
	_ "k8s.io/component-base/metrics/prometheus/version"
	"k8s.io/kubernetes/cmd/kube-scheduler/app"

	"partage.io/kube-scheduler/partage"
)

func main() {
	partage.WatchElection()
	os.Exit(cli.Run(app.NewSchedulerCommand(app.WithPlugin(partage.Name, partage.New))))
}
