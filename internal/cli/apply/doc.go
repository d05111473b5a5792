// Package apply keeps the pods of a directory of manifests running, as a kubelet keeps static pods: it watches the
// directory, compares what it describes with the pods that the runtime has, and starts, adopts, replaces and removes
// pods until both agree. Each pod and each Job has a goroutine that keeps it.
//
// Nothing that has to survive the command is in its memory. The sandbox of a pod says in annotations which directory
// and file it comes from and what the hash of its manifest was; the pod's directory in the store confirms that. A later
// command adopts the pods by that.
package apply
