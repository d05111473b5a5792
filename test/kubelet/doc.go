// Package kubelet runs a kubelet that we did not write on Berth: v1.37.2, built through the module proxy in the Go
// module build/, standalone, which takes static pods from a directory. What the pods do, and what the kubelet says
// about them over its own HTTP API, is what the tests claim.
//
// The suite takes minutes and is run by `make kubelet`, which sets BERTH_KUBELET=1; without it there are no tests here.
// The kubelet is built once and kept in the user's cache directory. Where it cannot be built, the suite says why
// and ends.
//
// Every kubelet has its own root, ports and cgroups, and a mount namespace in which the paths that kubelets have in
// common (/var/lib/kubelet, /var/log/containers, /run/containerd, some sysctls) are its own. Pods' volumes are mounted
// where Berth sees them.
//
// A resize in place needs a pod whose UID stays when its manifest changes: the manifest names the UID. Graceful
// shutdown needs logind: a bus of the test's own, with a logind of the test's own on it, announces the shutdown.
//
// What a standalone kubelet cannot do, whatever the runtime: projected volumes of any kind (it refuses them without a
// client), service account tokens, ConfigMaps, Secrets, pull secrets of a pod, ephemeral containers and RuntimeClasses.
// For those the kubelet gets pods from an API server that the tests bring along: it stores objects, lists, watches and
// patches them, and no more. Not tested at all: device claims, trust bundles, persistent volumes.
package kubelet
