package main

import (
	"cmp"
	"errors"
	"fmt"
	"html"
	"io"
	"math"
	"os"
	"slices"
	"strings"
)

// growthChart draws how rows grow with the number of pods: a picture for each row, and a line in it for each runtime.
func (r *report) growthChart(file string) (err error) {
	out, err := os.Create(file)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	return r.drawGrowth(out)
}

// What a picture of the chart is large, in units of the SVG.
const (
	panelWidth, panelHeight  = 320.0, 220.0
	panelLeft, panelRight    = 52.0, 84.0
	panelTop, panelBottom    = 34.0, 30.0
	chartTop                 = 92.0
	panelColumns             = 3
	labelHeight, labelOffset = 13.0, 4.0
)

// growthColours are those of the runtimes, on a light and on a dark ground; none is told from another by red and green
// alone.
var growthColours = [][2]string{
	{"#0072b2", "#56b4e9"}, {"#c04e00", "#ff9d4d"}, {"#8a4f7d", "#d59ac6"}, {"#00795c", "#2fc39a"}, {"#6b6b00", "#d6cf4b"},
}

// growthStyle has what the reader's system says of light and dark, where it is a browser that shows the chart.
func growthStyle() string {
	var light, dark strings.Builder
	for i, c := range growthColours {
		fmt.Fprintf(&light, ".s%d{stroke:%s}.f%d{fill:%s}", i, c[0], i, c[0])
		fmt.Fprintf(&dark, ".s%d{stroke:%s}.f%d{fill:%s}", i, c[1], i, c[1])
	}
	return "text{fill:#1f2328}.g{fill:#fff}.d{fill:#59636e}.l{stroke:#d1d9e0;stroke-width:1}" +
		"path{fill:none;stroke-width:2}.p99{stroke-width:1.3;stroke-dasharray:4 3}" + light.String() +
		"\n@media (prefers-color-scheme:dark){text{fill:#f0f6fc}.g{fill:#0d1117}.d{fill:#9198a1}.l{stroke:#3d444d}" +
		dark.String() + "}"
}

func (r *report) drawGrowth(out io.Writer) error {
	rows := r.grown()
	lines := (len(rows) + panelColumns - 1) / panelColumns
	width, height := panelWidth*panelColumns, chartTop+panelHeight*float64(lines)
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %.0f %.0f" font-family="sans-serif" `+
		`font-size="12"><style>%s</style>`+"\n", width, height, growthStyle())
	fmt.Fprintf(&b, `<rect class="g" width="%.0f" height="%.0f"/>`+"\n", width, height)
	fmt.Fprintf(&b, `<text x="16" y="24" font-size="16" font-weight="bold">What grows with the number of pods</text>`+"\n")
	fmt.Fprintf(&b, `<text class="d" x="16" y="43">%s</text>`+"\n", html.EscapeString(r.Machine))
	b.WriteString(`<text class="d" x="16" y="60">Medians, and p99 as dashed lines; the scales are logarithmic. ` +
		"At the end of a line: its last value, and how many times its first value that is.</text>\n")
	x := 16.0
	for i, result := range r.Results {
		colour := i % len(growthColours)
		fmt.Fprintf(&b, `<path class="s%d" d="M%.1f 76h22"/><text x="%.1f" y="80">%s</text>`+"\n", colour, x, x+28,
			html.EscapeString(result.Version))
		x += 28 + 7*float64(len(result.Version)) + 24
	}
	for i, row := range rows {
		fmt.Fprintf(&b, `<g transform="translate(%.0f %.0f)">`+"\n", panelWidth*float64(i%panelColumns),
			chartTop+panelHeight*float64(i/panelColumns))
		r.drawPanel(&b, row)
		fmt.Fprintln(&b, "</g>")
	}
	b.WriteString("</svg>\n")
	_, err := io.WriteString(out, b.String())
	return err
}

// point is a figure beside a number of pods.
type point struct{ pods, value float64 }

// line is a row of one runtime.
type line struct{ p50, p99 []point }

func (r *report) lines(row row) (all []line) {
	for _, result := range r.Results {
		var one line
		for _, l := range result.Levels {
			f := l.Figures[row.Key]
			if f == nil || f.P50 <= 0 { // less than what can be told, which has no place on a logarithmic scale
				continue
			}
			one.p50 = append(one.p50, point{float64(l.Pods), f.P50})
			if row.spread {
				one.p99 = append(one.p99, point{float64(l.Pods), f.P99})
			}
		}
		all = append(all, one)
	}
	return all
}

