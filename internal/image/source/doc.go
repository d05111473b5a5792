// Package source reads what an image is made of, as a registry or an archive describes it: from an index down to the
// manifest for this platform, and its configuration. Nothing of them is believed beyond the limits of the node.
package source
