// Package progress shows how far the pull or the push of an image is, layer by layer: bars with rates on a terminal,
// lines elsewhere.
package progress

import (
	"context"
	"fmt"
	"io"
	"os"
	"sync/atomic"
	"time"

	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"

	berthv1 "berth/api/berth/v1"
	"berth/internal/cli/streaming"
	"berth/internal/cli/table"
)

// Display shows how far the layers of a pull are.
type Display interface {
	// Layer takes what the runtime says of one layer.
	Layer(*berthv1.Layer)
	// End ends the display. whole says that the image is here.
	End(whole bool)
}

// Words name the phases of a layer.
type Words map[berthv1.Phase]string

var (
	// Pull are the words of a pull.
	Pull = Words{
		berthv1.Phase_PHASE_WAITING: "waiting", berthv1.Phase_PHASE_DOWNLOADING: "downloading",
		berthv1.Phase_PHASE_DONE: "done", berthv1.Phase_PHASE_EXISTS: "already here",
	}
	// Push are the words of a push.
	Push = Words{
		berthv1.Phase_PHASE_WAITING: "packing", berthv1.Phase_PHASE_DOWNLOADING: "pushing",
		berthv1.Phase_PHASE_DONE: "done", berthv1.Phase_PHASE_EXISTS: "is there",
	}
)

// New returns bars where w is a terminal. Elsewhere, such as in the log of a build, there is a line when a layer
// begins, every ten seconds while it is under way, and when it is done.
func New(ctx context.Context, w io.Writer, words Words) Display {
	if file, ok := w.(*os.File); ok && streaming.IsTerminal(file) {
		return newBars(ctx, file, words)
	}
	return &lines{w: w, words: words, layers: map[string]*line{}, now: time.Now}
}

// lines prints a line when a layer begins and when it is done, and every so often in between.
type lines struct {
	words  Words
	w      io.Writer
	layers map[string]*line
	now    func() time.Time
}

type line struct {
	phase  berthv1.Phase
	begun  time.Time
	offset int64 // where the download began: bytes of an earlier attempt may be here
	told   time.Time
}

// often is how often a log has a line about a layer that takes long: builds that say nothing for minutes are ended by
// those who run them.
const often = 10 * time.Second

func (l *lines) Layer(p *berthv1.Layer) {
	seen := l.layers[p.GetDigest()]
	if seen == nil {
		seen = &line{}
		l.layers[p.GetDigest()] = seen
	}
	if seen.phase == p.GetPhase() {
		l.between(seen, p)
		return
	}
	if p.GetPhase() == berthv1.Phase_PHASE_WAITING {
		return
	}
	seen.phase = p.GetPhase()
	fmt.Fprintf(l.w, "  layer %s  %s  %s", table.ShortID(p.GetDigest()), size(p.GetTotal()), l.words[p.GetPhase()])
	switch p.GetPhase() {
	case berthv1.Phase_PHASE_DOWNLOADING:
		seen.begun, seen.offset = l.now(), p.GetOffset()
		seen.told = seen.begun
	case berthv1.Phase_PHASE_DONE:
		if took := l.now().Sub(seen.begun); !seen.begun.IsZero() && took > 0 {
			rate := float64(p.GetTotal()-seen.offset) / took.Seconds()
			fmt.Fprintf(l.w, " in %s, %s/s", took.Round(100*time.Millisecond), size(int64(rate)))
		}
	}
	fmt.Fprintln(l.w)
}

// between says how far a layer is whose download takes long, at which rate, and how long the rest takes at that rate.
func (l *lines) between(seen *line, p *berthv1.Layer) {
	now := l.now()
	got := p.GetOffset() - seen.offset
	if seen.phase != berthv1.Phase_PHASE_DOWNLOADING || now.Sub(seen.told) < often || got <= 0 {
		return
	}
	seen.told = now
	rate := float64(got) / now.Sub(seen.begun).Seconds()
	left := time.Duration(float64(p.GetTotal()-p.GetOffset()) / rate * float64(time.Second))
	fmt.Fprintf(l.w, "  layer %s  %s  %s, %s so far, %s/s, %s left\n", table.ShortID(p.GetDigest()), size(p.GetTotal()),
		l.words[p.GetPhase()], size(p.GetOffset()), size(int64(rate)), max(left, 0).Round(time.Second))
}

