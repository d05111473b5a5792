package state

import (
	"bytes"
	"errors"
	"fmt"
	"hash/crc32"
	"regexp"
	"strconv"
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
// still read such an object.
var sealForm = regexp.MustCompile(`"_format":([0-9]{1,9})(,"_copy":true)?,"_sum":"([0-9a-f]{8})"}\s*$`)

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
	out = append(out, `"_format":`...)
	out = append(out, format...)
	if isCopy {
		out = append(out, `,"_copy":true`...)
	}
	return fmt.Appendf(out, `,"_sum":"%08x"}`, crc32.Checksum(out, castagnoli)), nil
}

// sealed tells whether a record has a seal. Whether the seal fits, unseal tells.
func sealed(data []byte) bool { return sealForm.Match(data[max(0, len(data)-sealLength):]) }

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
	start := max(0, len(data)-sealLength)
	at := sealForm.FindIndex(data[start:])
	body := bytes.TrimSuffix(bytes.TrimRight(data[:start+at[0]], " "), []byte(","))
	return append(bytes.TrimRight(body, " "), '}')
}

// unseal checks the seal of a record. A record without a seal was written by a berthd of a version that had none.
func unseal(path string, data []byte) (isCopy bool, err error) {
	start := max(0, len(data)-sealLength)
	at := sealForm.FindSubmatchIndex(data[start:])
	if at == nil {
		tail := data[start:]
		if bytes.Contains(tail, []byte(`"_format":`)) || bytes.Contains(tail, []byte(`"_sum":`)) {
			return false, errSpoilt
		}
		return false, nil
	}
	group := func(n int) string { return string(data[start+at[2*n] : start+at[2*n+1]]) }
	summed := data[:start+at[6]-len(`,"_sum":"`)]
	if fmt.Sprintf("%08x", crc32.Checksum(summed, castagnoli)) != group(3) {
		return false, errSpoilt
	}
	has, err := strconv.Atoi(group(1))
	if err != nil {
		return false, err
	}
	if has > known() {
		return false, &FormatError{Path: path, Has: has, Knows: known()}
	}
	return at[4] >= 0, nil
}
