package timeline

import (
	"encoding/json"
	"fmt"
	"html"
	"io"
	"slices"
	"strings"
	"time"
	"unicode/utf8"
)

// Step is a part of a start.
type Step struct {
	Of    string        `json:"of"` // the pod, or a container's name
	Name  string        `json:"step"`
	Part  string        `json:"part,omitempty"` // the step that it is a part of
	Begin time.Time     `json:"begin"`
	Took  time.Duration `json:"took"` // in nanoseconds
}

// Parse reads the timings out of a verbose status. A runtime that tells none gives no steps.
func Parse(of string, info map[string]string) ([]Step, error) {
	text, ok := info["info"]
	if !ok {
		return nil, nil
	}
	var verbose struct {
		Timings []struct {
			Step  string        `json:"step"`
			Of    string        `json:"of"`
			Begin time.Time     `json:"begin"`
			Took  time.Duration `json:"took"`
		} `json:"timings"`
	}
	if err := json.Unmarshal([]byte(text), &verbose); err != nil {
		return nil, fmt.Errorf("timings of %s: %w", of, err)
	}
	var steps []Step
	for _, t := range verbose.Timings {
		if t.Begin.IsZero() {
			continue // of a version that did not say when
		}
		steps = append(steps, Step{Of: of, Name: t.Step, Part: t.Of, Begin: t.Begin, Took: t.Took})
	}
	return steps, nil
}

// Timeline is steps on one scale. Time in which none of them went on is cut out: what a client does between its calls
// is no part of a start.
type Timeline struct {
	Steps []Step
	gaps  []gap
	total time.Duration
}

type gap struct {
	at  time.Time
	cut time.Duration
}

// shortGap is what is not worth a cut.
const shortGap = time.Millisecond

// New orders steps by their beginning.
func New(steps []Step) *Timeline {
	t := &Timeline{Steps: slices.Clone(steps)}
	slices.SortStableFunc(t.Steps, func(a, b Step) int {
		if c := a.Begin.Compare(b.Begin); c != 0 {
			return c
		}
		return int(b.Took - a.Took) // the whole before its parts
	})
	var end time.Time
	for i, s := range t.Steps {
		if cut := s.Begin.Sub(end); i > 0 && cut > shortGap {
			t.gaps = append(t.gaps, gap{s.Begin, cut})
		}
		if e := s.Begin.Add(s.Took); e.After(end) {
			end = e
		}
	}
	if len(t.Steps) > 0 {
		t.total = t.offset(end)
	}
	return t
}

// offset is the place of a moment on the scale.
func (t *Timeline) offset(at time.Time) time.Duration {
	d := at.Sub(t.Steps[0].Begin)
	for _, g := range t.gaps {
		if !at.Before(g.at) {
			d -= g.cut
		}
	}
	return d
}

// Total is how long the steps took, without what was cut out.
func (t *Timeline) Total() time.Duration { return t.total }

// Bar is a step as the waterfall draws it.
type Bar struct {
	Step
	Offset time.Duration `json:"offset"` // of its beginning on the scale, in nanoseconds
}

// Bars are the steps that are worth a line: what has nothing to do in this start takes some microseconds.
func (t *Timeline) Bars() []Bar {
	var bars []Bar
	for _, s := range t.Steps {
		if s.Took >= trifle {
			bars = append(bars, Bar{s, t.offset(s.Begin)})
		}
	}
	return bars
}

func (s Step) title() string {
	if s.Part != "" {
		return "  " + s.Name
	}
	return s.Name
}

func milliseconds(d time.Duration) string {
	return fmt.Sprintf("%.1f ms", float64(d)/float64(time.Millisecond))
}

// parts of a cell of a terminal, by eighths from the left.
var eighths = []rune{' ', '▏', '▎', '▍', '▌', '▋', '▊', '▉', '█'}

// trifle is a time that is shown as 0.0 ms.
const trifle = 50 * time.Microsecond

