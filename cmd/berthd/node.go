package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"github.com/opencontainers/runtime-spec/specs-go/features"

	"berth/internal/config"
	"berth/internal/coredump"
	"berth/internal/firstbytes"
	"berth/internal/image/source"
	"berth/internal/image/unpack"
	keeper "berth/internal/keeper/client"
	"berth/internal/model"
	"berth/internal/ocispec"
	"berth/internal/pod"
)

// protect keeps the kernel from choosing berthd when memory is short, as far as it is allowed to, and from writing core
// files of it.
func protect(cfg *config.Config, log *slog.Logger) {
	if err := coredump.Forbid(); err != nil {
		log.Warn("core files of berthd are not forbidden", "error", err)
	}
	err := os.WriteFile("/proc/self/oom_score_adj", []byte(strconv.Itoa(cfg.OOMScoreAdj)), 0)
	if err != nil {
		log.Info("oom_score_adj stays as it is: this process may not lower it", "wanted", cfg.OOMScoreAdj, "error", err)
	}
}

// handlers turns the configured runtimes into the domain's. bounding are the capabilities that the keeper has to give,
// which berthd's own unit has it do without; nil: berthd's. appArmor is the default profile; empty: the node has none.
// What host cannot do, no handler can.
func handlers(
	cfg *config.Config, host *ocispec.Host, bounding []string, appArmor string,
) (map[string]pod.Handler, error) {
	base := ocispec.Handler{PidsLimit: cfg.PidsLimit, SeccompRoot: cfg.Seccomp.LocalhostRoot, CDISpecDirs: cfg.CDISpecDirs,
		HookDirs: cfg.HooksDirs, Bounding: bounding, AppArmorDefault: appArmor}
	switch p := cfg.Seccomp.DefaultProfile; p {
	case "":
	case "runtime/default":
		base.Seccomp = &model.SecurityProfile{Type: model.ProfileRuntimeDefault}
	default:
		base.Seccomp = &model.SecurityProfile{Type: model.ProfileLocalhost, LocalhostRef: p}
	}
	withoutStage := false
	for _, r := range cfg.Runtimes {
		withoutStage = withoutStage || r.Setup == config.SetupLibcontainer
	}
	out := map[string]pod.Handler{}
	for name, r := range cfg.Runtimes {
		h, err := commonHandler(cfg, name, base)
		if err != nil {
			return nil, err
		}
		switch r.Type {
		case config.RuntimeOCI:
			ociHandler(h, &r, withoutStage)
		case config.RuntimeShim:
			if err := shimHandler(h, &r, systemdCgroups(cfg)); err != nil {
				return nil, fmt.Errorf("options of the runtime handler %s: %w", name, err)
			}
		}
		h.RecursiveReadOnly = h.RecursiveReadOnly && host.RecursiveReadonly
		h.UserNamespaces = h.UserNamespaces && host.IDMappedMounts
		out[name] = *h
	}
	return out, nil
}

