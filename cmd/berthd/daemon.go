package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"google.golang.org/grpc"

	"berth/internal/config"
	"berth/internal/cri"
	"berth/internal/cri/berthv1"
	"berth/internal/cri/request"
	criv1 "berth/internal/cri/v1"
	criv1alpha1 "berth/internal/cri/v1alpha1"
	"berth/internal/cri/v1alpha2"
	"berth/internal/device/manager"
	"berth/internal/image"
	"berth/internal/image/registry"
	"berth/internal/jail"
	keeper "berth/internal/keeper/client"
	"berth/internal/liblog"
	"berth/internal/network"
	"berth/internal/ocispec"
	"berth/internal/pod"
	"berth/internal/state"
	"berth/internal/stream"
)

// run is the daemon's life: it makes the parts in the order in which they need each other, serves until ctx ends, and ends
// the parts in the reverse order. Pods live on.
func run(ctx context.Context, cfg *config.Config) (err error) {
	log, err := newLogger(cfg)
	if err != nil {
		return err
	}
	stream.LogLibraries(log)
	liblog.Logrus(log)
	var closers []func() error
	defer func() {
		for i := len(closers) - 1; i >= 0; i-- {
			err = errors.Join(err, closers[i]())
		}
	}()
	begin := time.Now()
	protect(cfg, log)

	unlock, err := state.Lock(cfg.Root)
	if err != nil {
		return err
	}
	closers = append(closers, func() error { unlock(); return nil })

	systemd := systemdCgroups(cfg)
	release, err := claimCgroups(ctx, cfg, systemd, log)
	if err != nil {
		return err
	}
	closers = append(closers, release)

	stopSpans, err := sendSpans(ctx, cfg, log)
	if err != nil {
		return err
	}
	closers = append(closers, stopSpans)

	children, err := openJail(ctx, cfg)
	if err != nil {
		return err
	}
	closers = append(closers, children.Close)

	images, err := image.Open(ctx, image.Config{
		Jail:                   children,
		Root:                   filepath.Join(cfg.Root, "images"),
		HostsDir:               cfg.HostsDir,
		MaxConcurrentDownloads: cfg.Image.MaxConcurrentDownloads,
		PinnedImages:           cfg.Image.Pinned,
		Platform:               cfg.Image.Platform,
		Retry:                  registry.Retry{Attempts: cfg.Image.Retries, Stall: time.Duration(cfg.Image.Timeout)},
		Limits:                 imageLimits(&cfg.Image),
		UserAgent:              "berth/" + version,
		Logger:                 log,
	})
	if err != nil {
		return fmt.Errorf("open the image store: %w", err)
	}
	closers = append(closers, images.Close)

	net, err := network.New(network.Config{
		CNIConfDir:  cfg.Network.CNIConfDir,
		CNIBinDirs:  cfg.Network.CNIBinDirs,
		CNICacheDir: filepath.Join(cfg.Root, "cni"),
		StateDir:    filepath.Join(cfg.Root, "network"),
		Bridge:      cfg.Network.Bridge,
		PodCIDRs:    cfg.Network.PodCIDRs(),
		MTU:         cfg.Network.MTU,
		Logger:      log,
	})
	if err != nil {
		return fmt.Errorf("make the pods' network: %w", err)
	}
	closers = append(closers, net.Close)

	binary, err := keeperBinary(cfg)
	if err != nil {
		return err
	}
	kpr, err := keeper.Connect(ctx, keeper.Config{
		Dir:    filepath.Join(cfg.State, "keeper"),
		Binary: binary,
		Await:  binary == "",
		Args:   []string{"--log-level=" + cfg.LogLevel},
		Logger: log,
	})
	if err != nil {
		return fmt.Errorf("reach the keeper: %w", err)
	}
	closers = append(closers, kpr.Close)

	devices, err := deviceManager(cfg, log)
	if err != nil {
		return err
	}
	if devices != nil {
		closers = append(closers, devices.Close)
	}

	info, err := kpr.Info(ctx)
	if err != nil {
		return fmt.Errorf("reach the keeper: %w", err)
	}
	bounding, err := ocispec.Bounding(info.PID)
	if err != nil {
		return fmt.Errorf("what the keeper can give to containers: %w", err)
	}
	known, err := handlers(cfg, bounding)
	if err != nil {
		return err
	}
	warnOfOldKeeper(info, known, log)
	domain := pod.Config{
		Root:          cfg.Root,
		State:         cfg.State,
		CgroupRoot:    cgroupRoot(cfg, systemd),
		SystemdCgroup: systemd,
		Handlers:      known,
		Default:       cfg.DefaultRuntime,
		Keeper:        kpr,
		Images:        images,
		Network:       net,
		CRIU:          cfg.Checkpoint.CRIU,
		RestoreImages: cfg.Checkpoint.RestoreImages,
		Jail:          children, CheckpointBytes: imageLimits(&cfg.Image).Layer.Bytes,
		AttachBacklog: cfg.Stream.AttachBacklogBytes(),
		AttachTotal:   cfg.Stream.AttachBacklogTotalBytes(),
		Log:           log,
	}
	if devices != nil {
		domain.Devices = devices
	}
	pods, err := pod.New(ctx, domain)
	if err != nil {
		return err
	}
	closers = append(closers, pods.Close)
	if devices != nil {
		// Only now it knows which devices are held.
		if err := devices.Serve(); err != nil {
			return fmt.Errorf("device_plugins: %w", err)
		}
	}

	streams, err := newStreams(cfg, pods, log)
	if err != nil {
		return err
	}
	closers = append(closers, func() error {
		end, cancel := context.WithTimeout(context.Background(), time.Duration(cfg.ShutdownTimeout))
		defer cancel()
		return streams.Close(end)
	})

	registerer, closeMetrics, err := serveMetrics(cfg, log)
	if err != nil {
		return err
	}
	closers = append(closers, closeMetrics)

	if devices != nil && registerer != nil {
		if err := registerer.Register(devices); err != nil {
			return err
		}
	}

	server, err := cri.NewServer(cri.ServerConfig{Log: log, Metrics: registerer, Names: fieldNames()})
	if err != nil {
		return err
	}
	deps := criv1.Deps{
		Runtime: pods,
		Images:  images,
		Streams: streams,
		Version: version,
		Info: func(ctx context.Context) map[string]any {
			info := map[string]any{"config": cfg, "streaming": streams.Address()}
			if k, err := kpr.Info(ctx); err == nil {
				info["keeper"] = k
			}
			return info
		},
		Log: log,
	}
	criv1.Register(server, deps)
	v1alpha2.Register(server, deps, pods, pods)
	criv1alpha1.Register(server, criv1alpha1.Deps{Runtime: pods, Images: images, Version: version})
	own := berthv1.Deps{Images: images, Volumes: pods}
	if devices != nil {
		own.Devices = devices
	}
	berthv1.Register(server, own)

	gid, err := cfg.SocketGID()
	if err != nil {
		return err
	}
	listener, err := cri.Listen(cfg.Address, gid)
	if err != nil {
		return err
	}
	served := make(chan error, 1)
	go func() { served <- cri.Serve(server, listener, cfg.Address, gid, log) }()
	log.Info("berthd is ready", "version", version, "address", cfg.Address, "root", cfg.Root,
		"cgroup_driver", pods.CgroupDriver(), "took", time.Since(begin).Round(time.Millisecond).String())
	_, _ = daemon.SdNotify(false, daemon.SdNotifyReady)

	select {
	case err := <-served:
		return fmt.Errorf("serve %s: %w", cfg.Address, err)
	case <-ctx.Done():
	}
	_, _ = daemon.SdNotify(false, daemon.SdNotifyStopping)
	log.Info("berthd ends; pods live on")
	stop(server, time.Duration(cfg.ShutdownTimeout))
	return nil
}

