package ocispec

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	containerdseccomp "github.com/containerd/containerd/v2/contrib/seccomp"
	securejoin "github.com/cyphar/filepath-securejoin"
	specs "github.com/opencontainers/runtime-spec/specs-go"

	"berth/internal/model"
)

// seccomp: a privileged container is never filtered, as Kubernetes has it.
func (b *builder) seccomp() error {
	profile := b.security.Seccomp
	if profile == nil {
		profile = b.in.Handler.Seccomp
	}
	if profile == nil || b.security.Privileged {
		return nil
	}
	switch profile.Type {
	case model.ProfileUnconfined, "":
	case model.ProfileRuntimeDefault:
		b.spec.Linux.Seccomp = defaultSeccomp(b.spec)
	case model.ProfileLocalhost:
		return b.waiting("seccomp profile", func() error {
			loaded, err := loadSeccomp(b.in.Handler.SeccompRoot, profile.LocalhostRef)
			b.spec.Linux.Seccomp = loaded
			return err
		})
	default:
		return invalid("seccomp profile: type %q is unknown", profile.Type)
	}
	return nil
}

// defaults are default profiles by the capabilities that they were made for. Clients choose among few sets; those who
// make up many only lose the saving.
var defaults struct {
	sync.Mutex
	profiles map[string]*specs.LinuxSeccomp
}

const maxDefaults = 64

func defaultSeccomp(spec *specs.Spec) *specs.LinuxSeccomp {
	key := strings.Join(spec.Process.Capabilities.Bounding, " ")
	defaults.Lock()
	defer defaults.Unlock()
	if profile := defaults.profiles[key]; profile != nil {
		return profile
	}
	profile := containerdseccomp.DefaultProfile(spec)
	if defaults.profiles == nil || len(defaults.profiles) >= maxDefaults {
		defaults.profiles = map[string]*specs.LinuxSeccomp{}
	}
	defaults.profiles[key] = profile
	return profile
}

// UsualSeccomp are the default profiles of a handler's containers that change no capabilities, and of those that drop
// all, as nearly all pods have it.
func UsualSeccomp(h Handler, host *Host) ([]*specs.LinuxSeccomp, error) {
	var profiles []*specs.LinuxSeccomp
	for _, drop := range [][]string{nil, {allCapabilities}} {
		security := &model.ContainerSecurity{Capabilities: model.Capabilities{Drop: drop}}
		b := &builder{in: Input{Handler: h}, security: security, host: host, spec: &specs.Spec{Process: &specs.Process{}}}
		if err := b.capabilities(); err != nil {
			return nil, err
		}
		profiles = append(profiles, defaultSeccomp(b.spec))
	}
	return profiles, nil
}

// maxProfile bounds a profile's file; Docker's own default has 20 KB.
const maxProfile = 4 << 20

// loadSeccomp reads a profile in the OCI runtime spec's JSON format.
func loadSeccomp(root, ref string) (*specs.LinuxSeccomp, error) {
	if ref == "" {
		return nil, invalid("seccomp profile: type Localhost without a file")
	}
	path := ref
	if !filepath.IsAbs(ref) {
		if root == "" {
			return nil, invalid("seccomp profile: %q is not an absolute path", ref)
		}
		var err error
		if path, err = securejoin.SecureJoin(root, ref); err != nil {
			return nil, invalid("seccomp profile %s: %v", ref, err)
		}
	}
	info, err := os.Stat(path)
	if err != nil {
		return nil, invalid("seccomp profile: %v", err)
	}
	if !info.Mode().IsRegular() || info.Size() > maxProfile {
		return nil, invalid("seccomp profile %s: not a regular file of at most %d bytes", path, maxProfile)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, invalid("seccomp profile: %v", err)
	}
	profile, err := parseSeccomp(text)
	if err != nil {
		return nil, invalid("seccomp profile %s: %v", path, err)
	}
	return profile, nil
}

