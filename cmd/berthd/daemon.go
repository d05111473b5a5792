package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
	"github.com/opencontainers/selinux/go-selinux"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"berth/internal/config"
	"berth/internal/config/check"
	"berth/internal/connlimit"
	"berth/internal/cri"
	"berth/internal/cri/request"
	criv1 "berth/internal/cri/v1"
	criv1alpha1 "berth/internal/cri/v1alpha1"
	"berth/internal/cri/v1alpha2"
	"berth/internal/device/manager"
	"berth/internal/fdtable"
	"berth/internal/heap"
	"berth/internal/jail"
	"berth/internal/liblog"
	"berth/internal/metrics"
	"berth/internal/pod"
	"berth/internal/stream"
)

// run is the daemon's life: it makes the parts in the order in which they need each other, serves until ctx ends,
// and ends the parts in the reverse order. Pods live on.
func run(ctx context.Context, sources config.Sources, loaded *config.Loaded, signals *signals) (err error) {
	cfg, err := check.WithoutLinks(loaded.Config)
	if err != nil {
		return err
	}
	log, change, err := liblog.Changeable(cfg.LogLevel, cfg.LogFormat)
	if err != nil {
		return fmt.Errorf("log_level: %w", err)
	}
	stream.LogLibraries(log)
	liblog.Logrus(log)
	begin := time.Now()
	started := heap.Starting()
	protect(cfg, log)
	if cfg.SELinux == config.SELinuxOff {
		selinux.SetDisabled() // for all of this process, before the first question
	}
	d := &parts{cfg: cfg, log: log, changeLog: change, sources: sources, begun: begin, opened: make(chan struct{})}
	d.now.Store(loaded)
	defer func() { err = errors.Join(err, d.close()) }()
	context.AfterFunc(ctx, d.boundEnd)
	d.dumpOn(signals.dump)
	go func() { // berthd has all it needs, and opens its first files, meanwhile
		if err := fdtable.Reserve(fdtable.Size); err != nil {
			log.Warn("starts may wait for the table of descriptors to grow", "error", err)
		}
	}()
	for _, open := range []func(context.Context) error{
		d.measure, d.lock, d.enterMounts, d.readAhead, d.takeSockets, d.serveDebug, d.claimCgroups, d.sendSpans, d.openJail,
		d.openImages, d.openNetwork, d.reachKeeper, d.openDevices, d.openPlugins, d.checkJail, d.openPods, d.openStreams,
		d.serveMetrics, d.register, d.makeChecks,
	} {
		if err := open(ctx); err != nil {
			return err
		}
	}
	gid, err := cfg.SocketGID()
	if err != nil {
		return err
	}
	listener, err := cri.Listen(cfg.Address, gid)
	if err != nil {
		return err
	}
	served := make(chan error, 1)
	go func() { served <- cri.Serve(d.server, listener, cfg.Address, gid, log) }()
	log.Info("berthd is ready", "version", version, "address", cfg.Address, "root", cfg.Root,
		"cgroup_driver", d.pods.CgroupDriver(), "took_ms", liblog.Milliseconds(time.Since(begin)))
	second := serveSecond(ctx, d.server, cfg.Containerd, gid, log)
	defer func() {
		d.server.Stop()
		<-second
	}()
	close(d.opened)
	started()
	resting, awake := context.WithCancel(ctx)
	var background sync.WaitGroup
	background.Go(func() { heap.ReturnAtRest(resting) })
	defer background.Wait()
	defer awake()
	d.reloadOn(signals.reload)
	d.preload(ctx)
	_, _ = daemon.SdNotify(false, daemon.SdNotifyReady) // the kubelet starts now, and looks for the second socket once
	endWatch, err := d.watch()
	if err != nil {
		return err
	}

	select {
	case err := <-served:
		return fmt.Errorf("serve %s: %w", cfg.Address, err)
	case <-ctx.Done():
	}
	_, _ = daemon.SdNotify(false, daemon.SdNotifyStopping)
	log.Info("berthd ends; pods live on")
	endWatch() // its checks are calls, which are refused from now on
	d.pods.EndSubscriptions()
	d.audit.EndSubscriptions()
	cri.Stop(d.server, &d.calls, time.Duration(d.now.Load().ShutdownTimeout))
	return nil
}

// fieldNames are what each API calls fields of the model in its errors, by gRPC service, or by service and method.
func fieldNames() map[string]request.Names {
	names := map[string]request.Names{
		criv1.Service:       criv1.FieldNames(),
		v1alpha2.Service:    v1alpha2.FieldNames(),
		criv1alpha1.Service: criv1alpha1.FieldNames(),
	}
	for _, service := range []string{criv1.Service, v1alpha2.Service} { // v1alpha2 has v1's requests
		maps.Copy(names, criv1.MethodNames(service, names[service]))
	}
	return names
}

