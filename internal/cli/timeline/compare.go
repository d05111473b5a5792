package timeline

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
	"unicode/utf8"
)

// Difference is a step of two starts. The time is nil where a start does not have the step.
type Difference struct {
	Of     string         `json:"of"` // the pod, or a container's name
	Name   string         `json:"step"`
	Part   string         `json:"part,omitempty"` // the step that it is a part of
	First  *time.Duration `json:"first,omitempty"`
	Second *time.Duration `json:"second,omitempty"` // both in nanoseconds
}

// Comparison is two starts, step by step.
type Comparison struct {
	Differences []Difference
	totals      [2]time.Duration
}

// Compare pairs the steps of two starts. Containers are the same if they have the same name, or if each start has one
// container. The order is that of the first start. A step that only the second has comes after the one before it.
func Compare(first, second *Timeline) *Comparison {
	names := map[string]string{} // of the second's containers, as the first has them
	if one, other := containers(first), containers(second); len(one) == 1 && len(other) == 1 {
		names[other[0]] = one[0]
	}
	c := &Comparison{totals: [2]time.Duration{first.total, second.total}}
	for _, s := range first.Steps {
		took := s.Took
		if at := c.find(s); at >= 0 { // a step that is done several times
			*c.Differences[at].First += took
			continue
		}
		c.Differences = append(c.Differences, Difference{Of: s.Of, Name: s.Name, Part: s.Part, First: &took})
	}
	last := -1
	for _, s := range second.Steps {
		if name, ok := names[s.Of]; ok {
			s.Of = name
		}
		took := s.Took
		at := c.find(s)
		switch {
		case at < 0:
			at = last + 1
			c.Differences = append(c.Differences[:at:at], append([]Difference{{Of: s.Of, Name: s.Name, Part: s.Part,
				Second: &took}}, c.Differences[at:]...)...)
		case c.Differences[at].Second != nil:
			*c.Differences[at].Second += took
		default:
			c.Differences[at].Second = &took
		}
		last = at
	}
	return c
}

func (c *Comparison) find(s Step) int {
	for i, d := range c.Differences {
		if d.Of == s.Of && d.Name == s.Name && d.Part == s.Part {
			return i
		}
	}
	return -1
}

// containers are the names of the containers of a start.
func containers(t *Timeline) []string {
	var names []string
	seen := map[string]bool{"pod": true}
	for _, s := range t.Steps {
		if !seen[s.Of] {
			seen[s.Of] = true
			names = append(names, s.Of)
		}
	}
	return names
}

// Write draws the comparison for a terminal of so many columns: both times, the difference, and a bar to the right for
// what takes longer in the second start, to the left for what takes longer in the first.
func (c *Comparison) Write(w io.Writer, columns int, first, second string) error {
	const number = 11
	label, of := utf8.RuneCountInString("in all"), 0
	var longest time.Duration
	differences := slices.DeleteFunc(slices.Clone(c.Differences), Difference.trifling)
	for _, d := range differences {
		label = max(label, utf8.RuneCountInString(d.title()))
		of = max(of, utf8.RuneCountInString(d.Of))
		longest = max(longest, d.more().Abs())
	}
	half := max((columns-of-label-3*(number+1)-5)/2, 5)
	line := func(who, title, one, two, more, bar string) error {
		text := fmt.Sprintf("%-*s  %-*s %*s %*s %*s  %s", of, who, label, title, number, one, number, two, number, more, bar)
		_, err := fmt.Fprintln(w, strings.TrimRight(text, " "))
		return err
	}
	if _, err := fmt.Fprintf(w, "first: %s\nsecond: %s\n", first, second); err != nil {
		return err
	}
	if err := line("", "", "first", "second", "difference", ""); err != nil {
		return err
	}
	last := ""
	for _, d := range differences {
		who := d.Of
		if who == last {
			who = ""
		}
		last = d.Of
		if err := line(who, d.title(), cell(d.First), cell(d.Second), signed(d.more()),
			sided(d.more(), longest, half)); err != nil {
			return err
		}
	}
	return line("", "in all", milliseconds(c.totals[0]), milliseconds(c.totals[1]), signed(c.totals[1]-c.totals[0]), "")
}

// more is by how much the second is slower.
func (d Difference) more() time.Duration {
	var more time.Duration
	if d.Second != nil {
		more = *d.Second
	}
	if d.First != nil {
		more -= *d.First
	}
	return more
}

// trifling says that the step is not worth a line, as it takes hardly any time in either start.
func (d Difference) trifling() bool {
	return (d.First == nil || *d.First < trifle) && (d.Second == nil || *d.Second < trifle)
}

func (d Difference) title() string { return Step{Name: d.Name, Part: d.Part}.title() }

func cell(d *time.Duration) string {
	if d == nil {
		return "-"
	}
	return milliseconds(*d)
}

func signed(d time.Duration) string {
	return fmt.Sprintf("%+.1f ms", float64(d)/float64(time.Millisecond))
}

// sided is a bar on one side of a line.
func sided(d, longest time.Duration, half int) string {
	n := 0
	if longest > 0 {
		n = int(float64(half)*float64(d.Abs())/float64(longest) + 0.5)
	}
	if d < 0 {
		return strings.Repeat(" ", half-n) + strings.Repeat("█", n) + "│"
	}
	return strings.Repeat(" ", half) + "│" + strings.Repeat("█", n)
}
