package registrytest

import (
	"fmt"
	"os"
	"os/exec"
	"path"
	"runtime"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// ImageOption adds to an image. Layers are stacked in the order of the options.
type ImageOption func(*imageSpec) error

type imageSpec struct {
	layers      []layerSpec
	config      v1.Config
	platform    v1.Platform
	docker      bool
	compression Compression
	annotations map[string]string // of the manifest
	created     time.Time
}

type layerSpec struct {
	tar   []byte
	ready v1.Layer
}

// Image builds an image. Without options it is an OCI image for this machine with no layer; layers are packed by gzip.
func Image(opts ...ImageOption) (v1.Image, error) {
	spec := imageSpec{
		platform:    v1.Platform{OS: "linux", Architecture: runtime.GOARCH},
		compression: Gzip,
		created:     Epoch,
	}
	for _, opt := range opts {
		if err := opt(&spec); err != nil {
			return nil, err
		}
	}
	img := mutate.MediaType(empty.Image, types.OCIManifestSchema1)
	img = mutate.ConfigMediaType(img, types.OCIConfigJSON)
	if spec.docker {
		img = mutate.MediaType(img, types.DockerManifestSchema2)
		img = mutate.ConfigMediaType(img, types.DockerConfigJSON)
	}
	for _, ls := range spec.layers {
		l := ls.ready
		if l == nil {
			var err error
			if l, err = NewLayer(ls.tar, spec.compression, spec.docker); err != nil {
				return nil, err
			}
		}
		mt, err := l.MediaType()
		if err != nil {
			return nil, err
		}
		img, err = mutate.Append(img, mutate.Addendum{Layer: l, MediaType: mt,
			History: v1.History{Created: v1.Time{Time: spec.created}, CreatedBy: "registrytest"}})
		if err != nil {
			return nil, err
		}
	}
	cf, err := img.ConfigFile()
	if err != nil {
		return nil, err
	}
	cf = cf.DeepCopy()
	cf.Config = spec.config
	cf.OS, cf.Architecture, cf.Variant = spec.platform.OS, spec.platform.Architecture, spec.platform.Variant
	cf.Created = v1.Time{Time: spec.created}
	if img, err = mutate.ConfigFile(img, cf); err != nil || len(spec.annotations) == 0 {
		return img, err
	}
	return mutate.Annotations(img, spec.annotations).(v1.Image), nil
}

// Layer adds a layer of these entries, as they are.
func Layer(entries ...Entry) ImageOption {
	return func(s *imageSpec) error {
		data, err := Tar(entries...)
		if err != nil {
			return err
		}
		s.layers = append(s.layers, layerSpec{tar: data})
		return nil
	}
}

// RawLayer adds a layer whose tar is given as bytes; they need not be a tar.
func RawLayer(tar []byte) ImageOption {
	return func(s *imageSpec) error {
		s.layers = append(s.layers, layerSpec{tar: tar})
		return nil
	}
}

// ReadyLayer adds a layer that was made by NewLayer, so that images can share it whatever their compression.
func ReadyLayer(l v1.Layer) ImageOption {
	return func(s *imageSpec) error {
		s.layers = append(s.layers, layerSpec{ready: l})
		return nil
	}
}

// WithFiles adds a layer of regular files, by name.
func WithFiles(files map[string]string) ImageOption { return Layer(Files(files)...) }

// WithBusybox adds a layer with a root file system of busybox, a PATH and a shell as command.
func WithBusybox() ImageOption {
	return func(s *imageSpec) error {
		entries, err := Busybox()
		if err != nil {
			return err
		}
		if len(s.config.Env) == 0 {
			s.config.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
		}
		if len(s.config.Cmd) == 0 {
			s.config.Cmd = []string{"sh"}
		}
		return Layer(entries...)(s)
	}
}

// WithBinary adds a layer with a program from the host's file system, and makes it the entry point.
func WithBinary(hostPath, name string) ImageOption {
	return func(s *imageSpec) error {
		body, err := os.ReadFile(hostPath)
		if err != nil {
			return err
		}
		name = strings.TrimPrefix(path.Clean("/"+name), "/")
		s.config.Entrypoint = []string{"/" + name}
		entries := append(parents(name, map[string]bool{".": true}), File(name, 0o755, string(body)))
		return Layer(entries...)(s)
	}
}

// Config changes the image's configuration.
func Config(change func(*v1.Config)) ImageOption {
	return func(s *imageSpec) error {
		change(&s.config)
		return nil
	}
}

// Env adds variables (KEY=value).
func Env(env ...string) ImageOption {
	return Config(func(c *v1.Config) { c.Env = append(c.Env, env...) })
}

// Cmd sets the default arguments.
func Cmd(args ...string) ImageOption { return Config(func(c *v1.Config) { c.Cmd = args }) }

// Entrypoint sets the program.
func Entrypoint(args ...string) ImageOption {
	return Config(func(c *v1.Config) { c.Entrypoint = args })
}

// User sets whom the image's program runs as: user, uid, user:group, uid:gid.
func User(user string) ImageOption { return Config(func(c *v1.Config) { c.User = user }) }

// WorkingDir sets the working directory.
func WorkingDir(dir string) ImageOption { return Config(func(c *v1.Config) { c.WorkingDir = dir }) }

// Volumes declares volumes.
func Volumes(paths ...string) ImageOption {
	return Config(func(c *v1.Config) { c.Volumes = set(paths) })
}

// ExposedPorts declares ports (80/tcp).
func ExposedPorts(ports ...string) ImageOption {
	return Config(func(c *v1.Config) { c.ExposedPorts = set(ports) })
}

// StopSignal sets the signal that asks the program to end.
func StopSignal(signal string) ImageOption {
	return Config(func(c *v1.Config) { c.StopSignal = signal })
}

// Label sets a label; images that differ in a label have different IDs.
func Label(key, value string) ImageOption {
	return Config(func(c *v1.Config) {
		if c.Labels == nil {
			c.Labels = map[string]string{}
		}
		c.Labels[key] = value
	})
}

// Docker gives the image Docker's media types in place of OCI's.
func Docker() ImageOption {
	return func(s *imageSpec) error {
		s.docker = true
		return nil
	}
}

// Compressed chooses how the layers are packed.
func Compressed(c Compression) ImageOption {
	return func(s *imageSpec) error {
		s.compression = c
		return nil
	}
}

// Annotation adds an annotation to the manifest.
func Annotation(key, value string) ImageOption {
	return func(s *imageSpec) error {
		if s.annotations == nil {
			s.annotations = map[string]string{}
		}
		s.annotations[key] = value
		return nil
	}
}

// Platform says what the image is for: os/architecture[/variant].
func Platform(platform string) ImageOption {
	return func(s *imageSpec) error {
		p, err := v1.ParsePlatform(platform)
		if err != nil {
			return err
		}
		s.platform = *p
		return nil
	}
}

func set(keys []string) map[string]struct{} {
	m := map[string]struct{}{}
	for _, k := range keys {
		m[k] = struct{}{}
	}
	return m
}

// Index is a list of images, each under the platform that its configuration says.
func Index(docker bool, images ...v1.Image) (v1.ImageIndex, error) {
	mediaType := types.OCIImageIndex
	if docker {
		mediaType = types.DockerManifestList
	}
	index := mutate.IndexMediaType(empty.Index, mediaType)
	for _, img := range images {
		cf, err := img.ConfigFile()
		if err != nil {
			return nil, err
		}
		index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: img,
			Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: cf.OS, Architecture: cf.Architecture, Variant: cf.Variant}}})
	}
	return index, nil
}

// GoProgram builds a package of this module as a static program at out.
func GoProgram(pkg, out string) error {
	cmd := exec.Command("go", "build", "-trimpath", "-ldflags=-s -w", "-o", out, pkg)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=-buildvcs=false")
	if output, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build %s: %w: %s", pkg, err, output)
	}
	return nil
}