func (r *report) drawPanel(b *strings.Builder, row row) {
	fmt.Fprintf(b, `<text x="16" y="18" font-weight="bold">%s, %s</text>`+"\n", html.EscapeString(row.Title), row.Unit)
	lines := r.lines(row)
	least, most, pods := math.Inf(1), math.Inf(-1), 1.0
	for _, l := range lines {
		for _, p := range slices.Concat(l.p50, l.p99) {
			least, most, pods = min(least, p.value), max(most, p.value), max(pods, p.pods)
		}
	}
	if most <= 0 {
		return // nothing that can be drawn
	}
	ticks := niceTicks(least, most)
	bottom, top := math.Log(ticks[0]), math.Log(ticks[len(ticks)-1])
	x := func(n float64) float64 { return panelLeft + (panelWidth-panelLeft-panelRight)*n/pods }
	y := func(value float64) float64 {
		return panelHeight - panelBottom - (panelHeight-panelTop-panelBottom)*(math.Log(value)-bottom)/(top-bottom)
	}
	for _, tick := range ticks {
		fmt.Fprintf(b, `<path class="l" d="M%.1f %.1fH%.1f"/><text class="d" x="%.1f" y="%.1f" text-anchor="end">%g</text>`+
			"\n", panelLeft, y(tick), panelWidth-panelRight, panelLeft-6, y(tick)+4, tick)
	}
	for _, n := range r.podsOfLevels() {
		fmt.Fprintf(b, `<text class="d" x="%.1f" y="%.1f" text-anchor="middle">%d</text>`+"\n", x(float64(n)),
			panelHeight-panelBottom+16, n)
	}
	fmt.Fprintf(b, `<text class="d" x="%.1f" y="%.1f">pods</text>`+"\n", panelWidth-panelRight+24,
		panelHeight-panelBottom+16)
	var labels []label
	for i, l := range lines {
		colour := i % len(growthColours)
		drawLine(b, fmt.Sprintf("s%d", colour), l.p50, x, y)
		drawLine(b, fmt.Sprintf("p99 s%d", colour), l.p99, x, y)
		for _, p := range l.p50 {
			fmt.Fprintf(b, `<circle class="f%d" cx="%.1f" cy="%.1f" r="3"/>`+"\n", colour, x(p.pods), y(p.value))
		}
		if n := len(l.p50); n > 0 {
			last := l.p50[n-1]
			text := short(last.value)
			if n > 1 {
				text += fmt.Sprintf(" (%sx)", short(last.value/l.p50[0].value))
			}
			labels = append(labels, label{colour, x(last.pods) + 8, y(last.value) + labelOffset, text})
		}
	}
	drawLabels(b, labels)
}

func drawLine(b *strings.Builder, class string, points []point, x, y func(float64) float64) {
	if len(points) < 2 {
		return
	}
	fmt.Fprintf(b, `<path class="%s" d="`, class)
	for i, p := range points {
		fmt.Fprintf(b, "%c%.1f %.1f", "ML"[min(i, 1)], x(p.pods), y(p.value))
	}
	b.WriteString("\"/>\n")
}

// label is a text at the end of a line.
type label struct {
	colour int
	x, y   float64
	text   string
}

// drawLabels moves labels down where they would lie on others.
func drawLabels(b *strings.Builder, labels []label) {
	slices.SortFunc(labels, func(a, b label) int { return cmp.Compare(a.y, b.y) })
	for i, l := range labels {
		if i > 0 {
			l.y = max(l.y, labels[i-1].y+labelHeight)
			labels[i].y = l.y
		}
		fmt.Fprintf(b, `<text class="f%d" x="%.1f" y="%.1f">%s</text>`+"\n", l.colour, l.x, l.y, l.text)
	}
}

// podsOfLevels are the numbers of pods that were wanted and that were there for somebody.
func (r *report) podsOfLevels() (list []int) {
	r.anyLevel(func(l *level) bool {
		if l.Pods == l.Wanted && !slices.Contains(list, l.Pods) {
			list = append(list, l.Pods)
		}
		return false
	})
	return list
}

// niceTicks are 1, 2 and 5 times powers of ten, from the last below the least value to the first above the most; powers
// of ten alone where that is enough to read.
func niceTicks(least, most float64) []float64 {
	var ticks []float64
	factors := []float64{1, 2, 5}
	if most/least > 100 {
		factors = factors[:1]
	}
	for exponent := math.Floor(math.Log10(least)); ; exponent++ {
		for _, f := range factors {
			tick := f * math.Pow(10, exponent)
			if tick <= least {
				ticks = ticks[:0]
			}
			ticks = append(ticks, tick)
			if tick >= most && len(ticks) > 1 {
				return ticks
			}
		}
	}
}
