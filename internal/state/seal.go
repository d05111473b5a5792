package state

import (
	"bytes"
	"errors"
	"fmt"
	"hash/crc32"
	"strconv"
	"unicode"
)

// format is the version of the format of the records that are written, and the newest that is read. All kinds of
// records share it. It is a decimal number, and a variable only for tests, which build a berthd of the future with
// -ldflags -X.
//
// It has to grow when an older berthd would misunderstand a record: that berthd then does not start. A new field that
// an older berthd may ignore needs no new version. An older berthd drops such a field when it writes the record.
var format = "1"

// known returns format as a number.
func known() int {
	n, err := strconv.Atoi(format)
	if err != nil {
		panic("state: the format of records is no number: " + format)
	}
	return n
}

// FormatError is a record that a newer berthd has written. A caller that gets one must change nothing: what
// the record means is not known.
type FormatError struct {
	Path       string
	Has, Knows int
}

func (e *FormatError) Error() string {
	return fmt.Sprintf(
		"%s has version %d of the format of records, which a newer berthd has written; this one knows versions up to %d",
		e.Path, e.Has, e.Knows)
}

// errSpoilt is the error of a record whose bytes have changed since it was written.
var errSpoilt = errors.New("the checksum does not fit: the file is not as it was written")

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// The seal of a record is the last members of its JSON object: the version of its format, whether the file is a copy of
// the newest version, and the CRC-32C of everything before the checksum. A berthd of a version that had no seals can
// still read such an object. The seal is followed by white space alone.
const (
	formatKey = `"_format":`
	copyMark  = `,"_copy":true`
	sumKey    = `,"_sum":"`
	sumDigits = 8 // hexadecimal
	sealEnd   = `"}`
)

// seam is where a record and its seal meet, and what the seal says.
type seam struct {
	start  int // of the seal
	summed int // the checksum is of what comes before here
	format int
	isCopy bool
	sum    []byte
}

// findSeal finds the seal of a record.
func findSeal(data []byte) (s seam, ok bool) {
	body := bytes.TrimRight(data, " \t\r\n\f")
	s.summed = len(body) - len(sealEnd) - sumDigits - len(sumKey)
	if s.summed < 0 || !bytes.HasSuffix(body, []byte(sealEnd)) || !bytes.HasPrefix(body[s.summed:], []byte(sumKey)) {
		return s, false
	}
	s.sum = body[len(body)-len(sealEnd)-sumDigits : len(body)-len(sealEnd)]
	body = body[:s.summed]
	if rest, isCopy := bytes.CutSuffix(body, []byte(copyMark)); isCopy {
		body, s.isCopy = rest, true
	}
	digits := len(body)
	for digits > 0 && body[digits-1] >= '0' && body[digits-1] <= '9' {
		digits--
	}
	var err error
	if s.format, err = strconv.Atoi(string(body[digits:])); err != nil || len(body)-digits > 9 {
		return s, false
	}
	body, ok = bytes.CutSuffix(body[:digits], []byte(formatKey))
	s.start = len(body)
	return s, ok
}

// sealLength is the most bytes that a seal takes, white space at its end included.
const sealLength = 100

// seal puts a seal on a JSON object, after a number of spaces.
func seal(data []byte, isCopy bool, spaces int) ([]byte, error) {
	data = bytes.TrimSpace(data)
	if len(data) < 2 || data[0] != '{' {
		return nil, errors.New("a record is a JSON object")
	}
	out := make([]byte, 0, len(data)+spaces+sealLength)
	out = append(out, data[:len(data)-1]...)
	for range spaces {
		out = append(out, ' ')
	}
	if len(data) > 2 {
		out = append(out, ',')
	}
	out = append(out, formatKey...)
	out = append(out, format...)
	if isCopy {
		out = append(out, copyMark...)
	}
	return fmt.Appendf(out, sumKey+"%08x"+sealEnd, crc32.Checksum(out, castagnoli)), nil
}

// sealed tells whether a record has a seal. Whether the seal fits, unseal tells.
func sealed(data []byte) bool {
	_, ok := findSeal(data)
	return ok
}

// Seal puts a seal on a JSON object that is kept elsewhere than in Records.
func Seal(data []byte) ([]byte, error) { return seal(data, false, 0) }

// Unseal checks the seal of a JSON object, and leaves the seal in it. An object without a seal was written by a berthd
// of a version that had none. The path is for errors.
func Unseal(path string, data []byte) error {
	_, err := unseal(path, data)
	return err
}

// bare returns a JSON object without its seal, which unseal has found.
func bare(data []byte) []byte {
	found, _ := findSeal(data)
	body := bytes.TrimSuffix(bytes.TrimRight(data[:found.start], " "), []byte(","))
	return append(bytes.TrimRight(body, " "), '}')
}

// unseal checks the seal of a record. A record without a seal was written by a berthd of a version that had none.
func unseal(path string, data []byte) (isCopy bool, err error) {
	found, ok := findSeal(data)
	if !ok {
		tail := data[max(0, len(data)-sealLength):]
		if bytes.Contains(tail, []byte(formatKey)) || bytes.Contains(tail, []byte(`"_sum":`)) {
			return false, errSpoilt
		}
		return false, nil
	}
	sum, err := strconv.ParseUint(string(found.sum), 16, 32)
	if err != nil || bytes.ContainsFunc(found.sum, unicode.IsUpper) ||
		uint32(sum) != crc32.Checksum(data[:found.summed], castagnoli) {
		return false, errSpoilt
	}
	if found.format > known() {
		return false, &FormatError{Path: path, Has: found.format, Knows: known()}
	}
	return found.isCopy, nil
}
