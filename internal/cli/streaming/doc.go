// Package streaming is the client's side of exec, attach and port-forward. It connects to the URL of a runtime's
// streaming server by WebSocket or SPDY, and puts the terminal into raw mode if the stream has a terminal.
package streaming