// commonHandler makes a handler with what all types of handlers have. base is what all handlers share.
func commonHandler(cfg *config.Config, name string, base ocispec.Handler) (*pod.Handler, error) {
	r, spec := cfg.Runtimes[name], base
	var err error
	if spec.Rlimits, err = cfg.Rlimits(name); err != nil {
		return nil, err
	}
	defaults, err := cfg.PodDefaults(name)
	if err != nil {
		return nil, err
	}
	if err := ocispec.CheckSysctls(defaults.Sysctls, model.NamespaceOptions{}); err != nil {
		return nil, fmt.Errorf("default_sysctls of the runtime handler %s: %w", name, err)
	}
	spec.ShmSize, spec.DeviceOwnership = defaults.ShmSize, cfg.DeviceOwnership
	spec.RefuseMissing, spec.CgroupWritable = cfg.RefuseMissing, r.CgroupWritable
	for _, d := range defaults.Devices {
		spec.Devices = append(spec.Devices, model.Device{
			HostPath: d.HostPath, ContainerPath: d.ContainerPath, Permissions: d.Permissions,
		})
	}
	for _, v := range defaults.Env {
		spec.Env = append(spec.Env, model.EnvVar{Key: v.Name, Value: v.Value})
	}
	for _, m := range defaults.Mounts {
		spec.Mounts = append(spec.Mounts, model.Mount{HostPath: m.HostPath, ContainerPath: m.ContainerPath,
			Readonly: m.Readonly})
	}
	spec.PrivilegedWithoutHostDevices = r.PrivilegedWithoutHostDevices
	spec.PrivilegedAllDevicesAllowed = r.PrivilegedAllDevicesAllowed
	spec.Annotations, spec.Capabilities = r.Annotations, r.DefaultCapabilities()
	return &pod.Handler{
		Name: name, Spec: spec, UserNamespaces: true, RecursiveReadOnly: true,
		AllowedAnnotations: r.AllowedAnnotations, DiskQuota: r.DiskQuotaBytes(), Setup: keeper.SetupChoice(r.Setup),
		Sysctls: defaults.Sysctls, IgnoreDeclaredVolumes: cfg.Image.DeclaredVolumes == config.DeclaredVolumesIgnore,
	}, nil
}

// ociHandler fills in what a handler of an OCI runtime binary has. withoutStage: some handler of the node is set up by
// libcontainer alone.
func ociHandler(h *pod.Handler, r *config.Runtime, withoutStage bool) {
	h.RuntimePath, h.RuntimeRoot, h.RuntimeFlags = r.Path, r.Root, r.Flags
	h.SandboxContainer, h.LacksSandboxContainer = r.SandboxContainer, r.LacksSandboxContainer()
	// The keeper makes the init of its pods. An operator who has switched away from the stage for one handler wants it
	// to be used nowhere on the node.
	if withoutStage {
		h.Setup = keeper.SetupLibcontainer
	}
	h.UserNamespaces, h.RecursiveReadOnly = runtimeFeatures(r.Path, featuresWait)
	// gVisor's gofers join no user namespace that is there already, though runsc says that it maps IDs.
	h.UserNamespaces = h.UserNamespaces && !r.SandboxContainer
}

// shimHandler fills in what a handler of one of containerd's shims has.
func shimHandler(h *pod.Handler, r *config.Runtime, systemd bool) (err error) {
	h.RuntimePath, h.SandboxContainer, h.NodeProcesses = r.ShimPath(), true, r.RuncShim()
	h.Shim = &keeper.Shim{}
	if h.Shim.OptionsType, h.Shim.Options, err = r.ShimOptions(systemd); err != nil {
		return err
	}
	h.UserNamespaces, h.RecursiveReadOnly = false, false // no shim tells
	if r.RuncShim() {
		h.UserNamespaces, h.RecursiveReadOnly = runtimeFeatures(r.RuncBinary(), featuresWait)
	}
	return nil
}

// warnOfOldKeeper says at once, and not only when pods are refused, that the keeper is too old for a handler,
// or for the limits of logs, and that a handler of runsc lacks what it needs.
func warnOfOldKeeper(info *keeper.Info, known map[string]pod.Handler, cfg *config.Config, log *slog.Logger) {
	limits := cfg.Log.Limits()
	if (limits.MaxSize > 0 || limits.Rate > 0) && !slices.Contains(info.Features, keeper.FeatureLogLimits) {
		log.Error("containers will be refused: the keeper that runs is too old for the limits of logs (log.max_size, "+
			"log.rate); reload it", "keeper_version", info.Version)
	}
	for name, h := range known {
		if (h.SandboxContainer || len(h.RuntimeFlags) > 0) && !slices.Contains(info.Features, keeper.FeatureSandbox) {
			log.Error("containers of this runtime handler will be refused: the keeper that runs is too old for its "+
				"flags and sandbox_container; reload it", "handler", name, "keeper_version", info.Version)
		}
		if h.Shim != nil && !slices.Contains(info.Features, keeper.FeatureShim) {
			log.Error("pods of this runtime handler will be refused: the keeper that runs is too old for shims; reload it",
				"handler", name, "keeper_version", info.Version)
		}
		if h.LacksSandboxContainer {
			log.Error("pods of this runtime handler will be refused: runsc needs sandbox_container = true", "handler", name)
		}
		if h.Setup == keeper.SetupLibcontainer && !slices.Contains(info.Features, keeper.FeatureSetup) {
			log.Error(
				"containers of this runtime handler will be refused: the keeper that runs is too old for its setup; reload it",
				"handler", name, "setup", h.Setup, "keeper_version", info.Version)
		}
	}
}

