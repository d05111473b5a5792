package security

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/registrytest"
	"berth/test/node"
	"berth/test/node/nodetest"
)

// attackTime is how long each part of an attack that races goes on: half a second, and twenty seconds with BERTH_LONG.
// An attack has a part for each way of setting containers up and for each kind of link.
func attackTime() time.Duration {
	if os.Getenv("BERTH_LONG") != "" {
		return 20 * time.Second
	}
	return 500 * time.Millisecond
}

// again makes one attempt after the other for as long as an attack goes on, and at least three. It ends with the first
// that fails the test.
func again(t *testing.T, attempt func(i int)) {
	t.Helper()
	i := 0
	for end := time.Now().Add(attackTime()); (i < 3 || time.Now().Before(end)) && !t.Failed(); i++ {
		attempt(i)
	}
	t.Logf("%d attempts", i)
}

// setup is a way in which Berth sets a container up.
type setup struct {
	name    string
	handler string
	userns  bool
}

// setups are those of the stage. A user namespace takes another way through it.
var setups = []setup{{name: "stage"}, {name: "user namespace", userns: true}}

// underEach makes an attack on each way of setting containers up.
func underEach(t *testing.T, attack func(t *testing.T, n *node.Node, s setup)) {
	t.Helper()
	n := nodetest.Shared(t)
	for _, s := range setups {
		t.Run(s.name, func(t *testing.T) { attack(t, n, s) })
	}
}

// mappedRoot is the host's ID of root in pods with a user namespace.
const mappedRoot = 300000

// pod runs a pod whose containers are set up in this way.
func (s setup) pod(t *testing.T, n *node.Node, edits ...nodetest.PodEdit) *nodetest.Pod {
	t.Helper()
	if s.userns {
		edits = append([]nodetest.PodEdit{inUserNamespace}, edits...)
	}
	return nodetest.RunPodHandler(t, n, s.handler, edits...)
}

func inUserNamespace(c *cri.PodSandboxConfig) {
	ids := []*cri.IDMapping{{ContainerId: 0, HostId: mappedRoot, Length: 65536}}
	namespaces(c).UsernsOptions = &cri.UserNamespace{Mode: cri.NamespaceMode_POD, Uids: ids, Gids: ids}
}

// namespaces are the options of a pod's namespaces, made if it has none.
func namespaces(c *cri.PodSandboxConfig) *cri.NamespaceOption {
	security := c.Linux.SecurityContext
	if security.NamespaceOptions == nil {
		security.NamespaceOptions = &cri.NamespaceOption{Pid: cri.NamespaceMode_CONTAINER}
	}
	return security.NamespaceOptions
}

func withImage(ref string) nodetest.ContainerEdit {
	return func(c *cri.ContainerConfig) { c.Image.Image = ref }
}

func command(args ...string) nodetest.ContainerEdit {
	return func(c *cri.ContainerConfig) { c.Command, c.Args = args, nil }
}

func volume(host, inside string) nodetest.ContainerEdit {
	return nodetest.Mounts(&cri.Mount{HostPath: host, ContainerPath: inside})
}

func as(uid, gid int64) nodetest.ContainerEdit {
	return nodetest.Security(func(s *cri.LinuxContainerSecurityContext) {
		s.RunAsUser, s.RunAsGroup = &cri.Int64Value{Value: uid}, &cri.Int64Value{Value: gid}
	})
}

func capabilities(add ...string) nodetest.ContainerEdit {
	return nodetest.Security(func(s *cri.LinuxContainerSecurityContext) {
		s.Capabilities = &cri.Capability{AddCapabilities: add}
	})
}

var serial atomic.Int64

// publish puts an image under a new name into the node's registry and returns its reference.
func publish(t *testing.T, n *node.Node, options ...registrytest.ImageOption) string {
	t.Helper()
	made, err := registrytest.Image(options...)
	if err != nil {
		t.Fatal(err)
	}
	name := fmt.Sprintf("attack%d:1", serial.Add(1))
	if err := n.Registry.Push(name, made); err != nil {
		t.Fatal(err)
	}
	return node.RegistryHost + "/" + name
}

// hostile is busybox with further layers and settings.
func hostile(t *testing.T, n *node.Node, options ...registrytest.ImageOption) string {
	t.Helper()
	return publish(t, n, append([]registrytest.ImageOption{registrytest.WithBusybox()}, options...)...)
}

// registry is a registry of a test's own under a name of its own.
func registry(t *testing.T, n *node.Node, options ...registrytest.Option) (r *registrytest.Registry, host string) {
	t.Helper()
	r, err := registrytest.New(options...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Close() })
	host = fmt.Sprintf("r%d.test", serial.Add(1))
	if err := r.HostsDir(n.HostsDir, host); err != nil {
		t.Fatal(err)
	}
	return r, host
}

