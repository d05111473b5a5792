package cgroup

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"berth/internal/state"
)

// claimName is the cgroup in which a claim lies. No process is ever in it. Nobody but root may open it:
// whoever can open a file or a directory can lock it, and could keep a berthd from starting.
const claimName = "berthd.lock"

// ownerXattr says whose claim it is. Nobody but root may write it, or read it.
const ownerXattr = "trusted.berth.owner"

// Owner describes the process that has a claim, for others that want it. It is kept with the claim, and stays
// there after the owner's end for as long as it has pods: it goes with the cgroup, at the latest when the machine
// starts again.
type Owner struct {
	PID          int    `json:"pid"`
	PIDNamespace string `json:"pidNamespace"` // what the PID is a number in
	Root         string `json:"root"`
	Address      string `json:"address"`
}

func (o Owner) String() string {
	if o.PID == 0 {
		return "another berthd"
	}
	text := fmt.Sprintf("another berthd (process %d", o.PID)
	if own, err := pidNamespace(); err == nil && own != o.PIDNamespace {
		text += " of another PID namespace"
	}
	return text + fmt.Sprintf(", root %s, address %s)", o.Root, o.Address)
}

// same tells whether two owners are one node: a berthd and the one that follows it. A PID namespace that ends takes
// its pods with it.
func (o Owner) same(other Owner) bool {
	return o.Root == other.Root && o.PIDNamespace == other.PIDNamespace
}

func pidNamespace() (string, error) { return os.Readlink("/proc/self/ns/pid") }

// ClaimedError is the error for a cgroup that cannot be claimed. It says which process has it.
type ClaimedError struct {
	Cgroup string // the one that is wanted
	Other  string // the one that Owner has: the same, or one above or below it
	Owner  Owner
	Pod    string // a cgroup of a pod of Owner, which itself does not run; empty: it runs
}

func (e *ClaimedError) Error() string {
	switch {
	case e.Pod != "":
		return fmt.Sprintf("cgroup %s: %s is of a pod of another berthd (root %s, address %s), which does not run now: "+
			"start it and remove its pods, or remove that cgroup",
			e.Cgroup, e.Pod, e.Owner.Root, e.Owner.Address)
	case e.Other == e.Cgroup:
		return fmt.Sprintf("cgroup %s: %s uses it", e.Cgroup, e.Owner)
	case within(e.Cgroup, e.Other):
		return fmt.Sprintf("cgroup %s: it is in %s, which %s uses", e.Cgroup, e.Other, e.Owner)
	}
	return fmt.Sprintf("cgroup %s: %s, which is in it, is used by %s", e.Cgroup, e.Other, e.Owner)
}

// Unwrap gives the error its class.
func (e *ClaimedError) Unwrap() error { return errdefs.ErrFailedPrecondition }

// Claim is the hold of one berthd on the cgroup that its pods have theirs in: two would take each other's limits for
// their own, and remove them. It is a lock (flock(2)) on a cgroup in it, which the kernel has once for all namespaces
// of processes, mounts, networks and cgroups, and which goes with the process that holds it, however that ends.
type Claim struct {
	h       *Hierarchies
	cgroup  string
	systemd bool
	lock    *os.File
}

// Claim makes a cgroup, a slice with systemd, and claims it. Where another process has claimed it, or one above
// or below it, the error is an *ClaimedError. The root of the hierarchies counts as claimed only by a process
// that has claimed the root itself.
func (h *Hierarchies) Claim(ctx context.Context, cgroup string, systemd bool, owner Owner) (*Claim, error) {
	cgroup = path.Join("/", cgroup)
	owner.PIDNamespace, _ = pidNamespace()
	c := &Claim{h: h, cgroup: cgroup, systemd: systemd}
	if err := c.take(ctx, owner); err != nil {
		return nil, err
	}
	if other := c.nested(); other != nil {
		return nil, errors.Join(other, c.Release(ctx))
	}
	return c, nil
}

// claimPatience bounds how long the cgroup of a claim may go, again and again, with its last owner while the next
// one takes it.
const claimPatience = 10 * time.Second

func (c *Claim) take(ctx context.Context, owner Owner) error {
	began := time.Now()
	for pause := 100 * time.Microsecond; ; pause = min(2*pause, 10*time.Millisecond) {
		err := c.tryTake(ctx, owner)
		if !vanished(err) || time.Since(began) > claimPatience {
			return err
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return err
		}
	}
}

// vanished tells whether the cgroup of a claim went during a try: a directory that was there is not, or was there when
// it was to be made and is not when it is looked at, or a file in it has no device any more.
func vanished(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrExist) || errors.Is(err, unix.ENODEV)
}

