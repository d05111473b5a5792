package stream

import (
	"bufio"
	"bytes"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/moby/spdystream/spdy"
)

// sink is a connection that takes what is written.
type sink struct{ net.Conn }

func (sink) Write(p []byte) (int, error) { return len(p), nil }
func (sink) Close() error                { return nil }

// FuzzSPDY has a client write anything. Whatever it is, the reader ends, and nothing is held afterwards.
func FuzzSPDY(f *testing.F) {
	var session bytes.Buffer
	framer, err := spdy.NewFramer(&session, &session)
	if err != nil {
		f.Fatal(err)
	}
	for _, frame := range []spdy.Frame{
		&spdy.SynStreamFrame{StreamId: 1, Headers: http.Header{"streamtype": {"stdin"}}},
		&spdy.SynStreamFrame{StreamId: 3, Headers: forwardHeader("data", "1")},
		&spdy.DataFrame{StreamId: 1, Data: []byte("hello")},
		&spdy.HeadersFrame{StreamId: 1, Headers: http.Header{"a": {"b"}}},
		&spdy.PingFrame{Id: 1},
		&spdy.SettingsFrame{FlagIdValues: []spdy.SettingsFlagIdValue{{Id: 4, Value: 1}}},
		&spdy.WindowUpdateFrame{StreamId: 1, DeltaWindowSize: 5},
		&spdy.RstStreamFrame{StreamId: 1, Status: spdy.Cancel},
		&spdy.DataFrame{StreamId: 3, Flags: spdy.DataFlagFin},
		&spdy.GoAwayFrame{},
	} {
		if err := framer.WriteFrame(frame); err != nil {
			f.Fatal(err)
		}
		f.Add(session.Bytes())
	}
	f.Fuzz(func(t *testing.T, said []byte) {
		memory := newBudget(allMost)
		c := newSPDY(sink{}, bufio.NewReader(bytes.NewReader(said)), memory, time.Hour, 8,
			func(id spdy.StreamId, _ http.Header) (reads, ok bool) { return id%4 == 1, id%8 != 7 })
		answered := make(chan struct{})
		go func() {
			defer close(answered)
			c.answer()
		}()
		accepted := make(chan struct{})
		go func() {
			defer close(accepted)
			for s := c.accept(t.Context()); s != nil; s = c.accept(t.Context()) {
				_ = s.Close()
			}
		}()
		if c.readFrames() == nil {
			t.Error("the reader has ended without a reason")
		}
		c.endReading()
		<-accepted
		c.close()
		<-answered
		if c.share.held != 0 || memory.free.Load() != allMost || len(c.streams) != 0 {
			t.Errorf("%d bytes are held, %d are free, %d streams", c.share.held, memory.free.Load(), len(c.streams))
		}
	})
}
