package cgroup

import "testing"

func TestTheUnitOfAProcessIsFound(t *testing.T) {
	for text, want := range map[string]string{
		"0::/system.slice/berthd.service\n":                                                "berthd.service",
		"0::/system.slice/berth-keeper.service/below/it\n":                                 "berth-keeper.service",
		"5:memory:/a.service\n1:name=systemd:/system.slice/berthd.service\n0::/\n":         "berthd.service",
		"0::/user.slice/user-0.slice/session-1.scope\n":                                    "",
		"0::/kubepods.slice/cri-containerd-1.scope\n":                                      "",
		"0::/user.slice/user-1.slice/user@1.service/app.slice/own\\x2dname.service\nodd\n": "own\\x2dname.service",
		"": "",
	} {
		if got := unit(text); got != want {
			t.Errorf("%q: %q and not %q", text, got, want)
		}
	}
}
