package main

import (
	"fmt"
	"html"
	"io"
	"math"
	"os"
)

// chart draws how many times as good the first peer is as another, a bar for each row, on a logarithmic scale.
// A line across a bar is the row's aim.
func (r *report) chart(file string) (err error) {
	if len(r.Results) < 2 {
		return fmt.Errorf("-svg compares two peers, and there is %d", len(r.Results))
	}
	out, err := os.Create(file)
	if err != nil {
		return err
	}
	defer func() {
		if cerr := out.Close(); err == nil {
			err = cerr
		}
	}()
	return r.draw(out, r.Results[0], r.Results[1])
}

func (r *report) draw(out io.Writer, first, other *result) error {
	const (
		label, plot, line, top, most = 300.0, 420.0, 24.0, 58.0, 100.0
	)
	type bar struct {
		row   row
		times float64
	}
	var bars []bar
	for _, row := range rows {
		if times := row.times(other.Figures[row.Key], first.Figures[row.Key], p50); times > 0 {
			bars = append(bars, bar{row, times})
		}
	}
	// 1/2 at the left edge, most at the right one.
	x := func(times float64) float64 {
		return label + plot*math.Log(2*min(max(times, 0.5), most))/math.Log(2*most)
	}
	height := top + line*float64(len(bars)) + 36
	p := func(format string, args ...any) {
		fmt.Fprintf(out, format+"\n", args...)
	}
	p(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 800 %.0f" font-family="sans-serif" font-size="13">`, height)
	p(`<rect width="800" height="%.0f" fill="#fff"/>`, height)
	p(`<text x="16" y="24" font-size="16" font-weight="bold">%s against %s</text>`, html.EscapeString(first.Name),
		html.EscapeString(other.Version))
	p(`<text x="16" y="44" fill="#555">how many times as good, in one run: %s</text>`, html.EscapeString(r.Machine))
	for _, tick := range []float64{1, 2, 5, 10, 20, 50, 100} {
		p(`<line x1="%.1f" x2="%.1f" y1="%.0f" y2="%.0f" stroke="#ddd"/>`, x(tick), x(tick), top, height-30)
		p(`<text x="%.1f" y="%.0f" text-anchor="middle" fill="#555">%g</text>`, x(tick), height-14, tick)
	}
	for i, b := range bars {
		y := top + line*float64(i)
		p(`<text x="%.0f" y="%.1f" text-anchor="end">%s</text>`, label-8, y+16, html.EscapeString(b.row.Title))
		from, to := min(x(1), x(b.times)), max(x(1), x(b.times))
		colour := "#2a7f62"
		if b.times < 1 {
			colour = "#b3402a"
		}
		p(`<rect x="%.1f" y="%.1f" width="%.1f" height="%.1f" fill="%s"/>`, from, y+4, max(to-from, 1), line-8, colour)
		if b.row.Aim > 0 {
			p(`<line x1="%.1f" x2="%.1f" y1="%.1f" y2="%.1f" stroke="#000" stroke-width="2"/>`, x(b.row.Aim),
				x(b.row.Aim), y+2, y+line-2)
		}
		p(`<text x="%.1f" y="%.1f">%sx</text>`, to+5, y+16, short(b.times))
	}
	_, err := fmt.Fprintln(out, "</svg>")
	return err
}
