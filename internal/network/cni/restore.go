package cni

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/containernetworking/cni/libcni"
	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/types/create"

	"berth/internal/disk"
	"berth/internal/state"
)

// readRecord reads a record. If its content is damaged, spoilt says how. err is an error of the disk, or a
// *state.FormatError.
func readRecord(path, id string) (r *record, spoilt, err error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, nil, err
	}
	var newer *state.FormatError
	if err := state.Unseal(path, data); errors.As(err, &newer) {
		return nil, nil, err
	} else if err != nil {
		return nil, err, nil
	}
	r = new(record)
	if err := json.Unmarshal(data, r); err != nil {
		return nil, err, nil
	}
	if r.ID != id {
		return nil, fmt.Errorf("it is of %q", r.ID), nil
	}
	return r, nil, nil
}

// cachePath is the path of libcni's file with what the plugins answered for a pod.
func (n *Networks) cachePath(network, id string) string {
	return filepath.Join(n.cfg.CacheDir, "results", network+"-"+id+"-"+Interface)
}

// Cached tells whether libcni keeps what plugins answered for a pod.
func (n *Networks) Cached(id string) bool { return n.cached(id) != nil }

func (n *Networks) cached(id string) *libcni.NetworkAttachment {
	all, err := n.lib.GetCachedAttachments(id)
	if err != nil {
		n.log.Warn("read the cached results of CNI plugins", "pod_id", id, "error", err)
	}
	for _, a := range all {
		if a.IfName == Interface {
			return a
		}
	}
	return nil
}

// Restore makes the record of a pod that is joined anew where that is gone: of what libcni keeps, or else of the given
// network (nil: there is none) and the pod itself. What libcni keeps is written again where it is not what the plugins
// answered (result; nil: not known).
func (n *Networks) Restore(network *libcni.NetworkConfigList, a Attachment, result json.RawMessage) error {
	defer n.ids.Lock(a.ID)()
	n.mu.Lock()
	r := n.records[a.ID]
	n.mu.Unlock()
	if r == nil {
		var err error
		if r, err = n.rebuild(network, a); err != nil {
			return fmt.Errorf("its record is gone, and is not made anew: %w", err)
		}
	}
	if result == nil {
		return nil
	}
	if err := n.restoreCache(r, result); err != nil {
		n.log.Warn("write the cached result of CNI plugins again", "pod", r.Pod, "error", err)
	}
	return nil
}

func (n *Networks) rebuild(network *libcni.NetworkConfigList, a Attachment) (*record, error) {
	a.Before = nil // they were asked for, or not, when it was joined
	from := "the network configuration"
	kept := n.cached(a.ID)
	if kept != nil {
		if list, err := libcni.NetworkConfFromBytes(kept.Config); err == nil {
			network, from = list, "what the plugins answered"
		} else {
			kept = nil
		}
	}
	if network == nil {
		return nil, errors.New("nothing tells the network that it was joined to")
	}
	r, err := newRecord(a, network)
	if err != nil {
		return nil, err
	}
	if kept != nil {
		r.Args, r.Capabilities = kept.CniArgs, map[string]json.RawMessage{}
		for name, value := range kept.CapabilityArgs {
			if r.Capabilities[name], err = json.Marshal(value); err != nil {
				return nil, fmt.Errorf("capability %s: %w", name, err)
			}
		}
	}
	if err := n.write(r); err != nil {
		return nil, err
	}
	n.log.Warn("the record of a pod's network was spoilt or gone, and is made anew", "pod_id", r.ID,
		"pod", r.Pod, "from", from)
	return r, nil
}

// restoreCache writes libcni's file for a pod where that does not have the result, which plugins are given again
// when the pod goes.
func (n *Networks) restoreCache(r *record, result json.RawMessage) error {
	list, conf, err := r.runtime()
	if err != nil {
		return err
	}
	path := n.cachePath(list.Name, r.ID)
	data, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	var kept struct {
		Kind   string          `json:"kind"`
		ID     string          `json:"containerId"`
		Result json.RawMessage `json:"result"`
	}
	if json.Unmarshal(data, &kept) == nil && kept.Kind == libcni.CNICacheV1 && kept.ID == r.ID &&
		sameResult(kept.Result, result) {
		return nil
	}
	n.log.Warn("the cached result of CNI plugins was spoilt or gone, and is written again", "pod_id", r.ID,
		"pod", r.Pod, "file", path)
	data, err = json.Marshal(map[string]any{
		"kind": libcni.CNICacheV1, "containerId": r.ID, "config": []byte(list.Bytes), "ifName": Interface,
		"networkName": list.Name,
		"netns":       conf.NetNS, "cniArgs": r.Args, "capabilityArgs": r.Capabilities, "result": result,
	})
	if err == nil {
		err = os.MkdirAll(filepath.Dir(path), 0o700)
	}
	if err != nil {
		return err
	}
	return disk.WriteFile(path, data, 0o600)
}

// sameResult tells whether two results say the same, whatever versions of CNI they are in: that of a pod's record
// is in a newer one.
func sameResult(a, b json.RawMessage) bool {
	one, err := resultOf(a)
	other, oerr := resultOf(b)
	return err == nil && oerr == nil && bytes.Equal(one, other)
}

// resultOf is a result in the newest version's form.
func resultOf(raw json.RawMessage) ([]byte, error) {
	result, err := create.CreateFromBytes(raw)
	if err != nil {
		return nil, err
	}
	r, err := current.NewResultFromResult(result)
	if err != nil {
		return nil, err
	}
	r.CNIVersion = current.ImplementedSpecVersion
	return json.Marshal(r)
}

// removeSpoilt removes the files of records that could not be read and that no live pod has.
func (n *Networks) removeSpoilt() error {
	entries, err := os.ReadDir(n.cfg.StateDir)
	if err != nil {
		return err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	var errs []error
	for _, e := range entries {
		if id, ok := strings.CutSuffix(e.Name(), ".json"); ok && n.records[id] == nil {
			if err := os.Remove(filepath.Join(n.cfg.StateDir, e.Name())); err != nil && !errors.Is(err, os.ErrNotExist) {
				errs = append(errs, err)
			}
		}
	}
	return errors.Join(errs...)
}
