package crilog

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"github.com/fsnotify/fsnotify"

	"berth/internal/logpart"
)

// Options say what is read of a log.
type Options struct {
	Tail   int       // this many lines from the end; negative: all
	Since  time.Time // lines from this time on; zero: all
	Follow bool
	// Ended is closed once nothing more will be written: following ends with what is there then. Nil: never.
	Ended <-chan struct{}
	// Bad is told the first line of a file that is not one of a CRI log: a power failure leaves such lines, for example.
	// They are left out. Nil: nobody is told.
	Bad func(error)
}

// recheck is how often a followed log is looked at where no notice of the file system comes.
const recheck = time.Second

// Read gives emit each line of the log at path until the log ends, ctx ends or emit fails.
func Read(ctx context.Context, path string, options Options, emit func(*Line) error) error {
	r, err := Open(path, options)
	if err != nil {
		return err
	}
	defer r.Close()
	return r.Run(ctx, emit)
}

// Open opens the log at path. What is in it then can be read even if it is removed. A log that does not exist yet
// is waited for where it is followed.
func Open(path string, options Options) (*Reader, error) {
	r := &Reader{path: path, options: options}
	if options.Follow {
		watcher, err := fsnotify.NewWatcher()
		if err != nil {
			return nil, fmt.Errorf("watch %s: %w (`berth doctor` checks inotify)", path, err)
		}
		r.watcher = watcher
		if err := watcher.Add(filepath.Dir(path)); err != nil {
			r.Close()
			return nil, fmt.Errorf("watch the log's directory: %w", err)
		}
	}
	if err := r.open(path, true); err != nil && !(options.Follow && errors.Is(err, fs.ErrNotExist)) {
		r.Close()
		return nil, err
	}
	return r, nil
}

// Reader reads one log. It is for one goroutine.
type Reader struct {
	path    string
	options Options
	emit    func(*Line) error
	watcher *fsnotify.Watcher

	file    *os.File
	buffer  *bufio.Reader
	pending []byte // the beginning of a line that is not whole yet
	offset  int64  // of what has been taken from file
	bad     bool   // file has a bad line, and Bad was told
	lines   joiner
}

// Close closes the log file and its watch.
func (r *Reader) Close() {
	if r.watcher != nil {
		r.watcher.Close()
	}
	r.closeFile()
}

func (r *Reader) closeFile() {
	if r.file != nil {
		r.file.Close()
	}
}

// Run gives emit each line until the log ends, ctx ends or emit fails. A line's Text is valid during the call.
func (r *Reader) Run(ctx context.Context, emit func(*Line) error) error {
	r.emit = emit
	for {
		// Whether it has ended is asked before the file is read: what was written by then is in the file.
		ended := !r.options.Follow || r.ended()
		if r.file != nil {
			if err := r.drain(ctx); err != nil {
				return err
			}
		}
		rotated, err := r.rotated()
		if err != nil {
			return err
		}
		if rotated {
			// Once more from the old file: it was written to until the new one was there.
			if r.file != nil {
				if err := r.drain(ctx); err != nil {
					return err
				}
			}
			next, err := r.next()
			if err == nil {
				err = r.open(next, false)
			}
			if err != nil && !errors.Is(err, fs.ErrNotExist) { // it was rotated again, or removed: look once more
				return err
			}
			continue
		}
		if ended {
			for _, line := range r.lines.rest() {
				if err := r.emit(line); err != nil {
					return err
				}
			}
			return nil
		}
		if err := r.wait(ctx); err != nil {
			return err
		}
	}
}

func (r *Reader) ended() bool {
	select {
	case <-r.options.Ended:
		return true
	default:
		return false
	}
}

// next is the path of the file that follows the one that is open. That is the log, unless it was rotated more than once
// since it was looked at: then files between have been renamed already.
func (r *Reader) next() (string, error) {
	if r.file == nil {
		return r.path, nil
	}
	open, err := r.file.Stat()
	if err != nil {
		return "", err
	}
	dir, err := os.Open(filepath.Dir(r.path))
	if err != nil {
		return "", err
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return "", err
	}
	after, later := "", ""
	for _, name := range slices.Backward(logpart.Of(filepath.Base(r.path), names)) {
		if logpart.Compressed(name) {
			break // older ones are compressed too
		}
		path := filepath.Join(dir.Name(), name)
		info, err := os.Stat(path)
		if err != nil {
			continue
		}
		if os.SameFile(info, open) {
			return cmp.Or(after, r.path), nil
		}
		after = path
		if info.ModTime().After(open.ModTime()) {
			later = path
		}
	}
	if stat, ok := open.Sys().(*syscall.Stat_t); ok && stat.Nlink == 0 {
		return cmp.Or(later, r.path), nil // the one that was open was the oldest, and is removed
	}
	return r.path, nil
}

