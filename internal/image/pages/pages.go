// Package pages checks the file of a bbolt database before bbolt opens it.
package pages

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"os"
)

// bbolt maps its file and follows what it finds there: a page that is spoilt ends the process, by a panic, by an
// address outside of the file, or by a page that leads to itself, and a spoilt list of free pages lets it write over
// pages in use. So the pages are checked before bbolt sees the file: here every offset has bounds, and no page is
// visited twice. It reads the whole file once.

// Layout of bbolt's file, version 2 (go.etcd.io/bbolt/internal/common). Numbers have the machine's byte order.
const (
	pageHeader    = 16 // id, flags, count, overflow
	branchElement = 16 // pos, ksize, pgid
	leafElement   = 16 // flags, pos, ksize, vsize
	bucketHeader  = 16 // root, sequence
	metaSize      = 64

	flagBranch, flagLeaf, flagMeta, flagFreelist = 1, 2, 4, 16
	leafBucket                                   = 1 // flag of a leaf's element that is a bucket

	metaMagic, metaVersion = 0xED0CDAED, 2
	noFreelist             = 1<<64 - 1
	manyFree               = 0xFFFF // the number of free pages is in the first of them
	maxPageSize            = 64 << 10
)

var word = binary.NativeEndian

// meta is one of the two pages that say where the rest is.
type meta struct {
	pageSize             uint32
	root, freelist, high uint64 // high is the number of pages
	tx                   uint64
}

type file struct {
	data []byte
	meta
	seen []bool // by page: it is in use, or free
}

// Check checks that bbolt can read and change a file. lastLost: the last change that was made to it is lost, as after
// a power failure.
func Check(path string) (lastLost bool, err error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return false, err
	}
	return check(data)
}

func check(data []byte) (lastLost bool, err error) {
	first, firstErr := readMeta(data, 0)
	size := first.pageSize
	if firstErr != nil {
		size = uint32(os.Getpagesize()) // that of the machine that has made it
	}
	var second meta
	secondErr := errors.New("the file ends before it")
	if uint64(len(data)) >= 2*uint64(size) {
		second, secondErr = readMeta(data[size:], 1)
	}
	m := first
	switch {
	case firstErr != nil && secondErr != nil:
		return false, fmt.Errorf("both of its first pages are spoilt: %w", firstErr)
	case firstErr != nil || secondErr == nil && second.tx > first.tx:
		m = second
	}
	if m.high < 4 || m.high > uint64(len(data))/uint64(m.pageSize) {
		return false, fmt.Errorf("it has %d pages, and should have %d", uint64(len(data))/uint64(m.pageSize), m.high)
	}
	p := &file{data: data, meta: m, seen: make([]bool, m.high)}
	p.seen[0], p.seen[1] = true, true
	if err := p.tree(m.root, nil, nil, 0); err != nil {
		return false, err
	}
	if m.freelist != noFreelist {
		if err := p.free(); err != nil {
			return false, err
		}
		for i, seen := range p.seen {
			if !seen {
				return false, fmt.Errorf("page %d is neither in use nor free", i)
			}
		}
	}
	return firstErr != nil || secondErr != nil, nil
}

func readMeta(page []byte, n uint64) (m meta, err error) {
	if len(page) < pageHeader+metaSize {
		return m, errors.New("it is too short")
	}
	b := page[pageHeader:]
	sum := fnv.New64a()
	sum.Write(b[:metaSize-8])
	m = meta{
		pageSize: word.Uint32(b[8:]), root: word.Uint64(b[16:]), freelist: word.Uint64(b[32:]), high: word.Uint64(b[40:]),
		tx: word.Uint64(b[48:]),
	}
	switch {
	case word.Uint32(b) != metaMagic || word.Uint32(b[4:]) != metaVersion || sum.Sum64() != word.Uint64(b[56:]):
		return m, errors.New("the checksum does not fit")
	case word.Uint64(page) != n || word.Uint16(page[8:]) != flagMeta:
		return m, errors.New("its kind is another")
	case m.pageSize < 512 || m.pageSize > maxPageSize || m.pageSize&(m.pageSize-1) != 0:
		return m, fmt.Errorf("pages of %d bytes", m.pageSize)
	}
	return m, nil
}

// page is a page of a number, with those that it goes on in, which nothing else may use.
func (p *file) page(n uint64) (b []byte, flags, count uint16, err error) {
	if n < 2 || n >= p.high {
		return nil, 0, 0, fmt.Errorf("page %d is none of %d", n, p.high)
	}
	at := n * uint64(p.pageSize)
	head := p.data[at:]
	flags, count = word.Uint16(head[8:]), word.Uint16(head[10:])
	more := uint64(word.Uint32(head[12:]))
	if word.Uint64(head) != n || more >= p.high-n {
		return nil, 0, 0, fmt.Errorf("page %d is another, or ends outside of the file", n)
	}
	for i := n; i <= n+more; i++ {
		if p.seen[i] {
			return nil, 0, 0, fmt.Errorf("page %d is used twice", i)
		}
		p.seen[i] = true
	}
	return p.data[at : at+(more+1)*uint64(p.pageSize)], flags, count, nil
}

