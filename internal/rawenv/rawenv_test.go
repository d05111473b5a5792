package rawenv

import (
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	specs "github.com/opencontainers/runtime-spec/specs-go"
)

var env = []string{"A=a", "SECRET=\x00\xff\xfe\ufffd", "B=b=c\xff", "C=\ufffd"}

// TestAnEnvironmentThatIsNotUTF8GoesThroughJSON of a specification and of a process. Others read the same JSON, with
// the bytes replaced.
func TestAnEnvironmentThatIsNotUTF8GoesThroughJSON(t *testing.T) {
	spec := &specs.Spec{Version: "1", Process: &specs.Process{Env: env}, Hostname: "h"}
	b, err := MarshalSpec(spec)
	if err != nil {
		t.Fatal(err)
	}
	got, other := &specs.Spec{}, &specs.Spec{}
	if err := errors.Join(UnmarshalSpec(b, got), json.Unmarshal(b, other)); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got, spec) {
		t.Errorf("%q", got.Process.Env)
	}
	if !reflect.DeepEqual(other.Process.Env, Valid(other.Process.Env)) || other.Hostname != "h" {
		t.Errorf("others read %q", other.Process.Env)
	}
	process := &specs.Process{}
	if b, err = MarshalProcess(spec.Process); err != nil {
		t.Fatal(err)
	}
	if err := UnmarshalProcess(b, process); err != nil || !reflect.DeepEqual(process, spec.Process) {
		t.Errorf("%q, %v", process.Env, err)
	}
	plain, err := MarshalSpec(&specs.Spec{Process: &specs.Process{Env: env[:1]}})
	if err != nil || strings.Contains(string(plain), "rawEnv") {
		t.Errorf("%s, %v", plain, err)
	}
}

func TestRawEntriesOfOthersAreNoHarm(t *testing.T) {
	in := []string{"A=a"}
	if got := (Entries{-1: []byte("x"), 1: []byte("y")}).In(in); !reflect.DeepEqual(got, in) {
		t.Errorf("%q", got)
	}
}

func TestARefusalNamesTheVariableAndNotItsValue(t *testing.T) {
	err := Of(env).Refuse("runc")
	if !errors.Is(err, errdefs.ErrInvalidArgument) || !strings.Contains(err.Error(), "value of SECRET is not UTF-8") ||
		strings.Contains(err.Error(), "\ufffd") {
		t.Error(err)
	}
	if err := Of(env[:1]).Refuse("runc"); err != nil {
		t.Error(err)
	}
}
