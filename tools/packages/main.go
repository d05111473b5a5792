// Command packages makes a deb, an rpm and a tarball of a tree that `make install` has filled, with a bill of materials
// of its programs. The same tree, version and time make the same bytes.
package main

import (
	"archive/tar"
	"compress/gzip"
	"crypto/sha256"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/goreleaser/nfpm/v2"
	_ "github.com/goreleaser/nfpm/v2/deb"
	"github.com/goreleaser/nfpm/v2/files"
	_ "github.com/goreleaser/nfpm/v2/rpm"
)

type options struct {
	root, out, scripts, version, arch string
	libraries                         []string
	time                              time.Time
}

func main() {
	var o options
	var seconds int64
	flag.StringVar(&o.root, "root", "", "directory that make install DESTDIR= has filled")
	flag.StringVar(&o.out, "out", "dist", "directory for the packages")
	flag.StringVar(&o.scripts, "scripts", "packaging/scripts", "directory of the maintainer scripts")
	flag.StringVar(&o.version, "version", "", "semantic version")
	flag.StringVar(&o.arch, "arch", "", "amd64 or arm64")
	flag.Int64Var(&seconds, "time", 0, "time of all files, in seconds since 1970 (SOURCE_DATE_EPOCH)")
	const libraries = "Debian packages, as PACKAGE=VERSION, that programs with C have inside"
	flag.Func("c-libraries", libraries, func(s string) error {
		o.libraries = append(o.libraries, strings.Fields(s)...)
		return nil
	})
	flag.Parse()
	o.time = time.Unix(seconds, 0).UTC()
	if err := run(&o); err != nil {
		fmt.Fprintln(os.Stderr, "packages:", err)
		os.Exit(1)
	}
}

func run(o *options) error {
	if o.root == "" || o.version == "" || o.arch == "" {
		return errors.New("-root, -version and -arch are needed")
	}
	if err := os.MkdirAll(o.out, 0o755); err != nil {
		return err
	}
	if err := describe(o); err != nil {
		return fmt.Errorf("bill of materials: %w", err)
	}
	list, err := contents(o)
	if err != nil {
		return err
	}
	for _, format := range []string{"deb", "rpm"} {
		name, err := pack(o, format, list)
		if err != nil {
			return fmt.Errorf("%s: %w", format, err)
		}
		fmt.Println(name)
	}
	name, err := tarball(o, list)
	if err != nil {
		return fmt.Errorf("tarball: %w", err)
	}
	fmt.Println(name)
	return sums(o.out)
}

// describe writes the bill of materials into the tree, and beside the packages.
func describe(o *options) error {
	text, err := materials(o)
	if err != nil {
		return err
	}
	inside := filepath.Join(o.root, "usr/share/doc/berth/berth.cdx.json")
	if err := os.MkdirAll(filepath.Dir(inside), 0o755); err != nil {
		return err
	}
	beside := filepath.Join(o.out, fmt.Sprintf("berth-%s-linux-%s.cdx.json", o.version, o.arch))
	fmt.Println(beside)
	return errors.Join(os.WriteFile(inside, text, 0o644), os.WriteFile(beside, text, 0o644))
}

// contents are the files of the tree and its empty directories, sorted. Files below /etc are the administrator's once
// they are installed.
func contents(o *options) (files.Contents, error) {
	var list files.Contents
	err := filepath.WalkDir(o.root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if inside, err := os.ReadDir(path); err != nil || len(inside) > 0 {
				return err
			}
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		at := strings.TrimPrefix(path, o.root)
		c := &files.Content{Source: path, Destination: at, Type: files.TypeFile, FileInfo: &files.ContentFileInfo{
			Owner: "root", Group: "root", Mode: info.Mode().Perm(), MTime: o.time,
		}}
		switch {
		case d.IsDir():
			c.Type = files.TypeDir
		case strings.HasPrefix(at, "/etc/"):
			c.Type = files.TypeConfigNoReplace
		}
		list = append(list, c)
		return nil
	})
	slices.SortFunc(list, func(a, b *files.Content) int { return strings.Compare(a.Destination, b.Destination) })
	return list, err
}

const description = `Node container runtime for Kubernetes
Berth pulls images and runs pods for a kubelet, over the Container Runtime
Interface (v1, v1alpha2 and v1alpha1).`

