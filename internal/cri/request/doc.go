// Package request checks what clients ask, for every API: it collects all that is wrong with a request under the paths
// of its fields, so that one error names them all.
package request
