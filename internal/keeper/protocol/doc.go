// Package protocol has what both sides of the connection between berthd and the keeper share, apart from the RPCs: the
// paths of the sockets, the packets with file descriptors, and the codes of errors.
//
// Descriptors are sent over fds.sock, a SOCK_SEQPACKET socket, in packets of JSON with SCM_RIGHTS. A client connects
// and sends hello. The keeper answers with welcome and its generation. Then both sides send packets: the client sends
// the files that an RPC names by a token, and the keeper sends terminals and the descriptors of the escrow.
package protocol
