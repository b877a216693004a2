package partage

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"k8s.io/klog/v2"

	"partage.io/kube-scheduler/protocol"
)

var (
	errAway = errors.New("the engine of Partage is not connected")
	errSlow = errors.New("the engine of Partage did not answer in time")
)

const (
	redialAfter  = 200 * time.Millisecond
	redialAtMost = 2 * time.Second
	helloWithin  = 5 * time.Second
	writeWithin  = 2 * time.Second
	mostWaiting  = 4096
	// A message without an answer waits this long for a question to leave with.
	flushAfter = 2 * time.Millisecond
	mostUnsent = 64 << 10
)

// engine is the plugin's end of the socket. It connects and reconnects by itself.
type engine struct {
	path  string
	user  uint32
	hello protocol.Question

	// connected is called, in the reading goroutine, after each hello that the engine accepted.
	connected func()
	// pushed is called, in the reading goroutine, for every push.
	pushed func(protocol.Answer)

	mu      sync.Mutex
	conn    net.Conn
	next    uint64
	waiting map[uint64]chan protocol.Answer
	refusal string
	unsent  []byte
	flush   *time.Timer

	ready atomic.Bool

	// accepted is closed when an engine has accepted a hello for the first time.
	accepted   chan struct{}
	acceptOnce sync.Once
}

// run keeps the connection until the context ends.
func (e *engine) run(ctx context.Context) {
	pause := redialAfter
	for ctx.Err() == nil {
		begun := time.Now()
		err := e.talk(ctx)
		if ctx.Err() != nil {
			return
		}
		klog.FromContext(ctx).Info("The connection to Partage's engine is down", "socket", e.path, "reason", err)
		if time.Since(begun) > redialAtMost {
			pause = redialAfter
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
		pause = min(2*pause, redialAtMost)
	}
}

// talk serves one connection to its end.
func (e *engine) talk(ctx context.Context) (ended error) {
	defer func() {
		if caught := recover(); caught != nil {
			ended = panicked(caught)
		}
	}()
	conn, err := (&net.Dialer{Timeout: helloWithin}).DialContext(ctx, "unix", e.path)
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := checkPeer(conn, e.user); err != nil {
		return err
	}
	reader := bufio.NewReaderSize(conn, 64<<10)
	if err := e.greet(conn, reader); err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	e.mu.Lock()
	e.conn, e.waiting, e.refusal = conn, map[uint64]chan protocol.Answer{}, ""
	e.mu.Unlock()
	defer e.drop()
	e.connected()
	for {
		var answer protocol.Answer
		if err := protocol.Read(reader, &answer); err != nil {
			return err
		}
		if answer.ID == 0 {
			if answer.Ready != nil {
				e.ready.Store(*answer.Ready)
			}
			e.pushed(answer)
			continue
		}
		e.mu.Lock()
		waiting := e.waiting[answer.ID]
		delete(e.waiting, answer.ID)
		e.mu.Unlock()
		if waiting != nil {
			waiting <- answer
		}
	}
}

// greet sends hello, and refuses an engine with another version.
func (e *engine) greet(conn net.Conn, reader *bufio.Reader) error {
	if err := conn.SetDeadline(time.Now().Add(helloWithin)); err != nil {
		return err
	}
	hello := e.hello
	hello.ID = 1
	if err := protocol.Write(conn, hello); err != nil {
		return err
	}
	var answer protocol.Answer
	if err := protocol.Read(reader, &answer); err != nil {
		return err
	}
	if answer.Code != "" || answer.Protocol != protocol.Version {
		message := answer.Message
		if message == "" {
			message = fmt.Sprintf("the engine speaks version %d of the protocol, and this plugin speaks version %d", answer.Protocol, protocol.Version)
		}
		e.mu.Lock()
		e.refusal = message
		e.mu.Unlock()
		return errors.New(message)
	}
	e.ready.Store(answer.Ready != nil && *answer.Ready)
	e.acceptOnce.Do(func() { close(e.accepted) })
	return conn.SetDeadline(time.Time{})
}

// await waits for an engine that accepts a hello, for a limited time; it reports whether there was one.
func (e *engine) await(ctx context.Context, atMost time.Duration) bool {
	select {
	case <-e.accepted:
		return true
	case <-ctx.Done():
	case <-time.After(atMost):
	}
	return false
}

// isConnected reports whether an engine accepted our hello and is still connected.
func (e *engine) isConnected() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.conn != nil
}

