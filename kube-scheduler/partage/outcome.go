package partage

import (
	"errors"
	"net"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"partage.io/kube-scheduler/protocol"
)

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
