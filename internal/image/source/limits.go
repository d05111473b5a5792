package source

import (
	"fmt"
	"slices"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"berth/internal/image/unpack"
)

// Limits bound what an image may cost the node. Zero fields get the defaults, which no image that anybody has published
// meets. What is beyond one of them is errdefs.ErrResourceExhausted, with the key of the configuration in its text.
type Limits struct {
	// Layer bounds each layer.
	Layer unpack.Limits
	// Entries and Bytes are those of all layers of an image together, counted as for one layer. Bytes also bounds an
	// archive that is imported.
	Entries, Bytes uint64
	// Lookups are what fitting the layers of an image to one another may take: it grows with the square of their number.
	Lookups uint64
	// Layers are an image's; the kernel stacks 500 at most.
	Layers uint64
	// Document is the length of an index, a manifest or a configuration, and DocumentEntries the number of values in it:
	// three bytes of JSON become a value of a hundred.
	Document, DocumentEntries uint64
	// Volumes are those that a configuration declares: each container gets a directory, a copy and a mount for each.
	Volumes uint64
	// ConfigText is the length of all that is kept in memory of a configuration: what it gives to processes, which is
	// copied for each container and each exec, and labels, ports and volumes.
	ConfigText uint64
}

// DefaultLimits are those of a node that sets none.
var DefaultLimits = Limits{
	Layer:    unpack.Limits{Entries: 10_000_000, Bytes: 512 << 30, PathMemory: 64 << 20},
	Entries:  20_000_000,
	Bytes:    1 << 40,
	Lookups:  4_000_000,
	Layers:   500,
	Document: 4 << 20, DocumentEntries: 100_000,
	Volumes: 100, ConfigText: 1 << 20,
}

// WithDefaults are the limits with the default in place of each that is 0.
func (l Limits) WithDefaults() Limits {
	d := DefaultLimits
	for _, f := range []struct{ value, standard *uint64 }{
		{&l.Layer.Entries, &d.Layer.Entries}, {&l.Layer.Bytes, &d.Layer.Bytes}, {&l.Layer.PathMemory, &d.Layer.PathMemory},
		{&l.Entries, &d.Entries}, {&l.Bytes, &d.Bytes}, {&l.Layers, &d.Layers},
		{&l.Document, &d.Document}, {&l.DocumentEntries, &d.DocumentEntries}, {&l.ConfigText, &d.ConfigText},
		{&l.Volumes, &d.Volumes}, {&l.Lookups, &d.Lookups},
	} {
		if *f.value == 0 {
			*f.value = *f.standard
		}
	}
	return l
}

// The keys of the configuration that set limits of images; those of layers are unpack's.
const (
	KeyEntries         = "max_image_entries"
	KeyBytes           = "max_image_bytes"
	KeyLayers          = "max_layers"
	KeyDocument        = "max_document"
	KeyDocumentEntries = "max_document_entries"
	KeyConfigText      = "max_config_text"
	KeyVolumes         = "max_volumes"
)

// Beyond is the error of an image that is beyond the limit that a key sets.
func Beyond(what, key string, limit uint64, unit string) error {
	return &unpack.LimitError{What: what, Key: key, Limit: limit, Unit: unit}
}

// length checks what a descriptor says of an index, a manifest or a configuration, before it is read.
func (l *Limits) length(d ocispec.Descriptor) error {
	if d.Size > int64(l.Document) {
		return Beyond(fmt.Sprintf("it has %d bytes,", d.Size), KeyDocument, l.Document, "bytes")
	}
	return nil
}

// CheckDocument checks an index, a manifest or a configuration before it is parsed: the number of its values
// is what parsing takes in memory.
func (l *Limits) CheckDocument(raw []byte) error {
	if uint64(len(raw)) > l.Document {
		return Beyond("it has", KeyDocument, l.Document, "bytes")
	}
	if n := Values(raw); n > l.DocumentEntries {
		return Beyond("it has", KeyDocumentEntries, l.DocumentEntries, "values")
	}
	return nil
}

// Values counts the values of a JSON document, by what stands between them.
func Values(raw []byte) uint64 {
	n := uint64(1)
	for i := 0; i < len(raw); i++ {
		switch raw[i] {
		case ',', '[', '{':
			n++
		case '"':
			for i++; i < len(raw) && raw[i] != '"'; i++ {
				if raw[i] == '\\' {
					i++
				}
			}
		}
	}
	return n
}

// manifest checks what a manifest says of its layers.
func (l *Limits) manifest(layers []ocispec.Descriptor) error {
	if uint64(len(layers)) > l.Layers {
		return Beyond(fmt.Sprintf("the image has %d layers,", len(layers)), KeyLayers, l.Layers, "of them")
	}
	var packed uint64
	for _, d := range layers {
		if packed += uint64(max(d.Size, 0)); packed > l.Bytes {
			return Beyond("the layers of the image are packed in", KeyBytes, l.Bytes, "bytes")
		}
	}
	return nil
}

// config checks what a configuration gives to processes and containers.
func (l *Limits) config(c *ocispec.ImageConfig) error {
	if n := uint64(len(c.Volumes)); n > l.Volumes {
		return Beyond(fmt.Sprintf("the configuration declares %d volumes,", n), KeyVolumes, l.Volumes, "of them")
	}
	if ConfigText(c) > l.ConfigText {
		return Beyond("environment, command, user, labels, ports and volumes of the configuration have", KeyConfigText,
			l.ConfigText, "bytes")
	}
	return nil
}

// ConfigText is about how many bytes a configuration takes in memory.
func ConfigText(c *ocispec.ImageConfig) uint64 {
	n := uint64(len(c.User) + len(c.WorkingDir) + len(c.StopSignal))
	for _, text := range slices.Concat(c.Env, c.Entrypoint, c.Cmd) {
		n += uint64(len(text)) + 16 // and where it is in memory
	}
	for key, value := range c.Labels {
		n += uint64(len(key)+len(value)) + 32
	}
	for _, set := range []map[string]struct{}{c.ExposedPorts, c.Volumes} {
		for key := range set {
			n += uint64(len(key)) + 16
		}
	}
	return n
}
