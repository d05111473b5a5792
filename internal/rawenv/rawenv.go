// Package rawenv takes environment variables through JSON whose values are not UTF-8, as a Secret's binary data is not
// (Kubernetes 1.34 and newer). JSON has no such strings: encoding/json replaces each odd byte by U+FFFD. So the entries
// of these variables are carried a second time, as base64, beside the specification or the process that has them. Who
// does not know of that finds the replaced values.
package rawenv

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/containerd/errdefs"
	specs "github.com/opencontainers/runtime-spec/specs-go"

	"berth/internal/codec"
)

// Entries are the entries of an environment that are not UTF-8, as they are ("KEY=value"), by index.
type Entries map[int][]byte

// Of returns the entries of an environment that are not UTF-8; nil: there are none.
func Of(env []string) (e Entries) {
	for i, entry := range env {
		if utf8.ValidString(entry) {
			continue
		}
		if e == nil {
			e = Entries{}
		}
		e[i] = []byte(entry)
	}
	return e
}

// In returns an environment that was read from JSON with the entries as they were. The environment itself is left as it
// is. An index that it does not have is ignored.
func (e Entries) In(env []string) []string {
	if len(e) == 0 {
		return env
	}
	out := slices.Clone(env)
	for i, entry := range e {
		if i >= 0 && i < len(out) {
			out[i] = string(entry)
		}
	}
	return out
}

// Refuse returns an error if there are entries, for an environment that cannot be carried by what is named. It names
// the first variable, and not its value.
func (e Entries) Refuse(by string) error {
	if len(e) == 0 {
		return nil
	}
	i := slices.Min(slices.Collect(maps.Keys(e)))
	key, _, _ := strings.Cut(string(e[i]), "=")
	return fmt.Errorf("environment: the value of %s is not UTF-8, which %s cannot pass to a process: %w",
		strings.ToValidUTF8(key, "\ufffd"), by, errdefs.ErrInvalidArgument)
}

// Valid returns an environment with U+FFFD in the place of what is not UTF-8.
func Valid(env []string) []string {
	out := slices.Clone(env)
	for i := range out {
		out[i] = strings.ToValidUTF8(out[i], "\ufffd")
	}
	return out
}

// Spec is a specification for JSON. Fill sets RawEnv before it is written, and Restore uses it when it was read.
type Spec struct {
	*specs.Spec
	RawEnv Entries `json:"rawEnv,omitempty"`
}

// Fill returns a specification as it is written.
func Fill(s *specs.Spec) *Spec {
	out := &Spec{Spec: s}
	if s != nil && s.Process != nil {
		out.RawEnv = Of(s.Process.Env)
	}
	return out
}

// Restore returns the specification that was read.
func (s *Spec) Restore() *specs.Spec {
	if s.Spec != nil && s.Process != nil {
		s.Process.Env = s.RawEnv.In(s.Process.Env)
	}
	return s.Spec
}

// Process is a process for JSON, as Spec is a specification.
type Process struct {
	*specs.Process
	RawEnv Entries `json:"rawEnv,omitempty"`
}

// MarshalSpec writes a specification as JSON that UnmarshalSpec reads.
func MarshalSpec(s *specs.Spec) ([]byte, error) { return codec.Marshal(Fill(s)) }

// UnmarshalSpec reads what MarshalSpec has written, or any other JSON of a specification.
func UnmarshalSpec(b []byte, s *specs.Spec) error {
	in := &Spec{Spec: s}
	err := codec.Unmarshal(b, in)
	in.Restore()
	return err
}

// MarshalProcess writes a process as JSON that UnmarshalProcess reads.
func MarshalProcess(p *specs.Process) ([]byte, error) {
	return codec.Marshal(&Process{Process: p, RawEnv: Of(p.Env)})
}

// UnmarshalProcess reads what MarshalProcess has written, or any other JSON of a process.
func UnmarshalProcess(b []byte, p *specs.Process) error {
	in := &Process{Process: p}
	err := codec.Unmarshal(b, in)
	p.Env = in.RawEnv.In(p.Env)
	return err
}
