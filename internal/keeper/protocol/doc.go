// Package protocol is what the two sides of the keeper have in common below the RPCs: where the sockets are, how file
// descriptors travel between them, and how an error keeps its kind on the way.
//
// Descriptors go over fds.sock, a SOCK_SEQPACKET socket, as packets of JSON with SCM_RIGHTS. A client opens it first,
// says hello, and is welcomed with the keeper's generation. From then on either side sends packets: the client the
// files that an RPC refers to by a token, the keeper terminals and what it puts into escrow.
package protocol