// drop forgets a connection that is over; its open questions get no answer.
func (e *engine) drop() {
	e.ready.Store(false)
	e.mu.Lock()
	waiting := e.waiting
	e.conn, e.waiting, e.unsent = nil, nil, nil
	e.mu.Unlock()
	for _, one := range waiting {
		close(one)
	}
}

// away gives the reason why questions about pods are impossible; empty when they are possible.
func (e *engine) away() string {
	if e.ready.Load() {
		return ""
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case e.refusal != "":
		return e.refusal
	case e.conn == nil:
		return errAway.Error()
	default:
		return "Partage's engine is not ready yet"
	}
}

// ask sends a question and waits for the answer.
func (e *engine) ask(ctx context.Context, question protocol.Question, within time.Duration) (protocol.Answer, error) {
	answers, id, err := e.send(question)
	if err != nil {
		return protocol.Answer{}, err
	}
	timer := time.NewTimer(within)
	defer timer.Stop()
	select {
	case answer, open := <-answers:
		if !open {
			return protocol.Answer{}, errAway
		}
		return answer, nil
	case <-timer.C:
		err = errSlow
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	e.mu.Lock()
	delete(e.waiting, id)
	e.mu.Unlock()
	return protocol.Answer{}, err
}

// tell sends a question that wants no answer. It leaves with the next question that wants one, in order, or
// soon, because a frame of its own would wake the engine.
func (e *engine) tell(question protocol.Question) error {
	return e.tellNow(func() protocol.Question { return question })
}

// tellNow is tell for a question whose contents must be current when it is queued, such as the leadership: the last one is true.
func (e *engine) tellNow(now func() protocol.Question) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.conn == nil {
		return errAway
	}
	question := now()
	question.ID = 0
	if err := e.add(question); err != nil {
		return err
	}
	if len(e.unsent) > mostUnsent {
		return e.out()
	}
	if e.flush == nil {
		e.flush = time.AfterFunc(flushAfter, func() {
			unbroken(func() {
				e.mu.Lock()
				defer e.mu.Unlock()
				_ = e.out() // the reading goroutine finds that the connection is down
			})
		})
	} else {
		e.flush.Reset(flushAfter)
	}
	return nil
}

func (e *engine) send(question protocol.Question) (chan protocol.Answer, uint64, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.conn == nil {
		return nil, 0, errAway
	}
	if len(e.waiting) >= mostWaiting {
		return nil, 0, errSlow
	}
	e.next++
	question.ID = e.next + 1 // 1 was hello
	if err := e.add(question); err != nil {
		return nil, 0, err
	}
	answers := make(chan protocol.Answer, 1)
	e.waiting[question.ID] = answers
	if err := e.out(); err != nil {
		delete(e.waiting, question.ID)
		return nil, 0, err
	}
	return answers, question.ID, nil
}

// add appends a frame to the unsent ones.
func (e *engine) add(question protocol.Question) error {
	frames, err := protocol.Append(e.unsent, question)
	if err == nil {
		e.unsent = frames
	}
	return err
}

// out sends all unsent frames.
func (e *engine) out() error {
	if e.conn == nil || len(e.unsent) == 0 {
		return nil
	}
	_ = e.conn.SetWriteDeadline(time.Now().Add(writeWithin))
	_, err := e.conn.Write(e.unsent)
	e.unsent = e.unsent[:0]
	if err != nil {
		// Half a frame may be out, so the engine could understand nothing that follows.
		e.conn.Close()
	}
	return err
}

// checkPeer makes sure that the engine's own user listens, and not another one in its place.
func checkPeer(conn net.Conn, user uint32) error {
	raw, err := conn.(*net.UnixConn).SyscallConn()
	if err != nil {
		return err
	}
	var peer *syscall.Ucred
	var failed error
	if err := raw.Control(func(fd uintptr) {
		peer, failed = syscall.GetsockoptUcred(int(fd), syscall.SOL_SOCKET, syscall.SO_PEERCRED)
	}); err != nil {
		return err
	}
	if failed != nil {
		return failed
	}
	if peer.Uid != user {
		return fmt.Errorf("a process of user %d listens at the socket; the engine's user is %d", peer.Uid, user)
	}
	return nil
}
