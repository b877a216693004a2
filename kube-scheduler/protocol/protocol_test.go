package protocol

import (
	"bytes"
	"encoding/json"
	"os"
	"reflect"
	"strings"
	"testing"
)

type examples struct {
	Questions []json.RawMessage `json:"questions"`
	Answers   []json.RawMessage `json:"answers"`
	Pushes    []json.RawMessage `json:"pushes"`
}

func read(t *testing.T) examples {
	t.Helper()
	content, err := os.ReadFile("examples.json")
	if err != nil {
		t.Fatal(err)
	}
	var found examples
	if err := json.Unmarshal(content, &found); err != nil {
		t.Fatal(err)
	}
	return found
}

// same reads an example into a structure, refusing unknown fields, and compares what it writes.
func same(t *testing.T, example json.RawMessage, into any) {
	t.Helper()
	decoder := json.NewDecoder(bytes.NewReader(example))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(into); err != nil {
		t.Fatalf("%s: %v", example, err)
	}
	written, err := json.Marshal(into)
	if err != nil {
		t.Fatal(err)
	}
	var one, other any
	_ = json.Unmarshal(example, &one)
	_ = json.Unmarshal(written, &other)
	if !reflect.DeepEqual(one, other) {
		t.Errorf("read %s, written %s", example, written)
	}
}

func TestExamplesAreReadAndWrittenAsTheyStand(t *testing.T) {
	found := read(t)
	if len(found.Questions) == 0 || len(found.Answers) == 0 || len(found.Pushes) == 0 {
		t.Fatal("no examples")
	}
	for _, example := range found.Questions {
		same(t, example, &Question{})
	}
	for _, example := range append(found.Answers, found.Pushes...) {
		same(t, example, &Answer{})
	}
}

func TestEveryFieldHasAnExample(t *testing.T) {
	content, err := os.ReadFile("examples.json")
	if err != nil {
		t.Fatal(err)
	}
	for _, structure := range []any{Question{}, Answer{}, Vocabulary{}} {
		kind := reflect.TypeOf(structure)
		for i := range kind.NumField() {
			name, _, _ := strings.Cut(kind.Field(i).Tag.Get("json"), ",")
			if !strings.Contains(string(content), `"`+name+`"`) {
				t.Errorf("%s.%s (%s) stands in no example", kind.Name(), kind.Field(i).Name, name)
			}
		}
	}
}

func TestFramesAreBounded(t *testing.T) {
	var buffer bytes.Buffer
	if err := Write(&buffer, Question{ID: 4, Verb: VerbPing}); err != nil {
		t.Fatal(err)
	}
	var back Question
	if err := Read(&buffer, &back); err != nil || back.Verb != VerbPing {
		t.Fatalf("%v %v", back, err)
	}
	if err := Read(bytes.NewReader([]byte{0xff, 0xff, 0xff, 0xff}), &back); err == nil {
		t.Error("a frame of 4 GiB was accepted")
	}
	if err := Write(&buffer, Question{Message: strings.Repeat("x", MaxFrame)}); err == nil {
		t.Error("a frame over the limit was written")
	}
}
