package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/pprof"
	"os"
	"path/filepath"
	"runtime"
	goroutines "runtime/pprof"
	"slices"
	"strings"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	api "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/disk"
	"berth/internal/health"
	"berth/internal/unixsocket"
)

const (
	// healthzWait is how long a check may take that somebody asks for.
	healthzWait = 5 * time.Second
	// stateWait is how long the state may take, which asks the keeper and what holds locks.
	stateWait = 5 * time.Second
	// maxDumps is how many files of SIGUSR1 are kept.
	maxDumps = 10
)

// makeChecks makes the checks by which berthd knows that it is well: what it does for a kubelet all the time.
func (d *parts) makeChecks(context.Context) error {
	conn, err := grpc.NewClient("unix://"+strings.TrimPrefix(d.cfg.Address, "unix://"),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	d.onClose(conn.Close)
	kubelet := api.NewRuntimeServiceClient(conn)
	// No pod has this label. The list looks at all pods for it and takes the same locks as any list, and its answer is
	// empty: one with all pods would be refused where their labels and annotations are larger than cri.MaxSend.
	none := &api.PodSandboxFilter{LabelSelector: map[string]string{"berth.dev/health-check": rand.Text()}}
	d.checks = health.New(
		health.Check{Name: "list", Run: func(ctx context.Context) error {
			_, err := kubelet.ListPodSandbox(ctx, &api.ListPodSandboxRequest{Filter: none})
			return err
		}},
		health.Check{Name: "keeper", Run: func(ctx context.Context) error {
			_, err := d.keeper.Info(ctx)
			return err
		}},
		health.Check{Name: "record", Run: func(ctx context.Context) error {
			err := d.disk.Write(ctx)
			if disk.Full(err) || disk.Unwritable(err) {
				// It answers. Another berthd would have no more room, and could not even start where nothing can be written.
				return nil
			}
			return err
		}},
	)
	return nil
}

// watch tells systemd that berthd is well, where its unit has a watchdog: four times in the time after which systemd
// ends it, so that a disk that is slow once costs nothing. end ends that.
func (d *parts) watch() (end func(), err error) {
	timeout, err := daemon.SdWatchdogEnabled(false)
	if err != nil || timeout == 0 {
		return func() {}, err
	}
	return d.background(func(ctx context.Context) {
		d.checks.Watch(ctx, timeout/4, func() { _, _ = daemon.SdNotify(false, daemon.SdNotifyWatchdog) }, d.log)
	}), nil
}

// endPatience is how long an end may take beside the two times that shutdown_timeout allows for.
const endPatience = time.Minute

// boundEnd ends this process if it does not end by itself, because a disk does not answer for example. Its unit has no
// limit, and the watchdog does not count any more. The next berthd goes on as after a kill.
func (d *parts) boundEnd() {
	each := time.Duration(d.now.Load().ShutdownTimeout)
	wait := 2*each + endPatience
	if wait < each { // a time that does not end
		return
	}
	time.AfterFunc(wait, func() {
		d.log.Error("berthd does not end by itself, and is ended; what it waits for is in the standard error output",
			"limit", wait.String())
		writeGoroutines(os.Stderr)
		os.Exit(1)
	})
}

// serveDebug serves what berthd tells of itself, from before it has anything else, since a start may hang too.
func (d *parts) serveDebug(context.Context) error {
	address := d.cfg.DebugAddress()
	if address == "" {
		return nil
	}
	listener, err := unixsocket.Listen(address, -1)
	if err != nil {
		return fmt.Errorf("debug.address: %w", err)
	}
	if err := os.Chmod(address, 0o600); err != nil {
		listener.Close()
		return fmt.Errorf("debug.address: %w", err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", d.serveHealth)
	mux.HandleFunc("GET /state", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(d.state(r.Context()))
	})
	mux.HandleFunc("GET /debug/goroutines", func(w http.ResponseWriter, _ *http.Request) { writeGoroutines(w) })
	mux.HandleFunc("/debug/pprof/", pprof.Index)
	mux.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
	mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			d.log.Error("serve the debug socket", "error", err)
		}
	}()
	d.onClose(func() error { err := server.Close(); <-done; return err })
	return nil
}