func parseSeccomp(text []byte) (*specs.LinuxSeccomp, error) {
	decoder := json.NewDecoder(bytes.NewReader(text))
	profile := &specs.LinuxSeccomp{}
	if err := decoder.Decode(profile); err != nil {
		var syntax *json.SyntaxError
		if errors.As(err, &syntax) {
			return nil, fmt.Errorf("line %d: %w", 1+bytes.Count(text[:min(syntax.Offset, int64(len(text)))], []byte("\n")), err)
		}
		return nil, err
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("more than one JSON value")
	}
	// Docker's own format looks alike, but hangs conditions on its rules, and dropping those would open what they close.
	var docker struct {
		ArchMap  json.RawMessage `json:"archMap"`
		Syscalls []struct {
			Includes, Excludes map[string]json.RawMessage
		} `json:"syscalls"`
	}
	if err := json.Unmarshal(text, &docker); err == nil {
		if docker.ArchMap != nil {
			return nil, errors.New(`"archMap" is of Docker's format; name the architectures in "architectures"`)
		}
		for i, rule := range docker.Syscalls {
			if len(rule.Includes) > 0 || len(rule.Excludes) > 0 {
				return nil, fmt.Errorf(`syscalls[%d]: "includes" and "excludes" are of Docker's format`, i)
			}
		}
	}
	return profile, checkSeccomp(profile)
}

var seccompActions = map[specs.LinuxSeccompAction]bool{
	specs.ActKill: true, specs.ActKillProcess: true, specs.ActKillThread: true, specs.ActTrap: true, specs.ActErrno: true,
	specs.ActTrace: true, specs.ActAllow: true, specs.ActLog: true,
}

// maxListener is how long the path of an agent's socket may be (sockaddr_un).
const maxListener = 107

// checkSeccomp refuses what no container could start with. Rules and names are runc's: without an agent there is nobody
// to tell of a call, and a call to write(2) that an agent is told of would keep the filter's descriptor from getting to
// the agent. The agent of a profile that tells it of no call is ignored, as the OCI runtime specification has it.
func checkSeccomp(p *specs.LinuxSeccomp) error {
	if err := checkListener(p); err != nil {
		return err
	}
	notifies := false
	check := func(where string, action specs.LinuxSeccompAction, names []string) error {
		switch {
		case action == specs.ActNotify && p.ListenerPath == "":
			return fmt.Errorf(`%s: SCMP_ACT_NOTIFY without "listenerPath", the socket of the agent that is told`, where)
		case action == specs.ActNotify && names == nil:
			return fmt.Errorf("%s: SCMP_ACT_NOTIFY cannot be used as default action", where)
		case action == specs.ActNotify && slices.Contains(names, "write"):
			return fmt.Errorf("%s: SCMP_ACT_NOTIFY cannot be used for the write syscall", where)
		case action == specs.ActNotify:
			notifies = true
		case !seccompActions[action]:
			return fmt.Errorf("%s: action %q is unknown", where, action)
		}
		return nil
	}
	if err := check("defaultAction", p.DefaultAction, nil); err != nil {
		return err
	}
	for i, rule := range p.Syscalls {
		if len(rule.Names) == 0 {
			return fmt.Errorf("syscalls[%d]: no names", i)
		}
		if err := check(fmt.Sprintf("syscalls[%d]", i), rule.Action, rule.Names); err != nil {
			return err
		}
	}
	if !notifies {
		p.ListenerPath, p.ListenerMetadata = "", ""
	}
	return nil
}

func checkListener(p *specs.LinuxSeccomp) error {
	switch path := p.ListenerPath; {
	case path == "" && p.ListenerMetadata != "":
		return errors.New(`"listenerMetadata" without "listenerPath"`)
	case path != "" && !filepath.IsAbs(path):
		return fmt.Errorf(`"listenerPath": %q is not an absolute path`, path)
	case len(path) > maxListener || strings.ContainsRune(path, 0):
		return fmt.Errorf(`"listenerPath": %q is no path of a socket (at most %d bytes)`, path, maxListener)
	}
	return nil
}
