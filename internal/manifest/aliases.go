package manifest

import (
	"bytes"
	"fmt"
	"math"

	"go.yaml.in/yaml/v3"
)

// checkAliases refuses a document that is larger than a manifest may be once each alias is replaced by what it stands
// for, as reading it as JSON does. The parser for that bounds how many values aliases stand for, but not how long these
// are: a megabyte of text that is named a hundred thousand times would take all memory.
func checkAliases(document []byte) error {
	if bytes.IndexByte(document, '*') < 0 {
		return nil
	}
	var root yaml.Node
	if yaml.Unmarshal(document, &root) != nil {
		return nil // the error of the parser for JSON is the one to tell
	}
	if (expansion{}).size(&root) > maxSize {
		return fmt.Errorf("with its aliases it is larger than %d MiB", maxSize>>20)
	}
	return nil
}

// expansion is the sizes of the values of a document, in bytes, with their aliases.
type expansion map[*yaml.Node]int64

func (e expansion) size(n *yaml.Node) int64 {
	if n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	if size, known := e[n]; known {
		return size
	}
	e[n] = 0 // a value that contains itself is an error of the parser
	size := int64(len(n.Value)) + 1
	for _, below := range n.Content {
		if size += e.size(below); size > maxSize {
			size = math.MaxInt32 // it is not added up to more than an int64 holds
		}
	}
	e[n] = size
	return size
}