// open opens a file of the log; first says whether to look for the end or the time that was asked for.
func (r *Reader) open(path string, first bool) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	r.closeFile()
	r.file, r.pending, r.offset, r.bad = file, nil, 0, false
	if first && r.options.Tail >= 0 {
		if r.offset, err = tailOffset(file, r.options.Tail); err != nil {
			return err
		}
		if _, err := file.Seek(r.offset, io.SeekStart); err != nil {
			return err
		}
	}
	r.buffer = bufio.NewReaderSize(file, 256<<10)
	return nil
}

// drain gives out every whole line that the file has.
func (r *Reader) drain(ctx context.Context) error {
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		chunk, err := r.buffer.ReadSlice('\n')
		r.offset += int64(len(chunk))
		switch {
		case err == nil:
		case errors.Is(err, bufio.ErrBufferFull), errors.Is(err, io.EOF):
			if len(r.pending)+len(chunk) > maxLine {
				return fmt.Errorf("%s: a line of more than %d bytes is not a line of a CRI log", r.path, maxLine)
			}
			r.pending = append(r.pending, chunk...)
			if errors.Is(err, io.EOF) {
				return nil
			}
			continue
		default:
			return err
		}
		line := chunk
		if len(r.pending) > 0 {
			r.pending = append(r.pending, chunk...)
			line = r.pending
		}
		if err := r.take(bytes.TrimSuffix(line, []byte{'\n'})); err != nil {
			return err
		}
		r.pending = r.pending[:0]
	}
}

func (r *Reader) take(raw []byte) error {
	rec, err := parse(raw)
	if err != nil {
		r.skip(err)
		return nil
	}
	if !r.options.Since.IsZero() {
		at, err := rec.time()
		if err != nil {
			r.skip(err)
			return nil
		}
		if at.Before(r.options.Since) {
			return nil
		}
	}
	if line := r.lines.add(rec); line != nil {
		return r.emit(line)
	}
	return nil
}

// skip leaves a line out that is not one of a CRI log, as kubelets do: those behind it are worth reading.
func (r *Reader) skip(err error) {
	if !r.bad && r.options.Bad != nil {
		r.options.Bad(fmt.Errorf("%s: lines are left out: %w", r.path, err))
	}
	r.bad = true
}

// rotated says whether another file is at the path than the one that is open, or that one was cut.
func (r *Reader) rotated() (bool, error) {
	now, err := os.Stat(r.path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil // renamed, and the next one is not there yet
	}
	if err != nil {
		return false, err
	}
	if r.file == nil {
		return true, nil
	}
	open, err := r.file.Stat()
	if err != nil {
		return false, err
	}
	return !os.SameFile(now, open) || open.Size() < r.offset, nil
}

// wait returns when the log may have changed.
func (r *Reader) wait(ctx context.Context) error {
	timer := time.NewTimer(recheck)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-r.options.Ended:
			return nil
		case event := <-r.watcher.Events:
			if event.Name == r.path || event.Name == "" {
				return nil
			}
		case <-r.watcher.Errors: // such as a queue that overflowed
			return nil
		case <-timer.C:
			return nil
		}
	}
}

// tailOffset is the offset at which the last lines of a file begin. A line that long output was split into counts once.
func tailOffset(file *os.File, lines int) (int64, error) {
	info, err := file.Stat()
	if err != nil {
		return 0, err
	}
	const block = 64 << 10
	var (
		end    = info.Size() // of what has not been looked at
		after  []byte        // the beginning of the block behind, up to its first newline
		buffer = make([]byte, block)
		starts = info.Size() // of the line that begins last, among those found
		full   = 0
	)
	for end > 0 {
		begin := max(end-block, 0)
		part := buffer[:end-begin]
		if _, err := file.ReadAt(part, begin); err != nil && !errors.Is(err, io.EOF) {
			return 0, err
		}
		for {
			at := bytes.LastIndexByte(part, '\n')
			if at < 0 {
				break
			}
			line := append(append([]byte(nil), part[at+1:]...), after...)
			after = after[:0]
			position := begin + int64(at) + 1
			if stop := countLine(line, &full, lines); stop {
				return starts, nil
			}
			if len(line) > 0 {
				starts = position
			}
			part = part[:at]
		}
		after = append(append([]byte(nil), part...), after...)
		if len(after) > maxLine {
			return 0, fmt.Errorf("a line of more than %d bytes is not a line of a CRI log", maxLine)
		}
		end = begin
	}
	if stop := countLine(after, &full, lines); stop {
		return starts, nil
	}
	return 0, nil
}

// countLine counts whole lines from the end; it says stop at the one before the first that is wanted.
func countLine(line []byte, full *int, wanted int) (stop bool) {
	if len(line) == 0 {
		return false
	}
	if rec, err := parse(line); err == nil && rec.partial {
		return false
	}
	*full++
	return *full > wanted
}