func pull(t *testing.T, n *node.Node, ref string, auth *cri.AuthConfig) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), node.Patience(2*time.Minute))
	defer cancel()
	_, err := n.Images.PullImage(ctx, &cri.PullImageRequest{Image: &cri.ImageSpec{Image: ref}, Auth: auth})
	return err
}

func pullWith(ctx context.Context, n *node.Node, ref string) error {
	_, err := n.Images.PullImage(ctx, &cri.PullImageRequest{Image: &cri.ImageSpec{Image: ref}})
	return err
}

var intruder struct {
	sync.Once
	program []byte
	err     error
}

// intruderProgram is what the program intruder is built to.
func intruderProgram(t *testing.T) []byte {
	t.Helper()
	intruder.Do(func() {
		dir, err := os.MkdirTemp("", "intruder-")
		if err != nil {
			intruder.err = err
			return
		}
		defer os.RemoveAll(dir)
		path := filepath.Join(dir, "intruder")
		if intruder.err = registrytest.GoProgram("berth/test/security/intruder", path); intruder.err == nil {
			intruder.program, intruder.err = os.ReadFile(path)
		}
	})
	if intruder.err != nil {
		t.Fatal(intruder.err)
	}
	return intruder.program
}

// withIntruder adds the program /intruder to an image.
func withIntruder(t *testing.T) registrytest.ImageOption {
	t.Helper()
	return registrytest.Layer(registrytest.File("intruder", 0o755, string(intruderProgram(t))))
}

// intruderImage is busybox with the program /intruder.
func intruderImage(t *testing.T, n *node.Node) string {
	t.Helper()
	return hostile(t, n, withIntruder(t))
}

