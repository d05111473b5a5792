// Package annotation knows the annotations by which a client of any API asks for what its interface has no field for:
// berth.dev/ulimits.web on a pod is for its container web, and berth.dev/ulimits on a container is for that one.
// Each works where the configuration of the pod's runtime handler allows it by name, since whoever may annotate
// a pod need not be trusted with limits of the node.
package annotation
