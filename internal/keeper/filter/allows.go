package filter

import (
	"encoding/binary"
	"fmt"
	"math"
	"runtime"

	"github.com/containerd/errdefs"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// Call is a system call of this machine's own architecture, with its arguments.
type Call struct {
	Number uintptr
	Args   [6]uint64
}

// architectures are the numbers that filters know of (linux/audit.h), by GOARCH.
var architectures = map[string]uint32{"amd64": unix.AUDIT_ARCH_X86_64, "arm64": unix.AUDIT_ARCH_AARCH64}

// Allows says whether the filter lets a process make all of the calls. It is false where that cannot be told. The
// answer is kept with the filter, for as long as the same list is asked about.
func (f *Filter) Allows(calls []Call) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.asked) == 0 || len(calls) == 0 || &f.asked[0] != &calls[0] {
		f.asked, f.allowed = calls, f.allows(calls)
	}
	return f.allowed
}

func (f *Filter) allows(calls []Call) bool {
	arch, ok := architectures[runtime.GOARCH]
	if !ok {
		return false
	}
	var program []bpf.Instruction
	for b := f.Program; len(b) >= InstructionSize; b = b[InstructionSize:] {
		program = append(program, bpf.RawInstruction{
			Op: binary.NativeEndian.Uint16(b), Jt: b[2], Jf: b[3], K: binary.NativeEndian.Uint32(b[4:]),
		}.Disassemble())
	}
	vm, err := bpf.NewVM(program)
	if err != nil {
		return false
	}
	for _, c := range calls {
		action, err := vm.Run(c.data(arch))
		if err != nil {
			return false
		}
		switch uint32(action) & unix.SECCOMP_RET_ACTION_FULL {
		case unix.SECCOMP_RET_ALLOW, unix.SECCOMP_RET_LOG:
		default:
			return false
		}
	}
	return true
}

// data is struct seccomp_data as the interpreter reads it: each word where a filter of this machine has it, but with
// the byte order of packets, for which the interpreter is made.
func (c *Call) data(arch uint32) []byte {
	order := binary.BigEndian
	words := func(b []byte, v uint64) []byte {
		low, high := uint32(v), uint32(v>>32)
		if binary.NativeEndian.Uint16([]byte{1, 0}) != 1 {
			low, high = high, low
		}
		return order.AppendUint32(order.AppendUint32(b, low), high)
	}
	b := order.AppendUint32(order.AppendUint32(nil, uint32(c.Number)), arch)
	b = words(b, 0) // the address of the instruction
	for _, arg := range c.Args {
		b = words(b, arg)
	}
	return b
}

// Where struct seccomp_data has its fields (linux/seccomp.h). Of the arguments these are the lower words.
const (
	dataNumber       = 0
	dataArchitecture = 4
	dataArguments    = 16
)

// With returns a program that allows some calls, and is the filter for all others. Of the arguments of these calls,
// those that are not 0 have to be as they are here. The error says why there can be no such program, for example by how
// much it would be too long for the kernel.
func (f *Filter) With(calls []Call) ([]byte, error) {
	arch, ok := architectures[runtime.GOARCH]
	if !ok || binary.NativeEndian.Uint16([]byte{1, 0}) != 1 {
		return nil, fmt.Errorf("seccomp profile: it cannot be extended on %s: %w", runtime.GOARCH,
			errdefs.ErrFailedPrecondition)
	}
	load := func(at uint32) bpf.Instruction { return bpf.LoadAbsolute{Off: at, Size: 4} }
	unless := func(value uint64, skip int) bpf.Instruction {
		return bpf.JumpIf{Cond: bpf.JumpEqual, Val: uint32(value), SkipFalse: uint8(skip)}
	}
	var rules []bpf.Instruction
	for _, c := range calls {
		var args []bpf.Instruction
		for i, arg := range c.Args {
			if arg != 0 {
				args = append(args, load(uint32(dataArguments+8*i)), unless(arg, 0))
			}
		}
		for i := 1; i < len(args); i += 2 { // to the load of the number
			args[i] = unless(uint64(args[i].(bpf.JumpIf).Val), len(args)-i)
		}
		rules = append(rules, unless(uint64(c.Number), len(args)+2))
		rules = append(append(rules, args...), bpf.RetConstant{Val: unix.SECCOMP_RET_ALLOW}, load(dataNumber))
	}
	if len(rules)+1 > math.MaxUint8 {
		return nil, fmt.Errorf("%d calls are too many for one filter", len(calls))
	}
	head := []bpf.Instruction{load(dataArchitecture), unless(uint64(arch), len(rules)+1), load(dataNumber)}
	assembled, err := bpf.Assemble(append(head, rules...))
	if err != nil {
		return nil, err
	}
	var out []byte
	for _, i := range assembled {
		out = binary.NativeEndian.AppendUint16(out, i.Op)
		out = append(out, i.Jt, i.Jf)
		out = binary.NativeEndian.AppendUint32(out, i.K)
	}
	if out = append(out, f.Program...); len(out) > maxProgram {
		return nil, fmt.Errorf("the seccomp profile is too long by %d instructions: compiled it has %d, and a profile may "+
			"have %d if it forbids a system call, such as setsid, that a process makes as it enters a container: %w",
			(len(out)-maxProgram)/InstructionSize, len(f.Program)/InstructionSize,
			(maxProgram-len(out)+len(f.Program))/InstructionSize, errdefs.ErrFailedPrecondition)
	}
	return out, nil
}
