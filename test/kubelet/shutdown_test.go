package kubelet

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/godbus/dbus/v5"
	v1 "k8s.io/api/core/v1"

	"berth/test/node"
)

// logind is what a kubelet asks of systemd-logind, on a bus of its own.
type logind struct {
	conn  *dbus.Conn
	asked chan struct{} // closed when the kubelet has its inhibitor lock
	free  chan struct{} // closed when it lets go
	once  sync.Once
}

const (
	logindPath = "/org/freedesktop/login1"
	logindName = "org.freedesktop.login1"
)

// Inhibit gives the kubelet its lock: a descriptor that it closes when the shutdown may go on.
func (l *logind) Inhibit(what, who, why, mode string) (dbus.UnixFD, *dbus.Error) {
	ours, theirs, err := os.Pipe()
	if err != nil {
		return 0, dbus.MakeFailedError(err)
	}
	l.once.Do(func() {
		close(l.asked)
		go func() {
			_, _ = ours.Read(make([]byte, 1))
			ours.Close()
			close(l.free)
		}()
	})
	// The bus takes a copy when the answer is sent, which is after this; ours must not keep the lock.
	time.AfterFunc(3*time.Second, func() { theirs.Close() })
	return dbus.UnixFD(theirs.Fd()), nil
}

// Get is a property of logind.
func (l *logind) Get(of, name string) (dbus.Variant, *dbus.Error) {
	if name == "InhibitDelayMaxUSec" {
		return dbus.MakeVariant(uint64(60e6)), nil
	}
	return dbus.Variant{}, dbus.MakeFailedError(fmt.Errorf("no property %s", name))
}

// prepareForShutdown says to all that the machine will go down.
func (l *logind) prepareForShutdown() error {
	return l.conn.Emit(logindPath, logindName+".Manager.PrepareForShutdown", true)
}

// startLogind starts a bus and a logind on it, and returns the bus's address.
func startLogind(t *testing.T) (*logind, string) {
	t.Helper()
	program, err := exec.LookPath("dbus-daemon")
	if err != nil {
		t.Skip("graceful shutdown needs a bus: dbus-daemon is not installed")
	}
	dir := t.TempDir()
	address := "unix:path=" + filepath.Join(dir, "bus")
	config := filepath.Join(dir, "bus.conf")
	if err := os.WriteFile(config, []byte(`<busconfig>
<type>system</type><listen>`+address+`</listen><auth>EXTERNAL</auth>
<policy context="default"><allow user="*"/><allow own="*"/><allow send_type="*"/><allow receive_type="*"/></policy>
</busconfig>`), 0o644); err != nil {
		t.Fatal(err)
	}
	bus := exec.Command(program, "--config-file="+config, "--nofork", "--nopidfile")
	bus.Stderr = os.Stderr
	if err := bus.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = bus.Process.Signal(syscall.SIGTERM)
		_ = bus.Wait()
	})
	l := &logind{asked: make(chan struct{}), free: make(chan struct{})}
	eventually(t, 10*time.Second, "the bus answers", func() error {
		l.conn, err = dbus.Connect(address)
		return err
	})
	t.Cleanup(func() { l.conn.Close() })
	for _, face := range []string{logindName + ".Manager", "org.freedesktop.DBus.Properties"} {
		if err := l.conn.Export(l, logindPath, face); err != nil {
			t.Fatal(err)
		}
	}
	reply, err := l.conn.RequestName(logindName, dbus.NameFlagDoNotQueue)
	if err != nil || reply != dbus.RequestNameReplyPrimaryOwner {
		t.Fatalf("own the name %s: %v, %v", logindName, reply, err)
	}
	return l, address
}

// TestGracefulNodeShutdown announces a shutdown: ordinary pods are ended first, critical ones after them, each with its
// grace period, then the kubelet lets the shutdown go on, and starts no pod any more.
func TestGracefulNodeShutdown(t *testing.T) {
	t.Parallel()
	l, address := startLogind(t)
	k := own(t, node.Options{CgroupDriver: "cgroupfs"}, options{ // there is no systemd on that bus
		env: []string{"DBUS_SYSTEM_BUS_ADDRESS=" + address},
		config: map[string]any{
			"shutdownGracePeriod":             node.Patience(20 * time.Second).String(),
			"shutdownGracePeriodCriticalPods": node.Patience(8 * time.Second).String(),
		},
	})
	select {
	case <-l.asked:
	case <-time.After(node.Patience(20 * time.Second)):
		t.Fatal("the kubelet has not asked for its lock within 20 s")
	}
	dir := t.TempDir()
	ordinary := manifest("ordinary", sh("main", onTerm("sleep 1; "+clock("/host/ordinary")), mounted("host", "/host")))
	stubborn := manifest("stubborn", sh("main", stubborn, mounted("host", "/host")))
	stubborn.Spec.TerminationGracePeriodSeconds = ptr(int64(3))
	critical := manifest("critical", sh("main", onTerm("sleep 1; "+clock("/host/critical")), mounted("host", "/host")))
	critical.Spec.PriorityClassName, critical.Spec.Priority = "system-node-critical", ptr(int32(2000001000))
	var pods []*pod
	for _, spec := range []*v1.Pod{ordinary, stubborn, critical} {
		spec.Namespace = "default"
		if spec != stubborn {
			spec.Spec.TerminationGracePeriodSeconds = ptr(int64(10))
		}
		hostPath(spec, "host", dir, v1.HostPathDirectory)
		pods = append(pods, k.run(t, spec))
	}
	for _, p := range pods {
		p.running()
	}
	if err := l.prepareForShutdown(); err != nil {
		t.Fatal(err)
	}
	select {
	case <-l.free:
	case <-time.After(node.Patience(40 * time.Second)):
		t.Fatal("after 40 s the kubelet still holds the shutdown back")
	}
	for i, p := range pods {
		now, err := p.now()
		if err != nil {
			t.Fatal(err)
		}
		if s := status(now, "main"); s.State.Terminated == nil {
			t.Errorf("%s: %+v", p.spec.Name, s.State)
		} else if want := []int32{0, 137, 0}[i]; s.State.Terminated.ExitCode != want {
			t.Errorf("%s ended with %+v", p.spec.Name, s.State.Terminated)
		}
		if now.Status.Reason != "Terminated" && now.Status.Reason != "NodeShutdown" {
			t.Errorf("%s: %s %s", p.spec.Name, now.Status.Reason, now.Status.Message)
		}
	}
	if ordinary, critical := stamp(t, dir, "ordinary"), stamp(t, dir, "critical"); critical < ordinary+1000 {
		t.Errorf("the critical pod ended %d ms after the ordinary one", critical-ordinary)
	}
	if lived := stamp(t, dir, "alive") - stamp(t, dir, "term"); lived < 2000 ||
		lived > node.Patience(6*time.Second).Milliseconds() {
		t.Errorf("with a grace period of 3 s the stubborn pod lived for %d ms after TERM", lived)
	}
}
