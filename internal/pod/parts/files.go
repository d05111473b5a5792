package parts

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"berth/internal/model"
	"berth/internal/ocispec"
	"berth/internal/pod/layout"
	"berth/internal/pod/record"
	"berth/internal/rootfs"
)

var podFiles = []string{layout.HostsFile, layout.ResolvFile, layout.HostnameFile}

// A pod's files, which containers may write to, lie beside its shared memory on one tmpfs: its size bounds both, at no
// cost of a further mount, and nothing on it is executed, gains rights or is a device. What containers write there
// counts as their memory. Berth writes the files before any container is there, so none can keep it from that by
// filling the tmpfs.
const (
	// filesSize is the room for the files of a pod that has the node's /dev/shm, beyond what they are when they are made.
	filesSize = 1 << 20
	// inodeSize is how much of a tmpfs there is for each of its inodes: a file that is not empty takes as much.
	inodeSize = 4 << 10
)

// Tmpfs mounts the tmpfs of pods.
type Tmpfs interface {
	// Mount mounts one on which nothing is executed, gains rights or is a device.
	Mount(path, options string) error
	// Unmount takes the topmost mount at path away. Where there is none it fails with EINVAL or ENOENT.
	Unmount(path string) error
	// Chown gives a file on it to the root of the pod's containers.
	Chown(path string, uid, gid int) error
}

// NodeTmpfs is the Tmpfs of a node: the kernel's.
type NodeTmpfs struct{}

// Mount is mount(2).
func (NodeTmpfs) Mount(path, options string) error {
	return unix.Mount("shm", path, "tmpfs", unix.MS_NOEXEC|unix.MS_NOSUID|unix.MS_NODEV, options)
}

