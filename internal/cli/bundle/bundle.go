// Package bundle packs what a bug report needs into an archive: what doctor finds, logs, the configuration, states and
// timelines of pods and containers, goroutines, and facts of the kernel. It leaves out what the owners of pods have
// written: values of environment variables, annotations, labels, commands, credentials and output.
package bundle

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/pelletier/go-toml/v2"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/cli/connection"
	"berth/internal/cli/findings"
	"berth/internal/cli/table"
	"berth/internal/config"
	"berth/internal/doctor"
)

const (
	// partWait bounds how long one part of a bundle may take: it is made where something hangs.
	partWait = 30 * time.Second
	// maxLog is how much of each log a bundle has, from its end, in bytes.
	maxLog = 16 << 20
)

// Write writes the archive, a packed tar, of the berthd at a socket. version is that of the command that writes.
// missing are the parts that could not be had, with the reasons.
func Write(ctx context.Context, version, socket string, out io.Writer) (missing []string, err error) {
	packed := gzip.NewWriter(out)
	archive := tar.NewWriter(packed)
	daemon := findings.AskDaemon(ctx, socket)
	cfg := doctor.Config{
		Version: version, Socket: socket, Root: "/var/lib/berth", State: "/run/berth",
		CNI:               doctor.CNI{CNIConfDir: "/etc/cni/net.d"},
		ContainerdVersion: connection.ContainerdVersion, Daemon: daemon,
	}
	state := cfg.State
	if daemon != nil {
		state = daemon.State
	}
	configuration := sync.OnceValues(func() ([]byte, error) { return dumpConfiguration(ctx, daemon) })
	debug := func(ctx context.Context, page string) ([]byte, error) {
		dump, _ := configuration() // if there is none, the socket is looked for where it is by default
		socket, err := debugSocket(dump, state)
		if err != nil {
			return nil, err
		}
		return ask(ctx, socket, page)
	}
	for _, part := range []struct {
		name string
		make func(context.Context) ([]byte, error)
	}{
		{"versions.json", func(context.Context) ([]byte, error) {
			return indented(map[string]any{"berth": version, "daemon": daemon})
		}},
		{"doctor.json", func(ctx context.Context) ([]byte, error) {
			found := doctor.Examine(ctx, cfg)
			for i := range found { // of a configuration that is wrong they have the words
				f := &found[i]
				f.Detail, f.Advice = hideVariables(f.Detail), hideVariables(f.Advice)
			}
			return indented(found)
		}},
		{"configuration.toml", func(context.Context) ([]byte, error) {
			dump, err := configuration()
			return withoutSecrets(dump), err
		}},
		{"pods.json", func(ctx context.Context) ([]byte, error) { return podStates(ctx, socket) }},
		{"containers.json", func(ctx context.Context) ([]byte, error) { return containerStates(ctx, socket) }},
		{"health.txt", func(ctx context.Context) ([]byte, error) { return debug(ctx, "/healthz") }},
		{"state.json", func(ctx context.Context) ([]byte, error) { return debug(ctx, "/state") }},
		{"goroutines.txt", func(ctx context.Context) ([]byte, error) { return debug(ctx, "/debug/goroutines") }},
		{"journal.txt", journal},
		{"keeper.log", func(context.Context) ([]byte, error) { return tail(filepath.Join(state, "keeper", "keeper.log")) }},
		{"kernel.txt", func(context.Context) ([]byte, error) { return kernelFacts(), nil }},
	} {
		partCtx, cancel := context.WithTimeout(ctx, partWait)
		data, err := part.make(partCtx)
		cancel()
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if err != nil {
			missing = append(missing, fmt.Sprintf("%s: %v", part.name, err))
			continue
		}
		if err := pack(archive, part.name, data); err != nil {
			return nil, err
		}
	}
	if len(missing) > 0 {
		if err := pack(archive, "missing.txt", []byte(strings.Join(missing, "\n")+"\n")); err != nil {
			return nil, err
		}
	}
	return missing, errors.Join(archive.Close(), packed.Close())
}

// dumpConfiguration has the daemon's own program print the configuration that it was started with.
func dumpConfiguration(ctx context.Context, daemon *doctor.Daemon) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, partWait)
	defer cancel()
	dump, err := daemon.Command(ctx, "config", "dump")
	if err != nil {
		return nil, err
	}
	return dump.Output()
}