// fieldNames are what each API calls fields of the model in its errors, by gRPC service.
func fieldNames() map[string]request.Names {
	return map[string]request.Names{
		criv1.Service:       criv1.FieldNames(),
		v1alpha2.Service:    v1alpha2.FieldNames(),
		criv1alpha1.Service: criv1alpha1.FieldNames(),
	}
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

// stop lets calls that are under way end, for a time.
func stop(server *grpc.Server, patience time.Duration) {
	timer := time.AfterFunc(patience, server.Stop)
	defer timer.Stop()
	server.GracefulStop()
}

func newStreams(cfg *config.Config, pods *pod.Manager, log *slog.Logger) (*stream.Server, error) {
	sc := stream.Config{
		Runtime:     pods,
		Address:     cfg.Stream.HostPort(),
		IdleTimeout: time.Duration(cfg.Stream.IdleTimeout),
		Log:         log,
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

// serveMetrics serves Prometheus metrics where the configuration says so. Without, nothing is measured.
func serveMetrics(cfg *config.Config, log *slog.Logger) (prometheus.Registerer, func() error, error) {
	if cfg.Metrics.Address == "" {
		return nil, func() error { return nil }, nil
	}
	listener, err := net.Listen("tcp", cfg.Metrics.Address)
	if err != nil {
		return nil, nil, fmt.Errorf("metrics.address: %w", err)
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	mux := http.NewServeMux()
	mux.Handle("/metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			log.Error("serve metrics", "error", err)
		}
	}()
	return registry, func() error { err := server.Close(); <-done; return err }, nil
}

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

// openJail finds the program that parses images and archives. That it can be confined is tried at once: an operator should know before the
// first pull.
func openJail(ctx context.Context, cfg *config.Config) (*jail.Jail, error) {
	path, err := jail.Find()
	if err != nil {
		return nil, err
	}
	j, err := jail.New(path, cfg.Root)
	if err != nil {
		return nil, err
	}
	if err := j.Check(ctx); err != nil {
		return nil, errors.Join(err, j.Close())
	}
	return j, nil
}
