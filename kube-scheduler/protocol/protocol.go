// Package protocol holds the messages between the kube-scheduler plugin and the engine.
//
// A frame is four bytes of length, the most significant first, and one JSON object. The plugin
// asks; the engine answers each question once, under the question's id; a question with the id 0
// wants no answer. A frame of the engine without an id is a push. docs/reference/plugin.md describes every field.
// src/partage/wire/plugin.py has the same structures, and examples.json has one of each for the tests of both.
package protocol

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Version is the version of the protocol that both sides must speak.
const Version = 1

// MaxFrame is the largest frame, in bytes.
const MaxFrame = 8 << 20

// The verbs of questions.
const (
	VerbHello     = "hello"
	VerbLeading   = "leading"
	VerbPing      = "ping"
	VerbPropose   = "propose"
	VerbPreempt   = "preempt"
	VerbReserve   = "reserve"
	VerbUnreserve = "unreserve"
	VerbAnother   = "another"
	VerbBind      = "bind"
	VerbBound     = "bound"
)

// The outcomes of a Binding.
const (
	OutcomeDone     = "done"
	OutcomeRefused  = "refused"
	OutcomeConflict = "conflict"
	OutcomeUnknown  = "unknown"

	// CodeStale answers a question that is outdated, or that the engine cannot answer yet.
	CodeStale = "StaleAttempt"
)

// Question is any question; its fields depend on the verb.
type Question struct {
	ID   uint64 `json:"id"`
	Verb string `json:"verb"`

	// hello
	Protocol    int    `json:"protocol,omitempty"`
	Incarnation string `json:"incarnation,omitempty"`
	Plugin      string `json:"plugin,omitempty"`
	Kubernetes  string `json:"kubernetes,omitempty"`

	// leading; a pointer, because the engine wants the field even if it is false
	Leading *bool `json:"leading,omitempty"`

	// about one attempt
	UID     string `json:"uid,omitempty"`
	Attempt int64  `json:"attempt,omitempty"`

	// propose
	Version   string          `json:"version,omitempty"`
	Wide      bool            `json:"wide,omitempty"`
	Domains   []string        `json:"domains,omitempty"`
	Nominated string          `json:"nominated,omitempty"`
	Pod       json.RawMessage `json:"pod,omitempty"`
	// The pods' requests of nodes, if they have changed since the last report on this connection.
	Taken []Taken `json:"taken,omitempty"`
	// Comes with claims if the vocabulary names a driver.
	Pools *Pools `json:"pools,omitempty"`

	// preempt
	Budgets []Budget `json:"budgets,omitempty"`

	// reserve, bind
	Node string `json:"node,omitempty"`

	// propose, reserve
	Simulated bool `json:"simulated,omitempty"`
	// The pod asks for devices by these ResourceClaims alone; reserve: they are allocated for it and not stored yet.
	Claims []json.RawMessage `json:"claims,omitempty"`

	// reserve
	Filtered bool `json:"filtered,omitempty"`

	// another
	Rejected []string `json:"rejected,omitempty"`

	// bound
	Outcome string `json:"outcome,omitempty"`
	Message string `json:"message,omitempty"`
}

// Taken is the amounts that kube-scheduler counts as requested of a node, beside devices.
type Taken struct {
	Node   string `json:"node"`
	CPU    int64  `json:"cpu,omitempty"` // milli
	Memory int64  `json:"memory,omitempty"`
	Pods   int    `json:"pods,omitempty"`
}

// Pools names the pools whose ResourceSlices kube-scheduler has now all seen, and those of which it no longer has all.
// It contains only changes since the last report on this connection. kube-scheduler allocates from no other pool.
type Pools struct {
	Whole []string `json:"whole,omitempty"`
	Gone  []string `json:"gone,omitempty"`
}

// Budget is the part of a PodDisruptionBudget that the engine needs.
type Budget struct {
	Metadata struct {
		Namespace string `json:"namespace"`
		Name      string `json:"name"`
	} `json:"metadata"`
	Spec struct {
		Selector *metav1.LabelSelector `json:"selector,omitempty"`
	} `json:"spec"`
	Status struct {
		DisruptionsAllowed int32                  `json:"disruptionsAllowed"`
		DisruptedPods      map[string]metav1.Time `json:"disruptedPods,omitempty"`
	} `json:"status"`
}

// Answer is the answer to one question, or, without an ID, a push.
type Answer struct {
	ID      uint64 `json:"id,omitempty"`
	Code    string `json:"code,omitempty"`
	Message string `json:"message,omitempty"`

	Protocol int        `json:"protocol,omitempty"`
	Ready    *bool      `json:"ready,omitempty"`
	Unseen   bool       `json:"unseen,omitempty"`
	Skip     bool       `json:"skip,omitempty"`
	Preempt  bool       `json:"preempt,omitempty"`
	Nodes    []string   `json:"nodes,omitempty"`
	Scores   []int64    `json:"scores,omitempty"`
	Victims  [][]string `json:"victims,omitempty"`
	Again    bool       `json:"again,omitempty"`

	Annotations map[string]string `json:"annotations,omitempty"`
	Labels      map[string]string `json:"labels,omitempty"`
	Within      float64           `json:"within,omitempty"`
	Until       float64           `json:"until,omitempty"` // seconds of CLOCK_BOOTTIME
	Bound       bool              `json:"bound,omitempty"`

	// pushes
	Activate   []string    `json:"activate,omitempty"`
	Vocabulary *Vocabulary `json:"vocabulary,omitempty"`
}

// Vocabulary distinguishes a pod with devices from others.
type Vocabulary struct {
	Resources   []string `json:"resources,omitempty"`
	Annotations []string `json:"annotations,omitempty"`
	Prefixes    []string `json:"prefixes,omitempty"`
	// The plugin also asks about pods with ResourceClaims.
	Claims bool `json:"claims,omitempty"`
	// The DRA driver whose pools the engine wants to know.
	Driver string `json:"driver,omitempty"`
}

// Append adds one frame to others.
func Append(frames []byte, message any) ([]byte, error) {
	body, err := json.Marshal(message)
	if err != nil {
		return frames, err
	}
	if len(body) > MaxFrame {
		return frames, fmt.Errorf("a frame has %d bytes, and at most %d are allowed", len(body), MaxFrame)
	}
	return append(binary.BigEndian.AppendUint32(frames, uint32(len(body))), body...), nil
}

// Write sends one frame.
func Write(w io.Writer, message any) error {
	frame, err := Append(nil, message)
	if err != nil {
		return err
	}
	_, err = w.Write(frame)
	return err
}

// Read takes one frame.
func Read(r io.Reader, message any) error {
	var head [4]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return err
	}
	length := binary.BigEndian.Uint32(head[:])
	if length > MaxFrame {
		return fmt.Errorf("a frame has %d bytes, and at most %d are allowed", length, MaxFrame)
	}
	body := make([]byte, length)
	if _, err := io.ReadFull(r, body); err != nil {
		return err
	}
	return json.Unmarshal(body, message)
}