// debugSocket is the path of the daemon's debug socket, as its configuration has it. state is the directory of that
// key.
func debugSocket(dump []byte, state string) (string, error) {
	cfg := config.Config{State: state}
	var written struct{ Debug config.Debug }
	if err := toml.Unmarshal(dump, &written); err != nil {
		return "", fmt.Errorf("the daemon's configuration: %w", err)
	}
	cfg.Debug = written.Debug
	if address := cfg.DebugAddress(); address != "" {
		return address, nil
	}
	return "", fmt.Errorf("debug.address is %q, so berthd has no debug socket", config.NoDebug)
}

func pack(archive *tar.Writer, name string, data []byte) error {
	err := archive.WriteHeader(&tar.Header{
		Name: "berth-bundle/" + name, Mode: 0o600, Size: int64(len(data)), ModTime: time.Now(),
	})
	if err != nil {
		return err
	}
	_, err = archive.Write(data)
	return err
}

func indented(v any) ([]byte, error) { return json.MarshalIndent(v, "", "  ") }

var (
	variable = regexp.MustCompile(`"((?:[^"=\\]|\\.)+)=(?:[^"\\]|\\.)*"`)
	userInfo = regexp.MustCompile(`://[^/"@]*@`)
)

// withoutSecrets takes the values of variables, and credentials in addresses, out of a configuration.
func withoutSecrets(dump []byte) []byte {
	var out strings.Builder
	for line := range strings.Lines(hideVariables(string(dump))) {
		out.WriteString(userInfo.ReplaceAllString(line, "://(left out)@"))
	}
	return []byte(out.String())
}

// hideVariables takes values out of lines about variables.
func hideVariables(text string) string {
	var out strings.Builder
	for line := range strings.Lines(text) {
		if strings.Contains(line, "default_env") {
			line = variable.ReplaceAllString(line, `"$1=(left out)"`)
		}
		out.WriteString(line)
	}
	return out.String()
}

// What a bundle has of a pod's and a container's verbose status: nothing that its owner has written.
var (
	podFacts = []string{
		"pid", "initSetup", "phase", "runtimeHandler", "cgroupParent", "cgroup", "ownsCgroup", "limits", "namespaces", "ips",
		"interface", "directory", "stateDirectory", "timings",
	}
	containerFacts = []string{
		"pid", "phase", "removing", "cgroup", "directory", "rootfs", "logPath", "resources", "stopSignal", "imageID",
		"diskQuotas", "runtimeHandler", "setup", "timings", "namespaces",
	}
)

// facts are those of an info that have these keys.
func facts(info map[string]string, keys []string) map[string]any {
	var all map[string]any
	if err := table.Decode([]byte(info["info"]), &all); err != nil {
		return map[string]any{"error": err.Error()}
	}
	out := map[string]any{}
	for _, key := range keys {
		if value, ok := all[key]; ok {
			out[key] = value
		}
	}
	return out
}

func podStates(ctx context.Context, socket string) ([]byte, error) {
	conn, err := connection.Dial(ctx, socket)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	list, err := conn.Runtime.ListPodSandbox(ctx, &cri.ListPodSandboxRequest{})
	if err != nil {
		return nil, connection.Plain(err)
	}
	states := []any{}
	for _, p := range list.Items {
		one := map[string]any{
			"id": p.Id, "namespace": p.GetMetadata().GetNamespace(), "name": p.GetMetadata().GetName(),
			"attempt": p.GetMetadata().GetAttempt(), "state": p.State.String(), "createdAt": time.Unix(0, p.CreatedAt),
		}
		status, err := conn.Runtime.PodSandboxStatus(ctx, &cri.PodSandboxStatusRequest{PodSandboxId: p.Id, Verbose: true})
		if err != nil {
			one["error"] = connection.Plain(err).Error()
		} else {
			one["facts"] = facts(status.Info, podFacts)
		}
		states = append(states, one)
	}
	return indented(states)
}

