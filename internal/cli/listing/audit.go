package listing

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/cli/lookup"
	"berth/internal/cli/table"
)

// AuditLine is what a line of the audit says to people. docs/operations.md has all its fields.
type AuditLine struct {
	Time      time.Time `json:"time"`
	Event     string    `json:"event"`     // daemon, begin or end
	Operation string    `json:"operation"` // such as exec
	Namespace string    `json:"namespace"`
	Pod       string    `json:"pod"`
	PodID     string    `json:"pod_id"`
	Container string    `json:"container"`
	Command   []string  `json:"command"`
	User      string    `json:"user"`
	Port      int32     `json:"port"`
	ExitCode  *int      `json:"exit_code"`
	Error     string    `json:"error"`
	Peer      struct {
		PID     uint32 `json:"pid"`
		Program string `json:"program"`
		Client  string `json:"client"`
	} `json:"peer"`
}

// ParseAudit reads a line of the audit.
func ParseAudit(line []byte) (*AuditLine, error) {
	l := &AuditLine{}
	if err := json.Unmarshal(line, l); err != nil {
		return nil, fmt.Errorf("line of the audit: %w", err)
	}
	return l, nil
}

// String is the line for people: what began or ended, where, and who asked for it.
func (l *AuditLine) String() string {
	c := lookup.Container{Container: &cri.Container{Metadata: &cri.ContainerMetadata{Name: l.Container}},
		Pod: &cri.PodSandbox{Metadata: &cri.PodSandboxMetadata{Name: l.Pod, Namespace: l.Namespace}}}
	where := lookup.ShortPodName(c.Pod)
	if l.Container != "" {
		where = c.ShortName()
	}
	text := []string{fmt.Sprintf("%s  %-12s  %-5s  %s", l.Time.Format("2006-01-02T15:04:05.000Z07:00"), l.Operation,
		l.Event, where)}
	add := func(format string, value any) { text = append(text, fmt.Sprintf(format, value)) }
	if len(l.Command) > 0 {
		add("%q", l.Command)
	}
	if l.User != "" {
		add("as %s", l.User)
	}
	if l.Port != 0 {
		add("port %d", l.Port)
	}
	if l.Peer.Program != "" {
		add("by %s", fmt.Sprintf("%s (PID %d)", l.Peer.Program, l.Peer.PID))
	}
	if l.Peer.Client != "" {
		add("from %s", l.Peer.Client)
	}
	if l.ExitCode != nil {
		add("exit code %d", *l.ExitCode)
	}
	if l.Error != "" {
		add("error: %s", l.Error)
	}
	return table.Printable(strings.Join(text, "  "))
}
