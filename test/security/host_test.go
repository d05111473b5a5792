package security

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"google.golang.org/grpc/codes"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	rt "berth/internal/registrytest"
	"berth/test/node"
	"berth/test/node/nodetest"
)

// Attacks by users of the host, who have no part in pods, on what the node keeps; and what a container can leave
// for them.

// probed is what a user of the host can do with the files below directories, all of whose names it knows.
func probed(t *testing.T, uid uint32, dirs ...string) (can []string) {
	t.Helper()
	var paths strings.Builder
	for _, dir := range dirs {
		err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if err == nil && !strings.Contains(path, "\n") {
				fmt.Fprintln(&paths, path)
			}
			return nil // what is gone meanwhile is not there for the user either
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	program := filepath.Join(publicDir(t), "intruder")
	writeFile(t, program, intruderProgram(t), 0o755)
	cmd := exec.Command(program, "probe")
	cmd.Stdin = strings.NewReader(paths.String())
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid, Groups: []uint32{}}}
	var said bytes.Buffer
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("probe: %v: %s", err, said.String())
	}
	for line := range strings.Lines(string(out)) {
		can = append(can, strings.TrimSpace(line))
	}
	return can
}

// someOf are the first few of a list.
func someOf(list []string) string {
	if len(list) > 12 {
		return strings.Join(list[:12], "\n") + fmt.Sprintf("\nand %d more", len(list)-12)
	}
	return strings.Join(list, "\n")
}

// CVE-2021-41103 (containerd), CVE-2021-41091 (Docker): the directories of containers could be searched by all users
// of the host. One who knew a path ran a setuid program of a container's, with the rights of its owner.
//
// Seen to succeed on the build whose directories had the mode 0711.
func TestCVE_2021_41103_AUserOfTheHostRunsAContainersProgram(t *testing.T) {
	underEach(t, func(t *testing.T, n *node.Node, s setup) {
		program := string(intruderProgram(t))
		ref := hostile(t, n, rt.Layer(rt.File("suid", 0o6755, program), rt.File("intruder", 0o755, program),
			rt.File("public", 0o666, "x")),
			rt.Volumes("/declared"))
		c := s.pod(t, n).Run(withImage(ref))
		// It leaves such programs wherever it can write: in its layer, in a volume of its image, and in the files of its pod.
		c.Sh("cp /intruder /own && chmod 6755 /own; cp /intruder /declared/suid && chmod 6755 /declared/suid; " +
			"echo x >/declared/public; " +
			"for f in /etc/hosts /etc/hostname /etc/resolv.conf; do cat /intruder >$f && chmod 6755 $f; " +
			"done; cp /intruder /dev/shm/suid && chmod 6755 /dev/shm/suid; :")
		if can := probed(t, 1000, n.Root, n.State); len(can) > 0 {
			t.Errorf("a user of the host can:\n%s", someOf(can))
		}
	})
	t.Run("a volume of a manifest", func(t *testing.T) {
		n := nodetest.Shared(t)
		dir := publicDir(t)
		data := filepath.Join(dir, "data")
		berth := commandLine(t, n, data)
		manifest := filepath.Join(dir, "pod.yaml")
		writeFile(t, manifest, []byte(
			fmt.Sprintf("apiVersion: v1\nkind: Pod\nmetadata: {name: suid}\nspec:\n  volumes: [{name: v, emptyDir: {}}]\n"+
				"  terminationGracePeriodSeconds: 1\n  initContainers:\n  - {name: i, image: %[1]q, command: "+
				"[sh, -c, 'cp /intruder /v/suid; chmod 6755 /v/suid'], volumeMounts: [{name: v, mountPath: /v}]}\n"+
				"  containers:\n  - {name: c, image: %[1]q, command: [sleep, '3600']}\n", intruderImage(t, n))), 0o600)
		if out, err := berth("run", "-d", manifest); err != nil {
			t.Fatalf("berth run: %v: %s", err, out)
		}
		can := probed(t, 1000, data)
		if out, err := berth("rm", "--force", "suid"); err != nil {
			t.Errorf("berth rm: %v: %s", err, out)
		}
		if len(can) > 0 {
			t.Errorf("a user of the host can:\n%s", someOf(can))
		}
	})
}