// tryTake is one try to make the cgroup of the claim and to lock it.
func (c *Claim) tryTake(ctx context.Context, owner Owner) error {
	if err := c.make(ctx); err != nil {
		return err
	}
	dir := c.dir(c.cgroup)
	// For root alone from its first moment.
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("claim cgroup %s: %w", c.cgroup, err)
	}
	lock, err := openClaim(dir)
	if err != nil {
		return fmt.Errorf("claim cgroup %s: %w", c.cgroup, err)
	}
	switch err := state.Exclusive(lock); {
	case errors.Is(err, unix.EWOULDBLOCK):
		defer lock.Close()
		return &ClaimedError{Cgroup: c.cgroup, Other: c.cgroup, Owner: ownerOf(lock)}
	case err != nil:
		lock.Close()
		return fmt.Errorf("claim cgroup %s: %w", c.cgroup, err)
	}
	if !stands(lock, dir) {
		lock.Close()
		return &fs.PathError{Op: "claim", Path: dir, Err: fs.ErrNotExist}
	}
	if err := lock.Chmod(0o700); err != nil { // whoever has made it
		lock.Close()
		return fmt.Errorf("claim cgroup %s: %w", c.cgroup, err)
	}
	if last := ownerOf(lock); last.Root != "" && !last.same(owner) {
		pod, err := c.pod()
		if err == nil && pod != "" {
			err = &ClaimedError{Cgroup: c.cgroup, Other: c.cgroup, Owner: last, Pod: pod}
		}
		if err != nil {
			lock.Close()
			return err
		}
	}
	if !c.systemd && c.cgroup != "/" { // only once it is this one's
		if err := c.h.cloneCPUSets(c.cgroup); err != nil {
			lock.Close()
			return err
		}
	}
	c.lock = lock
	// Without the attribute the next one is refused all the same, and does not learn by whom.
	if data, err := json.Marshal(owner); err == nil {
		_ = unix.Fsetxattr(int(lock.Fd()), ownerXattr, data, 0)
	}
	return nil
}

func (c *Claim) make(ctx context.Context) error {
	switch {
	case c.cgroup == "/":
		return nil
	case c.systemd:
		return startUnit(ctx, path.Base(c.cgroup))
	}
	return c.h.Create(c.cgroup)
}

// dir is the directory of the claim on a cgroup: in one hierarchy, in which containers see their own cgroups alone.
func (c *Claim) dir(cgroup string) string { return path.Join(c.hierarchy(cgroup), claimName) }

func (c *Claim) hierarchy(cgroup string) string {
	first := []string{"memory", "pids", "cpu", "freezer", "name=systemd"}
	if c.systemd { // on version 1 a slice is not in the hierarchy of each controller
		first = []string{"name=systemd"}
	}
	for _, controller := range first {
		if dir := c.h.Dir(controller, cgroup); dir != "" {
			return dir
		}
	}
	return c.h.Dirs(cgroup)[0]
}

func openClaim(dir string) (*os.File, error) {
	return os.OpenFile(dir, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
}

// stands tells whether an open directory is still what its path leads to.
func stands(f *os.File, dir string) bool {
	own, err := f.Stat()
	if err != nil {
		return false
	}
	now, err := os.Lstat(dir)
	return err == nil && os.SameFile(own, now)
}

// ownerOf reads whose claim it is; empty where that is not to be had.
func ownerOf(lock *os.File) (o Owner) {
	data := make([]byte, 16<<10)
	n, err := unix.Fgetxattr(int(lock.Fd()), ownerXattr, data)
	if err == nil {
		_ = json.Unmarshal(data[:n], &o)
	}
	return o
}

// podCgroup is in the name of the cgroup of a pod or container. What is in one is that pod's affair: a berthd
// may be among it.
var podCgroup = regexp.MustCompile(`[0-9a-f]{64}`)

// pod is a cgroup of a pod below the claimed one, with or without processes: those of another PID namespace
// may be hidden. Empty: there is none. The root of the hierarchies has pods of everybody below it, which say nothing
// of who has claimed it.
func (c *Claim) pod() (string, error) {
	if c.cgroup == "/" {
		return "", nil
	}
	top, found := c.hierarchy(c.cgroup), ""
	err := filepath.WalkDir(top, func(p string, d fs.DirEntry, err error) error {
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil
		case err != nil:
			return err
		case p != top && d.IsDir() && podCgroup.MatchString(d.Name()):
			found = path.Join(c.cgroup, strings.TrimPrefix(p, top))
			return fs.SkipAll
		}
		return nil
	})
	if err != nil {
		return "", fmt.Errorf("pods in cgroup %s: %w", c.cgroup, err)
	}
	return found, nil
}