// Write draws the waterfall for a terminal of so many columns.
func (t *Timeline) Write(w io.Writer, columns int) error {
	label, of := 0, 0
	for _, s := range t.Bars() {
		label = max(label, utf8.RuneCountInString(s.title()))
		of = max(of, utf8.RuneCountInString(s.Of))
	}
	const times = 11
	width := max(columns-label-of-times-4, 20)
	scale := float64(width) / max(float64(t.total), 1)
	last := ""
	for _, s := range t.Bars() {
		who := s.Of
		if who == last {
			who = ""
		}
		last = s.Of
		from := float64(s.Offset) * scale
		to := max(from+float64(s.Took)*scale, from+0.125)
		if _, err := fmt.Fprintf(w, "%-*s  %-*s %*s %s\n", of, who, label, s.title(), times, milliseconds(s.Took),
			bar(from, to, width)); err != nil {
			return err
		}
	}
	_, err := fmt.Fprintf(w, "%-*s  %-*s %*s\n", of, "", label, "in all", times, milliseconds(t.total))
	return err
}

// bar fills the cells between two places of a line. What begins within a cell fills it from the left:
// there are no glyphs for the other way.
func bar(from, to float64, width int) string {
	var b strings.Builder
	for i := range width {
		fill := min(max(to-float64(i), 0), 1)
		if float64(i+1) <= from {
			fill = 0
		}
		b.WriteRune(eighths[int(fill*8+0.5)])
	}
	return strings.TrimRight(b.String(), " ")
}

// colours tell the pod and its containers apart.
var colours = []string{"#2a7f62", "#2f6db3", "#b3722a", "#7a4fa3", "#a33c5b", "#5b7a1f"}

// SVG draws the waterfall as a picture.
func (t *Timeline) SVG(w io.Writer, title string) error {
	const (
		label, plot, line, top, right = 330.0, 560.0, 22.0, 60.0, 90.0
	)
	steps := t.Bars()
	height := top + line*float64(len(steps)) + 34
	var b strings.Builder
	p := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	p(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %.0f %.0f" font-family="sans-serif" font-size="13">`,
		label+plot+right, height)
	p(`<rect width="100%%" height="100%%" fill="#fff"/>`)
	p(`<text x="16" y="26" font-size="16" font-weight="bold">%s: %s</text>`, html.EscapeString(title),
		milliseconds(t.total))
	scale := plot / max(float64(t.total), 1)
	for i := range 5 {
		x := label + plot*float64(i)/4
		p(`<line x1="%.1f" x2="%.1f" y1="%.0f" y2="%.0f" stroke="#ddd"/>`, x, x, top-6, height-28)
		p(`<text x="%.1f" y="%.0f" text-anchor="middle" fill="#555">%s</text>`, x, height-12,
			milliseconds(t.total*time.Duration(i)/4))
	}
	colour := map[string]string{}
	for i, s := range steps {
		if colour[s.Of] == "" {
			colour[s.Of] = colours[len(colour)%len(colours)]
		}
		y := top + line*float64(i)
		x := label + float64(s.Offset)*scale
		indent := 0.0
		opacity := 1.0
		if s.Part != "" {
			indent, opacity = 14, 0.6
		}
		p(`<text x="%.1f" y="%.1f">%s</text>`, 16+indent, y+15, html.EscapeString(s.Of+": "+s.Name))
		p(`<rect x="%.1f" y="%.1f" width="%.1f" height="%.1f" fill="%s" fill-opacity="%.1f"/>`, x, y+3,
			max(float64(s.Took)*scale, 1), line-6, colour[s.Of], opacity)
		p(`<text x="%.1f" y="%.1f" fill="#555">%s</text>`, x+max(float64(s.Took)*scale, 1)+4, y+15, milliseconds(s.Took))
	}
	p(`</svg>`)
	_, err := io.WriteString(w, b.String())
	return err
}
