package berthv1

// RotateLog is the key of gRPC metadata with which a client asks, in a call of CreateContainer, that the keeper rotates
// the log of the container at 10 MiB, and keeps five files, where neither the configuration nor an annotation says at
// which size. Berth's command line asks for it for containers that no command looks after. It is not an annotation:
// whoever may make pods in a cluster chooses their annotations, and a kubelet sends no metadata.
const RotateLog = "berth-rotate-log"
