package main

import (
	"fmt"
	"io"
	"text/tabwriter"
)

// printParts gives a table of where the processor time and the events of operations go.
func (r *report) printParts(out io.Writer) error {
	if !r.hasAny(partRows()) {
		return nil
	}
	fmt.Fprint(out, "\nWhere it goes. Children are all processes but the daemon and Berth's keeper: stages, shims, runc, "+
		"plugins and\ncontainers. What the kernel takes in system calls is in those figures; what its own threads take "+
		"meanwhile is not.\n\n")
	w := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	fmt.Fprint(w, "\t\tunit\tall")
	columns := append(parts[:len(parts):len(parts)], partSystem, partKernelThreads)
	for _, part := range columns {
		title := string(part)
		if part == partSystem {
			title = "of all, in the kernel"
		}
		fmt.Fprintf(w, "\t%s", title)
	}
	fmt.Fprintln(w)
	for _, op := range operations {
		for _, m := range quantities {
			for _, result := range r.Results {
				if result.Figures[m.of(op).Key] == nil {
					continue
				}
				fmt.Fprintf(w, "%s\t%s\t%s\t%s", m.of(op).Title, result.Name, m.unit, result.Figures.median(m.of(op)))
				for _, part := range columns {
					fmt.Fprintf(w, "\t%s", result.Figures.median(m.in(op, part)))
				}
				fmt.Fprintln(w)
			}
		}
	}
	return w.Flush()
}

// median is a row's, in words.
func (f figures) median(row row) string {
	if one := f[row.Key]; one != nil {
		return short(one.P50)
	}
	return "-"
}

// printLevels gives a table of how rows grow with the number of pods.
func (r *report) printLevels(out io.Writer) error {
	rows := r.grown()
	if len(rows) == 0 {
		return nil
	}
	fmt.Fprint(out, "\nBeside so many pods (medians; two figures are p50 / p99):\n\n")
	w := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	fmt.Fprint(w, "\tunit")
	for _, result := range r.Results {
		for _, l := range result.Levels {
			fmt.Fprintf(w, "\t%s, %d", result.Name, l.Pods)
		}
	}
	fmt.Fprintln(w)
	for _, row := range rows {
		fmt.Fprintf(w, "%s\t%s", row.Title, row.Unit)
		for _, result := range r.Results {
			for _, l := range result.Levels {
				text := l.Figures.median(row)
				if f := l.Figures[row.Key]; f != nil && row.spread {
					text += " / " + short(f.P99)
				}
				fmt.Fprintf(w, "\t%s", text)
			}
		}
		fmt.Fprintln(w)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	for _, limit := range r.limits() {
		if _, err := fmt.Fprintln(out, limit); err != nil {
			return err
		}
	}
	return nil
}

// grown are the rows that somebody has beside a number of pods.
func (r *report) grown() (list []row) {
	for _, row := range growthRows {
		if r.anyLevel(func(l *level) bool { return l.Figures[row.Key] != nil }) {
			list = append(list, row)
		}
	}
	return list
}

func (r *report) anyLevel(is func(*level) bool) bool {
	for _, result := range r.Results {
		for _, l := range result.Levels {
			if is(l) {
				return true
			}
		}
	}
	return false
}

// limits say which runtimes had fewer pods than they were to have, and why.
func (r *report) limits() (texts []string) {
	for _, result := range r.Results {
		for _, l := range result.Levels {
			if l.Limit != "" {
				texts = append(texts, fmt.Sprintf("%s: %d pods, and no more: %s", result.Name, l.Pods, l.Limit))
			}
		}
	}
	return texts
}

func (r *report) hasAny(list []row) bool {
	for _, row := range list {
		if r.has(row) {
			return true
		}
	}
	return false
}
