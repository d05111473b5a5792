package doctor

import (
	"context"
	"fmt"
	"strings"
)

// NRI is what the daemon says of its interface for NRI plugins.
type NRI struct {
	Serving bool
	Socket  string // empty: plugins cannot connect
	Plugins int    // that are connected
	Failure string // why the interface has not started; empty: nobody has made a place for plugins
	// NotRunning are programs of the plugin directory.
	NotRunning []string
}

// checkNRI says whether plugins can change containers, and why not where somebody has made a place for plugins.
func checkNRI(_ context.Context, cfg Config) Finding {
	if cfg.Daemon == nil {
		return good("not checked: berthd does not answer")
	}
	n := cfg.Daemon.NRI
	switch {
	case n == nil:
		return good("off: nri.enable")
	case n.Failure != "":
		return poor("no plugin runs, and pods start without them: "+n.Failure,
			"Remove what is wrong, or end the other runtime. berthd tries again every three seconds.\n"+
				"See what it says: journalctl -u berthd -g NRI")
	case !n.Serving:
		return good("off, until there is a plugin or a directory for plugins")
	case len(n.NotRunning) > 0:
		return poor(fmt.Sprintf("%d connected; programs in nri.plugin_path that do not run, and pods start without them: %s",
			n.Plugins, strings.Join(n.NotRunning, ", ")),
			"See why: journalctl -u berthd -g NRI\nberthd starts them when it starts itself: systemctl restart berthd")
	case n.Socket == "":
		return good(fmt.Sprintf("%d connected; further plugins cannot connect (nri.disable_connections)", n.Plugins))
	}
	return good(fmt.Sprintf("%d connected, others may connect at %s", n.Plugins, n.Socket))
}
