package fdstore

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"berth/internal/keeper/protocol"
)

func id(i int) string { return fmt.Sprintf("%064x", i) }

// TestTheNamesOfAFullStoreFitIntoAnEnvironment: the next keeper is executed with as many names as the unit allows.
// With the names of earlier versions the kernel refuses it from some 1,500 descriptors on: "argument list too long".
func TestTheNamesOfAFullStoreFitIntoAnEnvironment(t *testing.T) {
	unit, err := os.ReadFile("../../../packaging/systemd/berth-keeper.service.in")
	if err != nil {
		t.Fatal(err)
	}
	found := regexp.MustCompile(`(?m)^FileDescriptorStoreMax=(\d+)$`).FindSubmatch(unit)
	if found == nil {
		t.Fatal("the unit has no FileDescriptorStoreMax")
	}
	most, err := strconv.Atoi(string(found[1]))
	if err != nil {
		t.Fatal(err)
	}
	execute := func(name func(i int) string) error {
		var names []string
		for i := range most {
			names = append(names, name(i))
		}
		cmd := exec.Command("/bin/true")
		cmd.Env = []string{"LISTEN_FDNAMES=" + strings.Join(names, ":")}
		return cmd.Run()
	}
	if err := execute(func(i int) string { return nameOf(keyOf(id(i)), protocol.RoleStdoutMemory) }); err != nil {
		t.Errorf("a keeper with %d stored descriptors cannot be executed: %v", most, err)
	}
	if err := execute(func(i int) string { return longPrefix + id(i) + ".pidfd" }); !errors.Is(err, syscall.E2BIG) {
		t.Errorf("with names of earlier versions: %v", err)
	}
}

func TestNamesTellContainersAndRolesApart(t *testing.T) {
	seen := map[string]bool{}
	for i := range 20_000 {
		if key := keyOf(id(i)); seen[key] {
			t.Fatalf("two of 20,000 containers have the key %s", key)
		} else {
			seen[key] = true
		}
	}
	for role := range letters {
		for _, name := range []string{nameOf(keyOf("c1"), role), longPrefix + "c1." + string(role)} {
			if key, r, ok := parseName(name); !ok || key != keyOf("c1") || r != role {
				t.Errorf("%s is %s of %s, %t", name, r, key, ok)
			}
		}
	}
	for _, bad := range []string{"", "stored", "berth.", "berth.x", "berth..pidfd", keyOf("c1"), keyOf("c1") + "?",
		keyOf("c1") + "pp"} {
		if key, role, ok := parseName(bad); ok {
			t.Errorf("%q is %s of %s", bad, role, key)
		}
	}
}

// TestAnUpgradeKnowsWhatIsStored: by what this version lists, and by what earlier ones did: roles by ID.
func TestAnUpgradeKnowsWhatIsStored(t *testing.T) {
	t.Setenv("NOTIFY_SOCKET", "@nobody-"+t.Name())
	list := func(restored map[string][]string) map[string][]string {
		f := Open(slog.New(slog.DiscardHandler))
		f.Restore(restored)
		return f.List()
	}
	now := map[string][]string{keyOf("c1"): {nameOf(keyOf("c1"), protocol.RoleStdout),
		nameOf(keyOf("c1"), protocol.RolePidfd)}}
	if got := list(now); !reflect.DeepEqual(got, now) {
		t.Errorf("%v, want %v", got, now)
	}
	if got := list(map[string][]string{"c1": {"pidfd"}}); !reflect.DeepEqual(got,
		map[string][]string{keyOf("c1"): {"berth.c1.pidfd"}}) {
		t.Errorf("of an earlier version: %v", got)
	}
}
