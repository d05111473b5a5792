package ranges

import (
	"sync"

	"golang.org/x/sys/unix"
)

// Settings bound a Pool. Zero fields get defaults.
type Settings struct {
	Connections int   // for each blob; default 8. 1: blobs are not loaded ahead
	PerHost     int   // connections to a host for blobs, of all pulls together; default 16
	Size        int64 // of a range, in bytes; default 8 MiB
	Memory      int64 // of all ranges that are ahead of their readers, in bytes; default 128 MiB
}

// Default are the settings of a Pool that gets none.
var Default = Settings{Connections: 8, PerHost: 16, Size: 8 << 20, Memory: 128 << 20}

func (s Settings) withDefaults() Settings {
	if s.Connections <= 0 {
		s.Connections = Default.Connections
	}
	if s.PerHost <= 0 {
		s.PerHost = Default.PerHost
	}
	if s.Size <= 0 {
		s.Size = Default.Size
	}
	if s.Memory <= 0 {
		s.Memory = Default.Memory
	}
	return s
}

// Pool is what all blobs that are being read share. Its methods are safe for concurrent use. The zero value is not
// usable: see NewPool.
type Pool struct {
	mu       sync.Mutex
	settings Settings
	blobs    int      // that are open
	mapped   int64    // bytes of memory that are mapped: those of ranges, and those in free
	free     [][]byte // for the next range
	hosts    map[string]*slots
}

// NewPool makes a pool with these settings.
func NewPool(s Settings) *Pool {
	return &Pool{settings: s.withDefaults(), hosts: map[string]*slots{}}
}

// Configure changes the settings. Blobs that are being read keep their number of connections and the size of their
// ranges; memory above a smaller bound is given back as they go on.
func (p *Pool) Configure(s Settings) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.settings = s.withDefaults()
	for _, h := range p.hosts {
		h.limit = min(h.limit, p.settings.PerHost)
	}
}

// Settings are those in force.
func (p *Pool) Settings() Settings {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.settings
}

// Mapped is how many bytes of memory the pool has at the moment. It is 0 while no blob is open.
func (p *Pool) Mapped() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.mapped
}

func (p *Pool) enter() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.blobs++
}

// leave unmaps the memory with the last blob.
func (p *Pool) leave() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.blobs--; p.blobs > 0 {
		return
	}
	for _, m := range p.free {
		p.unmap(m)
	}
	p.free = nil
}

// take gives memory for a range of size bytes to a blob that has held bytes already; nil: there is none. Every open
// blob has the same share, so that the first one leaves some to the others.
//
// The memory is not Go's, whose collector may let twice as much as is used pile up before it takes any back.
func (p *Pool) take(held, size int64) []byte {
	p.mu.Lock()
	defer p.mu.Unlock()
	if held+size > p.settings.Memory/int64(max(p.blobs, 1)) {
		return nil
	}
	for i := len(p.free) - 1; i >= 0; i-- {
		m := p.free[i]
		p.free = append(p.free[:i], p.free[i+1:]...)
		if int64(len(m)) == size {
			return m
		}
		p.unmap(m) // of an earlier size
	}
	if p.mapped+size > p.settings.Memory {
		return nil
	}
	m, err := unix.Mmap(-1, 0, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return nil
	}
	p.mapped += size
	return m
}

// give takes the memory of a range back. Nobody may read or write it from then on: it may be unmapped.
func (p *Pool) give(m []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mapped > p.settings.Memory || p.blobs == 0 {
		p.unmap(m)
		return
	}
	p.free = append(p.free, m)
}

func (p *Pool) unmap(m []byte) {
	p.mapped -= int64(len(m))
	_ = unix.Munmap(m)
}
