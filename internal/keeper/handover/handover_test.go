package handover

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"reflect"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"berth/internal/keeper/logpump"
	"berth/internal/keeper/record"
)

// inTest makes this program hand a pipe over to itself.
const inTest = "HANDOVER_TEST"

func TestMain(m *testing.M) {
	if os.Getenv(inTest) == "" {
		os.Exit(m.Run())
	}
	s, err := Load()
	if err == nil && s == nil {
		err = handOver()
	}
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	b := make([]byte, 100)
	n, err := unix.Read(s.Containers[0].Stdin, b)
	flags, ferr := unix.FcntlInt(uintptr(s.Containers[0].Stdin), unix.F_GETFD, 0)
	_, left := os.LookupEnv(Environment)
	fmt.Printf("%s %q, close-on-exec %t, environment %t, %v\n",
		s.Generation, b[:n], flags == unix.FD_CLOEXEC, left, errors.Join(err, ferr))
	os.Exit(0)
}

func handOver() error {
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
		return err
	}
	if _, err := unix.Write(p[1], []byte("output")); err != nil {
		return err
	}
	s := &State{
		Format: Format, Generation: "this", Lock: -1, RPC: -1, FDs: -1,
		Containers: []Container{{Stdin: p[0], Pidfd: -1}},
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	refused := errors.New("refused")
	if err := Execute(self, s, nil, func() error { return refused }); !errors.Is(err, refused) {
		return fmt.Errorf("executed though it was refused: %w", err)
	}
	if flags, err := unix.FcntlInt(uintptr(p[0]), unix.F_GETFD, 0); flags != unix.FD_CLOEXEC || err != nil {
		return fmt.Errorf("after a handover that failed children inherit the descriptor: %w", err)
	}
	return Execute(self, s, nil, func() error { return nil })
}

// TestTheNextProgramHasStateAndDescriptors: and hands them to none of its children, nor does a program that could not
// be replaced. Seen to fail without either closeOnExec, and without descriptors.
func TestTheNextProgramHasStateAndDescriptors(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), inTest+"=1")
	out, err := cmd.CombinedOutput()
	if want := "this \"output\", close-on-exec true, environment false, <nil>\n"; err != nil || string(out) != want {
		t.Errorf("%q, %v", out, err)
	}
}

// TestEveryDescriptorIsHandedOn: each int of the state is one, but for those of the records and the format. Seen to
// fail with the memory of a slow client's queue left out.
func TestEveryDescriptorIsHandedOn(t *testing.T) {
	s := &State{
		Containers: []Container{{
			Log: &logpump.LogState{Clients: map[string][]logpump.QueueState{"client": make([]logpump.QueueState, 2)}},
			Pumps: map[logpump.Stream]logpump.PumpState{
				logpump.Stdout: {Held: map[logpump.Role]int{logpump.Memory: 0, logpump.Relay: 0}},
			},
			Execs: make([]Exec, 2),
		}},
	}
	next := 100
	number(reflect.ValueOf(s).Elem(), &next)
	s.Format = Format
	got := s.descriptors()
	slices.Sort(got)
	for i := 1; i < len(got); i++ {
		if got[i] != got[i-1]+1 {
			t.Fatalf("of the descriptors %v some are missing or named twice", got)
		}
	}
	if len(got) < 15 || got[0] > 101 || got[len(got)-1] != next-1 {
		t.Errorf("of the descriptors from 100 to %d the first and last are missing: %v", next-1, got)
	}
	s.Lock, s.Containers[0].Stdin = -1, -1
	if some := s.descriptors(); len(some) != len(got)-2 || slices.Contains(some, -1) {
		t.Errorf("what is not open is handed on: %v", some)
	}
}

// number gives every int of a value a number of its own.
func number(v reflect.Value, next *int) {
	switch v.Kind() {
	case reflect.Int:
		v.SetInt(int64(*next))
		*next++
	case reflect.Pointer:
		number(v.Elem(), next)
	case reflect.Slice:
		for i := range v.Len() {
			number(v.Index(i), next)
		}
	case reflect.Map:
		for _, key := range v.MapKeys() {
			one := reflect.New(v.Type().Elem()).Elem()
			one.Set(v.MapIndex(key))
			number(one, next)
			v.SetMapIndex(key, one)
		}
	case reflect.Struct:
		if v.Type() == reflect.TypeFor[record.Container]() || v.Type() == reflect.TypeFor[record.Exec]() {
			return
		}
		for i := range v.NumField() {
			if v.Type().Field(i).Name != "Format" {
				number(v.Field(i), next)
			}
		}
	}
}

// TestTheKeysOfTheStateStay: a keeper of another version reads them.
func TestTheKeysOfTheStateStay(t *testing.T) {
	b, err := json.Marshal(&State{Containers: []Container{{Execs: []Exec{{}}}}})
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		`{"format":0,"generation":"","image":0,"startedAt":"`,
		`,"settled":false,"lock":0,"rpc":0,"fds":0,"containers":[{"row":{`,
		`"pidfd":0,"stdin":0,"execs":[{"row":{`,
	} {
		if !strings.Contains(string(b), want) {
			t.Errorf("%s is not in %s", want, b)
		}
	}
}