// nested looks for claims on cgroups above and below; nil: there are none. This one's own is taken before,
// so that of two who look at the same time one at least sees the other.
func (c *Claim) nested() error {
	if c.cgroup == "/" {
		return nil
	}
	for p := path.Dir(c.cgroup); p != "/"; p = path.Dir(p) {
		if owner, held := c.held(c.dir(p)); held {
			return &ClaimedError{Cgroup: c.cgroup, Other: p, Owner: owner}
		}
	}
	top := c.hierarchy(c.cgroup)
	if only, err := onlyLock(c.lock); err == nil && only {
		return nil
	}
	var found error
	err := filepath.WalkDir(top, func(p string, d fs.DirEntry, err error) error {
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil
		case err != nil:
			return err
		case !d.IsDir() || p == top:
			return nil
		case podCgroup.MatchString(d.Name()) || p == path.Join(top, claimName):
			return fs.SkipDir
		case d.Name() == claimName:
			if owner, held := c.held(p); held {
				found = &ClaimedError{Cgroup: c.cgroup, Other: path.Join(c.cgroup, strings.TrimPrefix(path.Dir(p), top)),
					Owner: owner}
				return fs.SkipAll
			}
			return fs.SkipDir
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("claims in cgroup %s: %w", c.cgroup, err)
	}
	return found
}

// onlyLock tells whether an open file is the only one on its file system that is locked with flock(2). The kernel lists
// all locks of the machine in a moment, and a walk through the cgroups of a thousand pods takes 40 ms. Outside the
// machine's own PID namespace the list leaves locks out, and only is false.
func onlyLock(f *os.File) (only bool, err error) {
	var own unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &own); err != nil {
		return false, err
	}
	var ns unix.Stat_t
	if err := unix.Stat("/proc/self/ns/pid", &ns); err != nil || ns.Ino != firstPIDNamespace {
		return false, err
	}
	list, err := os.ReadFile("/proc/locks")
	if err != nil {
		return false, err
	}
	return soleLock(list, unix.Major(own.Dev), unix.Minor(own.Dev), own.Ino), nil
}

// firstPIDNamespace is the inode number of the machine's own PID namespace (PROC_PID_INIT_INO in the kernel). Who is in
// it reads all locks in a /proc of it, and of no other PID namespace: /proc/self leads nowhere there.
const firstPIDNamespace = 0xEFFFFFFC

// soleLock tells whether an inode is locked with flock(2), and no other on its device, in a list as /proc/locks:
//
//	1: FLOCK  ADVISORY  WRITE 6481 fe:00:5351148 0 EOF
//	1: -> FLOCK  ADVISORY  WRITE 6482 fe:00:5351148 0 EOF
//
// The second line is of a process that waits. The numbers of the device are hexadecimal.
func soleLock(list []byte, major, minor uint32, inode uint64) bool {
	own := fmt.Sprintf("%02x:%02x:%d", major, minor, inode)
	device := own[:strings.LastIndexByte(own, ':')+1]
	found := false
	for line := range strings.Lines(string(list)) {
		if !strings.Contains(line, " FLOCK ") {
			continue
		}
		for field := range strings.FieldsSeq(line) {
			if field == own {
				found = true
			} else if strings.HasPrefix(field, device) {
				return false
			}
		}
	}
	return found
}

// held tells whether somebody holds the claim that lies in a directory. A berthd that is starting waits out the moment
// in which this holds it.
func (c *Claim) held(dir string) (owner Owner, held bool) {
	lock, err := openClaim(dir)
	if err != nil {
		return owner, false
	}
	defer lock.Close()
	if unix.Flock(int(lock.Fd()), unix.LOCK_SH|unix.LOCK_NB) == unix.EWOULDBLOCK {
		return ownerOf(lock), true
	}
	return owner, false
}

// Release gives the claim back, and removes the cgroup where nothing else is in it. While there are pods in it,
// the mark of their owner stays, and no other node may claim it.
func (c *Claim) Release(ctx context.Context) error {
	defer c.lock.Close()
	if pod, err := c.pod(); pod != "" || err != nil {
		return err
	}
	var err error
	// While the lock is held: who opens the directory now finds, once it has the lock, that it is gone.
	if stands(c.lock, c.dir(c.cgroup)) {
		err = unix.Rmdir(c.dir(c.cgroup))
	}
	if err != nil {
		return fmt.Errorf("give cgroup %s back: %w", c.cgroup, err)
	}
	if c.cgroup == "/" {
		return nil
	}
	if c.systemd {
		err = c.h.RemoveEmptySlice(ctx, c.cgroup)
	} else {
		err = c.h.RemoveEmpty(ctx, c.cgroup)
	}
	if errors.Is(err, unix.EBUSY) {
		return nil // pods live on in it
	}
	return err
}

func within(p, dir string) bool {
	return p == dir || strings.HasPrefix(p, strings.TrimSuffix(dir, "/")+"/")
}
