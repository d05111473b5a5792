// Package request checks requests for all APIs. It collects all errors of a request, each with the path of its field,
// so that one answer names them all.
package request