// compileSeccomp has the keeper compile the default seccomp profiles of most containers. Else the first container would
// wait for that: 40 ms, twice what a start takes otherwise.
func compileSeccomp(ctx context.Context, k *keeper.Client, known map[string]pod.Handler, log *slog.Logger) {
	host, err := ocispec.Detect()
	if err != nil {
		return // the first container says it
	}
	// Handlers share profiles.
	done := map[*specs.LinuxSeccomp]bool{}
	for name, h := range known {
		if h.RuntimePath != "" || h.Setup == keeper.SetupLibcontainer {
			continue // libcontainer and OCI runtimes compile for themselves
		}
		profiles, err := ocispec.UsualSeccomp(h.Spec, host)
		if err != nil {
			return
		}
		for _, p := range profiles {
			if done[p] {
				continue
			}
			done[p] = true
			if err := k.Prepare(ctx, p); err != nil && ctx.Err() == nil {
				log.Warn("the default seccomp profile is not compiled before the first container has it",
					"handler", name, "error", err)
			}
		}
	}
}

const (
	// featuresWait is how long an OCI runtime may take to say what it can do.
	featuresWait = 5 * time.Second
	// maxFeatures is how many bytes it may say. runc says some 10 KiB.
	maxFeatures = 1 << 20
)

// runtimeFeatures asks an OCI runtime what it can do. One that does not answer can do neither. It may be a script, and
// what that has started may hold its output.
func runtimeFeatures(path string, wait time.Duration) (userNamespaces, recursiveReadOnly bool) {
	ctx, cancel := context.WithTimeout(context.Background(), wait)
	defer cancel()
	out := firstbytes.Buffer{Left: maxFeatures}
	cmd := exec.CommandContext(ctx, path, "features")
	cmd.Stdout = &out
	firstbytes.Group(cmd)
	if err := cmd.Run(); err != nil && !errors.Is(err, exec.ErrWaitDelay) {
		return false, false
	}
	var f features.Features
	if json.Unmarshal(out.Bytes(), &f) != nil {
		return false, false
	}
	if f.Linux != nil && f.Linux.MountExtensions != nil {
		if idmap := f.Linux.MountExtensions.IDMap; idmap != nil && idmap.Enabled != nil {
			userNamespaces = *idmap.Enabled
		}
	}
	return userNamespaces, slices.Contains(f.MountOptions, "rro")
}

// imageLimits are the bounds of a valid configuration.
func imageLimits(i *config.Image) source.Limits {
	return source.Limits{
		Layer: unpack.Limits{
			Entries: uint64(i.MaxLayerEntries), Bytes: config.Bytes(i.MaxLayerBytes),
			PathMemory: config.Bytes(i.MaxLayerPathMemory),
		},
		Layers: uint64(i.MaxLayers), Entries: uint64(i.MaxImageEntries), Bytes: config.Bytes(i.MaxImageBytes),
		Document: config.Bytes(i.MaxDocument), DocumentEntries: uint64(i.MaxDocumentEntries),
		ConfigText: config.Bytes(i.MaxConfigText),
		Volumes:    uint64(i.MaxVolumes), Lookups: uint64(i.MaxImageLookups),
	}
}
