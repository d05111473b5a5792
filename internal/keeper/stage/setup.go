package stage

// #include "stage.h"
import "C"

import (
	"cmp"
	"fmt"
	"os"
	"slices"
	"strings"
	"unsafe"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// Setup is the set-up of a container: what turns a process of the host into its first process.
type Setup struct {
	Root string // directory that becomes the root
	// RootPropagation is that of the host's mounts in the container (MS_*); 0: slaves.
	RootPropagation uint64
	// Cgroups are directories of version 1 hierarchies, Cgroup is one of version 2 (empty: none): the process joins
	// them. Clone is as in Target. Wait: another process moves it, and calls First.Start only then.
	Cgroups []string
	Cgroup  string
	Clone   bool
	Wait    bool
	// Make are the namespaces (CLONE_NEW*) that the container has for itself, Join those of others, and User is the path
	// of the user namespace that owns what it makes; empty: the host's.
	Make uint32
	Join []Namespace
	User string

	Umask    uint32
	OOMScore *int
	Keyring  string // name of the session keyring; empty: the keeper's is kept
	// KeyringRight is added to the rights to it.
	KeyringRight uint32
	// KeyringUID is the user to whom it belongs; 0: the container's root.
	KeyringUID uint32
	Limits     []Limit
	// ReopenNull: standard streams that are the host's /dev/null become the container's.
	ReopenNull bool
	Operations []Operation
	// Mark is a file that NewMark has made; nil: none.
	Mark *os.File
	// Node is the node's mount namespace, from which Sources come that are not Own; nil: it is the keeper's.
	Node *os.File
}

// Namespace is one that has a path.
type Namespace struct {
	Type uint32 // CLONE_NEW*
	Path string
}

// Kind says what an Operation does.
type Kind uint32

const (
	Mount     Kind = C.OP_MOUNT     // a new file system
	Bind      Kind = C.OP_BIND      // Source, a path on the host
	Propagate Kind = C.OP_PROPAGATE // gives what is mounted at Target the propagation Flags
	Readonly  Kind = C.OP_READONLY  // what is mounted at Target
	Protect   Kind = C.OP_PROTECT   // makes Target read-only, if it is there
	// hides what is at Target, if it is there; a directory by one with the SELinux label Data
	Mask          Kind = C.OP_MASK
	Device        Kind = C.OP_DEVICE     // a node, unless something has its name
	Link          Kind = C.OP_LINK       // symbolic, from Target to Source, unless something has its name
	Directory     Kind = C.OP_DIRECTORY  // with its parents, unless something is there
	Sysctl        Kind = C.OP_SYSCTL     // writes Data to Source below /proc/sys
	Hostname      Kind = C.OP_HOSTNAME   // Data
	Domainname    Kind = C.OP_DOMAINNAME // Data
	Pivot         Kind = C.OP_PIVOT      // what was prepared becomes the root; no Terminal before it
	Terminal      Kind = C.OP_TERMINAL   // makes it, and mounts it at /dev/console
	RootReadonly  Kind = C.OP_ROOT_READONLY
	RootPropagate Kind = C.OP_ROOT_PROPAGATE // Flags
	Label         Kind = C.OP_LABEL          // gives Target, a directory, the SELinux label Data
)

// Operation is one thing that is done in the container's new root. Targets are absolute and clean; they are resolved
// inside the root, and mount points that are not there are made. Its fields are those of struct stage_op in stage.h,
// by name.
type Operation struct {
	Kind             Kind
	Source, Target   string
	Type, Data       string // of a new file system
	Flags            uint64 // MS_*
	Set, Clear       uint64 // MOUNT_ATTR_* of a Bind, and what is set of a procfs
	MustClear        uint64 // those of Clear that must go where the kernel keeps some
	SetAll, ClearAll uint64 // of all its mounts
	Propagation      uint64 // MS_* of a Bind; 0: as it is
	Mode, UID, GID   uint32 // of a Device
	Major, Minor     uint32
	Own              bool // a Bind's Source is in the keeper's mount namespace, whatever Setup.Node is
	Recursive        bool // a Bind of all mounts below Source
	MapIDs           bool // a Bind in which the IDs of Setup.User are those of the file system
	MapAllIDs        bool // the same for all of its mounts
	PlainTarget      bool // no link leads to Target
	CopyMode         bool // a tmpfs gets the mode of the directory that it covers
	Replace          bool // a Link takes the place of a file
	InProc           bool // Target may be in /proc
}

func (o *Operation) flags() (f C.uint32_t) {
	for flag, on := range map[C.uint32_t]bool{
		C.OP_RECURSIVE: o.Recursive, C.OP_PLAIN_TARGET: o.PlainTarget, C.OP_COPY_MODE: o.CopyMode, C.OP_REPLACE: o.Replace,
		C.OP_IDMAP: o.MapIDs || o.MapAllIDs, C.OP_IDMAP_ALL: o.MapAllIDs,
		C.OP_OWN: o.Own, C.OP_IN_PROC: o.InProc, C.OP_IS_PROC: o.Target == "/proc" && (o.Kind == Mount || o.Kind == Bind),
	} {
		if on {
			f |= flag
		}
	}
	return f
}

// made are the namespaces that unshare(2) makes.
func (s *Setup) made() uint32 { return s.Make &^ unix.CLONE_NEWPID }

// born are the namespaces that the process is born into. One of processes that a user namespace owns is made
// from inside of that.
func (s *Setup) born() uint32 {
	if s.User != "" {
		return 0
	}
	return s.Make & unix.CLONE_NEWPID
}

// forksEarly: the process enters its user namespace and forks there, so that a child is the first process
// of the namespace of processes.
func (s *Setup) forksEarly() bool { return s.User != "" && s.Make&unix.CLONE_NEWPID != 0 }

// forksLate: the process joins another's namespace of processes, and forks into that when all is set up.
func (s *Setup) forksLate() bool {
	return slices.ContainsFunc(s.Join, func(ns Namespace) bool { return ns.Type == unix.CLONE_NEWPID })
}

// Seen says whether the keeper has to keep the mark: processes of the container's pod see the process before it is the
// program, or the process may write to no file then.
func (s *Setup) Seen() bool {
	return s.forksLate() || slices.ContainsFunc(s.Limits, func(l Limit) bool {
		return l.Resource == unix.RLIMIT_FSIZE && l.Soft == 0
	})
}

func (s *Setup) encode(e *encoder) error {
	pl := &e.plan
	pl.flags |= C.STAGE_BEGIN | C.STAGE_UMASK
	pl.umask = C.uint32_t(s.Umask)
	pl.namespaces = C.uint32_t(s.made())
	if s.Wait {
		pl.flags |= C.STAGE_WAIT
	}
	if s.User != "" {
		pl.user = e.text(s.User)
	}
	if s.forksEarly() {
		pl.flags |= C.STAGE_FORK_EARLY
	}
	if s.Clone {
		pl.flags |= C.STAGE_CLONE
		pl.born = C.uint32_t(s.born())
	}
	if s.Mark != nil {
		pl.flags |= C.STAGE_MARK
	}
	if s.Node != nil {
		pl.flags |= C.STAGE_NODE
	}
	if s.ReopenNull {
		pl.flags |= C.STAGE_REOPEN_NULL
	}
	if s.OOMScore != nil {
		pl.flags |= C.STAGE_OOM_SCORE
		pl.oom_score = C.int32_t(*s.OOMScore)
	}
	if s.Keyring != "" {
		pl.flags |= C.STAGE_KEYRING
		pl.keyring, pl.keyring_right = e.text(s.Keyring), C.uint32_t(s.KeyringRight)
		pl.keyring_uid = C.uint32_t(s.KeyringUID)
	}
	pl.cgroups.count = C.uint32_t(len(s.Cgroups))
	pl.root, pl.root_propagation = e.text(s.Root), C.uint32_t(s.RootPropagation)
	pl.limits = e.limits(s.Limits)

	// The namespace of processes comes last: see stage_open_proc.
	slices.SortStableFunc(s.Join, func(a, b Namespace) int {
		return cmp.Compare(a.Type&unix.CLONE_NEWPID, b.Type&unix.CLONE_NEWPID)
	})
	joins := make([]C.struct_stage_namespace, len(s.Join))
	for i, ns := range s.Join {
		joins[i] = C.struct_stage_namespace{_type: C.uint32_t(ns.Type), path: e.text(ns.Path)}
	}
	pl.joins = structs(e, joins)
	ops := make([]C.struct_stage_op, len(s.Operations))
	for i := range s.Operations {
		o := &s.Operations[i]
		for _, text := range []string{o.Source, o.Target, o.Type, o.Data} {
			if strings.IndexByte(text, 0) >= 0 {
				return fmt.Errorf("%s: %q holds a NUL byte: %w", o, text, errdefs.ErrInvalidArgument)
			}
		}
		ops[i] = C.struct_stage_op{
			kind: C.uint32_t(o.Kind), flags: o.flags(),
			source: e.text(o.Source), target: e.text(o.Target), _type: e.text(o.Type), data: e.text(o.Data),
			mount_flags: C.uint64_t(o.Flags), set: C.uint64_t(o.Set), clear: C.uint64_t(o.Clear),
			must_clear: C.uint64_t(o.MustClear),
			set_all:    C.uint64_t(o.SetAll), clear_all: C.uint64_t(o.ClearAll), propagation: C.uint64_t(o.Propagation),
			mode: C.uint32_t(o.Mode), uid: C.uint32_t(o.UID), gid: C.uint32_t(o.GID),
			major: C.uint32_t(o.Major), minor: C.uint32_t(o.Minor),
		}
	}
	pl.operations = structs(e, ops)
	return nil
}

// structs adds a list of what C knows.
func structs[T any](e *encoder, list []T) C.struct_stage_list {
	e.align()
	l := C.struct_stage_list{count: C.uint32_t(len(list)), offset: e.offset()}
	for i := range list {
		e.data.Write(unsafe.Slice((*byte)(unsafe.Pointer(&list[i])), unsafe.Sizeof(list[i])))
	}
	return l
}

func (e *encoder) limits(limits []Limit) C.struct_stage_list {
	e.limited = limits
	list := make([]C.struct_stage_limit, len(limits))
	for i, l := range limits {
		list[i] = C.struct_stage_limit{resource: C.uint32_t(l.Resource), soft: C.uint64_t(l.Soft), hard: C.uint64_t(l.Hard)}
	}
	return structs(e, list)
}

// String says what it does, for errors.
func (o *Operation) String() string {
	switch o.Kind {
	case Mount:
		return fmt.Sprintf("mount %s at %q", o.Type, o.Target)
	case Bind:
		return fmt.Sprintf("mount %q at %q", o.Source, o.Target)
	case Propagate, RootPropagate:
		return fmt.Sprintf("set the propagation of %q", "/"+strings.TrimPrefix(o.Target, "/"))
	case Readonly, Protect, RootReadonly:
		return fmt.Sprintf("make %q read-only", "/"+strings.TrimPrefix(o.Target, "/"))
	case Mask:
		return fmt.Sprintf("mask %q", o.Target)
	case Device:
		return fmt.Sprintf("make device %q", o.Target)
	case Link:
		return fmt.Sprintf("make link %q", o.Target)
	case Directory:
		return fmt.Sprintf("make directory %q", o.Target)
	case Sysctl:
		return fmt.Sprintf("set sysctl %q to %q", strings.ReplaceAll(o.Source, "/", "."), o.Data)
	case Hostname:
		return fmt.Sprintf("set host name %q", o.Data)
	case Domainname:
		return fmt.Sprintf("set domain name %q", o.Data)
	case Pivot:
		return "change the root"
	case Terminal:
		return "make a terminal"
	case Label:
		return fmt.Sprintf("set the SELinux label of %q to %q", o.Target, o.Data)
	}
	return fmt.Sprintf("operation %d", o.Kind)
}

// failure says what failed in a set-up.
func (s *Setup) failure(step, operation int32, errno unix.Errno) error {
	switch {
	case step == C.STEP_JOIN && int(operation) < len(s.Join):
		return fmt.Errorf("join namespace %q: %w", s.Join[operation].Path, errno)
	case step == C.STEP_USER:
		return fmt.Errorf("join namespace %q: %w", s.User, errno)
	}
	if operation < 0 || int(operation) >= len(s.Operations) || step == C.STEP_RLIMIT {
		return nil
	}
	o := &s.Operations[operation]
	switch step {
	case C.STEP_SOURCE:
		return fmt.Errorf("%s: source: %w", o, errno)
	case C.STEP_ATTRIBUTES:
		return fmt.Errorf("%s: set its attributes: %w", o, errno)
	case C.STEP_MAP_IDS:
		if errno == unix.EINVAL {
			return fmt.Errorf("%s: its owners cannot be mapped to those of the user namespace, since its file system does "+
				"not support ID-mapped mounts: %w", o, errno)
		}
		return fmt.Errorf("%s: map its owners to those of the user namespace: %w", o, errno)
	case C.STEP_TARGET:
		return fmt.Errorf("%s: mount point: %w", o, errno)
	case C.STEP_FORBIDDEN:
		return fmt.Errorf("%s: nothing may be mounted over the container's root or in its /proc: %w", o, errno)
	}
	return fmt.Errorf("%s: %w", o, errno)
}
