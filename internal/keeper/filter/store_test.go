//go:build seccomp

package filter

import (
	"log/slog"
	"os"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// TestACompilerThatIsKilledSaysNothingOfTheProfile: the profile is compiled again after a while, though not with each
// start. A profile that the compiler itself refuses is not compiled again.
//
// Seen to fail where each failure was remembered for as long as the keeper runs, where none was, and where the compiler
// told all its failures alike.
func TestACompilerThatIsKilledSaysNothingOfTheProfile(t *testing.T) {
	store := NewStore(t.TempDir(), func() map[string]bool { return nil }, slog.New(slog.DiscardHandler))
	get := func(key string, p *specs.LinuxSeccomp) *Filter {
		t.Helper()
		f, err := store.Get(t.Context(), key, p)
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	profile := &specs.LinuxSeccomp{DefaultAction: specs.ActErrno,
		Syscalls: []specs.LinuxSyscall{{Names: []string{"read", "write"}, Action: specs.ActAllow}}}
	t.Setenv(noMemory, "1")
	if f := get("a", profile); f != nil {
		t.Fatal("a compiler that was killed has compiled")
	}
	os.Unsetenv(noMemory)
	if f := get("a", profile); f != nil {
		t.Error("the profile is compiled again at once")
	}
	at, ok := store.failed["a"]
	if !ok {
		t.Fatal("the failure is not known as one of the machine")
	}
	store.failed["a"] = at.Add(-failedKnown)
	if f := get("a", profile); f == nil {
		t.Error("the profile is not compiled again")
	}
	if len(store.failed) > 0 {
		t.Errorf("a failure is known after a success: %v", store.failed)
	}

	// libseccomp knows no argument with this index.
	unfit := &specs.LinuxSeccomp{DefaultAction: specs.ActErrno, Syscalls: []specs.LinuxSyscall{{Names: []string{"read"},
		Action: specs.ActAllow, Args: []specs.LinuxSeccompArg{{Index: 99, Op: specs.OpEqualTo}}}}}
	if f := get("unfit", unfit); f != nil {
		t.Fatal("a profile with an argument that no call has is compiled")
	}
	if _, ok := store.cached["unfit"]; !ok {
		t.Error("a profile that the compiler refuses is compiled with each start")
	}
}
