// Package dashboard opens the page of `berth dashboard` in Debian's chromium, on a real node. BERTH_SCREENSHOTS names a
// directory for pictures of the page.
package dashboard