// CVE-2024-25621 (containerd): directories of the runtime's own were made with modes by which all users of the host
// could read what containers keep there, or reach it.
//
// The root directory is for root alone. In the state directory, where clients find their sockets, no directory
// that is of a pod or a container may be open to others: the modes of all directories, whatever the umask.
// Seen to succeed on the build whose directories had the mode 0711.
func TestCVE_2024_25621_DirectoriesThatAllCanSearch(t *testing.T) {
	underEach(t, func(t *testing.T, n *node.Node, s setup) {
		c := s.pod(t, n).Run()
		top, err := os.Stat(n.Root)
		if err != nil {
			t.Fatal(err)
		}
		if top.Mode().Perm() != 0o700 {
			t.Errorf("%s has the mode %o", n.Root, top.Mode().Perm())
		}
		for _, dir := range []string{n.Root, n.State} {
			err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
				if err != nil || !d.IsDir() {
					return nil // another container's, which has just gone
				}
				info, err := d.Info()
				if err != nil {
					return nil
				}
				if info.Mode().Perm()&0o007 == 0 {
					return filepath.SkipDir
				}
				if name := d.Name(); name == c.ID || name == c.Pod.ID {
					t.Errorf("%s has the mode %o, and all can reach it", path, info.Mode().Perm())
				}
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
		}
	})
}

// CVE-2021-21284 (Docker): root of a user namespace, as a user of the host, could write to files that the daemon keeps
// for its containers, and so have the daemon do anything.
//
// Seen to fail with spec.json owned by the mapped root, in pod/container_create.go.
func TestCVE_2021_21284_MappedRootWritesTheRuntimesFiles(t *testing.T) {
	n := nodetest.Shared(t)
	c := setups[1].pod(t, n).Run(withImage(hostile(t, n, rt.Volumes("/declared"))))
	own := filepath.Join(n.Root, "containers", c.ID)
	roots := rootsOf(t, c)
	var more []string
	for _, line := range probed(t, mappedRoot, n.Root, n.State) {
		what, path, _ := strings.Cut(line, " ")
		ofContainer := strings.HasPrefix(path, own+"/upper") || strings.HasPrefix(path, own+"/volumes/") ||
			slices.ContainsFunc(roots, func(root string) bool { return path == root || strings.HasPrefix(path, root+"/") })
		if what != "READ" && what != "LISTED" && !ofContainer && !ofPod(path, c.Pod) {
			more = append(more, line)
		}
	}
	if len(more) > 0 {
		t.Errorf("the mapped root can, on the host:\n%s", someOf(more))
	}
	// Nor can it come to what is of other pods.
	other := nodetest.RunPod(t, n).Run()
	other.Sh("echo secret >/root/secret; chmod 644 /root/secret")
	if can := probed(t, mappedRoot, filepath.Join(n.Root, "containers", other.ID)); len(can) > 0 {
		t.Errorf("the root of another pod can:\n%s", someOf(can))
	}
}

// ofPod: the files that a pod's containers share are theirs to write to.
func ofPod(path string, p *nodetest.Pod) bool {
	switch filepath.Base(path) {
	case "hosts", "hostname", "resolv.conf", "shm":
		return strings.Contains(path, "/"+p.ID+"/")
	}
	return false
}

