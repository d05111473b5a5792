package pod

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Condition is a part of the node's health, as the CRI reports it.
type Condition struct {
	Type    string // RuntimeReady or NetworkReady
	Status  bool
	Reason  string
	Message string
}

const (
	// keeperPatience is how long the keeper may take to answer before the node is not ready.
	keeperPatience = 2 * time.Second
	// diskPatience is how long a write may take. A disk that is slow keeps no pod from starting.
	diskPatience = 200 * time.Millisecond
)

// Conditions tells whether the node can run pods. RuntimeReady asks the keeper, and whether the file system of the root
// takes writes; NetworkReady asks the network.
func (m *Manager) Conditions(ctx context.Context) []Condition {
	runtime := Condition{Type: "RuntimeReady", Status: true}
	// The patience is for the keeper alone: a keeper that is slow leaves the network its time to answer.
	patience, cancel := context.WithTimeout(ctx, keeperPatience)
	defer cancel()
	if _, err := m.cfg.Keeper.List(patience); err != nil {
		runtime.Status = false
		runtime.Reason = "KeeperNotReady"
		runtime.Message = fmt.Sprintf("the keeper does not answer: %v", err)
	} else if err := m.unwritable(ctx); err != nil {
		runtime.Status = false
		runtime.Reason = "RootNotWritable"
		runtime.Message = fmt.Sprintf("no pod can be started or removed, since the file system of the root takes no writes: "+
			"%v (the log of the kernel says why: dmesg --level=err)", err)
	}
	st := m.cfg.Network.Status(ctx)
	return []Condition{runtime, {Type: "NetworkReady", Status: st.Ready, Reason: st.Reason, Message: st.Message}}
}

func (m *Manager) unwritable(ctx context.Context) error {
	if m.cfg.Disk == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, diskPatience)
	defer cancel()
	return m.cfg.Disk.Unwritable(ctx)
}

// HandlerInfo is a runtime handler as Status lists it.
type HandlerInfo struct {
	Name                    string
	RecursiveReadOnlyMounts bool
	UserNamespaces          bool
}

// Handlers are the node's runtime handlers, the default one under the empty name as well, as the CRI wants it.
func (m *Manager) Handlers() []HandlerInfo {
	mapped := m.ownersMapped() == nil
	info := func(name string, h Handler) HandlerInfo {
		return HandlerInfo{Name: name, RecursiveReadOnlyMounts: h.RecursiveReadOnly,
			UserNamespaces: h.UserNamespaces && mapped}
	}
	settings := m.settings.Load()
	list := []HandlerInfo{info("", settings.Handlers[settings.Default])}
	for name, h := range settings.Handlers {
		list = append(list, info(name, h))
	}
	slices.SortFunc(list, func(a, b HandlerInfo) int { return strings.Compare(a.Name, b.Name) })
	return list
}
