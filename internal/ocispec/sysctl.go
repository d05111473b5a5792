package ocispec

import (
	"maps"
	"slices"
	"strings"

	"berth/internal/model"
)

// CheckSysctls refuses sysctls that would reach beyond the pod: those that no namespace holds, and those of a namespace
// that is the node's.
func CheckSysctls(sysctls map[string]string, n model.NamespaceOptions) error {
	for given := range sysctls {
		key := strings.ReplaceAll(given, "/", ".")
		switch {
		case strings.Contains(key, "..") || strings.Trim(key, ".") != key || key == "":
			return invalid("sysctl %q is not a name", given)
		case strings.HasPrefix(key, "net."):
			if n.Network == model.NamespaceNode {
				return invalid("sysctl %s: the pod is in the node's network namespace", given)
			}
		case strings.HasPrefix(key, "fs.mqueue.") || slices.Contains(ipcSysctls, key):
			if n.IPC == model.NamespaceNode {
				return invalid("sysctl %s: the pod is in the node's IPC namespace", given)
			}
		case key == "kernel.domainname":
			if n.Network == model.NamespaceNode { // the UTS namespace goes with it
				return invalid("sysctl %s: the pod is in the node's UTS namespace", given)
			}
		default:
			return invalid("sysctl %s is not of a namespace: it would hold for the whole node", given)
		}
	}
	return nil
}

// Sysctls are those of a pod: what it asks for, and of the others what concerns no namespace that is the node's.
// Names may have dots or slashes.
func Sysctls(asked, others map[string]string, n model.NamespaceOptions) map[string]string {
	out := maps.Clone(asked)
	named := map[string]bool{}
	for key := range asked {
		named[strings.ReplaceAll(key, "/", ".")] = true
	}
	for key, value := range others {
		if named[strings.ReplaceAll(key, "/", ".")] || CheckSysctls(map[string]string{key: value}, n) != nil {
			continue
		}
		if out == nil {
			out = map[string]string{}
		}
		out[key] = value
	}
	return out
}

// ipcSysctls are the sysctls of the IPC namespace (ipc_namespaces(7)) besides fs.mqueue.
var ipcSysctls = []string{
	"kernel.msgmax", "kernel.msgmnb", "kernel.msgmni", "kernel.msg_next_id", "kernel.sem", "kernel.sem_next_id",
	"kernel.shmall", "kernel.shmmax", "kernel.shmmni", "kernel.shm_next_id", "kernel.shm_rmid_forced",
}
