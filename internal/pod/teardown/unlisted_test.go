package teardown

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"berth/internal/asroot"
	"berth/internal/cgroup"
	"berth/internal/pod/cgroups"
	"berth/internal/pod/index"
	"berth/internal/pod/record"
)

// forgetfulKeeper knows no container.
type forgetfulKeeper struct {
	Keeper
	deleted []string
}

func (k *forgetfulKeeper) Delete(_ context.Context, id string) error {
	k.deleted = append(k.deleted, id)
	return nil
}

// What lives in the cgroup of a container that the keeper does not know is ended before the container is told as ended.
// Seen to fail with a cgroup that is not looked into.
func TestWhatTheKeeperDoesNotKnowIsEnded(t *testing.T) {
	asroot.Need(t, "cgroups")
	host, err := cgroup.Host()
	if err != nil {
		t.Fatal(err)
	}
	name := fmt.Sprintf("/berth-unlisted-%d", os.Getpid())
	if err := host.Create(name); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("sleep", "1000")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-ended
		if err := host.Remove(context.Background(), name); err != nil {
			t.Error(err)
		}
	})
	for _, dir := range host.Dirs(name) {
		if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), fmt.Append(nil, cmd.Process.Pid), 0); err != nil {
			t.Fatal(err)
		}
	}
	k := &forgetfulKeeper{}
	td := &Teardown{
		Keeper: k, Log: slog.New(slog.DiscardHandler),
		Cgroups: cgroups.New(t.Context(), cgroups.Config{Records: t.TempDir()}),
	}
	containers := record.NewContainers(t.TempDir(), nil, slog.New(slog.DiscardHandler))
	c := index.NewContainer(containers.New("a", record.Container{ID: "a", Cgroup: name}), nil)
	if lived, over := td.EndUnlisted(t.Context(), c); !lived || !over || len(k.deleted) != 1 {
		t.Errorf("lived %v, ended %v, the keeper was asked to delete %v", lived, over, k.deleted)
	}
	if pids, err := host.Processes(name); err != nil || len(pids) > 0 {
		t.Errorf("processes %v, %v", pids, err)
	}
	if lived, over := td.EndUnlisted(t.Context(), c); lived || !over {
		t.Errorf("when nothing runs any more: lived %v, ended %v", lived, over)
	}
}
