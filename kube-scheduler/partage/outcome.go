package partage

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/flowcontrol"

	"partage.io/kube-scheduler/protocol"
)

const (
	// The kernel gives up a connection whose data is not acknowledged for this long. Otherwise it would deliver a Binding
	// after a network was cut, when the next leader has given the card to another pod. A Binding has four seconds.
	acknowledgedWithin = 3 * time.Second
	// TCP_USER_TIMEOUT of Linux, which package syscall does not name.
	tcpUserTimeout = 0x12
	// Of the time that is left, in percent, what the API server gets: it counts from the request's arrival.
	serversShare = 80
)

// bindingClient is a client for Bindings alone: no Binding of it arrives or is carried out long after its time. It shares
// the limit of requests with kube-scheduler's other ones.
func bindingClient(given *rest.Config, limiter flowcontrol.RateLimiter) (rest.Interface, error) {
	config := rest.CopyConfig(given)
	config.RateLimiter = limiter
	config.Dial = (&net.Dialer{Timeout: 30 * time.Second, KeepAlive: 30 * time.Second, Control: notLate}).DialContext
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return inTime{next} })
	client, err := corev1.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	return client.RESTClient(), nil
}

func notLate(_, _ string, conn syscall.RawConn) error {
	var failed error
	err := conn.Control(func(fd uintptr) {
		failed = syscall.SetsockoptInt(int(fd), syscall.IPPROTO_TCP, tcpUserTimeout, int(acknowledgedWithin.Milliseconds()))
	})
	return errors.Join(err, failed)
}

// endOf gives the end of the time that a Binding has. It is an error if that is over: this process stood still after the
// engine's answer, and another instance may lead by now.
func endOf(answer *protocol.Answer) (time.Time, error) {
	now := time.Now() // first: if the process stands still from here on, the end is over too
	left := seconds(answer.Within)
	if answer.Until > 0 {
		left = min(left, seconds(answer.Until)-sinceBoot())
	}
	if left <= 0 {
		return now, fmt.Errorf("the Binding was not sent, because its time ended %s ago; schedule the pod again", -left)
	}
	return now.Add(left), nil
}

// sinceBoot is the engine's clock: the kernel's, which goes on while the machine is suspended, if there is one.
func sinceBoot() time.Duration {
	var clock unix.Timespec
	if unix.ClockGettime(unix.CLOCK_BOOTTIME, &clock) != nil { // a sandbox without it
		_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &clock)
	}
	return time.Duration(clock.Nano())
}

func seconds(amount float64) time.Duration { return time.Duration(amount * float64(time.Second)) }

// inTime has the API server give up a request within the time that its sender has left. Each repetition has less.
type inTime struct{ next http.RoundTripper }

func (i inTime) RoundTrip(request *http.Request) (*http.Response, error) {
	if end, limited := request.Context().Deadline(); limited {
		if time.Until(end) <= 0 { // the context may not have ended yet in a process that stood still
			if request.Body != nil {
				_ = request.Body.Close()
			}
			return nil, context.DeadlineExceeded
		}
		request = request.Clone(request.Context())
		query := request.URL.Query()
		query.Set("timeout", (max(time.Until(end), time.Millisecond) * serversShare / 100).String())
		request.URL.RawQuery = query.Encode()
	}
	return i.next.RoundTrip(request)
}

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
