// Package v1alpha1 is the Container Runtime Interface of July 2016, gRPC package runtime.
package v1alpha1

//go:generate sh generate.sh
