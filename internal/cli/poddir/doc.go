// Package poddir keeps the files of pods that `berth run` started and that their runtime does not know of:
// logs, emptyDir volumes, sub-paths and the hosts file. A kubelet keeps the same things below /var/lib/kubelet/pods.
//
// The directory of a pod is made before the pod, with a record of whose it is, and removed after it. A command that was
// killed leaves a directory without a pod behind; Sweep, which every run begins with, removes it.
package poddir
