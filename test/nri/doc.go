// Package nri runs plugins of the Node Resource Interface on private nodes. They are written with NRI's stub, and live
// in the test binary.
package nri