func (l *lines) End(bool) {}

func size(bytes int64) string { return table.Bytes(uint64(max(bytes, 0))) }

// maxBar is the width of a bar where the terminal has room for it. In 80 columns it is narrower.
const maxBar = 40

// bars draws a bar for each layer, with the rate and the time that is left.
type bars struct {
	words    Words
	progress *mpb.Progress
	layers   map[string]*bar
}

type bar struct {
	*mpb.Bar
	state *state
}

func newBars(ctx context.Context, w io.Writer, words Words, options ...mpb.ContainerOption) *bars {
	options = append([]mpb.ContainerOption{
		mpb.WithOutput(w), mpb.WithWidth(maxBar), mpb.WithRefreshRate(100 * time.Millisecond),
	}, options...)
	return &bars{words: words, progress: mpb.NewWithContext(ctx, options...), layers: map[string]*bar{}}
}

func (b *bars) Layer(p *berthv1.Layer) {
	layer := b.layers[p.GetDigest()]
	if layer == nil {
		s := &state{words: b.words}
		layer = &bar{Bar: b.progress.AddBar(0,
			mpb.PrependDecorators(decor.Name(table.ShortID(p.GetDigest())+" "), decor.Any(s.word, decor.WC{W: 13})),
			mpb.AppendDecorators(decor.CountersKibiByte("% .1f / % .1f"), decor.Any(s.rate)),
		), state: s}
		b.layers[p.GetDigest()] = layer
	}
	layer.state.set(p)
	layer.SetTotal(max(p.GetTotal(), p.GetOffset()), false)
	layer.SetCurrent(p.GetOffset())
	if p.GetPhase() == berthv1.Phase_PHASE_DONE || p.GetPhase() == berthv1.Phase_PHASE_EXISTS {
		layer.SetTotal(p.GetTotal(), false)
		layer.SetCurrent(p.GetTotal())
		layer.SetTotal(p.GetTotal(), true)
	}
}

func (b *bars) End(whole bool) {
	for _, layer := range b.layers {
		if whole {
			layer.SetTotal(-1, true)
		} else {
			layer.Abort(false)
		}
	}
	b.progress.Wait()
}

// state is what is written beside a bar. The bars' own goroutine reads it.
type state struct {
	words  Words
	phase  atomic.Int32
	begun  atomic.Int64 // nanoseconds since 1970 when the download began; 0: it has not
	offset atomic.Int64 // where the download began
	ended  atomic.Int64 // nanoseconds since 1970 when it was done; 0: it is not
}

func (s *state) set(p *berthv1.Layer) {
	was := berthv1.Phase(s.phase.Swap(int32(p.GetPhase())))
	now := time.Now().UnixNano()
	if p.GetPhase() == berthv1.Phase_PHASE_DOWNLOADING && was != p.GetPhase() {
		s.offset.Store(p.GetOffset())
		s.begun.Store(now)
	}
	if p.GetPhase() == berthv1.Phase_PHASE_DONE && was != p.GetPhase() {
		s.ended.Store(now)
	}
}

func (s *state) word(decor.Statistics) string { return s.words[berthv1.Phase(s.phase.Load())] }

// rate is the mean rate of a download since it began, and how long the rest takes at that rate.
func (s *state) rate(at decor.Statistics) string {
	begun := s.begun.Load()
	if begun == 0 {
		return ""
	}
	end := s.ended.Load()
	if end == 0 {
		end = time.Now().UnixNano()
	}
	took := time.Duration(end - begun)
	got := at.Current - s.offset.Load()
	if took <= 0 || got <= 0 {
		return ""
	}
	perSecond := float64(got) / took.Seconds()
	text := " " + size(int64(perSecond)) + "/s"
	if left := at.Total - at.Current; left > 0 && s.ended.Load() == 0 {
		text += " " + time.Duration(float64(left)/perSecond*float64(time.Second)).Round(time.Second).String()
	}
	return text
}