// CVE-2025-0750 (CRI-O): the path of a container's log led out of the pod's directory of logs, where files of the host
// were linked and unmounted.
//
// Seen to fail with the check of log_path taken out of cri/v1/container_config.go.
func TestCVE_2025_0750_TheLogLeadsElsewhere(t *testing.T) {
	n := nodetest.Shared(t)
	b := newBait(t)
	p := nodetest.RunPod(t, n)
	for _, path := range []string{up + b.path + "/new.log", up + b.path + "/secret",
		"../../new.log", "..", "a/../../../x", b.path + "/new.log", b.path + "/secret"} {
		c, err := p.TryCreate(func(c *cri.ContainerConfig) { c.LogPath = path }, nodetest.Sh("echo evil"))
		if err == nil {
			err = c.TryStart()
		}
		if err != nil {
			nodetest.WantCode(t, err, codes.InvalidArgument)
		} else {
			c.WaitExit()
			_, _ = n.Runtime.ReopenContainerLog(nodetest.Context(t), &cri.ReopenContainerLogRequest{ContainerId: c.ID})
		}
		if c != nil {
			_, _ = n.Runtime.RemoveContainer(nodetest.Context(t), &cri.RemoveContainerRequest{ContainerId: c.ID})
		}
		b.check(t)
	}
	// A link in the directory of logs, where a file of a container's should be.
	if err := os.MkdirAll(p.Config.LogDirectory, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, target := range map[string]string{"linked.log": b.path + "/secret", "dangling.log": b.path + "/new"} {
		if err := os.Symlink(target, filepath.Join(p.Config.LogDirectory, name)); err != nil {
			t.Fatal(err)
		}
		c, err := p.TryCreate(func(c *cri.ContainerConfig) { c.LogPath = name }, nodetest.Sh("echo evil"))
		if err == nil && c.TryStart() == nil {
			c.WaitExit()
		}
		b.check(t)
	}
}

// commandLine runs the program berth with a directory of data of its own.
func commandLine(t *testing.T, n *node.Node, data string) func(args ...string) (string, error) {
	t.Helper()
	binaries, err := node.Binaries(nodetest.Context(t))
	if err != nil {
		t.Fatal(err)
	}
	return func(args ...string) (string, error) {
		args = append([]string{"--address", n.Address, "--data-dir", data}, args...)
		out, err := exec.CommandContext(nodetest.Context(t), filepath.Join(binaries, "berth"), args...).CombinedOutput()
		return string(out), err
	}
}

// CVE-2025-9566 (podman kube play): a container exchanged what a volume mounts from for a link to the host,
// and the next part of the pod that was set up wrote to, or had, the host's file. CVE-2021-25741 and CVE-2017-1002101
// are the same of Kubernetes' subPath.
//
// `berth run` stands in for a kubelet here. Seen to fail with the joined path in place of the pinned one, in pinSubPath
// of cli/poddir/dir.go.
func TestCVE_2025_9566_AManifestsSubPathIsExchanged(t *testing.T) {
	n := nodetest.Shared(t)
	dir := t.TempDir()
	berth := commandLine(t, n, filepath.Join(dir, "data"))
	b := newBait(t)
	image := intruderImage(t, n)
	again(t, func(i int) {
		var m strings.Builder
		fmt.Fprintf(&m, "apiVersion: v1\nkind: Pod\nmetadata: {name: attack%d}\nspec:\n  restartPolicy: Never\n"+
			"  terminationGracePeriodSeconds: 1\n", i)
		fmt.Fprintf(&m, "  volumes:\n  - {name: v, emptyDir: {}}\n  initContainers:\n  - name: links\n    image: %s\n", image)
		// inside the volume the link leads to a directory too
		fmt.Fprintf(&m, "    command: [sh, -c, 'mkdir -p /v/d/dir /v%[1]s/dir; ln -s %[1]s /v/l']\n", b.path)
		fmt.Fprintf(&m, "    volumeMounts: [{name: v, mountPath: /v}]\n  containers:\n  - name: racer\n    image: %s\n",
			image)
		fmt.Fprintf(&m, "    command: [/intruder, exchange, /v/d, /v/l]\n    volumeMounts: [{name: v, mountPath: /v}]\n")
		for j, sub := range []string{"d", "d/dir", "l", "l/dir"} {
			fmt.Fprintf(&m, "  - name: victim%d\n    image: %s\n    command: [sh, -c, 'cat /m/secret /m; touch /m/new; :']\n",
				j, image)
			fmt.Fprintf(&m, "    volumeMounts: [{name: v, mountPath: /m, subPath: %s}]\n", sub)
		}
		file := filepath.Join(dir, fmt.Sprintf("attack%d.yaml", i))
		writeFile(t, file, []byte(m.String()), 0o600)
		out, err := berth("run", "-d", file)
		b.check(t)
		for j := range 4 {
			log, _ := berth("logs", fmt.Sprintf("attack%d/victim%d", i, j))
			b.unread(t, "a container of the manifest", log)
		}
		b.unread(t, "the command line", out)
		if err != nil {
			t.Logf("refused: %s", out)
		}
		if out, err := berth("rm", "--force", fmt.Sprintf("attack%d", i)); err != nil &&
			!strings.Contains(out, "there is no pod") {
			t.Errorf("remove the pod: %v: %s", err, out)
		}
		b.check(t)
	})
}
