// Karpenter with its kwok provider, whose instance types name the devices of their future nodes.
//
// The provider's own program cannot: only the ResourceSlices of an existing node name its devices. Cloud providers fill
// in InstanceType.DynamicResources. This program does so from the file that INSTANCE_TYPE_SLICES names, which has for each
// instance type the specs of the slices that its nodes will publish. Without that variable it is the provider's own program.
package main

import (
	"encoding/json"
	"log"
	"os"
	"unique"

	resourcev1 "k8s.io/api/resource/v1"
	kwok "sigs.k8s.io/karpenter/kwok/cloudprovider"
	"sigs.k8s.io/karpenter/pkg/cloudprovider"
	"sigs.k8s.io/karpenter/pkg/cloudprovider/overlay"
	"sigs.k8s.io/karpenter/pkg/controllers"
	"sigs.k8s.io/karpenter/pkg/controllers/state"
	"sigs.k8s.io/karpenter/pkg/operator"
	"sigs.k8s.io/karpenter/pkg/scheduling/dynamicresources"
)

func main() {
	ctx, op := operator.NewOperator()
	types, err := kwok.ConstructInstanceTypes(ctx)
	if err != nil {
		log.Fatal(err)
	}
	if path := os.Getenv("INSTANCE_TYPE_SLICES"); path != "" {
		if err := tell(types, path); err != nil {
			log.Fatal(err)
		}
	}
	provider := kwok.NewCloudProvider(ctx, op.GetClient(), types)
	decorated := overlay.Decorate(provider, op.GetClient(), op.InstanceTypeStore)
	cluster := state.NewCluster(op.Clock, op.GetClient(), decorated)
	op.WithControllers(ctx, controllers.NewControllers(
		ctx, op.Manager, op.Clock, op.GetClient(), op.EventRecorder, decorated, provider, cluster, op.InstanceTypeStore,
	)...).Start(ctx)
}

// tell gives instance types the slices of their names in a file.
func tell(types []*cloudprovider.InstanceType, path string) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	var told map[string][]resourcev1.ResourceSliceSpec
	if err := json.Unmarshal(text, &told); err != nil {
		return err
	}
	for _, one := range types {
		for _, spec := range told[one.Name] {
			read := dynamicresources.NewAPIServerSlice(&resourcev1.ResourceSlice{Spec: spec})
			one.DynamicResources.ResourceSliceTemplates = append(
				one.DynamicResources.ResourceSliceTemplates, &cloudprovider.ResourceSliceTemplate{
					Driver:         unique.Make(spec.Driver),
					Pool:           cloudprovider.ResourcePool{Name: unique.Make(one.Name)},
					Devices:        read.Devices(),
					SharedCounters: spec.SharedCounters,
				})
		}
	}
	return nil
}
