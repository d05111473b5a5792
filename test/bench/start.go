package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/registrytest"
	"berth/test/kubernetes"
	"berth/test/node"
)

func startPeers(ctx context.Context, o *options, dir string,
	registry *registrytest.Registry) (peers []*peer, err error) {
	type start func(context.Context, node.Options) (*node.Node, error)
	private := func(name string, wanted bool, start start, versions ...string) error {
		if !wanted {
			return nil
		}
		progress("%s: starting a private one", name)
		p, err := startPrivate(ctx, o, name, registry, start)
		if err == nil {
			p.further = versions
			peers = append(peers, p)
		}
		return err
	}
	if err := private("berth", o.berth, node.Start); err != nil {
		return peers, err
	}
	if err := private("base", o.base != "", func(ctx context.Context, n node.Options) (*node.Node, error) {
		n.Binaries = o.base
		return node.Start(ctx, n)
	}); err != nil {
		return peers, err
	}
	if err := private(cniPeer, o.berth && o.cni, func(ctx context.Context, n node.Options) (_ *node.Node, err error) {
		n.CNI = true
		if n.Binaries, err = copyPrograms(ctx, dir); err != nil {
			return nil, err
		}
		return node.Start(ctx, n)
	}); err != nil {
		return peers, err
	}
	if o.containerd {
		programs, runc, err := containerd2(ctx)
		if err != nil {
			return peers, err
		}
		version, err := versionOf(ctx, runc)
		if err != nil {
			return peers, err
		}
		if err := private("containerd", true, func(ctx context.Context, n node.Options) (*node.Node, error) {
			n.Binaries, n.Handlers = programs, map[string]string{"runc": runc}
			return node.StartContainerd(ctx, n)
		}, version); err != nil {
			return peers, err
		}
	}
	if o.debian {
		version, err := versionOf(ctx, "runc")
		if err != nil {
			return peers, err
		}
		if err := private("debian-containerd", true, node.StartContainerd, version); err != nil {
			return peers, err
		}
	}
	for _, value := range o.running {
		p, err := connect(value, o, dir, registry)
		if err != nil {
			return peers, err
		}
		peers = append(peers, p)
	}
	for _, p := range peers {
		if err := p.prepare(ctx, o); err != nil {
			return peers, err
		}
	}
	return peers, nil
}

// copyPrograms copies Berth's programs into a directory below dir. Two nodes that run the same files share their pages,
// and each has half of them in its proportional set size.
func copyPrograms(ctx context.Context, dir string) (string, error) {
	from, err := node.Binaries(ctx)
	if err != nil {
		return "", err
	}
	to, err := os.MkdirTemp(dir, "programs")
	if err != nil {
		return "", err
	}
	for _, name := range []string{"berthd", "berth-keeper", "berth-unpack"} {
		data, err := os.ReadFile(filepath.Join(from, name))
		if err == nil {
			err = os.WriteFile(filepath.Join(to, name), data, 0o755)
		}
		if err != nil {
			return "", err
		}
	}
	return to, nil
}

// containerd2 is the directory of a containerd 2 and its shim, and the path of its runc, which are built once.
func containerd2(ctx context.Context) (programs, runc string, err error) {
	progress("containerd 2 and runc: built once, for some minutes")
	if programs, err = kubernetes.BuildContainerd(ctx); err != nil {
		return "", "", err
	}
	runc, err = kubernetes.Runc.Build(ctx)
	return programs, runc, err
}

// versionOf is what an OCI runtime says of its version, in one line such as "runc version 1.5.2".
func versionOf(ctx context.Context, program string) (string, error) {
	out, err := exec.CommandContext(ctx, program, "--version").Output()
	if err != nil {
		return "", fmt.Errorf("%s --version: %w", program, err)
	}
	line, _, _ := strings.Cut(string(out), "\n")
	return line, nil
}

// connect is a peer of -peer, which runs already.
func connect(value string, o *options, dir string, registry *registrytest.Registry) (*peer, error) {
	name, address, _ := strings.Cut(value, "=")
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(16<<20)))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	p := &peer{
		name: name, image: o.image, host: registry.Addr(), socket: address[len("unix://"):],
		logDir:  filepath.Join(dir, name),
		runtime: cri.NewRuntimeServiceClient(conn), images: cri.NewImageServiceClient(conn), close: conn.Close,
	}
	if p.image == "" {
		p.image = registry.Addr() + node.Busybox[len(node.RegistryHost):]
	}
	return p, nil
}

// startPrivate starts a runtime of this benchmark's own.
func startPrivate(ctx context.Context, o *options, name string, registry *registrytest.Registry,
	start func(context.Context, node.Options) (*node.Node, error)) (*peer, error) {
	n, err := start(ctx, node.Options{Registry: registry, Config: o.config, Volatile: true,
		Accounted: true, Pods: max(o.pods, o.burst, o.crowds.most()+o.among) + 10})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return &peer{
		name: name, image: node.Busybox, host: node.RegistryHost, socket: n.Socket, logDir: n.LogDir,
		cgroup: n.PodCgroup, runtime: n.Runtime, images: n.Images, close: n.Stop,
		cpu: n.CPUUsed, kill: n.Kill, restart: n.Restart,
		fresh: func(ctx context.Context) (*peer, error) {
			p, err := startPrivate(ctx, o, name, registry, start)
			if err != nil {
				return nil, err
			}
			if err := p.prepare(ctx, o); err != nil {
				return nil, errors.Join(err, p.close())
			}
			return p, nil
		},
	}, nil
}

// prepare makes a peer's directory, and asks for its version.
func (p *peer) prepare(ctx context.Context, o *options) error {
	if err := os.MkdirAll(p.logDir, 0o755); err != nil {
		return err
	}
	v, err := p.runtime.Version(ctx, &cri.VersionRequest{})
	if err != nil {
		return fmt.Errorf("%s: %w", p.name, err)
	}
	p.seccomp = cri.SecurityProfile_RuntimeDefault
	if o.unconfined {
		p.seccomp = cri.SecurityProfile_Unconfined
	}
	p.version = strings.Join(append([]string{v.RuntimeName + " " + v.RuntimeVersion}, p.further...), ", ")
	return nil
}
