// Package findings asks berthd for the facts that `berth doctor` needs, and prints the results of the checks.
package findings

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/cli/connection"
	"berth/internal/cli/table"
	"berth/internal/doctor"
)

// askWait bounds how long the daemon may take to tell of itself: where it hangs the other checks are of use.
const askWait = 10 * time.Second

// AskDaemon is what the daemon at a socket says of itself; nil: none answers, or another runtime does.
func AskDaemon(ctx context.Context, socket string) *doctor.Daemon {
	ctx, cancel := context.WithTimeout(ctx, askWait)
	defer cancel()
	conn, err := connection.Dial(ctx, socket)
	if err != nil {
		return nil
	}
	defer conn.Close()
	status, err := conn.Runtime.Status(ctx, &cri.StatusRequest{Verbose: true})
	if err != nil {
		return nil
	}
	var (
		d      doctor.Daemon
		config struct {
			Root, State string
			Network     doctor.CNI
			Checkpoint  struct{ CRIU string }
			Snapshotter doctor.Snapshotter
		}
		keeper struct {
			Version string
			PID     int
		}
		images struct{ Unsynced *doctor.Unsynced }
		users  struct{ Reason string }
		told   int // the daemon's process, as it says; 0: it is too old to say
	)
	for key, to := range map[string]any{
		"version": &d.Version, "config": &config, "keeper": &keeper, "nri": &d.NRI, "images": &images,
		"image_verifiers": &d.Verifiers, "pid": &told, "user_namespaces": &users,
	} {
		if text := status.Info[key]; text != "" && json.Unmarshal([]byte(text), to) != nil {
			return nil // another runtime's
		}
	}
	if d.Version == "" {
		return nil
	}
	d.KeeperVersion, d.Root, d.State = keeper.Version, config.Root, config.State
	d.CNI, d.Unsynced = config.Network, images.Unsynced
	d.CRIU, d.NoUserNamespaces = config.Checkpoint.CRIU, users.Reason
	if s := config.Snapshotter; s.Name != "" {
		s.Address = strings.TrimPrefix(s.Address, "unix://")
		d.Snapshotter = &s
	}
	d.PID = processOf("/proc", connection.PeerPID(ctx, socket), told)
	if d.PID == told { // so the daemon's numbers of processes are those of this command's PID namespace
		d.KeeperPID = keeper.PID
	}
	if made, err := conn.Runtime.RuntimeConfig(ctx, &cri.RuntimeConfigRequest{}); err == nil {
		d.CgroupDriver = strings.ToLower(made.GetLinux().GetCgroupDriver().String())
	}
	return &d
}

// processOf is the daemon's process: that which listens on its socket, or the one that the daemon names where another
// listens for it, such as systemd for a socket unit. 0: it is not known. What the daemon says holds if its listener is
// in the same PID namespace as this process, where a number is the same process for all.
func processOf(proc string, listener, told int) int {
	if listener == 0 || listener == told || told == 0 {
		return listener
	}
	link := func(process, name string) string {
		to, _ := os.Readlink(filepath.Join(proc, process, name))
		return strings.TrimSuffix(to, " (deleted)") // its file was replaced by another version's
	}
	is := func(pid int) bool { return filepath.Base(link(strconv.Itoa(pid), "exe")) == "berthd" }
	own := link("self", "ns/pid")
	if is(listener) || !is(told) || own == "" || own != link(strconv.Itoa(listener), "ns/pid") {
		return listener
	}
	return told
}

// leastText is how many columns the text of a finding has at least. A narrower terminal breaks the lines itself.
const leastText = 30

// Print writes a line for each finding, and below it the commands that mend what it is about. Lines are broken between
// words where they are longer than so many columns; 0 breaks none, so that programs find a finding in one line.
// Characters that speak to a terminal are replaced: a finding may name what a process of a container has as its
// arguments.
func Print(out io.Writer, columns int, colored bool, findings []doctor.Finding) error {
	marks := map[doctor.Level]string{doctor.Good: "ok  ", doctor.Poor: "warn", doctor.Bad: "FAIL"}
	tints := map[doctor.Level]int{doctor.Good: 32, doctor.Poor: 33, doctor.Bad: 31}
	width := 0
	for _, f := range findings {
		width = max(width, len(f.Subject))
	}
	margin := strings.Repeat(" ", len("warn  ")+width+len("  "))
	for _, f := range findings {
		mark := marks[f.Level]
		if colored {
			mark = fmt.Sprintf("\x1b[%dm%s\x1b[0m", tints[f.Level], mark)
		}
		detail := fill(table.Sentence(f.Detail), columns, margin)
		if _, err := fmt.Fprintf(out, "%s  %-*s  %s\n", mark, width, f.Subject, detail); err != nil {
			return err
		}
		for line := range strings.Lines(f.Advice) {
			const arrow = "-> "
			line = table.Printable(strings.TrimSuffix(line, "\n"))
			advice := fill(line, columns, margin+strings.Repeat(" ", len(arrow)))
			if _, err := fmt.Fprintf(out, "%s%s%s\n", margin, arrow, advice); err != nil {
				return err
			}
		}
	}
	return nil
}

// fill breaks a text that begins behind a margin, and has the margin before each further line.
func fill(text string, columns int, margin string) string {
	if columns == 0 {
		return text
	}
	return strings.Join(table.Fill(text, max(columns-len(margin), leastText)), "\n"+margin)
}