// Unmount is umount2(2), which does not wait for those who use the mount.
func (NodeTmpfs) Unmount(path string) error {
	return unix.Unmount(path, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
}

// Chown is chown(2).
func (NodeTmpfs) Chown(path string, uid, gid int) error { return os.Chown(path, uid, gid) }

// makeFiles makes a pod's tmpfs with all that is on it.
func (p *Maker) makeFiles(s *record.SandboxEntry, handler Handler) error {
	r := s.Record()
	shm := uint64(0)
	if r.Config.OwnIPC() {
		shm = cmp.Or(handler.ShmSize, ocispec.DefaultShmSize)
	}
	if err := p.mountFiles(&r, shm); err != nil {
		return err
	}
	return s.Update(record.Draft, func(r *record.Sandbox) { r.SharedTmpfs = true })
}

// AdoptFiles makes the files of a pod that an earlier version of Berth has made anew, on a tmpfs: that version kept
// them on the disk, where nothing bounds them. Containers that run keep the old ones.
func (p *Maker) AdoptFiles(s *record.SandboxEntry) error {
	r := s.Record()
	if r.SharedTmpfs {
		return nil
	}
	if _, err := os.Lstat(p.Dirs.File(s.ID(), podFiles[len(podFiles)-1])); err == nil {
		return nil // this has been done already
	}
	if err := p.unmountTmpfs(p.Dirs.Files(s.ID())); err != nil {
		return err
	}
	return p.mountFiles(&r, 0)
}

// mountFiles makes a pod's tmpfs, with shared memory of shm bytes, or with none.
func (p *Maker) mountFiles(r *record.Sandbox, shm uint64) error {
	content, err := p.podFileContent(r)
	if err != nil {
		return err
	}
	size := shm
	if shm == 0 {
		size = filesSize
		for _, data := range content {
			size += uint64(len(data))
		}
	}
	path := p.Dirs.Files(r.ID)
	if err := os.Mkdir(path, 0o700); err != nil && !os.IsExist(err) {
		return err
	}
	options := fmt.Sprintf("mode=700,size=%dk,nr_inodes=%d", size>>10, size/inodeSize)
	if err := p.Tmpfs.Mount(path, r.Label.MountOptions(options)); err != nil {
		return fmt.Errorf("mount tmpfs at %s: %w", path, err)
	}
	// They belong to the root of the containers, which in a user namespace is not the node's.
	uid, gid := 0, 0
	if user := r.Config.UserNamespace(); user != nil {
		uid, gid = rootfs.HostID(user.UIDs, 0), rootfs.HostID(user.GIDs, 0)
	}
	made := func(path string, err error) error {
		if err == nil {
			err = p.Tmpfs.Chown(path, uid, gid)
		}
		return err
	}
	if shm > 0 {
		dir := filepath.Join(path, layout.ShmDir)
		if err := made(dir, os.Mkdir(dir, 0o700)); err != nil {
			return err
		}
		if err := os.Chmod(dir, 0o777|os.ModeSticky); err != nil {
			return err
		}
	}
	if err := os.Mkdir(filepath.Join(path, layout.EtcDir), 0o700); err != nil {
		return err
	}
	for i, name := range podFiles {
		file := p.Dirs.File(r.ID, name)
		if err := made(file, os.WriteFile(file, content[i], 0o644)); err != nil {
			return fmt.Errorf("the pod's %s: %w", name, err)
		}
	}
	return nil
}

// UnmountFiles takes a pod's tmpfs away. It is idempotent.
func (p *Maker) UnmountFiles(id string) error {
	return errors.Join(p.unmountTmpfs(p.Dirs.Files(id)), p.unmountTmpfs(p.Dirs.EarlierShm(id)))
}

func (p *Maker) unmountTmpfs(path string) error {
	err := p.Tmpfs.Unmount(path)
	if err != nil && err != unix.EINVAL && err != unix.ENOENT {
		return fmt.Errorf("unmount %s: %w", path, err)
	}
	if err := os.Remove(path); err != nil && !os.IsNotExist(err) {
		return err
	}
	return nil
}

// Hostname is the name that the containers of a pod have for their host.
func Hostname(cfg *model.SandboxConfig) (string, error) {
	if cfg.Hostname == "" || cfg.NodeNetwork() {
		return os.Hostname()
	}
	return cfg.Hostname, nil
}

// podFileContent is what podFiles begin with, in their order.
func (p *Maker) podFileContent(r *record.Sandbox) ([][]byte, error) {
	name, err := Hostname(r.Config)
	if err != nil {
		return nil, err
	}
	resolv, err := p.resolvConf(r.Config)
	if err != nil {
		return nil, err
	}
	hosts := []byte(hostsFor(name, r.IPs))
	if r.NodeNetwork() {
		if node, err := os.ReadFile("/etc/hosts"); err == nil {
			hosts = node
		}
	}
	return [][]byte{hosts, resolv, []byte(name + "\n")}, nil
}

func hostsFor(hostname string, ips []string) string {
	var b strings.Builder
	b.WriteString("127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n" +
		"fe00::0\tip6-localnet\nfe00::0\tip6-mcastprefix\nfe00::1\tip6-allnodes\nfe00::2\tip6-allrouters\n")
	for _, ip := range ips {
		fmt.Fprintf(&b, "%s\t%s\n", ip, hostname)
	}
	return b.String()
}

// resolvConf is a resolv.conf(5) of a pod's DNS, or the node's own where the pod says nothing.
func (p *Maker) resolvConf(cfg *model.SandboxConfig) ([]byte, error) {
	dns := cfg.DNS
	switch {
	case dns != nil && len(dns.Servers)+len(dns.Searches)+len(dns.Options) > 0:
	case cfg.NodeNetwork():
		return p.ResolvConf.OfNode()
	default:
		return p.ResolvConf.OfPod()
	}
	var b strings.Builder
	for _, list := range [][]string{dns.Servers, dns.Searches, dns.Options} {
		for _, v := range list {
			if strings.ContainsAny(v, "\n\r\x00") {
				return nil, model.FieldSandboxDNS.Wrong(fmt.Errorf("%q holds a line break: %w", v, errdefs.ErrInvalidArgument))
			}
		}
	}
	if len(dns.Searches) > 0 {
		b.WriteString("search " + strings.Join(dns.Searches, " ") + "\n")
	}
	for _, server := range dns.Servers {
		b.WriteString("nameserver " + server + "\n")
	}
	if len(dns.Options) > 0 {
		b.WriteString("options " + strings.Join(dns.Options, " ") + "\n")
	}
	return []byte(b.String()), nil
}
