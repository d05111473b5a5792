package dockerauth

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/containerd/errdefs"
	"github.com/distribution/reference"

	"berth/internal/model"
)

// maxFile is how many bytes a config.json may have.
const maxFile = 1 << 20

// File is a config.json of credentials.
type File struct {
	path        string
	mode        os.FileMode
	auths       map[string]entry
	credHelpers map[string]string // by registry
	credsStore  string

	timeout time.Duration // of a helper
}

type entry struct {
	Auth          string `json:"auth"`
	Username      string `json:"username"`
	Password      string `json:"password"`
	IdentityToken string `json:"identitytoken"`
	RegistryToken string `json:"registrytoken"`
}

// helperName is the end of the name of a program, docker-credential-NAME, and no path.
var helperName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]*$`)

// Read reads a file. A file that is not there is an error that wraps fs.ErrNotExist.
func Read(path string) (*File, error) { return read(path, func(os.FileInfo) error { return nil }) }

// ReadTrusted reads a file for a process with privileges. The file names programs that the process executes, so nobody
// but the process's own user may be able to write it.
func ReadTrusted(path string) (*File, error) {
	return read(path, func(info os.FileInfo) error {
		if s, ok := info.Sys().(*syscall.Stat_t); ok && int(s.Uid) != os.Geteuid() {
			return fmt.Errorf("%s belongs to user %d, and has to belong to user %d", path, s.Uid, os.Geteuid())
		}
		if mode := info.Mode().Perm(); mode&0o022 != 0 {
			return fmt.Errorf("%s has the mode %#o: others than its owner may write it; it has to be 0600", path, mode)
		}
		return nil
	})
}

func read(path string, check func(os.FileInfo) error) (*File, error) {
	fail := func(err error) (*File, error) {
		return nil, fmt.Errorf("credentials: %w: %w", err, errdefs.ErrFailedPrecondition)
	}
	// A FIFO at the path must not hold anybody up.
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return fail(err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return fail(err)
	}
	if !info.Mode().IsRegular() {
		return fail(fmt.Errorf("%s is no regular file", path))
	}
	if err := check(info); err != nil {
		return fail(err)
	}
	data, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return fail(err)
	}
	if len(data) > maxFile {
		return fail(fmt.Errorf("%s has more than %d bytes", path, maxFile))
	}
	var content struct {
		Auths       map[string]entry  `json:"auths"`
		CredHelpers map[string]string `json:"credHelpers"`
		CredsStore  string            `json:"credsStore"`
	}
	if json.Unmarshal(data, &content) != nil { // its error may quote the file
		return fail(fmt.Errorf("%s is no config.json of docker's kind", path))
	}
	out := &File{path: path, mode: info.Mode().Perm(), auths: content.Auths, credsStore: content.CredsStore,
		credHelpers: map[string]string{}, timeout: helperTimeout}
	for _, key := range bySpelling(content.CredHelpers) {
		if host, _ := split(key); out.credHelpers[host] == "" {
			out.credHelpers[host] = content.CredHelpers[key]
		}
	}
	for _, name := range out.helpers() {
		if !helperName.MatchString(name) {
			return fail(fmt.Errorf("%s names a credential helper that is no part of a program's name", path))
		}
	}
	return out, nil
}

// helpers are the names of all helpers that the file names, each once.
func (f *File) helpers() []string {
	var names []string
	for _, name := range f.credHelpers {
		names = append(names, name)
	}
	if f.credsStore != "" {
		names = append(names, f.credsStore)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// ReadableByOthers tells whether others than the file's owner may read it.
func (f *File) ReadableByOthers() bool { return f.mode&0o044 != 0 }

// Find returns the credentials for an image; nil where there are none. A helper that credHelpers names for the
// registry comes first, then an entry of auths, of which the longest path counts, then the helper of credsStore. Where
// several keys of the file mean the same, the first by bySpelling counts.
func (f *File) Find(ctx context.Context, ref reference.Named) (*model.Auth, error) {
	host := reference.Domain(ref)
	if name := f.credHelpers[host]; name != "" {
		return f.ask(ctx, name, host)
	}
	var best *entry
	longest := -1
	for _, key := range bySpelling(f.auths) {
		e := f.auths[key]
		of, path := split(key)
		if of != host || path != "" && path != reference.Path(ref) && !strings.HasPrefix(reference.Path(ref), path+"/") {
			continue
		}
		if e.Auth == "" && e.Username == "" && e.IdentityToken == "" && e.RegistryToken == "" {
			continue // kept by a helper
		}
		if len(path) > longest {
			best, longest = &e, len(path)
		}
	}
	switch {
	case best != nil:
		return &model.Auth{
			Username: best.Username, Password: best.Password, Auth: best.Auth,
			IdentityToken: best.IdentityToken, RegistryToken: best.RegistryToken,
		}, nil
	case f.credsStore != "":
		return f.ask(ctx, f.credsStore, host)
	}
	return nil, nil
}

// bySpelling are the keys of a part of the file, in an order in which the first of those that mean the same counts:
// as `docker login` writes it, without a scheme, and then by the alphabet.
func bySpelling[V any](part map[string]V) []string {
	rank := func(key string) int {
		host, path := split(key)
		switch key {
		case serverOf(host):
			return 0
		case host, host + "/" + path:
			return 1
		}
		return 2
	}
	return slices.SortedFunc(maps.Keys(part), func(a, b string) int {
		return cmp.Or(rank(a)-rank(b), strings.Compare(a, b))
	})
}

// split is the host that a key of the file speaks of, and the path of repositories; empty: all of the host's. Docker's
// keys may be URLs of an API, whose path is none of a repository.
func split(key string) (host, path string) {
	key = strings.TrimPrefix(strings.TrimPrefix(key, "https://"), "http://")
	host, path, _ = strings.Cut(key, "/")
	if path = strings.Trim(path, "/"); path == "v1" || path == "v2" {
		path = ""
	}
	if host == "index.docker.io" || host == "registry-1.docker.io" {
		host = "docker.io"
	}
	return host, path
}
