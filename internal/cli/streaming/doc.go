// Package streaming runs exec, attach and port-forward from the client's side: over the URL that a runtime's streaming
// server gives out, on WebSocket or SPDY, with the terminal in raw mode where one is wanted.
package streaming
