// Package lookup finds pods and containers by what people type: a name, namespace/name, pod/container, or the beginning
// of an ID. A name wins over an ID; what fits several is an error that lists them.
package lookup
