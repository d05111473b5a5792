// Package disk is a disk whose power tests can cut. It keeps apart what has been flushed and what has not:
// of the latter a cut drops, tears and reorders what it likes, as a disk with a volatile write cache may.
// It lies in memory, and the kernel sees it as a file (FUSE) that a loop device can be made of, since a loop device
// passes flushes on. No kernel module is needed beyond FUSE and loop.
package disk

import (
	"maps"
	"math/rand"
	"sync"
)

// sector is what a disk writes whole or not at all.
const sector = 512

// whole is how many bytes are written whole or not at all from an offset on. The first page has the superblock of ext4,
// which is two sectors and has one checksum: a disk that tears it takes the file system with it, whatever is on that.
func whole(at int64) int {
	if at < pageSize {
		return int(pageSize - at)
	}
	return sector
}

// pageSize is that of the memory that is kept for what is not zero.
const pageSize = 4096

// content is what a disk holds, by page. A page is replaced, never changed, so that copies share pages.
type content map[int64]*[pageSize]byte

func (c content) read(at int64, to []byte) {
	for len(to) > 0 {
		page, in := at/pageSize, at%pageSize
		n := min(len(to), int(pageSize-in))
		if p := c[page]; p != nil {
			copy(to[:n], p[in:])
		} else {
			clear(to[:n])
		}
		at, to = at+int64(n), to[n:]
	}
}

func (c content) write(at int64, data []byte) {
	for len(data) > 0 {
		page, in := at/pageSize, at%pageSize
		n := min(len(data), int(pageSize-in))
		p := new([pageSize]byte)
		if old := c[page]; old != nil && n < pageSize {
			*p = *old
		}
		copy(p[in:], data[:n])
		c[page] = p
		at, data = at+int64(n), data[n:]
	}
}

// write is one that the kernel has been told is done.
type write struct {
	at   int64
	data []byte
}

// Disk is a disk. Its zero value is not of use: see New.
type Disk struct {
	size int64

	mu        sync.Mutex
	flushed   content // what is there whatever happens
	current   content // what is read
	unflushed []write // the difference, in order
	off       bool    // the power is cut: writes change only what is read
	// The power is cut when left further writes have come; chance is nil where no cut is to come.
	left   int
	chance *rand.Rand
	count  Count
}

// Count is what a disk has been asked for, and what a cut has cost.
type Count struct {
	Writes, Flushes int
	// Dropped, Torn and Kept are the writes that were not flushed when the power was cut.
	Dropped, Torn, Kept int
}

// New makes an empty disk of a size in bytes.
func New(size int64) *Disk { return &Disk{size: size, flushed: content{}, current: content{}} }

// Size is the disk's, in bytes.
func (d *Disk) Size() int64 { return d.size }

// ReadAt reads what was written last.
func (d *Disk) ReadAt(to []byte, at int64) (int, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.current.read(at, to)
	return len(to), nil
}

// WriteAt writes to the disk's cache.
func (d *Disk) WriteAt(data []byte, at int64) (int, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.current.write(at, data)
	d.count.Writes++
	if d.off {
		return len(data), nil
	}
	d.unflushed = append(d.unflushed, write{at, append([]byte(nil), data...)})
	if d.left--; d.chance != nil && d.left <= 0 {
		d.cut(d.chance)
	}
	return len(data), nil
}

// Flush makes all that was written last.
func (d *Disk) Flush() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.count.Flushes++
	if d.off {
		return
	}
	for _, w := range d.unflushed {
		d.flushed.write(w.at, w.data)
	}
	d.unflushed = nil
}

// Cut cuts the power. Each write that was not flushed is kept, dropped, or torn, by chance: of a torn one some sectors
// are kept. So a write may be there though an earlier one is not. From then on nothing that is written lasts.
func (d *Disk) Cut(r *rand.Rand) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.cut(r)
}

// CutAfter cuts the power when a number of further writes have come, in the middle of whatever they are of.
func (d *Disk) CutAfter(writes int, r *rand.Rand) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.left, d.chance = writes, r
}

// cut is Cut for a caller that holds d.mu.
func (d *Disk) cut(r *rand.Rand) {
	if d.off {
		return
	}
	d.off, d.chance = true, nil
	keep, tear := r.Float64(), r.Float64()/2
	for _, w := range d.unflushed {
		switch x := r.Float64(); {
		case x < keep:
			d.count.Kept++
			d.flushed.write(w.at, w.data)
		case r.Float64() < tear && len(w.data) > sector:
			d.count.Torn++
			for from := 0; from < len(w.data); {
				to := min(from+whole(w.at+int64(from)), len(w.data))
				if r.Intn(2) == 0 {
					d.flushed.write(w.at+int64(from), w.data[from:to])
				}
				from = to
			}
		default:
			d.count.Dropped++
		}
	}
	d.unflushed = nil
}

// Restore gives a disk whose power was cut its power again: what is read is what has lasted.
func (d *Disk) Restore() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.current, d.unflushed, d.off = maps.Clone(d.flushed), nil, false
}

// Count returns the counts since the disk was made.
func (d *Disk) Count() Count {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.count
}
