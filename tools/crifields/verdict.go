package crifields

import "strings"

// verdict is what becomes of a field.
type verdict struct {
	state string
	says  string
	tests []string // that show it
}

const (
	stateWorks       = "works"
	stateRefused     = "refused"
	stateMeaningless = "no meaning"
)

// works is a field that does what the interface says, as the tests show, which are named in one string.
func works(tests string) verdict { return verdict{state: stateWorks, tests: strings.Fields(tests)} }

// but adds what there is to say of a field.
func (v verdict) but(says string) verdict {
	v.says = says
	return v
}

// refused is a field that makes a request fail, with this error.
func refused(says, tests string) verdict {
	return verdict{state: stateRefused, says: says, tests: strings.Fields(tests)}
}

// meaningless is a field that says nothing to a runtime such as this one on Linux.
func meaningless(why string) verdict { return verdict{state: stateMeaningless, says: why} }
