package partage

import (
	"context"
	"errors"
	"net"
	"net/http"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"partage.io/kube-scheduler/protocol"
)

// binder sends Bindings. Only a Status of success binds: a proxy may answer 200 with anything, such as a
// page to log in, and client-go's own Bind does not look at it.
func binder(client rest.Interface) func(context.Context, *v1.Binding) error {
	return func(ctx context.Context, binding *v1.Binding) error {
		found, err := client.Post().Namespace(binding.Namespace).Resource("pods").Name(binding.Name).
			SubResource("binding").Body(binding).Do(ctx).Get()
		if err != nil {
			return err
		}
		if _, ok := found.(*metav1.Status); !ok {
			return errors.New("the API server's answer to the Binding is not a Status")
		}
		return nil
	}
}

// outcomeOf gives the outcome of a Binding after an error: carried out, refused, a conflict, or unknown.
func outcomeOf(err error) string {
	if err == nil {
		return protocol.OutcomeDone
	}
	var status apierrors.APIStatus
	if errors.As(err, &status) {
		code := int(status.Status().Code)
		switch {
		case code == http.StatusConflict:
			// Perhaps with the Binding itself: this client repeats a request after 5xx with Retry-After, and
			// so do proxies. An engine that does not know the word takes the outcome for unknown.
			return protocol.OutcomeConflict
		case code >= 400 && code < 500 && code != http.StatusRequestTimeout:
			return protocol.OutcomeRefused
		}
		return protocol.OutcomeUnknown
	}
	var op *net.OpError
	if errors.As(err, &op) && op.Op == "dial" {
		return protocol.OutcomeRefused // the request never left
	}
	return protocol.OutcomeUnknown
}
