package packaging_test

import (
	"os"
	"slices"
	"strings"
	"testing"
)

// settings are what a unit of this tree sets: values by key, in the order of the file. A key without a value is there.
func settings(t *testing.T, unit string) map[string][]string {
	t.Helper()
	data, err := os.ReadFile("systemd/" + unit + ".in")
	if err != nil {
		t.Fatal(err)
	}
	found := map[string][]string{}
	for line := range strings.Lines(string(data)) {
		line = strings.TrimSpace(line)
		if key, value, ok := strings.Cut(line, "="); ok && !strings.HasPrefix(line, "#") {
			found[key] = append(found[key], value)
		}
	}
	return found
}

// TestTheKeepersUnitRestrictsNoHook: OCI hooks, OCI runtimes (nvidia-container-runtime) and shims run in the cgroup of
// the keeper's unit. Settings of the unit that apply to its cgroup would keep them from devices, such as /dev/nvidiactl
// and /dev/kvm, and from the network. containerd's and CRI-O's units have none of them. In the virtual machine,
// TestUnitsTakeNothingFromContainers runs such a hook. Seen to fail where the unit had IPAddressDeny, SocketBindDeny
// and DevicePolicy.
func TestTheKeepersUnitRestrictsNoHook(t *testing.T) {
	set := settings(t, "berth-keeper.service")
	if !slices.Equal(set["Delegate"], []string{"yes"}) {
		t.Fatalf("the unit was not read: %v", set)
	}
	for _, key := range []string{"IPAddressDeny", "IPIngressFilterPath", "IPEgressFilterPath", "SocketBindDeny",
		"RestrictNetworkInterfaces", "DevicePolicy", "DeviceAllow", "PrivateDevices", "PrivateNetwork", "ProtectClock"} {
		if set[key] != nil {
			t.Errorf("%s=%s would apply to what the keeper runs in its own cgroup", key, set[key])
		}
	}
}

// TestUnitsWaitForTheirDisk: the file system with the data is mounted before a unit starts. One with nofail or _netdev
// in fstab is not ordered before services otherwise. Seen to fail where the units did not name the directories.
func TestUnitsWaitForTheirDisk(t *testing.T) {
	for unit, dir := range map[string]string{
		"berthd.service": "/var/lib/berth", "berth-keeper.service": "/var/lib/berth",
		"berth-apply.service": "/var/lib/berth-cli",
	} {
		if got := settings(t, unit)["RequiresMountsFor"]; !slices.Equal(got, []string{dir}) {
			t.Errorf("%s: RequiresMountsFor=%q, want %s", unit, got, dir)
		}
	}
}

// TestASlowStartIsNotEnded: by default systemd ends a service of type notify that is not ready after 90 s, and a start
// of berthd that has more to remove than that would begin again without an end. The watchdog stays. Seen to fail where
// the unit did not set the limit.
func TestASlowStartIsNotEnded(t *testing.T) {
	set := settings(t, "berthd.service")
	for key, want := range map[string]string{"Type": "notify", "TimeoutStartSec": "infinity", "WatchdogSec": "120"} {
		if !slices.Equal(set[key], []string{want}) {
			t.Errorf("%s=%q, want %s", key, set[key], want)
		}
	}
}

// TestUnitsRemoveImmutableFiles: a container may mark a file of its own immutable, where its pod has the capability,
// and the one who removes the file has to take the mark off. Seen to fail where the units took CAP_LINUX_IMMUTABLE
// away.
func TestUnitsRemoveImmutableFiles(t *testing.T) {
	for _, unit := range []string{"berthd.service", "berth-apply.service"} {
		for _, set := range settings(t, unit)["CapabilityBoundingSet"] {
			without, taken := strings.CutPrefix(set, "~")
			if has := slices.Contains(strings.Fields(without), "CAP_LINUX_IMMUTABLE"); has == taken {
				t.Errorf("%s: CapabilityBoundingSet=%s", unit, set)
			}
		}
	}
}

// TestAnEndIsBoundedByTheConfigurationAlone: systemd ends a service that does not end within 90 s by default, and
// shutdown_timeout may be longer. berthd bounds its end by itself. Seen to fail where the unit did not set the limit.
func TestAnEndIsBoundedByTheConfigurationAlone(t *testing.T) {
	if got := settings(t, "berthd.service")["TimeoutStopSec"]; !slices.Equal(got, []string{"infinity"}) {
		t.Errorf("TimeoutStopSec=%q", got)
	}
}

// TestAReloadReachesBerthdWhateverTheCheckFinds: berthd opens the audit log anew in any case, and refuses by itself
// what is wrong. The check comes last, so that the reload fails with what is wrong. Seen to fail where it came first.
func TestAReloadReachesBerthdWhateverTheCheckFinds(t *testing.T) {
	got := settings(t, "berthd.service")["ExecReload"]
	if len(got) != 2 || got[0] != "/bin/kill -HUP $MAINPID" || !strings.Contains(got[1], " config check ") {
		t.Errorf("ExecReload=%q", got)
	}
}