// serveHealth runs the checks, and says which have passed.
func (d *parts) serveHealth(w http.ResponseWriter, r *http.Request) {
	select {
	case <-d.opened:
	default:
		http.Error(w, "berthd is starting", http.StatusServiceUnavailable)
		return
	}
	results := d.checks.Run(r.Context(), healthzWait)
	if len(health.Failed(results)) > 0 {
		w.WriteHeader(http.StatusServiceUnavailable)
	}
	for _, result := range results {
		if result.Err != nil {
			fmt.Fprintf(w, "failed %s: %v\n", result.Check, result.Err)
		} else {
			fmt.Fprintf(w, "ok %s\n", result.Check)
		}
	}
}

func writeGoroutines(w io.Writer) {
	_ = goroutines.Lookup("goroutine").WriteTo(w, 2) // the stack of each, with how long it waits
}

// state is what berthd knows of itself, as JSON. What does not answer is left out, with the reason.
func (d *parts) state(ctx context.Context) []byte {
	var memory runtime.MemStats
	runtime.ReadMemStats(&memory)
	out := map[string]any{
		"version": version, "pid": os.Getpid(), "startedAt": d.begun, "at": time.Now(),
		"configurationFiles": d.now.Load().Files, "goroutines": runtime.NumGoroutine(), "heapBytes": memory.HeapAlloc,
	}
	ctx, cancel := context.WithTimeout(ctx, stateWait)
	defer cancel()
	type entry struct {
		key   string
		value any
	}
	parts := map[string]func() (any, error){
		"pods":       func() (any, error) { return d.pods.CountSandboxes(), nil },
		"containers": func() (any, error) { return d.pods.CountContainers(), nil },
		"images":     func() (any, error) { return d.images.Numbers(ctx), nil },
		"keeper":     func() (any, error) { return d.keeper.Info(ctx) },
		"conditions": func() (any, error) { return d.pods.Conditions(ctx), nil },
	}
	select {
	case <-d.opened:
	default:
		out["starting"] = true
		parts = nil
	}
	answers := make(chan entry, len(parts)) // one that comes too late goes nowhere
	for key, ask := range parts {
		out[key] = "there is no answer"
		go func() {
			value, err := ask()
			if err != nil {
				value = err.Error()
			}
			answers <- entry{key, value}
		}()
	}
	for range parts {
		select {
		case e := <-answers:
			out[e.key] = e.value
			continue
		case <-ctx.Done():
		}
		break
	}
	data, err := json.MarshalIndent(out, "", "  ")
	if err != nil {
		data = []byte(err.Error())
	}
	return append(data, '\n')
}

func (d *parts) dumpOn(signals <-chan os.Signal) { d.on(signals, d.dump) }

// dump writes goroutines and state into a file, and says which.
func (d *parts) dump(ctx context.Context) {
	var text bytes.Buffer
	writeGoroutines(&text) // as they are when the signal comes
	path, err := writeDump(filepath.Join(d.cfg.State, "dumps"), append(append(d.state(ctx), '\n'), text.Bytes()...))
	if err != nil {
		d.log.Error("goroutines and state cannot be written", "error", err)
		return
	}
	d.log.Info("goroutines and state are written", "file", path)
}

// writeDump writes a new file into a directory, and removes the oldest of more than maxDumps.
func writeDump(dir string, data []byte) (path string, err error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", err
	}
	path = filepath.Join(dir, "berthd-"+time.Now().UTC().Format("20060102T150405.000000000Z")+".txt")
	if err := os.WriteFile(path, data, 0o600); err != nil {
		return "", errors.Join(err, os.Remove(path))
	}
	old, err := filepath.Glob(filepath.Join(dir, "berthd-*.txt"))
	if err != nil {
		return "", err
	}
	slices.Sort(old)
	for _, file := range old[:max(0, len(old)-maxDumps)] {
		if err := os.Remove(file); err != nil {
			return "", err
		}
	}
	return path, nil
}