// maxDepth is more than a tree of all pages that a file can have is deep.
const maxDepth = 64

// tree checks the pages below one. Their keys are at least low, and less than high where that is not nil.
func (p *file) tree(n uint64, low, high []byte, depth int) error {
	b, flags, count, err := p.page(n)
	if err != nil {
		return err
	}
	if err := p.node(b, flags, count, low, high, depth); err != nil {
		return fmt.Errorf("page %d: %w", n, err)
	}
	return nil
}

func (p *file) node(b []byte, flags, count uint16, low, high []byte, depth int) error {
	if depth > maxDepth {
		return errors.New("the tree has no end")
	}
	size := leafElement
	switch flags {
	case flagBranch:
		if size = branchElement; count == 0 {
			return errors.New("a branch leads nowhere")
		}
	case flagLeaf:
	default:
		return fmt.Errorf("its kind is %#x", flags)
	}
	if pageHeader+int(count)*size > len(b) {
		return fmt.Errorf("it has %d elements", count)
	}
	// bbolt writes an empty page with zeros behind its header. Anything else is a page whose count is spoilt, and whose
	// elements would be lost.
	if count == 0 && len(bytes.Trim(b[pageHeader:], "\x00")) > 0 {
		return errors.New("it has no elements, and is not empty")
	}
	type child struct {
		key []byte
		at  uint64
	}
	var children []child
	var last []byte
	end := uint64(pageHeader + int(count)*size) // what is in the elements follows them without a gap
	for i := range int(count) {
		at := pageHeader + i*size
		e := b[at : at+size]
		pos, ksize, vsize, kind := uint64(word.Uint32(e)), uint64(word.Uint32(e[4:])), uint64(0), uint32(0)
		if flags == flagLeaf {
			kind, pos, ksize, vsize = word.Uint32(e), uint64(word.Uint32(e[4:])), uint64(word.Uint32(e[8:])),
				uint64(word.Uint32(e[12:]))
		}
		begin := uint64(at) + pos
		if begin != end || begin+ksize+vsize > uint64(len(b)) {
			return fmt.Errorf("element %d is not in its place", i)
		}
		end = begin + ksize + vsize
		key, value := b[begin:begin+ksize], b[begin+ksize:begin+ksize+vsize]
		if i > 0 && bytes.Compare(last, key) >= 0 || bytes.Compare(key, low) < 0 ||
			high != nil && bytes.Compare(key, high) >= 0 {
			return fmt.Errorf("the key of element %d is not in its place", i)
		}
		last = key
		switch {
		case flags == flagBranch:
			children = append(children, child{key, word.Uint64(e[8:])})
		case kind > leafBucket:
			return fmt.Errorf("the kind of element %d is %#x", i, kind)
		case kind == leafBucket:
			if err := p.bucket(value, depth); err != nil {
				return fmt.Errorf("bucket %q: %w", key, err)
			}
		}
	}
	for i, c := range children {
		from, to := c.key, high
		if i+1 < len(children) {
			to = children[i+1].key
		}
		if err := p.tree(c.at, from, to, depth+1); err != nil {
			return err
		}
	}
	return nil
}

func (p *file) bucket(value []byte, depth int) error {
	if len(value) < bucketHeader {
		return errors.New("it is too short")
	}
	if root := word.Uint64(value); root != 0 {
		return p.tree(root, nil, nil, depth+1)
	}
	b := value[bucketHeader:]
	if len(b) < pageHeader || word.Uint16(b[8:]) != flagLeaf {
		return errors.New("what is in it is spoilt")
	}
	return p.node(b, flagLeaf, word.Uint16(b[10:]), nil, nil, depth+1)
}

// free checks the list of free pages.
func (p *file) free() error {
	b, flags, count, err := p.page(p.freelist)
	if err != nil {
		return fmt.Errorf("the list of free pages: %w", err)
	}
	if flags != flagFreelist {
		return fmt.Errorf("the list of free pages is of kind %#x", flags)
	}
	b = b[pageHeader:]
	n := uint64(count)
	if count == manyFree {
		n, b = word.Uint64(b), b[8:]
	}
	if n > uint64(len(b))/8 {
		return fmt.Errorf("the list of free pages has %d", n)
	}
	last := uint64(1)
	for i := range n {
		page := word.Uint64(b[8*i:])
		if page <= last || page >= p.high || p.seen[page] {
			return fmt.Errorf("page %d cannot be free", page)
		}
		p.seen[page], last = true, page
	}
	return nil
}
