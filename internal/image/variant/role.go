package variant

import (
	"golang.org/x/sys/unix"

	"berth/internal/image/unpack"
	"berth/internal/jail/wire"
)

// The roles of children that make a variant. Those that read the layers below, of which each may be hostile
// to the others, can change nothing. The one that makes the variant has to be able to change the layer,
// since hard links do not cross mounts: it sees that layer and no other.
var (
	// PlanRole has the directories of the layers below, to read. Its task is a PlanTask, its answer a Placement.
	PlanRole = &wire.Role{Name: "look at the layers below", Filesystem: true,
		Capabilities: []uintptr{unix.CAP_DAC_OVERRIDE}}
	// MakeRole has the layer's home and, below it, the layer. Its task is a MakeTask, its answer a Result.
	MakeRole = &wire.Role{
		Name: "make a variant of the layer", Filesystem: true,
		Capabilities: []uintptr{unix.CAP_CHOWN, unix.CAP_DAC_OVERRIDE, unix.CAP_FOWNER, unix.CAP_FSETID},
	}
	// CheckRole has the variant and the directories of the layers below, to read. Its task is a list of implied
	// directories.
	CheckRole = &wire.Role{Name: "check the variant of the layer", Filesystem: true,
		Capabilities: []uintptr{unix.CAP_DAC_OVERRIDE}}
)

// PlanTask is the request of PlanRole.
type PlanTask struct {
	Implied unpack.Implied
	Root    bool // as TakesRoot has said
	Lookups uint64
}

// MakeTask is the request of MakeRole.
type MakeTask struct {
	Implied   unpack.Implied
	Placement *Placement
	// Layer and Name are the layer's directory and the variant's in the home.
	Layer, Name string
}

// Memory is how much a process needs for a list of implied directories: what it keeps of each place, and a placement
// as JSON. Links of the layers below may lead through maxSteps places.
func Memory(implied unpack.Implied) uint64 { return 64<<20 + 512*maxSteps + 64*uint64(len(implied)) }

// Answer is the length of the longest placement. Links of the layers below may lead to places that have more
// directories above them than the list has, and attributes of directories take what they take: what is more is refused.
func Answer(implied unpack.Implied) int64 { return 16<<20 + 64*int64(len(implied)) }
