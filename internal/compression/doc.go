// Package compression decompresses layers and archives. It recognises the format by the first bytes, because media
// types and names can be wrong. The input may be hostile, so this package runs in a confined child of berthd (package
// jail).
package compression
