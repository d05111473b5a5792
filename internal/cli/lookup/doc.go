// Package lookup finds pods and containers by the argument of a command: a name, namespace/name, pod/container, or the
// beginning of an ID. A name has precedence over an ID. If several objects match, the error lists them.
package lookup
