package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/blockio"
	"berth/internal/config"
	"berth/internal/config/check"
	"berth/internal/image"
	"berth/internal/image/ranges"
	"berth/internal/image/registry"
	"berth/internal/liblog"
	"berth/internal/ocispec"
	"berth/internal/pod"
)

// signals are those that do not end berthd. A signal that comes several times while berthd acts on it makes berthd act
// once more.
type signals struct {
	reload <-chan os.Signal // SIGHUP
	dump   <-chan os.Signal // SIGUSR1
}

// catchSignals keeps these signals until berthd is ready to act on them. By default they would end the process.
func catchSignals() *signals {
	catch := func(s os.Signal) <-chan os.Signal {
		c := make(chan os.Signal, 1)
		signal.Notify(c, s)
		return c
	}
	return &signals{reload: catch(unix.SIGHUP), dump: catch(unix.SIGUSR1)}
}

// on calls fn for each signal until the daemon ends.
func (d *parts) on(signals <-chan os.Signal, fn func(context.Context)) {
	d.background(func(ctx context.Context) {
		for {
			select {
			case <-ctx.Done():
				return
			case <-signals:
				fn(ctx)
			}
		}
	})
}

// background runs fn until the daemon ends, or until end is called.
func (d *parts) background(fn func(context.Context)) (end func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		fn(ctx)
	}()
	end = func() { cancel(); <-done }
	d.onClose(func() error { end(); return nil })
	return end
}

func (d *parts) reloadOn(signals <-chan os.Signal) { d.on(signals, d.reload) }

// reload reads the configuration anew, and takes what of it a running daemon can take. Of one that is wrong it takes
// nothing. What is wrong on the node with a key that has not changed was so before, and is only a warning. The audit
// log is opened anew in any case, since it was perhaps renamed.
func (d *parts) reload(ctx context.Context) {
	begin := time.Now()
	if reopen, err := d.audit.Reopen(d.now.Load().Audit.File); err != nil {
		d.log.Error("the audit log is not opened anew", "error", err)
	} else {
		reopen()
	}
	next, err := config.Load(d.sources)
	if err == nil {
		var known error
		if err, known = d.now.Load().Sort(next, check.Node(next.Config)); known != nil {
			d.log.Warn("the configuration has keys that cannot work on this node, as before the reload", "error", known)
		}
	}
	if err != nil {
		d.log.Error("the configuration is not reloaded: what was in force stays so", "error", err)
		return
	}
	merged, changed, restart := d.now.Load().Merge(next)
	if err := d.apply(ctx, merged); err != nil {
		d.log.Error("the configuration is not reloaded: what was in force stays so", "error", err)
		return
	}
	d.log.Info("the configuration is reloaded", "changed", changed, "files", next.Files,
		"took_ms", liblog.Milliseconds(time.Since(begin)))
	if len(restart) > 0 {
		d.log.Warn("these keys of the configuration take effect at the next start of berthd", "restart", restart)
	}
}

// apply puts a configuration into force, of which no more than what can be reloaded differs from that in force. An
// error has changed nothing.
func (d *parts) apply(ctx context.Context, next *config.Loaded) error {
	confinement, err := d.loadAppArmor(ctx)
	if err != nil {
		return err
	}
	host, err := ocispec.Detect()
	if err != nil {
		return err
	}
	known, err := handlers(next.Config, host, d.bounding, confinement.DefaultProfile)
	if err != nil {
		return err
	}
	classes, err := blockio.Load(next.BlockIOClasses, d.log)
	if err != nil {
		return fmt.Errorf("block_io_classes_file: %w", err)
	}
	applyImages, err := d.images.Prepare(imageSettings(next.Config))
	if err != nil {
		return err
	}
	reopen, err := d.audit.Reopen(next.Audit.File)
	if err != nil {
		return fmt.Errorf("audit.file: %w", err)
	}
	if err := d.changeLog(next.LogLevel, next.LogFormat); err != nil {
		return fmt.Errorf("log_level: %w", err)
	}
	reopen()
	applyImages()
	d.pods.ApplySettings(podSettings(next.Config, known, classes))
	d.appArmorInfo.Store(confinement)
	d.now.Store(next)
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	if info, err := d.keeper.Info(ctx); err == nil {
		warnOfOldKeeper(info, known, next.Config, d.log)
	}
	return nil
}

// imageSettings are those of the image store.
func imageSettings(cfg *config.Config) image.Settings {
	return image.Settings{
		HostsDir:               cfg.HostsDir,
		MaxConcurrentDownloads: cfg.Image.MaxConcurrentDownloads,
		PinnedImages:           cfg.Image.Pinned,
		Platform:               cfg.Image.Platform,
		Retry:                  registry.Retry{Attempts: cfg.Image.Retries, Stall: time.Duration(cfg.Image.Timeout)},
		Limits:                 imageLimits(&cfg.Image),
		Ranges: ranges.Settings{
			Connections: cfg.Image.ConnectionsPerLayer, PerHost: cfg.Image.ConnectionsPerHost,
			Size: int64(config.Bytes(cfg.Image.RangeSize)), Memory: int64(config.Bytes(cfg.Image.RangeMemory)),
		},
		Credentials:    cfg.Image.Credentials,
		DecryptionKeys: cfg.Image.DecryptionKeysPath,
		Proxies:        proxies(&cfg.Image),
		Verifiers: image.VerifierSettings{
			Dir: cfg.ImageVerifier.BinDir, Max: cfg.ImageVerifier.MaxVerifiers,
			Timeout: time.Duration(cfg.ImageVerifier.PerVerifierTimeout),
		},
	}
}

func proxies(cfg *config.Image) registry.Proxies {
	return registry.Proxies{HTTP: cfg.HTTPProxy, HTTPS: cfg.HTTPSProxy, No: cfg.NoProxy}
}

// podSettings are those of pods, with the runtime handlers that were made of the configuration.
func podSettings(cfg *config.Config, known map[string]pod.Handler, classes *blockio.Classes) pod.Settings {
	return pod.Settings{
		BlockIO:         classes,
		Handlers:        known,
		Default:         cfg.DefaultRuntime,
		CRIU:            cfg.Checkpoint.CRIU,
		RestoreImages:   cfg.Checkpoint.RestoreImages,
		CheckpointBytes: imageLimits(&cfg.Image).Layer.Bytes,
		AttachBacklog:   cfg.Stream.AttachBacklogBytes(),
		AttachTotal:     cfg.Stream.AttachBacklogTotalBytes(),
		Log:             cfg.Log.Limits(),
	}
}
