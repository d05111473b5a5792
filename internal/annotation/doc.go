// Package annotation reads Berth's own annotations of pods and containers. With them a client of any API sets options
// for which its interface has no field. berth.dev/ulimits.web on a pod applies to its container web; berth.dev/ulimits
// on a container applies to that container.
//
// An annotation has an effect only if the configuration of the pod's runtime handler allows it by name, because users
// who may annotate a pod are not always trusted with limits of the node.
package annotation
