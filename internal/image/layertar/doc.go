// Package layertar keeps what it takes to make the tar of a layer again from the directory that it was unpacked into:
// all bytes of the tar but the contents of its files, and the names of these in between. A tar that is made again has
// the digest that the image's configuration names, or it is none.
//
// A record is read in a child (Role): it comes from one that a hostile layer may have taken over. berthd reads the
// first bytes alone, which have a fixed place (ReadHead).
package layertar
