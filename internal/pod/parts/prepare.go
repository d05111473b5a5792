package parts

import (
	"context"
	"errors"
	"os"

	"berth/internal/model"
	"berth/internal/namespace"
	"berth/internal/network"
	"berth/internal/state"
	"berth/internal/undo"
)

// preparedKinds are the namespaces that Prepare makes.
var preparedKinds = []namespace.Kind{namespace.Network, namespace.UTS, namespace.IPC}

// Preparable tells whether what Prepare makes serves a pod: it has the namespaces that most have, owned by the node's
// user namespace, and its interface needs no sysctl from its beginning.
func Preparable(cfg *model.SandboxConfig, handler Handler) bool {
	beginning, _ := sysctls(cfg, handler)
	return !cfg.NodeNetwork() && cfg.OwnIPC() && cfg.UserNamespace() == nil && !namespace.OfInterfaces(beginning)
}

// Prepare makes the namespaces and the network of a pod of which nothing but the ID is known, all or nothing. A pod
// with that ID gets them (Origin.Prepared). Where CNI plugins set up the network, they do so when they know the pod.
func (p *Maker) Prepare(ctx context.Context, id string) error {
	err := state.MakeDir(p.Dirs.StatePod(id), 0o700)
	if err == nil {
		err = p.Dirs.Namespaces(id).Create(namespace.Options{Kinds: preparedKinds})
	}
	if err == nil {
		err = p.Network.Prepare(ctx, p.preparedPod(id))
	}
	if err != nil {
		clean, cancel := undo.Context(ctx)
		defer cancel()
		return errors.Join(err, p.DropPrepared(clean, id))
	}
	return nil
}

// DropPrepared removes what Prepare has made. It is idempotent.
func (p *Maker) DropPrepared(ctx context.Context, id string) error {
	err := errors.Join(p.Network.Teardown(ctx, p.preparedPod(id)), p.RemoveNamespaces(id))
	if gone := os.Remove(p.Dirs.StatePod(id)); !errors.Is(gone, os.ErrNotExist) {
		err = errors.Join(err, gone)
	}
	return err
}

func (p *Maker) preparedPod(id string) *network.Pod {
	return &network.Pod{ID: id, NetNS: p.Dirs.NetNS(id)}
}