// publicDir is a directory that all users of the host can come to.
func publicDir(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for _, d := range []string{dir, filepath.Dir(dir)} {
		if err := os.Chmod(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// bait is a directory of the host that no attack may read or change.
type bait struct {
	path   string
	secret string // is in the file "secret"
	before map[string]string
}

func newBait(t *testing.T) *bait {
	t.Helper()
	b := &bait{path: publicDir(t), secret: "secret-" + rand.Text()}
	// Whoever could come here could read the secret: access must not be what an attack fails for.
	if err := os.Chmod(b.path, 0o777); err != nil {
		t.Fatal(err)
	}
	for name, mode := range map[string]fs.FileMode{"secret": 0o644, "script": 0o755, "private": 0o600} {
		if err := os.WriteFile(filepath.Join(b.path, name), []byte(b.secret), mode); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(b.path, "dir"), 0o750); err != nil {
		t.Fatal(err)
	}
	b.before = b.look(t)
	return b
}

// look describes all that is in the bait.
func (b *bait) look(t *testing.T) map[string]string {
	t.Helper()
	found := map[string]string{}
	err := filepath.WalkDir(b.path, func(p string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		var st unix.Stat_t
		if err := unix.Lstat(p, &st); err != nil {
			return err
		}
		what := fmt.Sprintf("mode %o, owner %d:%d, %d links", st.Mode, st.Uid, st.Gid, st.Nlink)
		if st.Mode&unix.S_IFMT == unix.S_IFREG {
			data, err := os.ReadFile(p)
			if err != nil {
				return err
			}
			what += fmt.Sprintf(", content %x", sha256.Sum256(data))
		}
		names := make([]byte, 4096)
		if size, err := unix.Llistxattr(p, names); err == nil && size > 0 {
			what += fmt.Sprintf(", attributes %q", names[:size])
		}
		found[p] = what
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// check fails the test if anything in the bait has changed.
func (b *bait) check(t *testing.T) {
	t.Helper()
	now := b.look(t)
	var changes []string
	for p := range maps.Keys(b.before) {
		switch is := now[p]; {
		case is == "":
			changes = append(changes, p+" is gone")
		case is != b.before[p]:
			changes = append(changes, fmt.Sprintf("%s was %s and is %s", p, b.before[p], is))
		}
	}
	for p, is := range now {
		if b.before[p] == "" {
			changes = append(changes, p+" is new: "+is)
		}
	}
	if len(changes) > 0 {
		slices.Sort(changes)
		t.Fatalf("the attack changed the host:\n%s", strings.Join(changes, "\n"))
	}
}

// unread fails the test if a text holds the bait's secret.
func (b *bait) unread(t *testing.T, where, text string) {
	t.Helper()
	if strings.Contains(text, b.secret) {
		t.Errorf("%s shows the host's secret", where)
	}
}

// metric reads a value of the shared node's berthd.
func metric(t *testing.T, name string) float64 {
	t.Helper()
	response, err := http.Get("http://" + metricsAddress + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if value, ok := strings.CutPrefix(line, name+" "); ok {
			number, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
			if err != nil {
				t.Fatal(err)
			}
			return number
		}
	}
	t.Fatalf("berthd has no metric %s", name)
	return 0
}

// settledMetric waits until a metric of berthd is at most a limit.
func settledMetric(t *testing.T, name string, limit float64) {
	t.Helper()
	nodetest.Eventually(t, 30*time.Second, fmt.Sprintf("%s is at most %v", name, limit), func() error {
		if now := metric(t, name); now > limit {
			return fmt.Errorf("it is %v", now)
		}
		return nil
	})
}

// peak watches the memory of berthd, its children, and the keeper while something is done, and returns the most,
// in bytes, that berthd with its children and the keeper had beyond what they had before.
func peak(t *testing.T, n *node.Node, do func()) (berthd, keeper int64) {
	t.Helper()
	keeperPID, ok := n.KeeperPID()
	if !ok {
		t.Fatal("no keeper answers")
	}
	pids := []int{n.PID(), keeperPID}
	before := []int64{resident(t, pids[0]), resident(t, pids[1])}
	for _, pid := range pids { // a number of its own in status is the most since this write
		if err := os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", pid), []byte("5"), 0); err != nil {
			t.Fatal(err)
		}
	}
	done, children := make(chan struct{}), make(chan int64)
	go func() {
		most := int64(0)
		for {
			most = max(most, childrenResident(pids[0]))
			select {
			case <-done:
				children <- most
				return
			case <-time.After(5 * time.Millisecond):
			}
		}
	}()
	do()
	close(done)
	most := make([]int64, len(pids))
	for i, pid := range pids {
		most[i] = max(0, statusKiB(t, pid, "VmHWM")-before[i])
	}
	return most[0] + <-children, most[1]
}

// childrenResident is how much memory the children of a process have now, which may come and go. One that has the
// process's own command line has not begun its program yet, and its memory is that of the process.
func childrenResident(pid int) (sum int64) {
	own, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	for _, task := range tasks {
		list, _ := os.ReadFile(task)
		for child := range strings.FieldsSeq(string(list)) {
			statm, err := os.ReadFile("/proc/" + child + "/statm")
			if line, _ := os.ReadFile("/proc/" + child + "/cmdline"); bytes.Equal(line, own) {
				continue
			}
			if fields := strings.Fields(string(statm)); err == nil && len(fields) > 1 {
				pages, _ := strconv.ParseInt(fields[1], 10, 64)
				sum += pages * int64(os.Getpagesize())
			}
		}
	}
	return sum
}

func resident(t *testing.T, pid int) int64 { return statusKiB(t, pid, "VmRSS") }

func statusKiB(t *testing.T, pid int, key string) int64 {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range bytes.Lines(status) {
		if fields := bytes.Fields(line); len(fields) > 1 && string(fields[0]) == key+":" {
			kib, err := strconv.ParseInt(string(fields[1]), 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			return kib << 10
		}
	}
	t.Fatalf("/proc/%d/status has no %s", pid, key)
	return 0
}

// alive fails the test if berthd or the keeper is another process than before.
func alive(t *testing.T, n *node.Node) (check func()) {
	t.Helper()
	daemon := n.PID()
	keeper, _ := n.KeeperPID()
	return func() {
		t.Helper()
		if now := n.PID(); now != daemon {
			t.Errorf("berthd was process %d and is %d", daemon, now)
		}
		if now, ok := n.KeeperPID(); !ok || now != keeper {
			t.Errorf("the keeper was process %d and is %d", keeper, now)
		}
	}
}

// initProcess is the number of a container's init process on the host, once that is the container's own program: one
// that libcontainer sets up becomes it a moment after the start.
func initProcess(t *testing.T, c *nodetest.Container) (pid int) {
	t.Helper()
	keeper, _ := c.Pod.Node.KeeperPID()
	binary, err := os.Stat(fmt.Sprintf("/proc/%d/exe", keeper))
	if err != nil {
		t.Fatal(err)
	}
	nodetest.Eventually(t, 30*time.Second, "the container is its own program", func() error {
		if pid, err = c.Pod.Node.ContainerPID(c.ID); err != nil {
			return err
		}
		program, err := os.Stat(fmt.Sprintf("/proc/%d/exe", pid))
		if err == nil && program.Size() == binary.Size() {
			err = fmt.Errorf("it is still the keeper's")
		}
		return err
	})
	return pid
}

func writeFile(t *testing.T, path string, data []byte, mode os.FileMode) {
	t.Helper()
	if err := os.WriteFile(path, data, mode); err != nil {
		t.Fatal(err)
	}
}

// newCertificate is one that nobody has signed but itself, for an address.
func newCertificate(t *testing.T, address string) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(serial.Add(1)), Subject: pkix.Name{CommonName: address},
		IPAddresses: []net.IP{net.ParseIP(address)},
		NotBefore:   time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour), IsCA: true,
		BasicConstraintsValid: true,
		KeyUsage:              x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// authority is the certificate of a test server, as PEM.
func authority(s *httptest.Server) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.TLS.Certificates[0].Certificate[0]})
}
