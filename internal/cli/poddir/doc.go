// Package poddir keeps the files of pods that `berth run` has started and that the runtime does not know: logs,
// emptyDir volumes, sub-paths and the hosts file. A kubelet keeps the same files below /var/lib/kubelet/pods.
//
// The directory of a pod, with a record that names the pod, is made before the pod and removed after it. A command that
// was killed may leave a directory without a pod behind. Each `berth run` begins with Sweep, which removes such
// directories.
package poddir
