// Package dashboard serves a page that shows what runs on a node, on the loopback of this machine. It is a client of
// the runtime's socket like the commands of berth, and reads only.
//
// A browser on this machine visits hostile pages, and other users of the machine reach its loopback. So each request
// for data carries a secret that only the printed address has, and requests that a browser sends on behalf of another
// page are refused: see guard. What containers, images and pods are named, and what they write, is data from strangers:
// the page shows it as text only, and its Content-Security-Policy lets nothing else happen.
package dashboard
