package partage

import (
	"sync"
	"time"
)

// breaker stops questions to an engine that answers too slowly. kube-scheduler schedules one pod at a
// time, so each slow answer keeps every other pod of the cluster waiting.
type breaker struct {
	mu    sync.Mutex
	slow  int
	until time.Time
}

// took counts an answer; it reports whether questions stop now for slowPause.
func (b *breaker) took(spent time.Duration, timedOut bool) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !timedOut && spent < slowAfter {
		b.slow = 0
		return false
	}
	b.slow++
	if b.slow < slowAtMost {
		return false
	}
	b.until, b.slow = time.Now().Add(slowPause), slowAtMost-1 // one more slow answer opens it again
	return true
}

func (b *breaker) open() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	if time.Now().Before(b.until) {
		return "Partage's engine answers too slowly; pods with devices are tried again in some seconds"
	}
	return ""
}

func (b *breaker) close() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.slow, b.until = 0, time.Time{}
}
