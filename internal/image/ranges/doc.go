// Package ranges loads the parts of a blob that lie ahead of its reader, over further connections: a registry or an
// object store may limit what one connection carries. It knows no HTTP: a Source opens ranges. One Pool bounds the
// memory of all blobs together, and the connections to each host.
//
// A blob has one reader, which asks for the bytes at its own position over a connection of its own and needs no memory
// of the pool. Loading ahead never has to succeed: what is missing, the reader asks for when it gets there. So a range
// that stalls, a host without ranges or an exhausted pool makes a pull slower and does not stop it.
package ranges