func containerStates(ctx context.Context, socket string) ([]byte, error) {
	conn, err := connection.Dial(ctx, socket)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	list, err := conn.Runtime.ListContainers(ctx, &cri.ListContainersRequest{})
	if err != nil {
		return nil, connection.Plain(err)
	}
	states := []any{}
	for _, c := range list.Containers {
		one := map[string]any{
			"id": c.Id, "pod": c.PodSandboxId, "name": c.GetMetadata().GetName(), "attempt": c.GetMetadata().GetAttempt(),
			"state": c.State.String(), "image": c.GetImage().GetImage(), "createdAt": time.Unix(0, c.CreatedAt),
		}
		response, err := conn.Runtime.ContainerStatus(ctx, &cri.ContainerStatusRequest{ContainerId: c.Id, Verbose: true})
		if err != nil {
			one["error"] = connection.Plain(err).Error()
		} else {
			s := response.GetStatus()
			one["startedAt"], one["finishedAt"] = time.Unix(0, s.GetStartedAt()), time.Unix(0, s.GetFinishedAt())
			one["exitCode"], one["reason"] = s.GetExitCode(), s.GetReason()
			one["facts"] = facts(response.Info, containerFacts)
		}
		states = append(states, one)
	}
	return indented(states)
}

// ask gets a page of the daemon's debug socket, whatever its status.
func ask(ctx context.Context, socket, page string) ([]byte, error) {
	client := &http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", socket)
		},
	}}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://berthd"+page, nil)
	if err != nil {
		return nil, err
	}
	response, err := client.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	return io.ReadAll(io.LimitReader(response.Body, 4*maxLog))
}

// journal is what systemd has of the daemon and the keeper.
func journal(ctx context.Context) ([]byte, error) {
	if _, err := os.Stat("/run/systemd/system"); err != nil {
		return nil, errors.New("systemd does not run here; add what berthd has written to its standard error")
	}
	out, err := exec.CommandContext(ctx, "journalctl", "--no-pager", "--output=short-precise", "--lines=50000",
		"--unit=berthd", "--unit=berth-keeper").Output()
	return out[max(0, len(out)-maxLog):], err
}

// tail is the end of a file.
func tail(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if _, err := f.Seek(max(0, info.Size()-maxLog), io.SeekStart); err != nil {
		return nil, err
	}
	return io.ReadAll(io.LimitReader(f, maxLog))
}

// kernelFacts are those of the kernel, of memory and of cgroups. Of the kernel's command line there are the words about
// cgroups alone.
func kernelFacts() []byte {
	var out bytes.Buffer
	for _, path := range []string{
		"/etc/os-release", "/proc/version", "/proc/uptime", "/proc/loadavg", "/proc/meminfo", "/proc/filesystems",
		"/proc/cgroups", "/proc/self/cgroup", "/sys/fs/cgroup/cgroup.controllers", "/sys/fs/cgroup/cgroup.subtree_control",
		"/proc/pressure/cpu", "/proc/pressure/memory", "/proc/pressure/io", "/proc/sys/kernel/pid_max",
		"/proc/sys/kernel/threads-max", "/proc/sys/fs/file-nr", "/proc/sys/fs/inotify/max_user_instances",
		"/proc/sys/fs/inotify/max_user_watches", "/proc/sys/net/ipv4/ip_forward", "/sys/kernel/security/lsm",
	} {
		data, err := os.ReadFile(path)
		if err != nil {
			fmt.Fprintf(&out, "== %s\n%v\n", path, err)
			continue
		}
		fmt.Fprintf(&out, "== %s\n%s\n", path, bytes.TrimRight(data, "\n"))
	}
	if data, err := os.ReadFile("/proc/cmdline"); err == nil {
		fmt.Fprintln(&out, "== of /proc/cmdline")
		for word := range strings.FieldsSeq(string(data)) {
			if strings.Contains(word, "cgroup") {
				fmt.Fprintln(&out, word)
			}
		}
	}
	if data, err := os.ReadFile("/proc/self/mounts"); err == nil {
		fmt.Fprintln(&out, "== of /proc/self/mounts")
		mounts := 0
		for line := range strings.Lines(string(data)) {
			mounts++
			if fields := strings.Fields(line); len(fields) > 2 && strings.HasPrefix(fields[2], "cgroup") {
				out.WriteString(line)
			}
		}
		fmt.Fprintf(&out, "and others, together %d\n", mounts)
	}
	return out.Bytes()
}