func pack(o *options, format string, list files.Contents) (string, error) {
	info := &nfpm.Info{
		Name: "berth", Arch: o.arch, Platform: "linux", Version: o.version, Section: "admin", Priority: "optional",
		Maintainer: "The Berth maintainers", Description: description, License: "Apache-2.0", MTime: o.time,
		Overridables: nfpm.Overridables{
			Contents: list,
			Scripts: nfpm.Scripts{
				PostInstall: filepath.Join(o.scripts, "postinstall"), PreRemove: filepath.Join(o.scripts, "preremove"),
				PostRemove: filepath.Join(o.scripts, "postremove"),
			},
			Recommends: []string{"criu"},
			Deb:        nfpm.Deb{Compression: "xz"},
			RPM:        nfpm.RPM{BuildHost: "berth", Compression: "xz"},
		},
	}
	if format == "deb" {
		// Where AppArmor is on, as in Debian's kernels, berthd loads its profile of containers with apparmor_parser.
		info.Recommends = append(info.Recommends, "apparmor")
	}
	// A pre-release comes before its release in both formats.
	info = nfpm.WithDefaults(info)
	if err := nfpm.PrepareForPackager(info, format); err != nil {
		return "", err
	}
	packager, err := nfpm.Get(format)
	if err != nil {
		return "", err
	}
	info.Target = filepath.Join(o.out, packager.ConventionalFileName(info))
	f, err := os.Create(info.Target)
	if err != nil {
		return "", err
	}
	return info.Target, errors.Join(packager.Package(info, f), f.Close())
}

// extensionRelease is what systemd-sysext wants of an extension: its file has to end with the name of the directory or
// image. It has no meaning where the tarball is unpacked at /.
const extensionRelease = "usr/lib/extension-release.d/extension-release.berth"

// systemdArchitectures are the names of architectures in such a file.
var systemdArchitectures = map[string]string{"amd64": "x86-64", "arm64": "arm64"}

// tarball has the same files, for systems with neither deb nor rpm: it is unpacked at /, or, where /usr is read-only,
// in a directory of systemd-sysext. Files of the administrator's are left out, since tar would write over them at an
// upgrade; those of the defaults are with the documents, too.
func tarball(o *options, list files.Contents) (name string, err error) {
	name = filepath.Join(o.out, fmt.Sprintf("berth-%s-linux-%s.tar.gz", o.version, o.arch))
	f, err := os.Create(name)
	if err != nil {
		return "", err
	}
	gz := gzip.NewWriter(f)
	w := tar.NewWriter(gz)
	defer func() { err = errors.Join(err, w.Close(), gz.Close(), f.Close()) }()
	for _, c := range list {
		if c.Type == files.TypeConfigNoReplace {
			continue
		}
		if err := add(w, c); err != nil {
			return name, err
		}
	}
	// The programs are static, and run on any distribution. systemd reads the units once they are there.
	text := "ID=_any\nARCHITECTURE=" + systemdArchitectures[o.arch] + "\nEXTENSION_RELOAD_MANAGER=1\n"
	if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: extensionRelease, Size: int64(len(text)),
		Mode: 0o644, ModTime: o.time, Uname: "root", Gname: "root"}); err != nil {
		return name, err
	}
	_, err = io.WriteString(w, text)
	return name, err
}

func add(w *tar.Writer, c *files.Content) error {
	if c.Type == files.TypeDir {
		return w.WriteHeader(&tar.Header{
			Typeflag: tar.TypeDir, Name: strings.TrimPrefix(c.Destination, "/") + "/",
			Mode: int64(c.FileInfo.Mode), ModTime: c.FileInfo.MTime, Uname: "root", Gname: "root",
		})
	}
	in, err := os.Open(c.Source)
	if err != nil {
		return err
	}
	defer in.Close()
	info, err := in.Stat()
	if err != nil {
		return err
	}
	err = w.WriteHeader(&tar.Header{
		Typeflag: tar.TypeReg, Name: strings.TrimPrefix(c.Destination, "/"), Size: info.Size(),
		Mode: int64(c.FileInfo.Mode), ModTime: c.FileInfo.MTime, Uname: "root", Gname: "root",
	})
	if err == nil {
		_, err = io.Copy(w, in)
	}
	return err
}

const checksums = "SHA256SUMS"

// sums writes the checksums of all files of the directory, as sha256sum -c reads them.
func sums(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	var out strings.Builder
	for _, e := range entries {
		if e.Name() == checksums {
			continue
		}
		f, err := os.Open(filepath.Join(dir, e.Name()))
		if err != nil {
			return err
		}
		h := sha256.New()
		_, err = io.Copy(h, f)
		if err = errors.Join(err, f.Close()); err != nil {
			return err
		}
		fmt.Fprintf(&out, "%x  %s\n", h.Sum(nil), e.Name())
	}
	return os.WriteFile(filepath.Join(dir, checksums), []byte(out.String()), 0o644)
}
