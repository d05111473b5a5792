package metricspage

import (
	_ "embed"
	"fmt"
	"strings"

	"berth/internal/metrics"
)

// head and tail are what stands around the table.
var (
	//go:embed head.md
	head string
	//go:embed tail.md
	tail string
)

// page is docs/metrics.md.
func page() string {
	var b strings.Builder
	b.WriteString(head)
	for _, d := range metrics.All() {
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s | %s |\n",
			code(d.Name), d.Type, code(d.Labels...), d.Help, code(split(d.Containerd)...), code(split(d.CRIO)...))
	}
	b.WriteString(tail)
	return b.String()
}

func split(names string) []string {
	if names == "" {
		return nil
	}
	return strings.Split(names, ", ")
}

// code is a list of names as the page has them.
func code(names ...string) string {
	if len(names) == 0 {
		return ""
	}
	return "`" + strings.Join(names, "`, `") + "`"
}