// deviceManager is what device plugins register with; nil where the configuration has none.
func deviceManager(cfg *config.Config, log *slog.Logger) (*manager.Manager, error) {
	if !cfg.Devices.Enabled {
		return nil, nil
	}
	server, err := cri.NewServer(cri.ServerConfig{Log: log})
	if err != nil {
		return nil, err
	}
	return manager.New(manager.Config{
		Dir:     cfg.Devices.Dir,
		Root:    cfg.Root,
		Timeout: time.Duration(cfg.Devices.Timeout),
		Grace:   manager.Grace,
		Server:  server,
		Log:     log,
	})
}

func newStreams(
	cfg *config.Config, pods *pod.Manager, measured *metrics.Set, log *slog.Logger,
) (*stream.Server, error) {
	sc := stream.Config{
		Runtime:     pods,
		Address:     cfg.Stream.HostPort(),
		IdleTimeout: time.Duration(cfg.Stream.IdleTimeout),
		Avoid:       pods.IsHostPort,
		Log:         log,
		Metrics:     measured,
	}
	if cfg.Stream.TLSCert != "" {
		cert, err := tls.LoadX509KeyPair(cfg.Stream.TLSCert, cfg.Stream.TLSKey)
		if err != nil {
			return nil, fmt.Errorf("stream.tls_cert: %w", err)
		}
		sc.TLS = &tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS12}
	}
	return stream.New(sc)
}

// Who reads metrics does not show who it is: maxScrapers bounds the connections, each of which may have an answer that
// it does not read, and maxScrapes the requests for which metrics are being collected.
const (
	maxScrapers = 256
	maxScrapes  = 16
)

// serveMetrics serves Prometheus metrics until the function is called that it returns.
func serveMetrics(cfg *config.Config, registry prometheus.Gatherer, log *slog.Logger) (end func() error, err error) {
	listener, err := net.Listen("tcp", cfg.Metrics.Address)
	if err != nil {
		return nil, fmt.Errorf("metrics.address: %w", err)
	}
	mux := http.NewServeMux()
	mux.Handle("/metrics", whole(promhttp.HandlerFor(registry, promhttp.HandlerOpts{MaxRequestsInFlight: maxScrapes})))
	server := &http.Server{
		Handler:        mux,
		ReadTimeout:    10 * time.Second,
		WriteTimeout:   30 * time.Second,
		IdleTimeout:    5 * time.Minute, // clients that ask once a minute keep their connection
		MaxHeaderBytes: 16 << 10,
		ErrorLog:       slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		limited := connlimit.New(listener.(*net.TCPListener), maxScrapers, log)
		if err := server.Serve(limited); !errors.Is(err, http.ErrServerClosed) {
			log.Error("serve metrics", "error", err)
		}
	}()
	return func() error { err := server.Close(); <-done; return err }, nil
}

// whole has a handler answer into memory, so that a client that reads slowly, or not at all, does not keep the handler
// from others.
func whole(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		a := &answer{w: w}
		h.ServeHTTP(a, req)
		if a.status != 0 {
			w.WriteHeader(a.status)
		}
		_, _ = w.Write(a.body.Bytes()) // the client may have gone
	})
}

// answer is an http.ResponseWriter that keeps status and body. The header is that of w.
type answer struct {
	w      http.ResponseWriter
	status int
	body   bytes.Buffer
}

func (a *answer) Header() http.Header         { return a.w.Header() }
func (a *answer) WriteHeader(status int)      { a.status = status }
func (a *answer) Write(p []byte) (int, error) { return a.body.Write(p) }

// keeperBinary is the configured keeper, or the one beside berthd, or the one in PATH. Empty: berthd starts none.
func keeperBinary(cfg *config.Config) (string, error) {
	const name = "berth-keeper"
	if cfg.KeeperBinary == config.NoKeeper {
		return "", nil
	}
	if cfg.KeeperBinary != "" {
		return cfg.KeeperBinary, nil
	}
	if self, err := os.Executable(); err == nil {
		beside := filepath.Join(filepath.Dir(self), name)
		if _, err := os.Stat(beside); err == nil {
			return beside, nil
		}
	}
	path, err := exec.LookPath(name)
	if err != nil {
		return "", fmt.Errorf("keeper_binary: %s is neither beside berthd nor in PATH", name)
	}
	return filepath.Abs(path)
}

// openJail finds the program that parses images and archives.
func openJail(cfg *config.Config) (*jail.Jail, error) {
	path, err := jail.Find()
	if err != nil {
		return nil, err
	}
	return jail.New(path, cfg.Root)
}
