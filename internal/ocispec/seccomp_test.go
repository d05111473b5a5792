package ocispec

import (
	"errors"
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	"berth/internal/model"
)

// TestASeccompProfileNamesTheAgentThatIsToldOfCalls: the profile gets to the keeper as it is, unless no process could
// start with it. Seen to fail where notifications were refused.
func TestASeccompProfileNamesTheAgentThatIsToldOfCalls(t *testing.T) {
	mkdir := `"syscalls": [{"names": ["mkdir", "mkdirat"], "action": "SCMP_ACT_NOTIFY"}]`
	for claim, c := range map[string]struct {
		profile  string
		listener string // what the specification has
		refused  string
	}{
		"an agent with metadata": {
			profile:  `"listenerPath": "/run/agent.sock", "listenerMetadata": "more", ` + mkdir,
			listener: "/run/agent.sock",
		},
		"an agent that is told of nothing": {profile: `"listenerPath": "/run/agent.sock"`},
		"no agent":                         {profile: mkdir, refused: `syscalls[0]: SCMP_ACT_NOTIFY without "listenerPath"`},
		"metadata without an agent":        {profile: `"listenerMetadata": "x"`, refused: `"listenerMetadata"`},
		"a path that is not absolute":      {profile: `"listenerPath": "agent.sock", ` + mkdir, refused: "absolute path"},
		"a path that is too long": {
			profile: `"listenerPath": "/` + strings.Repeat("x", maxListener) + `", ` + mkdir, refused: "at most 107",
		},
		"write": {
			profile: `"listenerPath": "/a", "syscalls": [{"names": ["read", "write"], "action": "SCMP_ACT_NOTIFY"}]`,
			refused: "cannot be used for the write syscall",
		},
	} {
		in := input(t)
		in.Handler.SeccompRoot = t.TempDir()
		in.Container.Security.Seccomp = &model.SecurityProfile{Type: model.ProfileLocalhost, LocalhostRef: "p.json"}
		write(t, in.Handler.SeccompRoot+"/p.json", `{"defaultAction": "SCMP_ACT_ALLOW", `+c.profile+`}`)
		out, err := Build(t.Context(), in)
		if c.refused != "" {
			if !errors.Is(err, errdefs.ErrInvalidArgument) || !strings.Contains(err.Error(), c.refused) {
				t.Errorf("%s: %v, not %q", claim, err, c.refused)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", claim, err)
		} else if got := out.Spec.Linux.Seccomp.ListenerPath; got != c.listener {
			t.Errorf("%s: the listener is %q", claim, got)
		}
	}
	_, err := parseSeccomp([]byte(`{"defaultAction": "SCMP_ACT_NOTIFY", "listenerPath": "/run/agent.sock"}`))
	if err == nil || !strings.Contains(err.Error(), "default action") {
		t.Errorf("notifications of all calls: %v", err)
	}
}
